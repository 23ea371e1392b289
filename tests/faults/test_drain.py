"""SIGTERM to one process: what it holds goes elsewhere in seconds, and it ends with 0 (I1, I6)."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.integration.test_runner import World, is_at_work
from tests.support.api import Api
from tests.support.cluster import Cluster
from tests.support.runner_process import runner_process
from tests.support.until import until
from tests.support.watching import Crowd, assert_exact, assert_retryable, outline, reasons

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("STEADYRUN_FAULT_SEED", "1"))
LEGS, EVENTS = 8, 20
ORDER = json.dumps({"legs": LEGS, "events": EVENTS, "pause_s": 0.02})


@pytest.fixture
async def crowd(cluster: Cluster) -> AsyncIterator[Crowd]:
    made = Crowd.of(cluster.topology, random.Random(SEED))
    yield made
    await made.aclose()


def owner_of(cluster: Cluster, run_id: str) -> tuple[str, int]:
    """Name and pid of the process that executes a run; no pid while nobody does."""
    with psycopg.connect(cluster.topology.database_url) as session:
        row = session.execute(
            "SELECT n.pid FROM runs r JOIN runners n ON n.id = r.runner_id WHERE r.id = %s",
            [run_id],
        ).fetchone()
    pid = row[0] if row else 0
    return next(((p.name, pid) for p in cluster.topology.of("runner") if p.pid == pid), ("", 0))


def attempts_of(cluster: Cluster, run_id: str) -> int:
    with psycopg.connect(cluster.topology.database_url) as session:
        row = session.execute("SELECT attempts FROM runs WHERE id = %s", [run_id]).fetchone()
    assert row is not None
    return int(row[0])


def ended_well(cluster: Cluster, name: str, times: int) -> bool:
    return cluster.said.count(f"{name} ended (status 0") >= times


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_runner_hands_over_at_a_step_boundary(
    cluster: Cluster, crowd: Crowd, number: int
) -> None:
    """Nothing is executed twice, nothing is charged, no number jumps, nothing is discarded that
    was not being executed."""
    crowd.rng = random.Random(SEED * 1000 + number)
    runs = [await crowd.start(ORDER, "legs") for _ in range(4)]
    watching = [asyncio.create_task(crowd.watch(run, cuts=False)) for run in runs]
    await until(lambda: owner_of(cluster, runs[0])[1] != 0, within_s=30)
    await asyncio.sleep(crowd.rng.uniform(0.1, 1.0))
    name, pid = owner_of(cluster, runs[0])
    before = cluster.said.count(f"{name} ended (status 0")
    os.kill(pid, signal.SIGTERM)
    for run, history in zip(runs, await asyncio.gather(*watching), strict=True):
        events = assert_exact([history])
        assert events[-1]["type"] == "done"
        assert set(reasons(events)) <= {"handover"}, outline(events)
        assert attempts_of(cluster, run) == 0
        sequences = [event["sequence"] for event in events]
        assert sequences == list(range(1, len(sequences) + 1))
        told = [e["data"] for e in events if e["type"] == "custom"]
        assert told == [{"leg": leg, "n": n} for leg in range(LEGS) for n in range(EVENTS)]
    await until(lambda: ended_well(cluster, name, before + 1), within_s=30)
    cluster.until_replaced(name, pid)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_second_signal_hands_over_what_is_in_the_middle_of_a_step(
    folder: Path, database_url: str, redis_url: str, redis_prefix: str, number: int
) -> None:
    """The step ends when a file is there, so no boundary comes by itself; the time for one is
    longer than this test may take."""
    world = World.at(database_url, redis_url, redis_prefix)
    done = folder / "done"
    place = (folder, database_url, redis_url, redis_prefix)
    async with runner_process(*place, drain_timeout_s=600) as first:
        run_id = await world.start("work", json.dumps({"until": str(done)}))
        await until(lambda: is_at_work(world, run_id), within_s=30)
        first.signal(signal.SIGTERM)
        await until(lambda: "draining" in first.said, within_s=30)
        first.signal(signal.SIGTERM if number % 2 else signal.SIGINT)
        assert await first.ended() == 0
    run = await world.find(run_id)
    assert (run.status, run.attempts) == ("queued", 0)
    async with runner_process(*place):
        done.touch()
        await world.until_status(run_id, "completed")
    events = await world.events(run_id)
    assert reasons(events) == ["handover"]
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
    await world.db.aclose()


async def is_ready(api: Api) -> bool:
    try:
        return (await api.http.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_gateway_cuts_its_streams_and_answers_its_requests(
    cluster: Cluster, crowd: Crowd, number: int
) -> None:
    """POSTs at it all the while: each is done, told to try again, or finds nobody listening."""
    crowd.rng = random.Random(SEED * 2000 + number)
    runs = [await crowd.start(ORDER, "legs") for _ in range(3)]
    watching = [asyncio.create_task(crowd.watch(r, cuts=False)) for r in runs for _ in range(4)]
    api = crowd.apis[0]
    stop = asyncio.Event()

    async def press() -> None:
        while not stop.is_set():
            try:
                answer = await api.http.post("/api/conversations", json={})
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code != 201:
                assert_retryable(answer)

    pressing = [asyncio.create_task(press()) for _ in range(3)]
    await asyncio.sleep(crowd.rng.uniform(0.1, 1.0))
    await until(partial(is_ready, api), within_s=60)
    before = cluster.said.count("gateway-1 ended (status 0")
    pid = cluster.kill("gateway-1", signal.SIGTERM)
    histories = await asyncio.gather(*watching)
    stop.set()
    await asyncio.gather(*pressing)
    for at in range(len(runs)):
        events = assert_exact(histories[4 * at : 4 * at + 4])
        assert events[-1]["type"] == "done"
        assert reasons(events) == []
    await until(lambda: ended_well(cluster, "gateway-1", before + 1), within_s=30)
    cluster.until_replaced("gateway-1", pid)
