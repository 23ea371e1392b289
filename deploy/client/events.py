"""The events of a run, typed (contract §3).

    async for event in client.follow(run_id):
        if event["type"] == "text_delta":
            print(event["delta"], end="")  # mypy knows the fields of each type

Further fields and types may come (contract, introduction): take no unknown one for a mistake. Tests
hold these classes against `common.events.EVENT_FIELDS`.
"""

from typing import Any, Literal, NotRequired, TypedDict

Json = dict[str, Any]


class _Event(TypedDict):
    """What every event has. `at` is RFC 3339 in UTC."""

    runId: str
    sequence: int
    epoch: int
    at: str
    stepId: NotRequired[str]
    """Of the step in which it was made; `run_resumed.discard` and `step_retried` name such ids."""


class RunStarted(_Event):
    type: Literal["run_started"]
    conversationId: str
    graph: str


class StepStarted(_Event):
    type: Literal["step_started"]
    node: str


class StepFinished(_Event):
    type: Literal["step_finished"]
    node: str
    status: Literal["success", "error", "interrupted"]


class TextDelta(_Event):
    """Text to append to the message, never a full overwrite."""

    type: Literal["text_delta"]
    messageId: str
    delta: str


class ReasoningDelta(_Event):
    type: Literal["reasoning_delta"]
    messageId: str
    delta: str


class Usage(_Event):
    type: Literal["usage"]
    messageId: str
    inputTokens: int
    outputTokens: int
    totalTokens: int


class ToolStarted(_Event):
    type: Literal["tool_started"]
    callId: str
    tool: str
    input: NotRequired[Any]


class ToolFinished(_Event):
    type: Literal["tool_finished"]
    callId: str
    tool: str
    status: Literal["success", "error"]
    summary: NotRequired[str]


class Custom(_Event):
    type: Literal["custom"]
    data: Any


class InterruptAsked(_Event):
    """The run waits for a person."""

    type: Literal["interrupt"]
    interruptId: str
    interruptType: Literal["confirm_action", "select_option", "provide_input"]
    payload: Any
    expiresAt: NotRequired[str]
    requiredPermission: NotRequired[str]


class InterruptResolved(_Event):
    type: Literal["interrupt_resolved"]
    interruptId: str
    status: Literal["resolved", "expired", "cancelled"]
    decision: NotRequired[Any]
    resolvedBy: NotRequired[str]


class RunPaused(_Event):
    type: Literal["run_paused"]
    reason: Literal["breakpoint", "pending_interrupts"]
    next: list[str]


class RunResumed(_Event):
    """Drop all that was shown under exactly the steps of `discard`: it comes again."""

    type: Literal["run_resumed"]
    reason: Literal["decision", "continue", "failover", "handover"]
    discard: list[str]


class StepRetried(_Event):
    """Drop what was shown under `stepId`: the step is tried again."""

    type: Literal["step_retried"]
    attempt: int


class Done(_Event):
    type: Literal["done"]
    messageId: NotRequired[str]
    output: NotRequired[Any]


class Cancelled(_Event):
    type: Literal["cancelled"]
    reason: Literal["user", "rejected", "expired", "disconnected", "superseded"]


class Failed(_Event):
    type: Literal["error"]
    code: str
    message: str
    retryable: bool


Event = (
    RunStarted
    | StepStarted
    | StepFinished
    | TextDelta
    | ReasoningDelta
    | Usage
    | ToolStarted
    | ToolFinished
    | Custom
    | InterruptAsked
    | InterruptResolved
    | RunPaused
    | RunResumed
    | StepRetried
    | Done
    | Cancelled
    | Failed
)
