"""Signals, presence and the ordinary client (common/bus/{signals,presence,client}.py)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from common.bus.client import Bus
from common.bus.names import present_key
from common.bus.presence import Presence
from common.bus.signals import Order, Signals, read_order, runner_channel, wake_channel
from common.errors import Unavailable
from common.ids import new_id
from tests.support.proxy import Proxy
from tests.support.until import until
from tests.support.valkey import Valkey, private_valkey


@pytest.fixture
async def bus(redis_url: str, redis_prefix: str) -> AsyncIterator[Bus]:
    bus = Bus(redis_url, prefix=redis_prefix, max_connections=1)
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
    async def test_a_run_is_abandoned_when_the_last_of_its_watchers_has_gone(
        self, bus: Bus
    ) -> None:
        run_id, presence = new_id("run"), Presence(bus, grace_s=0)
        assert not await presence.abandoned(run_id), "nobody has come yet"
        await presence.here(run_id, "gateway 1")
        await presence.here(run_id, "gateway 2")
        await presence.left(run_id, "gateway 1")
        assert not await presence.abandoned(run_id)
        await presence.left(run_id, "gateway 2")
        assert await presence.abandoned(run_id)
        await presence.here(run_id, "gateway 1")
        assert not await presence.abandoned(run_id)

    async def test_whoever_left_counts_for_the_grace_period(self, bus: Bus) -> None:
        run_id, presence = new_id("run"), Presence(bus, grace_s=0.1)
        await presence.here(run_id, "gateway")
        await presence.left(run_id, "gateway")
        assert not await presence.abandoned(run_id)
        await until(lambda: presence.abandoned(run_id))

    async def test_a_gateway_that_died_stops_counting(self, bus: Bus) -> None:
        run_id, presence = new_id("run"), Presence(bus, ttl_s=0.05)
        await presence.here(run_id, "gateway")
        await until(lambda: presence.abandoned(run_id))

    async def test_what_is_kept_goes_away_by_itself(self, bus: Bus) -> None:
        run_id = new_id("run")
        await Presence(bus, keep_s=100).here(run_id, "gateway")
        assert 0 < await bus.call("TTL", present_key(bus.prefix, run_id)) <= 100


class TestClient:
    async def test_a_cancelled_caller_does_not_leave_its_reply_to_the_next(
        self, redis_url: str, redis_prefix: str
    ) -> None:
        async with Proxy(redis_url, delay_s=0.02) as proxy:
            bus = Bus(proxy.url, prefix=redis_prefix, max_connections=1)
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
            await bus.ping()
            await bus.aclose()

    async def test_an_idle_connection_that_was_killed_is_replaced(self, valkey: Valkey) -> None:
        bus = Bus(valkey.url, max_connections=1)
        for _ in range(10):
            await bus.ping()
            valkey.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await bus.ping()
        await bus.aclose()

    async def test_a_pool_that_is_busy_for_too_long_is_unavailable(self, redis_url: str) -> None:
        async with Proxy(redis_url) as proxy:
            bus = Bus(proxy.url, max_connections=1, timeout_s=0.1)
            proxy.stall()
            calls = await asyncio.gather(*(bus.ping() for _ in "abc"), return_exceptions=True)
            assert [type(call) for call in calls] == [Unavailable] * 3
            await bus.aclose()
