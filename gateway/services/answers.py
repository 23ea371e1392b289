"""What the session facade answers of a run (contract §6). All of it comes from Postgres."""

from collections.abc import Mapping, Sequence
from typing import Any

from common.db import interrupts, messages, runs
from common.db.engine import Connection
from common.db.interrupts import Interrupt
from common.db.messages import Message
from common.db.runs import Run
from common.errors import Refused
from common.events import utc_text
from common.hitl import response_types
from common.runs import CancelReason, Status
from gateway.agent_schemas import AgentAnswer, InterruptData, TaskStatus

STATUS: Mapping[Status, TaskStatus] = {
    "queued": "running",
    "running": "running",
    "interrupted": "interrupted",
    "completed": "completed",
    "failed": "error",
    "cancelled": "completed",
}
CANCELLED: Mapping[CancelReason, str] = {
    "user": "cancelled by the user",
    "rejected": "cancelled: the action was rejected",
    "expired": "cancelled: nobody decided in time",
    "disconnected": "cancelled: nobody was watching any more",
    "superseded": "cancelled: another run took its place",
}
_MESSAGES_MAX = 200
_MESSAGES_BYTES = 1 << 20


async def answer_of(connection: Connection, run: Run) -> AgentAnswer:
    """In a snapshot, of which `run` is a part as well."""
    made = AgentAnswer(session_id=run.conversation_id, task_id=run.id, status=STATUS[run.status])
    if made.status == "interrupted":
        pending = await interrupts.of_run(connection, run.id, "pending")
        made.interrupt_data = _asked(run, pending)
    elif made.status == "error":
        made.message = str((run.error or {}).get("message", "the run has failed"))
    elif made.status == "completed":
        if run.cancel_reason is not None:
            made.message, made.cancelled_by = CANCELLED[run.cancel_reason], run.cancel_requested_by
        said = await messages.of_run(connection, run.id, _MESSAGES_MAX, _MESSAGES_BYTES)
        made.result = _result(run.output, said)
    return made


async def find_run(connection: Connection, run_id: str, user: str) -> Run:
    run = await runs.find_for_user(connection, run_id, user)
    if run is None:
        raise Refused("NOT_FOUND", "there is no such task")
    return run


def _result(output: Any, said: Sequence[Message]) -> dict[str, Any]:
    """As the graph's own result: its state, in which the messages are."""
    state = dict(output) if isinstance(output, Mapping) else {}
    if output is not None and not isinstance(output, Mapping):
        state["output"] = output
    return {**state, "messages": [_message(message) for message in said]}


def _message(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": message.id,
        "role": message.role,
        "content": message.content,
        "created_at": utc_text(message.created_at),
    }
    if message.tool_call_id is not None:
        shown |= {"tool_call_id": message.tool_call_id, "tool_name": message.tool_name}
    return shown


def _asked(run: Run, pending: Sequence[Interrupt]) -> InterruptData:
    """The oldest question; once it is answered, the next one comes as a further answer."""
    if not pending:
        return _breakpoint(run)
    first = pending[0]
    return InterruptData(
        interrupt_id=first.id,
        type=first.type,
        payload=first.payload,
        actions=[_action(action) for action in first.actions],
        allowed_response_types=response_types(first.allowed_decisions),
        required_permission=first.required_permission,
        expires_at=first.expires_at,
        pending=len(pending),
        next=run.next,
    )


def _breakpoint(run: Run) -> InterruptData:
    return InterruptData(
        interrupt_id=None,
        type="breakpoint",
        payload=None,
        actions=[],
        allowed_response_types=["accept"],
        required_permission=None,
        expires_at=None,
        pending=0,
        next=run.next,
    )


def _action(action: Mapping[str, Any]) -> dict[str, Any]:
    names = {"toolCallId": "tool_call_id"}
    return {names.get(name, name): value for name, value in action.items()}
