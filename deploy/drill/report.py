"""What came of a drill: a verdict that a person understands in ten seconds, and JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from deploy.drill.checker import Verdict, summed
from deploy.drill.gaps import Gap
from deploy.drill.performance import Outcome

VIOLATIONS_SHOWN = 10
KINDS_SHOWN = 2  # of a scenario beside others; more are one line


@dataclass(frozen=True, slots=True)
class Promise:
    """Seconds of silence after a single fault, None where nothing is promised."""

    median_s: float | None
    max_s: float

    def __str__(self) -> str:
        first = "" if self.median_s is None else f"median < {self.median_s:g} s, "
        return f"{first}max < {self.max_s:g} s"

    def is_kept(self, silence: "Silence") -> bool:
        in_median = self.median_s is None or silence.median_s < self.median_s
        return in_median and silence.max_s < self.max_s


@dataclass(frozen=True, slots=True)
class Silence:
    """How long the runs that a fault touched were silent. Runner faults touch the runs that a new
    owner took up; the others all that streamed."""

    scenario: str
    fault: str
    runs: int
    median_s: float
    max_s: float
    promise: Promise | None

    @property
    def is_kept(self) -> bool | None:
        """None: nothing is promised."""
        return None if self.promise is None else self.promise.is_kept(self)


@dataclass(slots=True)
class Report:
    """All of a drill. `is_whole`: it was not interrupted."""

    seed: int
    command: str
    lease_ttl_s: float
    outcomes: list[Outcome] = field(default_factory=list)
    is_whole: bool = True

    @property
    def verdicts(self) -> list[Verdict]:
        found = summed(outcome.verdicts for outcome in self.outcomes)
        return sorted(found, key=lambda verdict: verdict.invariant)

    @property
    def checks(self) -> int:
        return sum(outcome.checks for outcome in self.outcomes)

    @property
    def violations(self) -> list[str]:
        return [f"{o.scenario}: {text}" for o in self.outcomes for text in o.violations]

    @property
    def silences(self) -> list[Silence]:
        return [s for outcome in self.outcomes for s in silences(outcome, self.lease_ttl_s)]

    @property
    def status(self) -> int:
        """Of the process: 1 for any violation, and where nothing at all was checked or hit."""
        is_idle = any(outcome.missed and not outcome.rounds for outcome in self.outcomes)
        is_empty = self.is_whole and (not self.checks or is_idle)
        return 1 if self.violations or is_empty else 0


def silences(outcome: Outcome, lease_ttl_s: float) -> list[Silence]:
    """One a kind of fault, in the order of their first. A promise holds for single faults only."""
    found = []
    for kind, seconds in _by_kind(outcome).items():
        promise = _promises(lease_ttl_s).get(kind) if outcome.scenario == kind else None
        figures = (len(seconds), median(seconds), max(seconds))
        found.append(Silence(outcome.scenario, kind, *figures, promise))
    return found


def _all_kinds(outcome: Outcome) -> Silence:
    seconds = [s for found in _by_kind(outcome).values() for s in found]
    figures = (len(seconds), median(seconds), max(seconds))
    return Silence(outcome.scenario, outcome.scenario, *figures, None)


def _by_kind(outcome: Outcome) -> dict[str, list[float]]:
    """Seconds by fault; a run that had no event any more was silent for no time."""
    found: dict[str, list[float]] = {}
    for gap in outcome.gaps:
        if gap.seconds is not None and _is_touched(gap):
            found.setdefault(gap.fault, []).append(gap.seconds)
    return found


def _is_touched(gap: Gap) -> bool:
    return gap.taken_over or not gap.fault.startswith("runner-")


def _promises(lease_ttl_s: float) -> dict[str, Promise]:
    return {"runner-kill": Promise(1.0, 3.0), "runner-pause": Promise(None, 2 * lease_ttl_s)}


# --- for people


def table(report: Report) -> str:
    return "\n".join(_lines(report))


def verdict_line(report: Report) -> str:
    count = len(report.violations)
    words = f"{count:,} VIOLATION{'S' * (count != 1)}" if count else "0 violations"
    unchecked = [v.invariant for v in report.verdicts if v.outcome == "not checked"]
    rest = f"; not checked: {', '.join(unchecked)}" if unchecked else ""
    if missed := sum(outcome.missed for outcome in report.outcomes):
        rest += f"; {missed} round{'s' * (missed != 1)} hit nothing"
    broken = "" if report.is_whole else "interrupted: "
    return f"{broken}{words} in {report.checks:,} checks{rest}"


def _lines(report: Report) -> Iterable[str]:
    rounds = sum(outcome.rounds for outcome in report.outcomes)
    seconds = sum(outcome.seconds for outcome in report.outcomes)
    yield verdict_line(report)
    yield f"{len(report.outcomes)} scenarios, {rounds} rounds, {seconds:.0f} s"
    yield ""
    yield f"{'invariant':<44}{'checks':>10}{'violations':>12}"
    yield from map(_verdict_row, report.verdicts)
    yield from _silence_lines(_shown(report))
    yield from _violation_lines(report)
    yield ""
    yield f"repeat: {report.command}"


def _verdict_row(verdict: Verdict) -> str:
    mark = "" if verdict.outcome == "held" else f"  {verdict.outcome}"
    name = f"{verdict.invariant} {verdict.title}"
    return f"{name:<44}{verdict.checks:>10,}{len(verdict.violations):>12,}{mark}"


def _shown(report: Report) -> list[Silence]:
    """A scenario by itself is shown in all its kinds, one among others in few lines."""
    return [s for outcome in report.outcomes for s in _few(outcome, report)]


def _few(outcome: Outcome, report: Report) -> list[Silence]:
    found = silences(outcome, report.lease_ttl_s)
    if len(report.outcomes) == 1 or len(found) <= KINDS_SHOWN:
        return found
    return [_all_kinds(outcome)]


def _silence_lines(silences: Sequence[Silence]) -> Iterable[str]:
    if silences:
        yield ""
        yield f"{'silence of runs after':<34}{'runs':>10}{'median':>10}{'max':>10}"
    for silence in silences:
        name = silence.fault
        if silence.scenario != silence.fault:
            name = f"{silence.scenario}: {silence.fault}"
        figures = f"{silence.runs:>10}{silence.median_s:>8.2f} s{silence.max_s:>8.2f} s"
        yield f"{name:<34}{figures}{_promise_words(silence)}"


def _promise_words(silence: Silence) -> str:
    if silence.promise is None:
        return ""
    return f"   {silence.promise}: {'kept' if silence.is_kept else 'MISSED'}"


def _violation_lines(report: Report) -> Iterable[str]:
    shown = report.violations[:VIOLATIONS_SHOWN]
    if shown:
        yield ""
        yield from shown
    if rest := len(report.violations) - len(shown):
        yield f"… and {rest:,} more"
    yield from (f"evidence: {file}" for outcome in report.outcomes for file in outcome.evidence)


# --- for machines


def wire(report: Report) -> dict[str, Any]:
    """Durations in seconds."""
    return {
        "seed": report.seed,
        "command": report.command,
        "complete": report.is_whole,
        "checks": report.checks,
        "violations": report.violations,
        "invariants": [asdict(v) | {"outcome": v.outcome} for v in report.verdicts],
        "silences": [asdict(s) | {"kept": s.is_kept} for s in report.silences],
        "scenarios": [
            {
                "name": o.scenario,
                "rounds": o.rounds,
                "missed": o.missed,
                "seconds": round(o.seconds, 1),
                "checks": o.checks,
                "violations": o.violations,
                "evidence": o.evidence,
            }
            for o in report.outcomes
        ],
    }
