"""The reaper against a real Postgres and Redis: whom it calls dead and what it does then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from redis.asyncio import Redis

from common.bus.client import Bus
from common.bus.signals import Signals, wake_channel
from common.db import runners
from common.db.engine import Database
from common.ids import new_id
from runner.reaper import Reaper
from tests.support.leases import Witness, until, witness
from tests.support.proxy import Proxy


@pytest.fixture
async def seen(database_url: str) -> AsyncIterator[Witness]:
    async with witness(database_url) as found:
        yield found


@pytest.fixture
async def signals(redis_url: str, redis_prefix: str) -> AsyncIterator[Signals]:
    bus = Bus(redis_url, prefix=redis_prefix)
    yield Signals(bus)
    await bus.aclose()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    found = Database(database_url, application_name="reaper", pool_size=1)
    yield found
    await found.aclose()


def reaper_of(database: Database, signals: Signals) -> Reaper:
    return Reaper(
        database=database,
        signals=signals,
        lease_ttl_s=0.0,  # how long after a start of Postgres free locks do not count
        reap_interval_s=0.05,
        reap_grace_s=0.0,
    )


async def registered(database: Database) -> str:
    runner_id = new_id("rnr")
    async with database.connect() as connection:
        await runners.register(connection, id=runner_id, host="test", pid=1, capacity=1, ttl_s=60.0)
    return runner_id


async def expire(seen: Witness, runner_id: str) -> None:
    await seen.execute("UPDATE runners SET lease_until = now() WHERE id = $1", runner_id)


async def test_the_runs_of_a_runner_whose_lease_is_over_are_handed_back_and_others_wakened(
    database: Database, signals: Signals, seen: Witness, redis_url: str, redis_prefix: str
) -> None:
    runner_id = await registered(database)
    run_ids = {await seen.give_run(runner_id) for _ in range(3)}
    await expire(seen, runner_id)
    async with Redis.from_url(redis_url) as redis, redis.pubsub() as listener:
        await listener.subscribe(wake_channel(redis_prefix))
        await reaper_of(database, signals).look()
        told: set[str] = set()
        async with asyncio.timeout(10):
            while told != run_ids:
                message = await listener.get_message(True, timeout=10)
                if message is not None:
                    told.add(message["data"].decode())
    for run_id in run_ids:
        run = await seen.run(run_id)
        assert (run["status"], run["runner_id"]) == ("queued", None)
        assert (run["resume_reason"], run["attempts"], run["epoch"]) == ("failover", 1, 1)


async def test_a_runner_whose_lease_lasts_keeps_its_runs(
    database: Database, signals: Signals, seen: Witness
) -> None:
    """Its lock is free, which does not count before it was held once."""
    runner_id = await registered(database)
    run_id = await seen.give_run(runner_id)
    reaper = reaper_of(database, signals)
    await reaper.look()
    await reaper.look()
    assert (await seen.run(run_id))["runner_id"] == runner_id


async def test_a_free_lock_that_was_held_once_counts_from_the_second_look_on(
    database: Database, signals: Signals, seen: Witness
) -> None:
    runner_id = await registered(database)
    run_id = await seen.give_run(runner_id)
    async with database.connect() as connection:
        assert await runners.renew(connection, runner_id, 60.0)
    reaper = reaper_of(database, signals)
    await reaper.look()
    assert not await seen.is_dead(runner_id)
    await reaper.look()
    assert await seen.is_handed_back(run_id)


async def test_runs_left_behind_by_a_released_runner_are_handed_back(
    database: Database, signals: Signals, seen: Witness
) -> None:
    runner_id = await registered(database)
    run_id = await seen.give_run(runner_id)
    async with database.connect() as connection:
        await runners.release(connection, runner_id)
    await reaper_of(database, signals).look()
    assert await seen.is_handed_back(run_id)


async def test_what_a_stopped_runner_holds_in_an_open_transaction_is_freed_and_handed_back(
    database_url: str, database: Database, signals: Signals, seen: Witness
) -> None:
    runner_id = await registered(database)
    run_id = await seen.give_run(runner_id)
    name = runners.application_name(runner_id)
    stopped = Database(database_url, application_name=name, pool_size=1)
    with suppress(Exception):  # its session is ended under it
        async with stopped.begin() as standing_still:
            await standing_still.rows("SELECT 1 FROM runs WHERE id = $1 FOR UPDATE", run_id)
            await expire(seen, runner_id)
            reaper = reaper_of(database, signals)
            await reaper.look()
            assert await seen.is_dead(runner_id)
            await until(lambda: looks_until_handed_back(reaper, seen, run_id))
    assert await seen.sessions(runner_id) == 0
    assert await seen.is_handed_back(run_id)
    await stopped.aclose()


async def looks_until_handed_back(reaper: Reaper, seen: Witness, run_id: str) -> bool:
    await reaper.look()
    return await seen.is_handed_back(run_id)


async def test_a_reaper_waits_out_a_postgres_that_is_away(
    database_url: str, database: Database, signals: Signals, seen: Witness
) -> None:
    runner_id = await registered(database)
    async with Proxy(database_url) as network:
        network.refusing = True
        own = Database(network.url, application_name="reaper", pool_size=1)
        running = asyncio.create_task(reaper_of(own, signals).run())

        async def has_tried_twice() -> bool:
            return network.accepted >= 2

        await until(has_tried_twice)
        await expire(seen, runner_id)
        network.refusing = False
        await until(lambda: seen.is_dead(runner_id))
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await own.aclose()
