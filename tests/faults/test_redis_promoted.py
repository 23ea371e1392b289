"""A replica is promoted that lacks the newest part of the log: no number ever means something else.

With the runner alive nothing is lost, since it has what is not archived. With the runner dead at
the same moment the tail is lost; then the numbers jump, at `run_resumed` only (contract §3).
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from common.events import TERMINAL
from tests.acceptance.conftest import GRAPHS
from tests.support.cluster import ROOT
from tests.support.redis_bed import Bed, Watched, bed, running
from tests.support.until import until
from tests.support.valkey import Valkey, private_valkey

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
RUNS = 8


@contextmanager
def a_replica(system: Bed) -> Iterator[Valkey]:
    with private_valkey() as replica:
        replica.command("REPLICAOF", "127.0.0.1", system.valkey.port)
        yield replica


def _in_step(replica: Valkey) -> bool:
    return b"master_link_status:up" in _info(replica)


def _info(server: Valkey) -> bytes:
    answer = server.command("INFO", "replication")
    return answer if isinstance(answer, bytes) else repr(answer).replace("': '", ":").encode()


async def promote_without_its_tail(system: Bed, replica: Valkey) -> None:
    """It stops following, misses what comes for some tenths of a second, and is all there is."""
    replica.command("REPLICAOF", "NO", "ONE")
    await asyncio.sleep(system.rng.uniform(0.2, 0.7))


async def switch_over(system: Bed, replica: Valkey) -> None:
    system.valkey.kill()
    for line in system.lines:
        await line.switch(replica.url)


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.timeout(120)
async def test_a_promoted_replica_without_its_tail_loses_nothing_while_the_runner_lives(
    database_url: str, seed: int
) -> None:
    async with bed(database_url) as system:
        system.rng = random.Random(seed)
        with a_replica(system) as replica:
            await until(lambda: _in_step(replica), within_s=20)
            watching = system.watch(await system.start(RUNS, events=40, pause_s=0.1))
            await asyncio.sleep(1)
            await promote_without_its_tail(system, replica)
            await switch_over(system, replica)
            async with asyncio.timeout(90):
                await system.must_be_exact(await asyncio.gather(*watching))


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.timeout(150)
async def test_no_number_means_two_things_when_the_tail_is_lost_together_with_the_runner(
    database_url: str, seed: int
) -> None:
    async with bed(database_url, runner=False) as system, a_runner(database_url, system) as first:
        system.rng = random.Random(seed)
        with a_replica(system) as replica:
            await until(lambda: _in_step(replica), within_s=20)
            run_ids = await system.start(RUNS, events=40, pause_s=0.1)
            early = system.watch(run_ids)
            await until(lambda: all_have_begun(system, run_ids), within_s=60)
            await asyncio.sleep(1)
            await promote_without_its_tail(system, replica)
            first.kill()
            await switch_over(system, replica)
            async with running(database_url, system.runner_line.url, 64):
                async with asyncio.timeout(100):
                    seen = await asyncio.gather(*early)
                late = await asyncio.gather(*system.watch(run_ids))
        for one, other in zip(seen, late, strict=True):
            await must_agree(system, one, other)


@asynccontextmanager
async def a_runner(database_url: str, system: Bed) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = os.environ | {
        "DATABASE_URL": database_url,
        "REDIS_URL": system.runner_line.url,
        "STEADYRUN_GRAPHS": str(GRAPHS),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "runner"),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def all_have_begun(system: Bed, run_ids: list[str]) -> bool:
    return all([(await system.row(run_id)).status == "running" for run_id in run_ids])


async def must_agree(system: Bed, early: Watched, late: Watched) -> None:
    """Late is the archive. Early may have seen lost events: under numbers nobody else ever saw."""
    await system.must_be_exact([late], jumps=True)
    assert early.order == sorted(set(early.order)), early.run_id
    assert {n: early.frames[n] for n in late.order} == late.frames, early.run_id
    assert [e["type"] for e in early.events if e["type"] in TERMINAL] == ["done"]
    for before, after, event in zip(late.order, late.order[1:], late.events[1:], strict=False):
        assert after == before + 1 or event["type"] == "run_resumed"
