"""The objects of the API, typed (contract §9). Unknown fields may come; ignore them."""

from typing import Any, Literal, TypedDict

Json = dict[str, Any]

InterruptType = Literal["confirm_action", "select_option", "provide_input"]
OnConflict = Literal["reject", "enqueue", "interrupt", "rollback"]
OnDisconnect = Literal["continue", "cancel"]
RunStatus = Literal["queued", "running", "interrupted", "completed", "failed", "cancelled"]


class Action(TypedDict, total=False):
    """What an interrupt asks to be allowed; `args` are masked."""

    toolCallId: str
    name: str
    args: Json
    description: str


class Interrupt(TypedDict):
    id: str
    runId: str
    conversationId: str
    type: InterruptType
    format: str
    status: Literal["pending", "resolved", "expired", "cancelled"]
    payload: Any
    allowedDecisions: list[str]
    actions: list[Action]
    requiredPermission: str | None
    expiresAt: str | None
    decision: Any
    resolvedBy: str | None
    resolvedAt: str | None
    createdAt: str


class RunError(TypedDict):
    code: str
    message: str


class Run(TypedDict):
    id: str
    conversationId: str
    userMessageId: str
    graph: str
    status: RunStatus
    epoch: int
    lastSequence: int
    pendingInterrupts: list[Interrupt]
    next: list[str]
    output: Any
    messageId: str | None
    error: RunError | None
    cancelReason: str | None
    cancelledBy: str | None
    cancelledAt: str | None
    onDisconnect: OnDisconnect
    metadata: Json
    createdAt: str
    startedAt: str | None
    finishedAt: str | None
    updatedAt: str


class Conversation(TypedDict):
    id: str
    title: str
    graph: str
    facts: Json
    factsVersion: int
    summary: str | None
    activeRun: Run | None
    createdAt: str
    updatedAt: str


class Message(TypedDict, total=False):
    """`toolCallId` and `toolName` with a tool's only."""

    id: str
    conversationId: str
    runId: str | None
    role: Literal["user", "assistant", "tool"]
    content: str
    toolCallId: str
    toolName: str
    createdAt: str


class ResumeState(TypedDict):
    """What a fresh page needs: the active run, else the newest one."""

    conversationId: str
    run: Run | None
    lastSequence: int
    pendingInterrupts: list[Interrupt]
    next: list[str]
    resumable: bool


class Ticket(TypedDict):
    """Opens the stream of one run for a short time, where no header can be sent."""

    ticket: str
    streamUrl: str
    expiresAt: str
