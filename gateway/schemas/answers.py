"""What clients get: the objects of contract §9, and what is around them."""

from collections.abc import Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from common.db.conversations import Conversation
from common.db.interrupts import Interrupt
from common.db.messages import Message
from common.db.runs import Run
from common.runs import InterruptStatus, InterruptType, OnDisconnect, Status
from gateway.schemas.texts import Moment
from gateway.schemas.wire import Wire


class InterruptOut(Wire):
    id: str
    run_id: str
    conversation_id: str
    type: InterruptType
    format: str
    status: InterruptStatus
    payload: Any
    allowed_decisions: list[Any]
    actions: list[Any]
    required_permission: str | None
    expires_at: Moment | None
    decision: Any
    resolved_by: str | None
    resolved_at: Moment | None
    created_at: Moment

    @classmethod
    def of(cls, row: Interrupt) -> Self:
        return cls.model_validate(row, from_attributes=True)


class RunOut(Wire):
    id: str
    conversation_id: str
    user_message_id: str
    graph: str
    status: Status
    epoch: int
    last_sequence: int
    pending_interrupts: list[InterruptOut]
    next: list[str]
    output: Any
    message_id: str | None
    error: dict[str, Any] | None
    cancel_reason: str | None
    cancelled_by: str | None
    cancelled_at: Moment | None
    on_disconnect: OnDisconnect
    metadata: dict[str, Any]
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    updated_at: Moment

    @classmethod
    def of(cls, row: Run, pending: Sequence[Interrupt], last_sequence: int | None = None) -> Self:
        fields = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        fields["pending_interrupts"] = [InterruptOut.of(interrupt) for interrupt in pending]
        fields["last_sequence"] = max(row.last_sequence, last_sequence or 0)
        ended = row.status == "cancelled"  # it may have completed before it was told
        fields["cancelled_by"] = row.cancel_requested_by if ended else None
        fields["cancelled_at"] = (row.cancel_requested_at or row.finished_at) if ended else None
        return cls(**fields)


class ConversationOut(Wire):
    id: str
    title: str
    graph: str
    facts: dict[str, Any]
    facts_version: int
    summary: str | None
    active_run: RunOut | None
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(
        cls, row: Conversation, active_run: RunOut | None, facts: dict[str, Any] | None = None
    ) -> Self:
        """`facts`: those that the caller may see, where that is not all."""
        fields = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        fields |= {} if facts is None else {"facts": facts}
        return cls(**fields, active_run=active_run)


class MessageOut(Wire):
    id: str
    conversation_id: str
    run_id: str | None
    role: Literal["user", "assistant", "tool"]
    content: str
    tool_call_id: str | None = None
    tool_name: str | None = None
    created_at: Moment

    @classmethod
    def of(cls, row: Message) -> Self:
        return cls.model_validate(row, from_attributes=True)

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        absent = {"toolCallId", "toolName", "tool_call_id", "tool_name"}
        return {k: v for k, v in handler(self).items() if v is not None or k not in absent}


Item = TypeVar("Item", bound=Wire)


class Page(Wire, Generic[Item]):
    items: list[Item]
    next_cursor: str | None


class RunCreated(Wire):
    run: RunOut
    stream_url: str


class RunAnswer(Wire):
    run: RunOut


class InterruptAnswer(Wire):
    """For an approver who is not the owner: what was decided. `interrupts` is there where a map has
    answered several: all of them as they were sent; `interrupt` is the first."""

    interrupt: InterruptOut
    interrupts: list[InterruptOut] | None = None


class TicketOut(Wire):
    ticket: str
    stream_url: str
    expires_at: Moment


class ResumeState(Wire):
    conversation_id: str
    run: RunOut | None
    last_sequence: int
    pending_interrupts: list[InterruptOut]
    next: list[str]
    resumable: bool


class EventPage(Wire):
    events: list[dict[str, Any]]
    next: int
    complete: bool


class TokenOut(Wire):
    token: str
    user: str
    expires_at: Moment


class Problem(Wire):
    """RFC 9457; `code` is stable (contract §4)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
