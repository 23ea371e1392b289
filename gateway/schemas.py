"""What crosses the wire (contract §4, §5, §9). camelCase; unknown request fields are refused.

Requests are strict: no text becomes a number, no character that cannot be stored gets in, and JSON
that a client chose freely is bounded in depth, so that nothing behind the edge has to ask again.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_serializer,
)
from pydantic.alias_generators import to_camel

from common import facts
from common.db.conversations import Conversation
from common.db.interrupts import Interrupt
from common.db.messages import Message
from common.db.runners import Runner
from common.db.runs import Run
from common.events import utc_text
from common.runs import InterruptStatus, InterruptType, OnConflict, OnDisconnect, Status

_JSON_DEPTH_MAX = 48
_INTEGER_MAX = 2**63 - 1


def storable_text(text: str) -> str:
    """Postgres stores neither NUL nor half a surrogate pair."""
    if (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)) or "\0" in text:
        raise ValueError("holds a character that cannot be stored")
    return text


def storable_json(value: Any) -> Any:
    _check_json(value, _JSON_DEPTH_MAX)
    return value


def _check_json(value: Any, depth: int) -> None:
    """Iterating over what Python's parser lets through: NaN, endless numbers, deep nesting."""
    if isinstance(value, str):
        storable_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("holds a number that is not finite")
    elif isinstance(value, int):
        if abs(value) > _INTEGER_MAX:
            raise ValueError("holds an integer of more than 64 bits")
    elif isinstance(value, dict | list):
        _check_nested(value, depth - 1)


def _check_nested(value: dict[str, Any] | list[Any], depth: int) -> None:
    if depth < 0:
        raise ValueError("is nested too deeply")
    if isinstance(value, dict):
        for key in value:
            storable_text(key)
    for item in value.values() if isinstance(value, dict) else value:
        _check_json(item, depth)


def _facts(value: dict[str, Any]) -> dict[str, Any]:
    facts.check(value)
    return value


def _fact_key(key: str) -> str:
    facts.check_keys([key])
    return key


Text = Annotated[str, AfterValidator(storable_text)]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=255), AfterValidator(storable_text)
]
Title = Annotated[str, StringConstraints(max_length=200), AfterValidator(storable_text)]
Json = Annotated[Any, AfterValidator(storable_json)]
Object = Annotated[dict[str, Any], AfterValidator(storable_json)]
Facts = Annotated[dict[str, Any], AfterValidator(storable_json), AfterValidator(_facts)]
FactKey = Annotated[str, AfterValidator(_fact_key)]
Moment = Annotated[datetime, PlainSerializer(utc_text, return_type=str)]


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class _Request(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, populate_by_name=False
    )


_TEXT = {"type": "string"}


def _one_key(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: value}, "required": [key]}


# --- requests ---------------------------------------------------------------------------------


class ConversationRequest(_Request):
    title: Title | None = None
    graph: Name | None = None
    facts: Facts = {}


class FactsRequest(_Request):
    set: Facts = {}
    unset: Annotated[list[FactKey], Field(max_length=facts.FACTS_MAX)] = []
    version: Annotated[int, Field(ge=1, le=_INTEGER_MAX)]


class UserMessage(_Request):
    content: Annotated[str, StringConstraints(min_length=1), AfterValidator(storable_text)]


class RunRequest(_Request):
    message: UserMessage
    input_format: Literal["text", "json"] = "text"
    idempotency_key: Name | None = None
    on_disconnect: OnDisconnect | None = None
    on_conflict: OnConflict = "reject"
    interrupt_before: list[Name] | Literal["*"] = []
    interrupt_after: list[Name] | Literal["*"] = []
    metadata: Object = {}


class ChatRequest(RunRequest):
    conversation_id: Name | None = None
    graph: Name | None = None


# any JSON here: what fits is decided after the interrupt was found (contract §5, step 4)
Decision = Annotated[
    Any,
    AfterValidator(storable_json),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["approve", "reject"]},
                _one_key("reject", {"type": "object", "properties": {"message": _TEXT}}),
                _one_key("edit", {"type": "object"}),
                _one_key("select", {}),
                _one_key("fill", {"type": "object"}),
            ]
        }
    ),
]


class DecisionRequest(_Request):
    interrupt_id: Name
    decision: Decision
    idempotency_key: Name | None = None
    confirm_version: Name | None = None


class ValuesRequest(_Request):
    resume: Annotated[dict[Name, Json], Field(min_length=1, max_length=100)]
    idempotency_key: Name | None = None
    confirm_version: Name | None = None


class ContinueRequest(_Request):
    go_on: Annotated[Literal[True], Field(alias="continue")]
    idempotency_key: Name | None = None


def _kind(body: Any) -> str:
    if isinstance(body, Mapping):
        return next((key for key in ("continue", "resume") if key in body), "decision")
    return "decision"


ResumeRequest = Annotated[
    Annotated[DecisionRequest, Tag("decision")]
    | Annotated[ValuesRequest, Tag("resume")]
    | Annotated[ContinueRequest, Tag("continue")],
    Discriminator(_kind),
]


# --- answers ----------------------------------------------------------------------------------


class InterruptOut(_Wire):
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


class RunOut(_Wire):
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


class ConversationOut(_Wire):
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


class MessageOut(_Wire):
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


Item = TypeVar("Item", bound=_Wire)


class Page(_Wire, Generic[Item]):
    items: list[Item]
    next_cursor: str | None


class RunCreated(_Wire):
    run: RunOut
    stream_url: str


class RunAnswer(_Wire):
    run: RunOut


class InterruptAnswer(_Wire):
    """For an approver who is not the owner: all that was decided, in the order in which it was
    sent; `interrupt` is the first of them."""

    interrupt: InterruptOut
    interrupts: list[InterruptOut]


class TicketOut(_Wire):
    ticket: str
    stream_url: str
    expires_at: Moment


class ResumeState(_Wire):
    conversation_id: str
    run: RunOut | None
    last_sequence: int
    pending_interrupts: list[InterruptOut]
    next: list[str]
    resumable: bool


class EventPage(_Wire):
    events: list[dict[str, Any]]
    next: int
    complete: bool


class TokenOut(_Wire):
    token: str
    user: str
    expires_at: Moment


class RunnerOut(_Wire):
    id: str
    host: str
    pid: int
    state: Literal["alive", "draining", "dead"]
    capacity: int
    runs: int
    age_s: float
    lease_s: float

    @classmethod
    def of(cls, row: Runner) -> Self:
        now = datetime.now(UTC)
        state = "dead" if row.dead_at else "draining" if row.draining else "alive"
        return cls(
            id=row.id,
            host=row.host,
            pid=row.pid,
            state=state,
            capacity=row.capacity,
            runs=row.runs,
            age_s=max(0.0, (now - row.started_at).total_seconds()),
            lease_s=max(0.0, (row.lease_until - now).total_seconds()),
        )


class GatewayOut(_Wire):
    """`runs` are those that it follows, `lagS` is a message's way through Redis and back."""

    id: str
    host: str
    pid: int
    age_s: float
    streams: int
    runs: int
    events_sent: int
    healthy: bool
    lag_s: float | None


class TakeoverOut(_Wire):
    """A run that was taken off a `runner`, and its status now."""

    run_id: str
    runner: str
    epoch: int
    at: Moment
    status: Status


class OperationsOut(_Wire):
    """Ended runs count for `endedWithinS` only, and up to `endedMax` of them all."""

    at: str
    degraded: bool
    runs: dict[Status, int]
    ended_within_s: int
    ended_max: int
    queue_age_s: float
    runners: list[RunnerOut]
    gateways: list[GatewayOut]
    takeovers: list[TakeoverOut]


class Problem(_Wire):
    """RFC 9457; `code` is stable (contract §4)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
