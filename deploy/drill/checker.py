"""Whether a history keeps the invariants of Steadyrun: pure, so that it can itself be tested.

A verdict counts what it compared. One that compared nothing is "not checked", never passed: missing
evidence is no evidence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deploy.drill.record import Record
from deploy.drill.truth import Truth


@dataclass(slots=True)
class Verdict:
    """What came of one invariant ("I1" … "I9"). A violation names run, client and sequence."""

    invariant: str
    title: str
    checks: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        if self.violations:
            return "violated"
        return "held" if self.checks else "not checked"


def check(record: Record, truth: Truth) -> list[Verdict]:
    """One verdict for each invariant, in their order."""
    raise NotImplementedError


def summed(rounds: Iterable[Sequence[Verdict]]) -> list[Verdict]:
    """The verdicts of many rounds as one each."""
    total: dict[str, Verdict] = {}
    for verdicts in rounds:
        for verdict in verdicts:
            sum_ = total.setdefault(verdict.invariant, Verdict(verdict.invariant, verdict.title))
            sum_.checks += verdict.checks
            sum_.violations += verdict.violations
    return list(total.values())
