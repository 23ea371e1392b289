"""What is known of a run, and what a new one is made of: the values of common.db.runs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from common.runs import CancelReason, OnConflict, OnDisconnect, ResumeReason, Status


@dataclass(frozen=True, slots=True)
class Run:
    """A row of `runs`, all of it. Moments are UTC; `input`, `principal` … are JSON values."""

    id: str
    conversation_id: str
    user_id: str
    user_message_id: str
    graph: str
    status: Status
    waiting: bool
    epoch: int
    runner_id: str | None
    attempts: int
    resume_reason: ResumeReason | None
    last_sequence: int
    sequence_reserved: int
    redis_identity: str | None
    input: dict[str, Any]
    principal: dict[str, Any]
    metadata: dict[str, Any]
    on_disconnect: OnDisconnect
    cancel_requested: CancelReason | None
    next: list[str]
    output: Any
    message_id: str | None
    error: dict[str, Any] | None
    cancel_reason: CancelReason | None
    rollback: bool
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    replayable: bool
    paused_at: str | None
    executed_s: float
    traceparent: str | None
    cancel_requested_by: str | None
    cancel_requested_at: datetime | None


@dataclass(frozen=True, slots=True)
class ClaimedRun(Run):
    """A run as of its claim. `archived` is the archive's top; the `previous_` ones are as they were
    before this claim: what the last owner had reserved, and the Redis it had written to.
    """

    archived: int
    previous_reserved: int
    previous_identity: str | None


@dataclass(frozen=True, slots=True)
class NewRun:
    """What `create` needs. `input` is {content, inputFormat, interruptBefore, interruptAfter}."""

    id: str
    conversation_id: str
    user_id: str
    user_message_id: str
    graph: str
    content: str
    input: dict[str, Any]
    principal: dict[str, Any]
    metadata: dict[str, Any]
    on_disconnect: OnDisconnect = "continue"
    on_conflict: OnConflict = "reject"
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A run has ended. `promoted`: the run that waited behind it is queued now, wake for it."""

    promoted: str | None
