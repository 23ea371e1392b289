"""Each answer of both scripts, and what the appending connection promises (common/bus/log.py)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from redis.asyncio import Redis

import common.bus.log
from common.batch import Batch, Ends
from common.bus.client import Bus
from common.bus.log import Append, LogConnection, LogReader
from common.bus.names import head_key, log_key, run_channel
from common.bus.script import Script
from common.errors import Unavailable
from common.ids import new_id
from tests.support.proxy import Proxy
from tests.support.until import until
from tests.support.valkey import Valkey, private_valkey


def batch(
    after: int, last: int, *, epoch: int = 1, first: int | None = None, ends: Ends = ""
) -> Batch:
    first = after + 1 if first is None else first
    frames = b"".join(
        b"id: %d\nevent: x\ndata: %d\n\n" % (q, epoch) for q in range(first, last + 1)
    )
    return Batch(after, first, last, epoch, ends, frames)


@pytest.fixture
def run_id() -> str:
    return new_id("run")


@pytest.fixture
async def bus(redis_url: str, redis_prefix: str) -> AsyncIterator[Bus]:
    bus = Bus(redis_url, prefix=redis_prefix)
    yield bus
    await bus.aclose()


@pytest.fixture
async def log(redis_url: str, redis_prefix: str) -> AsyncIterator[LogConnection]:
    log = LogConnection(redis_url, prefix=redis_prefix, ttl_s=1000, ended_ttl_s=50)
    await log.connect()
    yield log
    await log.aclose()


@pytest.fixture
def reader(bus: Bus) -> LogReader:
    return LogReader(bus)


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with private_valkey() as server:
        yield server


class TestOpen:
    async def test_an_unknown_log_begins_at_the_top_of_the_archive(
        self, log: LogConnection, run_id: str
    ) -> None:
        assert await log.open(run_id, 1, 7) == ("NEW", 7)
        assert await log.append([Append(run_id, batch(7, 8))]) == [("OK", 8)]

    async def test_a_newer_epoch_takes_the_log_and_learns_its_top(
        self, log: LogConnection, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 3))])
        assert await log.open(run_id, 2, 1) == ("OPEN", 3)

    async def test_an_older_epoch_is_fenced(self, log: LogConnection, run_id: str) -> None:
        await log.open(run_id, 3, 0)
        assert await log.open(run_id, 2, 0) == ("FENCED", 3)
        assert await log.open(run_id, 2, 9, again=True) == ("FENCED", 3)

    async def test_a_log_that_lacks_what_is_archived_begins_anew(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 3))])
        assert await log.open(run_id, 2, 5) == ("NEW", 5)
        assert await reader.read(run_id, 0) == []
        assert await reader.top(run_id) == 5

    async def test_the_same_owner_drops_a_log_that_was_rolled_back_to_an_older_epoch(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 9))])
        assert await log.open(run_id, 2, 3, again=True) == ("NEW", 3)

    async def test_the_same_owner_goes_on_with_its_own_log(
        self, log: LogConnection, run_id: str
    ) -> None:
        await log.open(run_id, 2, 0)
        await log.append([Append(run_id, batch(0, 4, epoch=2))])
        assert await log.open(run_id, 2, 4, again=True) == ("OPEN", 4)

    async def test_a_log_with_its_terminal_event_is_closed(
        self, log: LogConnection, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 2, ends="run"))])
        assert await log.open(run_id, 2, 2) == ("CLOSED", 2)

    async def test_a_closed_log_that_was_evicted_is_closed_still(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 2, ends="run"))])
        await bus.call("DEL", log_key(bus.prefix, run_id))
        assert await log.open(run_id, 2, 2) == ("CLOSED", 2)

    async def test_a_head_without_the_log_it_speaks_of_counts_as_lost(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 4))])
        await bus.call("DEL", log_key(bus.prefix, run_id))
        assert await log.open(run_id, 2, 1) == ("NEW", 1)

    async def test_what_the_first_owner_did_not_write_to_is_open(
        self, log: LogConnection, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        assert await log.open(run_id, 2, 0) == ("OPEN", 0)

    async def test_a_log_begun_in_place_of_a_lost_one_is_new_until_something_is_written(
        self, log: LogConnection, run_id: str
    ) -> None:
        """Its owner died before it wrote: the next one must not trust the top either."""
        assert await log.open(run_id, 2, 6) == ("NEW", 6)
        assert await log.open(run_id, 3, 6) == ("NEW", 6)
        assert await log.open(run_id, 3, 6, again=True) == ("OPEN", 6)
        await log.append([Append(run_id, batch(6, 101, epoch=3, first=101))])
        assert await log.open(run_id, 4, 6) == ("OPEN", 101)

    async def test_a_log_that_nobody_writes_to_goes_away_by_itself(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        assert 0 < await bus.call("TTL", head_key(bus.prefix, run_id)) <= 1000


class TestAppend:
    async def test_what_is_appended_is_told_byte_for_byte(
        self, log: LogConnection, bus: Bus, redis_url: str, run_id: str
    ) -> None:
        sent = batch(0, 2, ends="pause")
        async with Redis.from_url(redis_url) as client, client.pubsub() as pubsub:
            await pubsub.subscribe(run_channel(bus.prefix, run_id))
            await pubsub.get_message(timeout=5)
            await log.open(run_id, 1, 0)
            assert await log.append([Append(run_id, sent)] * 2) == [("OK", 2)] * 2
            told = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
            assert told["data"] == sent.encode()
            assert await pubsub.get_message(timeout=0) is None, "sent again, it was told again"
        [(_, fields)] = await bus.call("XRANGE", log_key(bus.prefix, run_id), "-", "+")
        assert fields == [b"b", sent.encode()]

    async def test_a_batch_that_is_there_already_is_answered_with_the_top(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        first, second = batch(0, 2), batch(2, 5)
        await log.append([Append(run_id, first), Append(run_id, second)])
        assert await log.append([Append(run_id, first)]) == [("OK", 5)]
        assert await reader.read(run_id, 0) == [first, second]

    async def test_an_older_owner_is_fenced_and_changes_nothing(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.open(run_id, 2, 0)
        assert await log.append([Append(run_id, batch(0, 2))]) == [("FENCED", 2)]
        assert await reader.read(run_id, 0) == []

    async def test_without_a_head_the_log_is_lost(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 2))])
        await bus.call("DEL", log_key(bus.prefix, run_id), head_key(bus.prefix, run_id))
        assert await log.append([Append(run_id, batch(2, 4))]) == [("LOST", 0)]

    async def test_a_head_of_an_older_epoch_is_lost(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        await log.open(run_id, 2, 0)
        await bus.call("HSET", head_key(bus.prefix, run_id), "epoch", 1)
        assert await log.append([Append(run_id, batch(0, 2, epoch=2))]) == [("LOST", 0)]

    async def test_a_head_without_its_log_is_lost_and_does_not_begin_another(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 2))])
        await bus.call("DEL", log_key(bus.prefix, run_id))
        assert await log.append([Append(run_id, batch(2, 4))]) == [("LOST", 0)]
        assert await bus.call("EXISTS", log_key(bus.prefix, run_id)) == 0

    async def test_nothing_follows_a_terminal_event(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        end = batch(0, 2, ends="run")
        sent = [Append(run_id, end), Append(run_id, batch(2, 3)), Append(run_id, end)]
        assert await log.append(sent) == [("OK", 2), ("CLOSED", 2), ("OK", 2)]
        assert await reader.read(run_id, 0) == [end]

    async def test_what_does_not_follow_the_top_is_a_gap(
        self, log: LogConnection, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        sent = [
            Append(run_id, batch(0, 2)),
            Append(run_id, batch(3, 4)),
            Append(run_id, batch(1, 5)),
        ]
        assert await log.append(sent) == [("OK", 2), ("GAP", 2), ("GAP", 2)]

    async def test_numbers_may_jump_where_the_batch_says_what_it_follows(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        await log.open(run_id, 1, 4)
        jump = batch(4, 1001, first=1000)
        assert await log.append([Append(run_id, jump)]) == [("OK", 1001)]
        assert await reader.read(run_id, 4) == [jump]
        assert await reader.read(run_id, 999) == [jump]

    async def test_large_numbers_stay_exact(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        base = 2**53 - 10
        assert await log.open(run_id, 1, base) == ("NEW", base)
        assert await log.append([Append(run_id, batch(base, base + 2))]) == [("OK", base + 2)]
        assert await reader.top(run_id) == base + 2

    async def test_one_round_trip_serves_many_runs_and_each_gets_its_own_answer(
        self, log: LogConnection
    ) -> None:
        good, gap, fenced, unknown = (new_id("run") for _ in range(4))
        for run_id in (good, gap, fenced):
            await log.open(run_id, 1, 0)
        await log.open(fenced, 2, 0)
        sent = [
            Append(unknown, batch(0, 1)),
            Append(good, batch(0, 1)),
            Append(fenced, batch(0, 1)),
            Append(gap, batch(5, 6)),
            Append(good, batch(1, 2)),
        ]
        expected = [("LOST", 0), ("OK", 1), ("FENCED", 2), ("GAP", 0), ("OK", 2)]
        assert await log.append(sent) == expected

    async def test_nothing_to_append_is_no_round_trip(self, log: LogConnection) -> None:
        assert await log.append([]) == []


class TestKeeping:
    async def test_what_is_archived_leaves_the_log_and_nothing_else_does(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        for last in range(1, 501):
            await log.append([Append(run_id, batch(last - 1, last), archived=max(0, last - 50))])
        kept = [b.last for b in await reader.read(run_id, 0, count=1000)]
        assert kept == list(range(kept[0], 501))
        assert 1 < kept[0] <= 450

    async def test_a_batch_is_kept_also_when_more_than_it_is_archived(
        self, log: LogConnection, reader: LogReader, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        for last in range(1, 301):
            await log.append([Append(run_id, batch(last - 1, last), archived=10_000)])
        assert [b.last for b in await reader.read(run_id, 299)] == [300]
        assert await log.open(run_id, 2, 300) == ("OPEN", 300)

    async def test_the_log_outlives_its_last_write_and_an_ended_one_only_shortly(
        self, log: LogConnection, bus: Bus, run_id: str
    ) -> None:
        keys = log_key(bus.prefix, run_id), head_key(bus.prefix, run_id)
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 1))])
        assert all([50 < await bus.call("TTL", key) <= 1000 for key in keys])
        await log.append([Append(run_id, batch(1, 2, ends="run"))])
        assert all([0 < await bus.call("TTL", key) <= 50 for key in keys])


class TestScripts:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("no header", 0, 100, 100),
            ("0 1 1 1 x\n", 0, 100, 100),
            ("1 1 2 1 -\n", 0, 100, 100),
            ("0 2 1 1 -\n", 0, 100, 100),
            ("0 1 1 1 -\n", "x", 100, 100),
            ("0 1 1 1 -\n", 0, 0, 100),
            ("0 1 1 1 r\n", 0, 100, "x"),
        ],
    )
    async def test_append_refuses_what_it_cannot_use_before_it_writes(
        self, bus: Bus, run_id: str, arguments: tuple[str | int, ...]
    ) -> None:
        keys = log_key(bus.prefix, run_id), head_key(bus.prefix, run_id)
        head = keys[1], "epoch", 1, "base", 0, "top", 0
        await bus.call("HSET", *head)
        with pytest.raises(Unavailable) as refused:
            await bus.call("EVAL", Script("append").source, 3, *keys, "channel", *arguments)
        assert "unusable arguments" in str(refused.value.__cause__)
        assert await bus.call("EXISTS", keys[0]) == 0
        assert (await bus.call("HMGET", keys[1], "top", "closed")) == [b"0", None]

    @pytest.mark.parametrize(
        "arguments", [("x", 0, 0, 100), (1, "x", 0, 100), (1, 0, 0, 0), (1, 0, 0)]
    )
    async def test_open_refuses_what_it_cannot_use_before_it_writes(
        self, bus: Bus, run_id: str, arguments: tuple[str | int, ...]
    ) -> None:
        keys = log_key(bus.prefix, run_id), head_key(bus.prefix, run_id)
        with pytest.raises(Unavailable):
            await bus.call("EVAL", Script("open").source, 2, *keys, *arguments)
        assert await bus.call("EXISTS", *keys) == 0

    async def test_scripts_that_the_server_forgot_are_loaded_again(
        self, valkey: Valkey, run_id: str
    ) -> None:
        log = LogConnection(valkey.url)
        await log.connect()
        valkey.command("SCRIPT", "FLUSH")
        assert await log.open(run_id, 1, 0) == ("NEW", 0)
        valkey.command("SCRIPT", "FLUSH")
        sent = [Append(run_id, batch(0, 1)), Append(run_id, batch(1, 2))]
        assert await log.append(sent) == [("OK", 1), ("OK", 2)]
        assert log.generation == 1
        await log.aclose()


class TestConnection:
    async def test_connecting_twice_is_connecting_once(self, log: LogConnection) -> None:
        await log.connect()
        assert (log.generation, log.connected, len(log.identity)) == (1, True, 40)

    async def test_before_connecting_nothing_is_available(
        self, redis_url: str, run_id: str
    ) -> None:
        log = LogConnection(redis_url)
        with pytest.raises(Unavailable):
            await log.open(run_id, 1, 0)

    async def test_a_new_connection_appends_to_nothing_that_was_not_opened_on_it(
        self, log: LogConnection, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(0, 1))])
        await log.aclose()
        await log.connect()
        assert log.generation == 2
        assert await log.append([Append(run_id, batch(1, 2))]) == [("LOST", 0)]
        assert await log.open(run_id, 1, 0, again=True) == ("OPEN", 1)
        assert await log.append([Append(run_id, batch(1, 2))]) == [("OK", 2)]

    async def test_what_is_remembered_as_opened_is_bounded(
        self, log: LogConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(common.bus.log, "_OPENED_MAX", 2)
        runs = [new_id("run") for _ in range(3)]
        for run_id in runs:
            await log.open(run_id, 1, 0)
        answers = await log.append([Append(run_id, batch(0, 1)) for run_id in runs])
        assert answers == [("LOST", 0), ("OK", 1), ("OK", 1)]

    async def test_a_cancelled_caller_leaves_no_stale_reply(
        self, redis_url: str, redis_prefix: str, reader: LogReader, run_id: str
    ) -> None:
        async with Proxy(redis_url) as proxy:
            log = LogConnection(proxy.url, prefix=redis_prefix)
            await log.connect()
            await log.open(run_id, 1, 0)
            proxy.delay_s = 0.2
            caller = asyncio.create_task(log.append([Append(run_id, batch(0, 1))]))
            await until(lambda: _reached(reader, run_id, 1))
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            proxy.delay_s = 0
            assert await log.open(run_id, 1, 0, again=True) == ("OPEN", 1)
            sent = [Append(run_id, batch(0, 1)), Append(run_id, batch(1, 2))]
            assert await log.append(sent) == [("OK", 1), ("OK", 2)]
            await log.aclose()

    async def test_a_reply_that_was_lost_is_asked_for_by_sending_again(
        self, redis_url: str, redis_prefix: str, reader: LogReader, run_id: str
    ) -> None:
        async with Proxy(redis_url) as proxy:
            log = LogConnection(proxy.url, prefix=redis_prefix)
            await log.connect()
            await log.open(run_id, 1, 0)
            proxy.delay_s = 0.2
            caller = asyncio.create_task(log.append([Append(run_id, batch(0, 1))]))
            await until(lambda: _reached(reader, run_id, 1))
            await proxy.cut()
            with pytest.raises(Unavailable):
                await caller
            proxy.delay_s = 0
            await log.connect()
            await log.open(run_id, 1, 0, again=True)
            assert await log.append([Append(run_id, batch(0, 1))]) == [("OK", 1)]
            assert [b.last for b in await reader.read(run_id, 0)] == [1]
            await log.aclose()

    async def test_a_server_that_does_not_answer_costs_the_connection(
        self, redis_url: str, redis_prefix: str, run_id: str
    ) -> None:
        async with Proxy(redis_url) as proxy:
            log = LogConnection(proxy.url, prefix=redis_prefix, timeout_s=0.1)
            await log.connect()
            proxy.stall()
            with pytest.raises(Unavailable):
                await log.open(run_id, 1, 0)
            assert not log.connected
            with pytest.raises(Unavailable):
                await log.connect()
            proxy.resume()
            await until(lambda: _connects(log))
            answer, top = await log.open(run_id, 1, 0)
            assert answer in ("NEW", "OPEN"), "OPEN where the first one still arrived, late"
            assert top == 0
            await log.aclose()

    async def test_callers_at_the_same_time_get_their_own_answers(
        self, log: LogConnection, reader: LogReader
    ) -> None:
        runs = [new_id("run") for _ in range(30)]

        async def write(run_id: str, base: int) -> None:
            assert await log.open(run_id, 1, base) == ("NEW", base)
            answers = [await log.append([Append(run_id, batch(base, base + 1))]) for _ in "ab"]
            assert answers == [[("OK", base + 1)]] * 2
            assert await log.tail(run_id, base) == [batch(base, base + 1)]

        await asyncio.gather(*(write(run_id, base) for base, run_id in enumerate(runs)))
        assert [await reader.top(run_id) for run_id in runs] == list(range(1, 31))

    async def test_the_tail_is_read_whole_also_in_several_pages(
        self, log: LogConnection, run_id: str
    ) -> None:
        await log.open(run_id, 1, 0)
        await log.append([Append(run_id, batch(last - 1, last)) for last in range(1, 451)])
        assert [b.last for b in await log.tail(run_id, 7)] == list(range(8, 451))


class TestServer:
    """Faults of a whole server."""

    async def test_a_restarted_server_has_another_identity_and_has_lost_the_log(
        self, valkey: Valkey, run_id: str
    ) -> None:
        log = LogConnection(valkey.url)
        await log.connect()
        before = log.identity
        await log.open(run_id, 1, 0)
        valkey.kill()
        with pytest.raises(Unavailable):
            await log.append([Append(run_id, batch(0, 1))])
        with pytest.raises(Unavailable):
            await log.connect()
        valkey.start()
        await until(lambda: _connects(log))
        assert (log.generation, log.identity == before) == (2, False)
        assert await log.open(run_id, 1, 0, again=True) == ("NEW", 0)
        await log.aclose()

    async def test_after_flushall_the_log_is_lost_and_begins_at_the_archive(
        self, valkey: Valkey, run_id: str
    ) -> None:
        log = LogConnection(valkey.url)
        await log.connect()
        await log.open(run_id, 4, 0)
        await log.append([Append(run_id, batch(0, 3, epoch=4))])
        valkey.command("FLUSHALL")
        assert await log.append([Append(run_id, batch(3, 4, epoch=4))]) == [("LOST", 0)]
        assert await log.open(run_id, 4, 3, again=True) == ("NEW", 3)
        assert await log.append([Append(run_id, batch(3, 4, epoch=4))]) == [("OK", 4)]
        await log.aclose()

    async def test_a_server_that_refuses_to_write_is_unavailable_until_it_does(
        self, valkey: Valkey, run_id: str
    ) -> None:
        log = LogConnection(valkey.url)
        await log.connect()
        await log.open(run_id, 1, 0)
        valkey.command("REPLICAOF", "127.0.0.1", "1")  # a master that was demoted
        with pytest.raises(Unavailable):
            await log.append([Append(run_id, batch(0, 1))])
        assert not log.connected
        valkey.command("REPLICAOF", "NO", "ONE")
        await until(lambda: _connects(log))
        assert await log.open(run_id, 1, 0, again=True) == ("OPEN", 0)
        await log.aclose()

    async def test_readers_of_a_server_that_is_away_are_told(
        self, valkey: Valkey, run_id: str
    ) -> None:
        bus = Bus(valkey.url, timeout_s=0.5)
        reader = LogReader(bus)
        assert await reader.read(run_id, 0) == []
        valkey.kill()
        with pytest.raises(Unavailable):
            await reader.read(run_id, 0)
        with pytest.raises(Unavailable):
            await reader.top(run_id)
        valkey.start()
        await until(lambda: not bus.away)
        assert await reader.top(run_id) is None
        await bus.aclose()


async def _connects(log: LogConnection) -> bool:
    """After a failure a further try may fail at once."""
    with suppress(Unavailable):
        await log.connect()
    return log.connected


async def _reached(reader: LogReader, run_id: str, top: int) -> bool:
    return await reader.top(run_id) == top
