"""What a drill is going to do, from a seed alone; and that what it stops is continued."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drill import Choices, listing, unknown
from deploy.drill.faults import FAULTS, Strike, stopped
from deploy.drill.scenarios import (
    MIXED,
    SCENARIOS,
    STRIKES_MAX,
    WEIGHTS,
    Round,
    mixed_plan,
)
from deploy.drill.topology import Targets
from deploy.process import family

TARGETS: Targets = {
    "postgres": ("postgres",),
    "redis": ("redis",),
    "nginx": ("nginx",),
    "gateway": ("gateway-1", "gateway-2"),
    "runner": ("runner-1", "runner-2", "runner-3"),
}
WITHOUT_NGINX: Targets = {**TARGETS, "nginx": ()}


def mixed(seed: int, rounds: int, targets: Targets = TARGETS) -> list[Round]:
    return mixed_plan(rounds)(random.Random(seed), targets)


def test_a_seed_gives_the_same_plan_again() -> None:
    assert mixed(7, 200) == mixed(7, 200)
    assert mixed(7, 200) != mixed(8, 200)


def test_a_mixed_round_is_one_to_three_faults_on_children_of_their_role() -> None:
    rounds = mixed(1, 500)
    assert {len(planned) for planned in rounds} == {1, 2, STRIKES_MAX}
    for strike in (strike for planned in rounds for strike in planned):
        fault = FAULTS[strike.fault]
        assert strike.target in TARGETS[fault.role]
        assert (strike.lasts_s > 0) is bool(fault.spans)


def test_every_fault_and_every_child_has_its_turn() -> None:
    strikes = [strike for planned in mixed(2, 500) for strike in planned]
    assert {strike.fault for strike in strikes} == set(FAULTS) == set(WEIGHTS)
    assert {strike.target for strike in strikes} == {n for names in TARGETS.values() for n in names}


def test_a_runner_is_paused_within_its_lease_and_beyond_it() -> None:
    strikes = (strike for planned in mixed(3, 500) for strike in planned)
    lasting = [strike.lasts_s for strike in strikes if strike.fault == "runner-pause"]
    assert min(lasting) < 6.0 < max(lasting)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
@pytest.mark.parametrize("targets", [TARGETS, WITHOUT_NGINX], ids=["nginx", "no-nginx"])
def test_every_scenario_has_something_to_do(name: str, targets: Targets) -> None:
    planned = SCENARIOS[name].plan(random.Random(0), targets)
    if name == "nginx-kill" and not targets["nginx"]:
        assert planned == []
    else:
        assert planned
    assert all(strike.target for each in planned for strike in each)


def test_a_rolling_restart_takes_every_child_once() -> None:
    planned = SCENARIOS["rolling-restart"].plan(random.Random(0), TARGETS)
    assert all(len(each) == 1 for each in planned)
    names = [each[0].target for each in planned]
    assert sorted(names) == sorted(n for role in TARGETS.values() for n in role)


def test_scenarios_are_listed_and_unknown_ones_named() -> None:
    assert [line.split()[0] for line in listing().splitlines()] == list(SCENARIOS)
    assert unknown(["runner-kill", "rain", MIXED]) == ["rain"]
    assert Choices().names == ()


def test_a_strike_reads_like_what_it_does() -> None:
    assert str(Strike("runner-pause", "runner-1", 0.2, 8.0)) == "runner-pause(runner-1) for 8.0 s"
    assert str(Strike("redis-flush", "redis")) == "redis-flush(redis)"


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A shell with a child of its own."""
    process = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo ready; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_was_stopped_is_continued_also_when_the_drill_fails(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    pids = family(sleeper.pid)
    assert len(pids) == 2
    with pytest.raises(KeyboardInterrupt), stopped(pids):  # noqa: PT012
        while {state_of(pid) for pid in pids} != {"T"}:
            pass
        raise KeyboardInterrupt
    while "T" in {state_of(pid) for pid in pids}:
        pass
