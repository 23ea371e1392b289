"""Signals, presence and the ordinary client (common/bus/{signals,presence,client}.py)."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import redis
import uvloop
from redis.asyncio import Redis

from common.bus.client import Bus
from common.bus.names import head_key, present_key
from common.bus.presence import Attended, Look, Presence
from common.bus.signals import Order, Signals, read_order, runner_channel, wake_channel
from common.errors import Unavailable
from common.ids import new_id
from tests.support.proxy import Proxy
from tests.support.until import until
from tests.support.valkey import Valkey, private_valkey


@pytest.fixture
async def bus(redis_url: str, redis_prefix: str) -> AsyncIterator[Bus]:
    bus = Bus(redis_url, prefix=redis_prefix)
    yield bus
    await bus.aclose()


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with private_valkey() as server:
        yield server


async def test_each_signal_reaches_those_it_is_for(bus: Bus, redis_url: str) -> None:
    signals = Signals(bus)
    async with Redis.from_url(redis_url) as client, client.pubsub() as pubsub:
        await pubsub.subscribe(wake_channel(bus.prefix), runner_channel(bus.prefix, "rnr_1"))
        for _ in "ab":
            await pubsub.get_message(timeout=5)
        await signals.wake("run_a")
        await signals.cancel("rnr_1", "run_b")
        await signals.cancel("rnr_2", "run_b")
        await signals.decided("rnr_1", "run_c")
        told = [await pubsub.get_message(timeout=5) for _ in "abc"]
    assert told[0]["data"] == b"run_a"
    orders = [read_order(message["data"]) for message in told[1:]]
    assert orders == [Order("cancel", "run_b"), Order("decided", "run_c")]


@pytest.mark.parametrize("payload", [b"", b"cancel", b"cancel ", b"explode run_a", b"\xff\xfe x"])
async def test_an_order_that_is_not_known_is_none(payload: bytes) -> None:
    assert read_order(payload) is None


async def test_a_signal_that_cannot_be_sent_is_a_line_in_the_log(
    valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus(valkey.url, timeout_s=0.2)
    valkey.kill()
    with caplog.at_level(logging.WARNING):
        await Signals(bus).wake("run_a")
    assert "signal not sent: run_a on wake" in caplog.text
    await bus.aclose()


class TestPresence:
    async def test_a_run_is_watched_until_the_last_gateway_has_said_that_it_left(
        self, bus: Bus
    ) -> None:
        run_id, presence = new_id("run"), Presence(bus, ttl_s=30)
        assert await look(presence, run_id) == (-1, ""), "nobody has come yet"
        await presence.say("gateway 1", here=[run_id])
        first = await look(presence, run_id)
        await presence.say("gateway 2", here=[run_id])
        await presence.say("gateway 2", here=[run_id])
        assert await look(presence, run_id) == (2, first.since)
        await presence.say("gateway 1", left=[run_id])
        await presence.say("gateway 1", left=[run_id])
        assert await look(presence, run_id) == (1, first.since)
        await presence.say("gateway 2", left=[run_id])
        assert await look(presence, run_id) == (0, first.since)
        await presence.say("gateway 1", here=[run_id])
        assert await look(presence, run_id) == (1, first.since)

    async def test_a_gateway_that_died_stops_counting(self, bus: Bus) -> None:
        run_id = new_id("run")
        lasting, short = Presence(bus, ttl_s=30), Presence(bus, ttl_s=0.05)
        await lasting.say("gateway 1", here=[run_id])
        await short.say("gateway 2", here=[run_id])
        await until(lambda: is_watched_by(lasting, run_id, 1))
        await lasting.say("gateway 1", left=[run_id])
        assert (await look(lasting, run_id)).present == 0

    async def test_a_stream_that_came_and_went_between_two_words_has_been(self, bus: Bus) -> None:
        run_id, presence = new_id("run"), Presence(bus, ttl_s=30)
        await presence.say("gateway", left=[run_id])
        assert (await look(presence, run_id)).present == 0

    async def test_many_runs_are_told_and_seen_at_once(self, bus: Bus) -> None:
        run_ids, presence = {new_id("run") for _ in range(450)}, Presence(bus, ttl_s=30)
        await presence.say("gateway", here=run_ids)
        seen = await presence.look(run_ids)
        assert {run_id: one.present for run_id, one in seen.runs.items()} == dict.fromkeys(
            run_ids, 1
        )
        assert len(seen.identity) == 40
        assert await presence.look([]) == Look("", {})

    async def test_a_memory_that_was_lost_and_began_anew_can_be_told(self, valkey: Valkey) -> None:
        bus = Bus(valkey.url)
        run_id, presence = new_id("run"), Presence(bus, ttl_s=30)
        await presence.say("gateway", here=[run_id])
        before = await presence.look([run_id])
        valkey.command("FLUSHALL")
        valkey.command("SCRIPT", "FLUSH")
        await presence.say("gateway", here=[run_id])
        after = await presence.look([run_id])
        assert after.runs[run_id].since != before.runs[run_id].since
        assert after.identity == before.identity
        valkey.kill()
        with pytest.raises(Unavailable):
            await presence.look([run_id])
        valkey.start()
        await until(lambda: not bus.away)
        assert (await presence.look([run_id])).identity != before.identity
        await bus.aclose()

    async def test_what_is_kept_goes_away_by_itself(self, bus: Bus) -> None:
        run_id = new_id("run")
        await Presence(bus, ttl_s=30, keep_s=100).say("gateway", here=[run_id])
        assert 0 < await bus.call("TTL", present_key(bus.prefix, run_id)) <= 100

    async def test_nothing_is_kept_of_a_run_that_has_ended(self, bus: Bus) -> None:
        run_id, presence = new_id("run"), Presence(bus, ttl_s=30)
        await presence.say("gateway", here=[run_id])
        await bus.call("HSET", head_key(bus.prefix, run_id), "closed", "1")
        await presence.say("gateway", left=[run_id])
        assert not await bus.call("EXISTS", present_key(bus.prefix, run_id))


async def look(presence: Presence, run_id: str) -> Attended:
    return (await presence.look([run_id])).runs[run_id]


async def is_watched_by(presence: Presence, run_id: str, gateways: int) -> bool:
    return (await look(presence, run_id)).present == gateways


class TestClient:
    async def test_a_cancelled_caller_does_not_leave_its_reply_to_the_next(
        self, redis_url: str, redis_prefix: str
    ) -> None:
        async with Proxy(redis_url, delay_s=0.02) as proxy:
            bus = Bus(proxy.url, prefix=redis_prefix)
            await bus.ping()
            callers = [asyncio.create_task(bus.call("ECHO", n)) for n in range(10)]
            await asyncio.sleep(0)
            for caller in callers[::2]:
                caller.cancel()
            answers = await asyncio.gather(*callers, return_exceptions=True)
            assert answers[1::2] == [b"1", b"3", b"5", b"7", b"9"]
            assert all(isinstance(gone, asyncio.CancelledError) for gone in answers[::2])
            assert proxy.accepted == 1
            await bus.aclose()

    async def test_a_server_that_does_not_answer_is_unavailable(self, redis_url: str) -> None:
        async with Proxy(redis_url) as proxy:
            bus = Bus(proxy.url, timeout_s=0.1)
            await bus.ping()
            proxy.stall()
            with pytest.raises(Unavailable) as unavailable:
                await bus.ping()
            assert str(unavailable.value) == "Redis cannot be reached"
            proxy.resume()
            await until(lambda: not bus.away)
            await bus.ping()
            await bus.aclose()

    async def test_an_idle_connection_that_was_killed_is_replaced(self, valkey: Valkey) -> None:
        bus = Bus(valkey.url)
        for _ in range(10):
            await bus.ping()
            valkey.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await bus.ping()
        await bus.aclose()

    async def test_calls_at_the_same_time_share_a_round_trip(self, redis_url: str) -> None:
        async with Proxy(redis_url, delay_s=0.1) as proxy:
            bus = Bus(proxy.url, timeout_s=5)
            await bus.ping()
            began = time.monotonic()
            echoes = await asyncio.gather(*(bus.call("ECHO", n) for n in range(50)))
            assert echoes == [b"%d" % n for n in range(50)]
            assert time.monotonic() - began < 5  # one after the other they would take 10 s
            await bus.aclose()

    async def test_nobody_waits_for_a_server_that_is_away(self, redis_url: str) -> None:
        """One call finds out; later ones fail at once until the server was reached again."""
        async with Proxy(redis_url) as proxy:
            bus = Bus(proxy.url, timeout_s=1)
            await bus.ping()
            proxy.stall()
            calls = await asyncio.gather(*(bus.ping() for _ in range(9)), return_exceptions=True)
            assert [type(call) for call in calls] == [Unavailable] * 9
            accepted = proxy.accepted
            assert bus.away
            for _ in range(100):
                with pytest.raises(Unavailable):
                    await bus.ping()
            assert proxy.accepted <= accepted + 1
            proxy.resume()
            await until(lambda: not bus.away)
            await bus.ping()
            await bus.aclose()

    async def test_a_command_that_is_refused_does_not_make_the_server_away(
        self, valkey: Valkey
    ) -> None:
        bus = Bus(valkey.url)
        with pytest.raises(Unavailable):
            await bus.call("EVAL", "return redis.error_reply('OOM full')", 0)
        assert not bus.away
        await bus.ping()
        await bus.aclose()

    async def test_a_server_that_is_loading_or_asks_for_a_password_is_away(
        self, valkey: Valkey
    ) -> None:
        bus = Bus(valkey.url)
        await bus.ping()
        valkey.command("CONFIG", "SET", "requirepass", "other")
        with redis.Redis.from_url(valkey.url, password="other") as operator:
            operator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(Unavailable):
            await bus.ping()
        assert bus.away
        await bus.aclose()


def test_a_connection_that_has_just_been_closed_is_away_also_on_the_loop_of_gateways(
    redis_url: str,
) -> None:
    """uvloop raises a RuntimeError where asyncio merely warns about a write that comes too late."""

    async def ask_over_a_closed_line() -> None:
        bus = Bus(redis_url)
        await bus.ping()
        line = bus._wire._line
        assert line is not None
        line._writer.transport.abort()
        with suppress(Unavailable):
            await bus.ping()
        assert line.closed, "nobody has noticed"
        await bus.aclose()

    uvloop.run(ask_over_a_closed_line())
