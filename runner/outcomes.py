"""What can come of executing a run: values, not exceptions (`runner/execution` stores each)."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.runs import CancelReason, FailureCode, ResumeReason
from runner.asking import Unknown
from runner.durable import Durable


@dataclass(frozen=True, slots=True)
class Finished:
    """The graph came to its end."""

    state: Durable


@dataclass(frozen=True, slots=True)
class Waiting:
    """Every step that is left waits for a person. `unknown`: the effects whose outcome is asked;
    the graph was stopped for that, and `given` are the interrupts whose answers it had by then."""

    state: Durable
    unknown: Sequence[Unknown] = ()
    given: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """The graph was stopped to ask about effects; becomes `Waiting` once its state is read."""

    unknown: Sequence[Unknown]
    given: Sequence[str]


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


Outcome = Finished | Waiting | Asked | Paused | Failed | Cancelled | HandedOver
