"""What came of checking: verdicts that count, and their sums.

One that compared nothing is "not checked", never passed: missing evidence is no evidence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdict:
    """What came of one invariant (design §2). A violation names run, client and sequence."""

    invariant: str
    title: str
    checks: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        if self.violations:
            return "violated"
        return "held" if self.checks else "not checked"

    def check(self, holds: bool, otherwise: str) -> bool:
        """One comparison, and what is wrong if it does not hold."""
        self.checks += 1
        if not holds:
            self.violations.append(otherwise)
        return holds


def summed(rounds: Iterable[Sequence[Verdict]]) -> list[Verdict]:
    """The verdicts of many rounds as one each."""
    total: dict[str, Verdict] = {}
    for verdicts in rounds:
        for verdict in verdicts:
            sum_ = total.setdefault(verdict.invariant, Verdict(verdict.invariant, verdict.title))
            sum_.checks += verdict.checks
            sum_.violations += verdict.violations
    return list(total.values())
