"""Live messages that do not come, or come late: noticed by the probe, and by the position check.

Two defences against one fault hide each other, so each is tried with the other switched off.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from common.bus.log import LogConnection
from common.db.engine import Database
from common.events import Event
from gateway.services.follow import Hub
from gateway.services.follower import Follower
from tests.support.fake_runner import FakeRun
from tests.support.following import NEVER_S, House, a_run, drained, written
from tests.support.redis_bed import Watched, bed
from tests.support.redis_line import RedisLine
from tests.support.until import until
from tests.support.valkey import private_valkey

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
TRIES = 3
JOINS = 300


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, application_name="test", pool_size=4)
    yield opened
    await opened.aclose()


@pytest.fixture
async def log(redis_url: str, redis_prefix: str) -> AsyncIterator[LogConnection]:
    connection = LogConnection(redis_url, prefix=redis_prefix)
    yield connection
    await connection.aclose()


@pytest.fixture
def house(database: Database, redis_url: str, redis_prefix: str) -> House:
    return House(database, redis_url, redis_prefix)


@asynccontextmanager
async def deaf_after_a_word(
    house: House, run: FakeRun, **options: Any
) -> AsyncIterator[tuple[Hub, Follower]]:
    """A reader that has heard one word, on a connection that has gone deaf since."""
    async with (
        RedisLine(house.redis_url) as line,
        house.hub(live_url=line.url, **options) as hub,
    ):
        follower = await hub.follow(run.id, 0, "end")
        await run.say("heard")
        async with asyncio.timeout(20):
            assert (await follower.next()).frames == written(run)
        line.deafen()
        yield hub, follower


async def test_the_probe_alone_notices_that_a_connection_is_deaf(
    house: House, database: Database, log: LogConnection
) -> None:
    run = await a_run(database, log)
    async with deaf_after_a_word(house, run) as (hub, follower):
        reading = asyncio.create_task(drained(follower, 40))
        await until(lambda: follower.waiting)
        await run.say("unheard")
        await run.finish()
        assert await reading == written(run, 1)
        await until(lambda: hub.healthy, within_s=20)
    assert house.count("distrusts_total", reason="confirmed") > 1
    assert house.count("position_checks_total") == 0


async def test_the_position_check_alone_heals_a_deaf_connection(
    house: House, database: Database, log: LogConnection
) -> None:
    run = await a_run(database, log)
    options = {"probe_interval_s": NEVER_S, "check_interval_s": 0.2}
    async with deaf_after_a_word(house, run, **options) as (_, follower):
        reading = asyncio.create_task(drained(follower, 40))
        await until(lambda: follower.waiting)
        await run.say("unheard")
        await run.archive()
        await run.finish()
        assert await reading == written(run, 1)
    assert house.count("distrusts_total", reason="position") > 0
    assert house.count("distrusts_total", reason="confirmed") == 1


async def test_while_live_messages_do_not_come_the_log_is_read_again_and_again(
    house: House, database: Database, log: LogConnection
) -> None:
    """Before the deaf connection is replaced: nothing is archived, so only Redis has it."""
    run = await a_run(database, log)
    async with (
        RedisLine(house.redis_url) as line,
        house.hub(live_url=line.url, watch_interval_s=0.05) as hub,
    ):
        follower = await hub.follow(run.id, 0, "end")
        line.refusing = True
        await line.cut()
        await until(lambda: not hub.healthy)
        reading = asyncio.create_task(drained(follower, 40))
        for number in range(3):
            await run.say(f"{number}")
            await until(lambda: follower.position == run.top, within_s=20)
        await run.finish()
        assert await reading == written(run)
    assert house.count("distrusts_total", reason="deaf") > 0


async def test_while_redis_is_away_one_query_serves_all_followed_runs(database: Database) -> None:
    """And what a gateway holds does not grow."""
    with private_valkey() as valkey:
        house = House(database, valkey.url, "p:")
        log = LogConnection(valkey.url, prefix="p:")
        many = [await a_run(database, log) for _ in range(30)]
        async with house.hub(watch_interval_s=0.2) as hub:
            reading = [
                asyncio.create_task(drained(await hub.follow(run.id, 0, "end"), 60)) for run in many
            ]
            valkey.freeze()
            await until(lambda: not hub.healthy, within_s=20)
            asked, began = house.count("position_checks_total"), asyncio.get_running_loop().time()
            for _ in range(4):
                for run in many:
                    run.number([Event("custom", {"data": "unheard"})])
                    await run.archive()
                await asyncio.sleep(0.3)
            took_s = asyncio.get_running_loop().time() - began
            for run in many:
                await run.finish(publish=False)
            assert await asyncio.gather(*reading) == [written(run) for run in many]
            assert house.count("position_checks_total") - asked <= took_s / 0.15 + 5
            assert house.count("ring_bytes") == 0
            valkey.thaw()
        await log.aclose()


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.timeout(450)
async def test_three_hundred_joins_have_no_hole_when_live_messages_are_3_ms_late(
    database_url: str, seed: int
) -> None:
    """Nothing else heals a hole: a round in which something could have (Redis took too long to
    answer on a machine with much to do) shows nothing, and is done again."""
    rng = random.Random(seed)
    for _ in range(TRIES):
        if not await healed(database_url, rng):
            return
    raise AssertionError("no round in which nothing could have healed a hole")


async def healed(database_url: str, rng: random.Random) -> bool:
    """Position checks are far away, unless a gateway finds Redis silent."""
    async with bed(database_url, heartbeat_interval_s=600) as system:
        system.rng = rng
        system.edge_line.live_delay_s = 0.003
        run_ids = await system.start(10, events=150, pause_s=0.02)

        async def join() -> Watched:
            await asyncio.sleep(rng.uniform(0, 3))
            return await system.watched(rng.choice(run_ids))

        async with asyncio.timeout(100):
            watched = await asyncio.gather(*(join() for _ in range(JOINS)))
        await system.must_be_exact(watched)
        return any(
            edge.metric("distrusts_total", reason=reason)
            for edge in system.edges
            for reason in ("position", "deaf")
        )
