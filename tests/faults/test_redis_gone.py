"""Redis is killed, flushed, paused, full, cut off, slow: I1, I6, I7 hold and nobody waits for ever.

STEADYRUN_FAULT_ROUNDS is the number of seeds; with more than one the faults last longer, too, and
every kind of them is tried.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from tests.support.redis_bed import Bed, Watched, bed

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
LONG = ROUNDS > 1
MANY = 50
SEEDS = pytest.mark.parametrize("seed", range(ROUNDS))

Fault = Callable[[Bed], Coroutine[Any, Any, None]]


async def all_of(watching: list[asyncio.Task[Watched]], within_s: float = 90) -> list[Watched]:
    async with asyncio.timeout(within_s):
        return await asyncio.gather(*watching)


# --- fifty streams, in the middle and after the end


async def flushed(system: Bed) -> None:
    system.valkey.command("FLUSHALL")


async def killed_and_empty(system: Bed) -> None:
    system.valkey.kill()
    await asyncio.sleep(system.rng.choice([0.0, 0.3, 2.0]))
    system.valkey.start()


@SEEDS
@pytest.mark.parametrize("fault", [flushed, killed_and_empty])
@pytest.mark.timeout(150)
async def test_fifty_streams_are_exact_whatever_happens_to_redis_in_the_middle_and_after_the_end(
    database_url: str, fault: Fault, seed: int
) -> None:
    async with bed(database_url) as system:
        rng = system.rng = random.Random(seed)
        run_ids = await system.start(MANY, events=30, pause_s=0.1)
        watching = system.watch(run_ids)
        for _ in range(2):
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            await fault(system)
            watching += system.watch(rng.sample(run_ids, 5))  # late ones
        watched = await all_of(watching)
        replaying = system.watch(run_ids)
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        await fault(system)
        watched += await all_of(replaying + system.watch(run_ids))
        await system.must_be_exact(watched)


# --- every way of being away


async def is_killed_and_comes_back_as_it_was(system: Bed) -> None:
    system.valkey.kill()
    await lasting(1.5)
    system.valkey.start()


async def is_stopped(system: Bed) -> None:
    system.valkey.freeze()
    await lasting(2.5, 10)
    system.valkey.thaw()


async def is_paused(system: Bed) -> None:
    system.valkey.command("CLIENT", "PAUSE", 10_000 if LONG else 2500, "ALL")
    await lasting(2.5, 10)


async def loses_its_subscribers_again_and_again(system: Bed) -> None:
    for _ in range(60 if LONG else 15):
        system.valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
        await asyncio.sleep(system.rng.uniform(0.02, 0.3))


async def loses_its_clients_again_and_again(system: Bed) -> None:
    for _ in range(60 if LONG else 15):
        system.valkey.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(system.rng.uniform(0.02, 0.3))


async def has_no_memory_left(system: Bed) -> None:
    system.valkey.command("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 1)
    await lasting(2.5, 10)
    system.valkey.command("CONFIG", "SET", "maxmemory", 0)


async def is_a_replica_that_nobody_may_write_to(system: Bed) -> None:
    system.valkey.command("CONFIG", "SET", "replica-serve-stale-data", "yes")
    system.valkey.command("REPLICAOF", "127.0.0.1", 1)
    await lasting(2.5, 10)
    system.valkey.command("REPLICAOF", "NO", "ONE")


async def is_a_replica_that_does_not_answer_reads(system: Bed) -> None:
    system.valkey.command("CONFIG", "SET", "replica-serve-stale-data", "no")
    system.valkey.command("REPLICAOF", "127.0.0.1", 1)
    await lasting(2.5, 10)
    system.valkey.command("REPLICAOF", "NO", "ONE")


async def wants_another_password(system: Bed) -> None:
    system.valkey.command("CONFIG", "SET", "requirepass", "another")
    for line in system.lines:
        await line.cut()
    await lasting(2.5, 10)
    with redis.Redis.from_url(system.valkey.url, password="another") as operator:
        operator.config_set("requirepass", "")


async def accepts_and_never_answers(system: Bed) -> None:
    for line in system.lines:
        line.stall()
        await line.cut()
    await lasting(2.5, 30)
    for line in system.lines:
        line.resume()


async def is_very_slow(system: Bed) -> None:
    for line in system.lines:
        line.delay_s = 0.3
    await lasting(2.5, 10)
    for line in system.lines:
        line.delay_s = 0.0


async def is_away_for_runners_only(system: Bed) -> None:
    system.runner_line.refusing = True
    await system.runner_line.cut()
    await lasting(2.5, 20)
    system.runner_line.refusing = False


async def is_away_for_gateways_only(system: Bed) -> None:
    system.edge_line.refusing = True
    await system.edge_line.cut()
    await lasting(2.5, 10)
    system.edge_line.refusing = False


async def lasting(short_s: float, long_s: float | None = None) -> None:
    await asyncio.sleep((long_s or 3 * short_s) if LONG else short_s)


FAULTS = [
    is_killed_and_comes_back_as_it_was,
    is_stopped,
    is_paused,
    loses_its_subscribers_again_and_again,
    loses_its_clients_again_and_again,
    has_no_memory_left,
    is_a_replica_that_nobody_may_write_to,
    is_a_replica_that_does_not_answer_reads,
    wants_another_password,
    accepts_and_never_answers,
    is_very_slow,
    is_away_for_runners_only,
    is_away_for_gateways_only,
]

FEW = [is_stopped, loses_its_clients_again_and_again, has_no_memory_left, is_away_for_runners_only]


@SEEDS
@pytest.mark.parametrize("fault", FAULTS if LONG else FEW)
@pytest.mark.timeout(150)
async def test_streams_go_on_and_are_exact_while_redis(
    database_url: str, fault: Fault, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Some runs end and some begin meanwhile; decisions and cancellations work."""
    async with bed(database_url, durable=True) as system:
        rng = system.rng = random.Random(seed)
        through = await system.start(4, events=(130 if LONG else 45), pause_s=0.1)
        ending = await system.start(3, events=12, pause_s=0.1)
        asking = await system.start(2, graph="ask")
        watching = system.watch([*through, *ending])
        await asyncio.gather(*(system.watched(run_id, "interrupt") for run_id in asking))
        await asyncio.sleep(rng.uniform(0.2, 0.8))
        began = time.time()
        harm = asyncio.create_task(fault(system))
        await asyncio.sleep(0.3)
        acted = time.monotonic()
        born = await system.start(2, events=10, pause_s=0.1)
        unborn = await system.start(1, events=600, pause_s=0.1)
        await approved(system, asking[0])
        await cancelled(system, asking[1])
        await cancelled(system, unborn[0])
        took_s = time.monotonic() - acted
        watching += system.watch([*born, *asking, *unborn, *rng.sample(through, 2)])
        await harm
        back = time.time()
        watched = await all_of(watching)
        await system.must_be_exact(watched)
        for name, moment in (("during", began), ("after", back + 2)):
            lags = [watch.lag_since(moment) for watch in watched[: len(through)]]
            record_property(f"lag_s_{name}", round(max(lags), 2))
        record_property("acts_s", round(took_s, 2))
        statuses = [(await system.row(run_id)).status for run_id in asking + unborn]
        assert statuses == ["completed", "cancelled", "cancelled"]


async def approved(system: Bed, run_id: str) -> None:
    run = await system.api.run(run_id)
    interrupt_id = run["pendingInterrupts"][0]["id"]
    answer = await system.api.resume(run_id, interruptId=interrupt_id, decision="approve")
    assert answer.status_code == 202, answer.text


async def cancelled(system: Bed, run_id: str) -> None:
    answer = await system.api.http.post(f"/api/runs/{run_id}/cancel")
    assert answer.status_code in (200, 202), answer.text
