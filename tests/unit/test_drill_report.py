"""What a person and a machine are told of a drill."""

import json

from deploy.drill import report as reports
from deploy.drill.checker import Verdict
from deploy.drill.gaps import Gap
from deploy.drill.performance import Outcome
from deploy.drill.report import Report, silences


def gap(fault: str, seconds: float | None, *, taken_over: bool = True) -> Gap:
    return Gap(fault, "runner-1", "run_1", seconds, taken_over)


def outcome(
    scenario: str = "runner-kill", *violations: str, gaps: list[Gap] | None = None
) -> Outcome:
    verdicts = [
        Verdict("I1", "Exact history", 41_000, list(violations)),
        Verdict("I9", "No leak", 230),
    ]
    return Outcome(scenario, 1, 12.0, verdicts, gaps or [])


def report(*outcomes: Outcome) -> Report:
    return Report(42, "steadyrun drill --seed 42", 6.0, list(outcomes))


def test_the_first_line_is_the_verdict() -> None:
    assert reports.table(report(outcome())).splitlines()[0] == "0 violations in 41,230 checks"
    bad = report(outcome("runner-kill", "event 7 of run_1 came twice"))
    assert reports.table(bad).splitlines()[0] == "1 VIOLATION in 41,230 checks"
    assert "runner-kill: I1: event 7 of run_1 came twice" in reports.table(bad)


def test_the_verdicts_of_all_scenarios_are_summed() -> None:
    table = reports.table(report(outcome(), outcome("redis-flush")))
    (row,) = [line for line in table.splitlines() if line.startswith("I1")]
    assert row.split() == ["I1", "Exact", "history", "82,000", "0"]


def test_what_was_not_checked_is_said() -> None:
    some = outcome()
    some.verdicts.append(Verdict("I8", "Bounded"))
    assert reports.verdict_line(report(some)) == "0 violations in 41,230 checks; not checked: I8"


def test_the_status_is_1_for_a_violation_and_where_nothing_was_checked() -> None:
    assert report(outcome()).status == 0
    assert report(outcome("runner-kill", "lost")).status == 1
    assert report().status == 1


def test_a_scenario_that_hit_nothing_has_proved_nothing() -> None:
    some = outcome()
    some.missed = 1
    assert report(some).status == 0
    some.rounds = 0
    assert report(some).status == 1
    line = "0 violations in 41,230 checks; 1 round hit nothing"
    assert reports.verdict_line(report(some)) == line


def test_an_interrupted_drill_says_what_is_known_by_then() -> None:
    some = report()
    some.is_whole = False
    assert some.status == 0
    assert reports.verdict_line(some).startswith("interrupted: 0 violations")
    some.outcomes.append(outcome("runner-kill", "lost"))
    assert some.status == 1


def test_a_killed_runner_silences_the_runs_that_a_new_owner_took_up() -> None:
    gaps = [
        gap("runner-kill", 0.5),
        gap("runner-kill", 2.5),
        gap("runner-kill", 0.9),
        gap("runner-kill", 0.01, taken_over=False),
        gap("runner-kill", None, taken_over=False),
    ]
    (silence,) = silences(outcome(gaps=gaps), 6.0)
    assert (silence.runs, silence.median_s, silence.max_s) == (3, 0.9, 2.5)
    assert silence.is_kept


def test_a_promise_is_held_against_single_faults_only() -> None:
    gaps = [gap("runner-kill", 5.0), gap("redis-flush", 0.2, taken_over=False)]
    kill, flush = silences(outcome("mixed", gaps=gaps), 6.0)
    assert kill.is_kept is None
    assert flush.promise is None
    (single, _) = silences(outcome("runner-kill", gaps=gaps), 6.0)
    assert single.is_kept is False
    pause = [gap("runner-pause", 11.0)]
    (silence,) = silences(outcome("runner-pause", gaps=pause), 6.0)
    assert silence.is_kept


def test_a_scenario_of_many_faults_is_one_line_among_others_and_many_alone() -> None:
    kinds = [gap(kind, 0.5, taken_over=False) for kind in ("redis-cut", "redis-kill", "nginx-kill")]
    alone = reports.table(report(outcome("mixed", gaps=kinds)))
    assert alone.count("mixed: ") == 3
    among = reports.table(report(outcome(), outcome("mixed", gaps=kinds)))
    (row,) = [line for line in among.splitlines() if line.startswith("mixed")]
    assert row.split()[:2] == ["mixed", "3"]


def test_promises_stand_beside_the_figures() -> None:
    table = reports.table(report(outcome(gaps=[gap("runner-kill", 0.7)])))
    (row,) = [line for line in table.splitlines() if line.startswith("runner-kill")]
    assert row.split()[:6] == ["runner-kill", "1", "0.70", "s", "0.70", "s"]
    assert row.endswith("median < 1 s, max < 3 s: kept")


def test_a_machine_gets_the_same() -> None:
    some = report(outcome("runner-kill", "lost", gaps=[gap("runner-kill", 4.0)]))
    told = json.loads(json.dumps(reports.wire(some)))
    assert told["seed"] == 42
    assert told["checks"] == 41_230
    assert told["violations"] == ["runner-kill: I1: lost"]
    assert [i["outcome"] for i in told["invariants"]] == ["violated", "held"]
    assert told["silences"][0]["kept"] is False
    assert told["scenarios"][0]["name"] == "runner-kill"
