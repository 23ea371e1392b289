"""What can come of executing a run: values, not exceptions (`runner/execution` stores each)."""

from dataclasses import dataclass

from common.runs import CancelReason, FailureCode, ResumeReason
from runner.durable import Durable


@dataclass(frozen=True, slots=True)
class Finished:
    """The graph came to its end."""

    state: Durable


@dataclass(frozen=True, slots=True)
class Waiting:
    """Every step that is left waits for a person."""

    state: Durable


@dataclass(frozen=True, slots=True)
class Paused:
    """The graph stands at a static breakpoint."""

    state: Durable


@dataclass(frozen=True, slots=True)
class Failed:
    """`message` can be shown to a user: no stack trace, no secret (I9)."""

    code: FailureCode
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    reason: CancelReason


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Given back to the queue; not charged as an attempt."""

    reason: ResumeReason


Outcome = Finished | Waiting | Paused | Failed | Cancelled | HandedOver
