"""Following a run through losses: nothing missing, nothing twice, always an end (I1, I6, I8).

Two defences against one fault hide each other, so each test here switches the others off: the
position check by an interval that never comes, the live messages by dropping them.
"""

import asyncio
import re
from contextlib import suppress

import pytest

from common.bus.client import Bus
from common.bus.log import LogConnection, LogReader
from common.db import conversations, runs
from common.db.engine import Database
from common.errors import Refused, Unavailable
from common.events import Event
from common.ownership import open_log
from gateway.metrics import Metrics
from gateway.services.follower import Follower
from gateway.services.history import History
from tests.support import rows
from tests.support.fake_runner import FakeRun
from tests.support.following import House, a_run, drained, joined, written
from tests.support.proxy import Proxy
from tests.support.until import until
from tests.support.valkey import private_valkey


@pytest.fixture
def house(database: Database, redis_url: str, redis_prefix: str) -> House:
    return House(database, redis_url, redis_prefix)


@pytest.fixture
async def run(database: Database, log: LogConnection) -> FakeRun:
    return await a_run(database, log)


async def test_a_join_has_no_hole_when_the_live_path_is_slower_than_the_log(
    house: House, run: FakeRun
) -> None:
    async with Proxy(house.redis_url, delay_s=0.003) as slow, house.hub(live_url=slow.url) as hub:
        readers = []
        for number in range(60):
            await run.say(f"{number}")
            readers.append(asyncio.create_task(joined(hub, run.id, number % 7)))
        await run.finish()
        got = await asyncio.gather(*readers)
    assert all(frames == written(run, number % 7) for number, frames in enumerate(got))


async def test_an_end_that_is_told_during_the_join_is_not_missed(
    house: House, database: Database, log: LogConnection
) -> None:
    """Nothing follows an end, so no later message shows that it was missed."""
    async with (
        Proxy(house.redis_url, delay_s=0.003) as slow,
        house.hub(live_url=slow.url) as hub,
    ):
        many = [await a_run(database, log) for _ in range(40)]
        reading = []
        for run in many:
            reading.append(asyncio.create_task(joined(hub, run.id)))
            await until(lambda: house.count("fills_total", source="redis") >= len(reading))
            await run.tell([Event("done", {})])
        got = await asyncio.gather(*reading)
    assert got == [written(run) for run in many]


async def test_a_lost_message_is_seen_by_the_next_one(house: House, run: FakeRun) -> None:
    async with house.hub() as hub:
        reading = asyncio.create_task(joined(hub, run.id))
        await until(lambda: house.count("distrusts_total", reason="confirmed") == 1)
        house.drops = lambda number: number % 3 == 0
        for number in range(30):
            await run.say(f"{number}")
        house.drops = lambda number: False
        await run.finish()
        assert await reading == written(run)
    assert house.count("gaps_total") > 0


async def test_a_lost_last_message_is_healed_by_the_position_check(
    house: House, run: FakeRun
) -> None:
    house.drops = lambda number: True
    async with house.hub(check_interval_s=0.02) as hub:
        follower = await hub.follow(run.id, 0, "end")
        reading = asyncio.create_task(drained(follower))
        await run.say("a")
        await until(lambda: follower.position == 1 and follower.waiting)
        await run.finish()
        assert await reading == written(run)
    assert house.count("distrusts_total", reason="position") > 0


async def test_a_reconnect_is_healed_by_its_confirmation(house: House, run: FakeRun) -> None:
    """What is told meanwhile is in the log only, and nothing follows it that would show a gap."""
    async with Proxy(house.redis_url) as line, house.hub(live_url=line.url) as hub:
        follower = await hub.follow(run.id, 0, "end")
        await run.say("a")
        assert await next_of(follower) == written(run)
        reading = asyncio.create_task(next_of(follower))
        line.refusing = True
        await line.cut()
        await run.say("b", "c")
        line.refusing = False
        assert await reading == written(run, 1)
        await run.finish()
        assert await drained(follower) == written(run, 3)


async def test_readers_are_exact_while_connections_are_cut_again_and_again(
    house: House, run: FakeRun
) -> None:
    async with Proxy(house.redis_url) as line, house.hub(live_url=line.url) as hub:
        readings = [asyncio.create_task(joined(hub, run.id)) for _ in range(8)]
        for number in range(60):
            await run.say(f"{number}", "x")
            if number % 10 == 5:
                await line.cut()
        await run.finish()
        for reading in readings:
            assert await reading == written(run)


async def test_after_flushall_the_archive_serves(database: Database) -> None:
    with private_valkey() as valkey:
        house = House(database, valkey.url, "p:")
        log = LogConnection(valkey.url, prefix="p:")
        run = await a_run(database, log)
        house.drops = lambda number: True
        async with house.hub(check_interval_s=0.02) as hub:
            early = asyncio.create_task(joined(hub, run.id))
            await run.say("a")
            await run.finish()
            valkey.command("FLUSHALL")
            assert await early == written(run)
            assert await joined(hub, run.id, 1) == written(run, 1)
        await log.aclose()


async def test_while_redis_is_away_readers_follow_the_archive_and_then_go_on_live(
    database: Database,
) -> None:
    with private_valkey() as valkey:
        house = House(database, valkey.url, "p:")
        log = LogConnection(valkey.url, prefix="p:")
        run = await a_run(database, log)
        async with house.hub(check_interval_s=0.05) as hub:
            follower = await hub.follow(run.id, 0, "end")
            await run.say("a")
            assert (await follower.next()).frames == written(run)
            await run.archive()
            valkey.kill()
            await told_to_the_archive_only(run)
            late = await hub.follow(run.id, 0, "end")
            assert await next_of(follower) == written(run, 1)
            assert await next_of(late) == written(run)
            valkey.start()
            await until(lambda: hub.healthy)
            await opened_again(log, run)
            await run.say("c")
            assert await next_of(follower) == written(run, 2)
            await run.finish()
            assert await drained(late) == written(run, 2)
        await log.aclose()


async def opened_again(log: LogConnection, run: FakeRun) -> None:
    """The first try may find out that the old connection is dead."""
    with suppress(Unavailable):
        await log.open(run.id, run.row.epoch, run.top, again=True)
    await log.connect()
    await log.open(run.id, run.row.epoch, run.top, again=True)


async def told_to_the_archive_only(run: FakeRun) -> None:
    run.number([Event("custom", {"data": "b"})])
    await run.archive()


async def next_of(follower: Follower) -> bytes:
    async with asyncio.timeout(20):
        return (await follower.next()).frames


async def test_a_reader_behind_the_ring_pages_through_the_log(house: House, run: FakeRun) -> None:
    async with house.hub(ring_bytes_max=500) as hub:
        follower = await hub.follow(run.id, 0, "end")
        for number in range(300):
            await run.say(f"{number}")
        await run.archive()
        await run.finish()
        assert await drained(follower) == written(run)
    assert house.count("ring_bytes") <= 1000


async def test_all_rings_together_are_bounded(
    house: House, database: Database, log: LogConnection
) -> None:
    many = [await a_run(database, log) for _ in range(5)]
    async with house.hub(rings_bytes_max=2000) as hub:
        followers = [await hub.follow(run.id, 0, "end") for run in many]
        for _ in range(10):
            for run in many:
                await run.say("x" * 100)
                assert house.count("ring_bytes") <= 2000
        for run, follower in zip(many, followers, strict=True):
            await run.finish()
            assert await drained(follower) == written(run)


async def test_many_readers_of_one_page_cause_one_read(house: House, run: FakeRun) -> None:
    await run.say("a")
    await run.finish()
    async with house.hub() as hub:
        followers = await asyncio.gather(*(hub.follow(run.id, 0, "end") for _ in range(50)))
        assert set(await asyncio.gather(*map(drained, followers))) == {written(run)}
    assert house.count("fills_total", source="redis") <= 5


async def test_a_lost_tail_jumps_and_no_number_has_two_contents(
    house: House, run: FakeRun, database: Database, log: LogConnection
) -> None:
    """Redis loses what was not archived; the next owner goes on above all that was reserved."""
    await run.say("kept")
    await run.archive()
    async with house.hub() as hub:
        saw_it = await hub.follow(run.id, 0, "end")
        await run.say("lost")
        seen = await next_of(saw_it)
        bus = Bus(house.redis_url, prefix=house.prefix)
        for key in await bus.call("KEYS", f"{house.prefix}run:*"):
            await bus.call("DEL", key)
        await bus.aclose()
        after = await taken_over(run, database, log)
        late = await joined(hub, run.id)
        seen += await drained(saw_it)
    numbers = [int(n) for n in re.findall(rb"^id: (\d+)$", seen, re.M)]
    assert numbers == sorted(set(numbers))
    assert numbers[:2] == [1, 2]
    assert numbers[2] > 1000
    assert late == run.told[0].frames + written(after)


async def taken_over(run: FakeRun, database: Database, log: LogConnection) -> FakeRun:
    """As after the death of its runner."""
    async with database.begin() as connection:
        assert await runs.requeue(
            connection, run.id, run.row.epoch, last_sequence=1, reason="failover"
        )
        await connection.rows("UPDATE runs SET sequence_reserved = 1000 WHERE id = $1", run.id)
    async with database.begin() as connection:
        runner_id = await rows.runner(connection)
        [claimed] = await runs.claim(connection, runner_id, [rows.GRAPH], 1, 1000, log.identity)
    opened = await open_log(database, log, claimed, 1000)
    after = FakeRun(database, log, claimed, opened.top)
    jump = opened.next_sequence - opened.top - 1
    resumed = Event("run_resumed", {"reason": "failover", "discard": []})
    await after.publish(after.number([resumed], jump))
    await after.finish()
    return after


async def test_topics_are_released_after_a_while_and_kept_for_who_comes_back(
    house: House, run: FakeRun
) -> None:
    async with house.hub(linger_s=0.05) as hub:
        (await hub.follow(run.id, 0, "end")).close()
        again = await hub.follow(run.id, 0, "end")
        await asyncio.sleep(0.1)
        assert house.count("topics") == 1
        again.close()
        again.close()
        await until(lambda: house.count("topics") == 0)


async def test_rings_that_were_given_up_count_no_longer(house: House, run: FakeRun) -> None:
    async with house.hub(linger_s=0.0) as hub:
        reader = await hub.follow(run.id, 0, "end")
        await run.say("something")
        await until(lambda: house.count("ring_bytes") > 0)
        reader.close()
        await until(lambda: house.count("topics") == 0)
        assert house.count("ring_bytes") == 0


async def test_history_that_went_away_is_refused(house: House, run: FakeRun) -> None:
    await run.say("a")
    await run.say("b")
    await run.finish()
    async with house.db.connect() as connection:
        await connection.rows(
            "DELETE FROM run_events WHERE run_id = $1 AND last_sequence = 1", run.id
        )
    bus = Bus(house.redis_url, prefix=house.prefix)
    await bus.call("DEL", *await bus.call("KEYS", f"{house.prefix}run:*"))
    await bus.aclose()
    async with house.hub() as hub:
        follower = await hub.follow(run.id, 0, "end")
        with pytest.raises(Refused, match="HISTORY_EXPIRED"):
            await follower.prime()
        assert await joined(hub, run.id, 1) == written(run, 1)


async def test_readers_of_a_deleted_run_do_not_wait_for_ever(house: House, run: FakeRun) -> None:
    async with house.hub(check_interval_s=0.02) as hub:
        follower = await hub.follow(run.id, 0, "end")
        reading = asyncio.create_task(follower.next())
        async with house.db.begin() as connection:
            await conversations.delete(connection, run.row.conversation_id, rows.USER)
        with pytest.raises(Refused, match="NOT_FOUND"):
            await reading


async def test_a_reader_that_leaves_cancels_no_read_of_others(house: House, run: FakeRun) -> None:
    await run.say("a")
    async with house.hub() as hub:
        leaving, staying = [await hub.follow(run.id, 0, "end") for _ in range(2)]
        left = asyncio.create_task(leaving.next())
        stayed = asyncio.create_task(staying.next())
        await asyncio.sleep(0)
        left.cancel()
        assert (await stayed).frames == written(run)


async def test_a_join_while_both_servers_are_away_says_so() -> None:
    nowhere = Database("postgresql://a:b@127.0.0.1:1/x", application_name="test", pool_size=1)
    with private_valkey() as valkey:
        async with House(nowhere, valkey.url, "p:").hub() as hub:
            valkey.kill()
            follower = await hub.follow("run_x", 0, "end")
            with pytest.raises(Unavailable):
                await follower.prime()
    await nowhere.aclose()


async def test_nobody_waits_long_behind_readers_of_an_archive_that_does_not_answer(
    database: Database, redis_url: str, redis_prefix: str
) -> None:
    bus = Bus(redis_url, prefix=redis_prefix)
    history = History(database, LogReader(bus), Metrics(), place_wait_s=0.1)
    async with database.begin() as connection:
        await connection.rows("LOCK TABLE run_events IN ACCESS EXCLUSIVE MODE")
        reading = [
            asyncio.create_task(history.read(f"run_{number}", 0, 10)) for number in range(20)
        ]
        async with asyncio.timeout(4):  # of statements, of which each place has one: 5 s
            done, pending = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            while len(pending) > 4:
                more, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                done |= more
        assert all(isinstance(read.exception(), Unavailable) for read in done)
    assert [await read for read in pending] == [[]] * 4
    await bus.aclose()
