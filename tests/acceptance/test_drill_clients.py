"""The drill's clients on a system that nobody disturbs: all holds, and all was checked."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.drill.checker import check
from deploy.drill.gaps import gaps
from deploy.drill.record import Record
from deploy.drill.truth import EFFECTS_VARIABLE, read_truth
from deploy.drill.workload import Plan, Stuck, Workload
from tests.support.cluster import Cluster

PLAN = Plan(runs=4, watchers=4, words=(2, 5), pace_ms=(5, 30), patience_s=90.0)


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0.05)


def weighed_s(record: Record) -> float:
    """For how long the processes have been weighed: a memory is judged after some seconds."""
    return record.weights[-1].at - record.weights[0].at if record.weights else 0.0


@pytest.mark.timeout(180)
async def test_all_invariants_hold_and_were_checked_while_nothing_fails(cluster: Cluster) -> None:
    record, stop = Record(), asyncio.Event()
    workload = Workload(lambda: cluster.topology, random.Random(3), record, PLAN)
    working = asyncio.create_task(workload.run(stop))
    enough = asyncio.create_task(until(lambda: len(record.ordered) >= 10 and weighed_s(record) > 9))
    await asyncio.wait([working, enough], return_when="FIRST_COMPLETED")
    stop.set()
    await working
    effects = Path(cluster.environment[EFFECTS_VARIABLE])
    truth = await read_truth(cluster.topology, record, effects)
    verdicts = check(record, truth)
    assert [text for verdict in verdicts for text in verdict.violations] == []
    assert {v.invariant: v.outcome for v in verdicts if v.outcome != "held"} == {}
    assert all(run.status in ("completed", "cancelled") for run in truth.runs.values())
    assert any(lines for lines in truth.performed.values())
    assert gaps(record) == []
    assert workload.streaming == 0


@pytest.mark.timeout(120)
async def test_who_is_stuck_is_named(cluster: Cluster) -> None:
    """Nobody has so little patience; a run takes longer than that."""
    record, stop = Record(), asyncio.Event()
    plan = Plan(runs=1, watchers=1, words=(30, 30), pace_ms=(50, 50), patience_s=0.2)
    working = asyncio.create_task(
        Workload(lambda: cluster.topology, random.Random(1), record, plan).run(stop)
    )
    await until(lambda: bool(record.ordered))
    stop.set()
    with pytest.raises(Stuck, match=r"run_[0-9a-f]+ \(\w+ at \d+; unfinished clients: "):
        await working
