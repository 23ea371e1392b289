"""Postgres restarts, crashes, stands still, drops its sessions, is full, under runs that stream.

Streams go on, no run fails, every history is exact (I1, I3, I6). STEADYRUN_FAULT_ROUNDS rounds take
the faults in turn; the first ones are tried by default. STEADYRUN_FAULT_SEED begins elsewhere.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.cluster import Cluster
from tests.support.watching import Crowd, assert_exact, folded, outline

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "2"))
SEED = int(os.environ.get("STEADYRUN_FAULT_SEED", "1"))
RUNS, LEGS, EVENTS = 4, 4, 40
ORDER = json.dumps({"legs": LEGS, "events": EVENTS, "pause_s": 0.02})
LEASE_S = 6.0

Fault = Callable[[Cluster, random.Random], Coroutine[Any, Any, None]]


def backends(postmaster: int) -> list[int]:
    """Every process of the server but the postmaster, which leads a session of its own each."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == postmaster:
                found.append(int(stat.parent.name))
    return found


def signals(sign: signal.Signals) -> Fault:
    async def fault(cluster: Cluster, rng: random.Random) -> None:
        cluster.kill("postgres", sign)

    return fault


def stopped(least_s: float, most_s: float) -> Fault:
    async def fault(cluster: Cluster, rng: random.Random) -> None:
        """The whole server stands still; connections are accepted by the kernel."""
        postmaster = cluster.pid("postgres")
        everyone = [postmaster, *backends(postmaster)]
        try:
            for pid in everyone:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(least_s, most_s))
        finally:
            for pid in everyone:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return fault


async def a_backend_crashes(cluster: Cluster, rng: random.Random) -> None:
    """The postmaster ends all sessions then and recovers."""
    async with await psycopg.AsyncConnection.connect(
        cluster.topology.database_url, autocommit=True
    ) as session:
        cursor = await session.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'steadyrun:%'"
        )
        pids = [row[0] for row in await cursor.fetchall()]
        os.kill(rng.choice(pids), signal.SIGKILL)


async def sessions_are_dropped(cluster: Cluster, rng: random.Random) -> None:
    """As by a pooler that restarts again and again."""
    async with await psycopg.AsyncConnection.connect(
        cluster.topology.database_url, autocommit=True
    ) as session:
        for _ in range(25):
            await session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'steadyrun:%'"
            )
            await asyncio.sleep(rng.uniform(0.02, 0.25))


async def away(cluster: Cluster, rng: random.Random) -> None:
    """Killed whenever it is back, for longer than a lease."""
    until = time.monotonic() + rng.uniform(LEASE_S + 1, LEASE_S + 14)
    while time.monotonic() < until:
        with suppress(AssertionError, ProcessLookupError):
            cluster.kill("postgres")
        await asyncio.sleep(0.2)


async def full(cluster: Cluster, rng: random.Random) -> None:
    """All places are taken by others after every session of ours was ended."""
    url = cluster.topology.database_url
    with ExitStack() as held:
        sessions = []
        with suppress(psycopg.OperationalError):
            while True:
                sessions.append(held.enter_context(psycopg.connect(url, autocommit=True)))
                await asyncio.sleep(0)
        sessions[0].execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'steadyrun:%'"
        )
        with suppress(psycopg.OperationalError):
            while True:
                sessions.append(held.enter_context(psycopg.connect(url, autocommit=True)))
        await asyncio.sleep(rng.uniform(1.0, 4.0))


FAULTS: dict[str, Fault] = {
    "stopped past the lease": stopped(LEASE_S + 1, LEASE_S + 3),
    "dropped sessions": sessions_are_dropped,
    "fast restart": signals(signal.SIGINT),
    "killed": signals(signal.SIGKILL),
    "immediate restart": signals(signal.SIGQUIT),
    "a backend crashes": a_backend_crashes,
    "stopped": stopped(0.5, 4.0),
    "away": away,
    "full": full,
    "stopped for long": stopped(20, 21),
}


@pytest.fixture
async def crowd(cluster: Cluster) -> AsyncIterator[Crowd]:
    made = Crowd.of(cluster.topology, random.Random(SEED))
    yield made
    await made.aclose()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_runs_and_streams_outlive_a_fault_of_postgres(
    cluster: Cluster, crowd: Crowd, number: int
) -> None:
    names = list(FAULTS)
    name = names[number % len(names)]
    rng = crowd.rng = random.Random(SEED * 1000 + number)
    began = [await crowd.start(ORDER, "legs") for _ in range(RUNS)]
    waits = await crowd.start("{}", "ask")
    watching = [asyncio.create_task(crowd.watch(run)) for run in began for _ in range(2)]
    await asyncio.sleep(rng.uniform(0.0, 2.0))
    during = asyncio.create_task(crowd.start(ORDER, "legs"))
    faulted = asyncio.create_task(FAULTS[name](cluster, rng))
    await crowd.watch(waits, until="interrupt")
    [asked] = (await crowd.get(f"/api/runs/{waits}"))["pendingInterrupts"]
    await crowd.post(
        f"/api/runs/{waits}/resume", {"interruptId": asked["id"], "decision": "approve"}
    )
    await faulted
    began.append(await during)
    watching += [asyncio.create_task(crowd.watch(run)) for run in [began[-1]] * 2]
    histories = await asyncio.gather(*watching)
    for at, run in enumerate(began):
        events = assert_exact(histories[2 * at : 2 * at + 2])
        assert events[-1]["type"] == "done", events[-1]
        shown = [e["data"] for e in folded(events) if e["type"] == "custom"]
        assert len(shown) == LEGS * EVENTS, outline(events)
        assert shown == [{"leg": leg, "n": n} for leg in range(LEGS) for n in range(EVENTS)]
        assert (await crowd.get(f"/api/runs/{run}"))["status"] == "completed"
    decided = await crowd.watch(waits)
    assert assert_exact([decided])[-1]["type"] == "done"
