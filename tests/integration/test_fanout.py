"""The one pub/sub connection of a process (common/bus/fanout.py)."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import common.bus.client
from common.batch import Batch
from common.bus.client import Bus
from common.bus.connection import owned_connection
from common.bus.fanout import Subscriptions
from common.bus.log import Append, LogConnection, LogReader
from common.bus.names import run_channel
from common.bus.presence import Presence
from common.bus.signals import Signals
from common.ids import new_id
from tests.support.proxy import Proxy
from tests.support.until import until
from tests.support.valkey import Valkey, private_valkey


class Heard:
    """What the two callbacks were told, in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.confirmed: list[str] = []

    def on_message(self, channel: str, payload: bytes) -> None:
        self.messages.append((channel, payload))

    def on_confirmed(self, channel: str) -> None:
        self.confirmed.append(channel)


@asynccontextmanager
async def subscribed(
    url: str, bus: Bus, heard: Heard, *, probe_interval_s: float = 0.5
) -> AsyncIterator[Subscriptions]:
    """A running Subscriptions, ended as processes end it: by cancellation."""
    subscriptions = Subscriptions(
        url,
        bus,
        prefix=bus.prefix,
        on_message=heard.on_message,
        on_confirmed=heard.on_confirmed,
        probe_interval_s=probe_interval_s,
        backoff_s=(0.01, 0.1),
    )
    running = asyncio.create_task(subscriptions.run())
    try:
        yield subscriptions
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def bus(redis_url: str, redis_prefix: str) -> AsyncIterator[Bus]:
    bus = Bus(redis_url, prefix=redis_prefix)
    yield bus
    await bus.aclose()


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with private_valkey() as server:
        yield server


@pytest.fixture
async def own_bus(valkey: Valkey) -> AsyncIterator[Bus]:
    """On the private server."""
    bus = Bus(valkey.url, timeout_s=0.5)
    yield bus
    await bus.aclose()


class TestSubscribing:
    async def test_a_subscription_is_done_when_the_server_has_confirmed_it(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        async with Proxy(redis_url) as proxy, subscribed(proxy.url, bus, heard) as subscriptions:
            await subscriptions.subscribe("first" + bus.prefix)
            proxy.stall()
            waiting = subscriptions.subscribe(bus.prefix + "a")
            await bus.publish(bus.prefix + "a", b"nobody gets this")
            await asyncio.sleep(0)
            assert not waiting.done()
            proxy.resume()
            await waiting
            await bus.publish(bus.prefix + "a", b"heard")
            await until(lambda: heard.messages == [(bus.prefix + "a", b"heard")])
            assert heard.confirmed == ["first" + bus.prefix, bus.prefix + "a"]

    async def test_with_3_ms_on_the_way_no_join_misses_what_is_published_after_it(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        channels = [f"{bus.prefix}{n}" for n in range(100)]
        async with (
            Proxy(redis_url, delay_s=0.003) as proxy,
            subscribed(proxy.url, bus, heard) as subscriptions,
        ):
            for channel in channels:
                await subscriptions.subscribe(channel)
                await bus.publish(channel, b"x")
            await until(lambda: len(heard.messages) >= len(channels))
        assert heard.messages == [(channel, b"x") for channel in channels]

    async def test_one_may_subscribe_before_there_is_a_connection(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        async with Proxy(redis_url) as proxy:
            proxy.refusing = True
            async with subscribed(proxy.url, bus, heard) as subscriptions:
                waiting = subscriptions.subscribe(bus.prefix + "a")
                await until(lambda: subscriptions.reconnects >= 2)
                assert not waiting.done()
                proxy.refusing = False
                await waiting
                assert heard.confirmed == [bus.prefix + "a"]

    async def test_a_cancelled_waiter_does_not_end_the_subscription_of_others(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        async with Proxy(redis_url) as proxy, subscribed(proxy.url, bus, heard) as subscriptions:
            proxy.stall()
            gone, other = (subscriptions.subscribe(bus.prefix + "a") for _ in "ab")
            gone.cancel()
            proxy.resume()
            await other

    async def test_what_is_left_is_not_heard_and_nobody_waits_for_it(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        left, kept = bus.prefix + "left", bus.prefix + "kept"
        async with Proxy(redis_url) as proxy, subscribed(proxy.url, bus, heard) as subscriptions:
            await subscriptions.subscribe(kept)
            proxy.stall()
            waiting = subscriptions.subscribe(left)
            subscriptions.unsubscribe(left)
            subscriptions.unsubscribe("never followed")
            await waiting
            proxy.resume()
            await until(lambda: _published_to_nobody(bus, left))
            await bus.publish(kept, b"x")
            await until(lambda: heard.messages == [(kept, b"x")])
            assert heard.confirmed == [kept]

    async def test_leaving_and_following_at_once_is_confirmed_again(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        channel = bus.prefix + "a"
        async with subscribed(redis_url, bus, heard) as subscriptions:
            await subscriptions.subscribe(channel)
            subscriptions.unsubscribe(channel)
            await subscriptions.subscribe(channel)
            await until(lambda: heard.confirmed == [channel] * 2)
            await bus.publish(channel, b"x")
            await until(lambda: heard.messages == [(channel, b"x")])

    async def test_large_and_many_messages_arrive_whole_and_in_order(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        channel = bus.prefix + "a"
        payloads = [bytes([65 + n]) * (1 << 20) for n in range(4)]
        payloads += [b"%d" % n for n in range(300)]
        async with subscribed(redis_url, bus, heard) as subscriptions:
            await subscriptions.subscribe(channel)
            for payload in payloads:
                await bus.publish(channel, payload)
            await until(lambda: len(heard.messages) == len(payloads))
        assert [payload for _, payload in heard.messages] == payloads


class TestReconnecting:
    async def test_after_a_kill_every_channel_is_confirmed_and_reported_again(
        self, valkey: Valkey, own_bus: Bus, heard: Heard
    ) -> None:
        channels = [f"channel {n}" for n in range(1200)]
        async with subscribed(valkey.url, own_bus, heard, probe_interval_s=60) as subscriptions:
            await asyncio.gather(*(subscriptions.subscribe(channel) for channel in channels))
            subscriptions.unsubscribe(channels[0])
            await own_bus.call("CLIENT", "KILL", "TYPE", "pubsub")
            await until(lambda: len(heard.confirmed) == 2 * len(channels) - 1)
            assert sorted(heard.confirmed[len(channels) :]) == sorted(channels[1:])
            assert subscriptions.reconnects == 1
            assert subscriptions.last_error in {"ConnectionError", "ConnectionResetError"}
            await own_bus.publish(channels[1], b"x")
            await until(lambda: heard.messages == [(channels[1], b"x")])

    async def test_a_process_needs_two_connections_whatever_it_follows(
        self, valkey: Valkey, own_bus: Bus, heard: Heard
    ) -> None:
        async with subscribed(valkey.url, own_bus, heard) as subscriptions:
            for n in range(300):
                await subscriptions.subscribe(f"channel {n}")
            reader = LogReader(own_bus)
            await asyncio.gather(*(reader.read(f"run {n}", 0) for n in range(50)))
            kinds = [line.split(b"sub=")[1][:1] for line in await _clients(own_bus)]
            assert sorted(kinds) == [b"0", b"3"], "one ordinary, one with 301 channels"
        await until(lambda: _alone(own_bus))

    async def test_a_server_that_comes_back_is_found(
        self, valkey: Valkey, own_bus: Bus, heard: Heard
    ) -> None:
        async with subscribed(valkey.url, own_bus, heard, probe_interval_s=0.05) as subscriptions:
            await subscriptions.subscribe("a")
            await until(lambda: subscriptions.healthy)
            valkey.kill()
            await until(lambda: subscriptions.reconnects >= 3)
            assert not subscriptions.healthy
            valkey.start()
            await until(lambda: heard.confirmed == ["a", "a"])
            await until(lambda: subscriptions.healthy)

    async def test_a_mistake_in_a_callback_is_shown_and_the_channel_confirmed_again(
        self, redis_url: str, bus: Bus, heard: Heard, caplog: pytest.LogCaptureFixture
    ) -> None:
        channel = bus.prefix + "a"
        async with subscribed(redis_url, bus, heard) as subscriptions:
            await subscriptions.subscribe(channel)
            heard.messages = None  # type: ignore[assignment]
            with caplog.at_level(logging.WARNING):
                await bus.publish(channel, b"x")
                await until(lambda: len(heard.confirmed) == 2)
        assert "AttributeError: 'NoneType'" in caplog.text

    async def test_a_connection_that_fails_while_it_is_ended_is_ended_all_the_same(
        self, redis_url: str, bus: Bus
    ) -> None:
        def fail(channel: str, payload: bytes) -> None:
            running.cancel()
            raise ConnectionError

        subscriptions = Subscriptions(
            redis_url, bus, prefix=bus.prefix, on_message=fail, on_confirmed=lambda channel: None
        )
        running = asyncio.create_task(subscriptions.run())
        await subscriptions.subscribe(bus.prefix + "a")
        await bus.publish(bus.prefix + "a", b"x")
        await asyncio.wait([running], timeout=10)
        assert running.cancelled()

    async def test_no_reader_misses_a_batch_while_connections_are_killed(
        self, valkey: Valkey, own_bus: Bus
    ) -> None:
        """Readers obey the one rule, and nothing else: message, confirmation, reading the log."""
        log = LogConnection(valkey.url)
        await log.connect()
        runs = [new_id("run") for _ in range(8)]
        followers = Followers(LogReader(own_bus), runs)
        async with subscribed(valkey.url, own_bus, followers, probe_interval_s=0.1) as following:
            killed = 0
            for run_id in runs:
                await following.subscribe(run_channel("", run_id))
                await log.open(run_id, 1, 0)
            for last in range(1, 201):
                await log.append([Append(run_id, _batch(last)) for run_id in runs])
                if last % 40 == 0:
                    killed += await own_bus.call("CLIENT", "KILL", "TYPE", "pubsub")
                if last % 7 == 0:
                    away = run_channel("", runs[last % len(runs)])
                    following.unsubscribe(away)
                    following.subscribe(away)
            await until(lambda: set(followers.cursors.values()) == {200})
            await followers.aclose()
            assert killed > 0
            await until(lambda: following.reconnects >= killed)
        await log.aclose()


class TestProbe:
    async def test_a_connection_that_went_deaf_is_noticed_and_replaced(
        self, redis_url: str, bus: Bus, heard: Heard
    ) -> None:
        channel = bus.prefix + "a"
        async with (
            Proxy(redis_url) as proxy,
            subscribed(proxy.url, bus, heard, probe_interval_s=0.05) as subscriptions,
        ):
            await subscriptions.subscribe(channel)
            await until(lambda: subscriptions.healthy)
            proxy.stall()
            await until(lambda: subscriptions.reconnects == 1)
            assert not subscriptions.healthy
            proxy.resume()
            await until(lambda: heard.confirmed == [channel] * 2)
            await until(lambda: subscriptions.healthy)

    async def test_a_probe_that_could_not_be_published_ends_nothing(
        self, redis_url: str, redis_prefix: str, heard: Heard
    ) -> None:
        async with Proxy(redis_url) as proxy:
            bus = Bus(proxy.url, prefix=redis_prefix, timeout_s=0.3)
            async with subscribed(redis_url, bus, heard, probe_interval_s=0.2) as subscriptions:
                await until(lambda: subscriptions.healthy)
                proxy.stall()
                await until(lambda: not subscriptions.healthy)
                age = subscriptions.probe_age_s
                assert age is not None
                await until(lambda: (subscriptions.probe_age_s or 0) > age + 1)
                assert subscriptions.reconnects == 0
                proxy.resume()
                await until(lambda: subscriptions.healthy)
            await bus.aclose()


class TestRights:
    async def test_without_the_right_to_a_channel_nothing_is_confirmed_and_the_error_is_kept(
        self, valkey: Valkey, own_bus: Bus, heard: Heard
    ) -> None:
        valkey.command("ACL", "SETUSER", "app", "on", ">pw", "+@all", "resetchannels", "&probe:*")
        url = valkey.url.replace("//", "//app:pw@")
        async with subscribed(url, own_bus, heard) as subscriptions:
            waiting = subscriptions.subscribe("run:{a}")
            await until(lambda: subscriptions.reconnects >= 3)
            assert subscriptions.last_error == "ReplyError: NOPERM"
            assert not waiting.done()
            assert heard.confirmed == []
            valkey.command("ACL", "SETUSER", "app", "&run:*")
            await waiting

    async def test_a_wrong_password_is_an_error_that_is_kept(
        self, valkey: Valkey, own_bus: Bus, heard: Heard
    ) -> None:
        url = valkey.url.replace("//", "//default:wrong@")
        async with subscribed(url, own_bus, heard) as subscriptions:
            valkey.command("CONFIG", "SET", "requirepass", "right")
            await until(lambda: subscriptions.last_error == "AuthenticationError")
            assert not subscriptions.healthy

    async def test_the_rights_that_are_named_are_enough(
        self, valkey: Valkey, heard: Heard, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert common.bus.client.__doc__ is not None
        rights = re.findall(r"(?<= )[~&+][\w<>:*|]+", common.bus.client.__doc__)
        words = [right.replace("<prefix>", "p:") for right in rights]
        valkey.command("ACL", "SETUSER", "app", "on", ">pw", "resetchannels", "-@all", *words)
        url, run_id = valkey.url.replace("//", "//app:pw@"), new_id("run")
        async with AsyncExitStack() as closing:
            bus, log = Bus(url, prefix="p:"), LogConnection(url, prefix="p:")
            closing.push_async_callback(bus.aclose)
            closing.push_async_callback(log.aclose)
            subscriptions = await closing.enter_async_context(
                subscribed(url, bus, heard, probe_interval_s=0.05)
            )
            await subscriptions.subscribe(run_channel("p:", run_id))
            await log.connect()
            await log.open(run_id, 1, 0)
            await log.open(run_id, 1, 0, again=True)
            assert await log.append([Append(run_id, _batch(1), archived=1)]) == [("OK", 1)]
            await log.open(run_id, 2, 1)
            assert await log.tail(run_id, 0) == await LogReader(bus).read(run_id, 0)
            assert await LogReader(bus).top(run_id) == 1
            assert await log.open(run_id, 3, 9) == ("NEW", 9)
            signals, presence = Signals(bus), Presence(bus, ttl_s=30)
            await signals.wake(run_id)
            await signals.cancel("rnr_1", run_id)
            await presence.say("gateway", here=[run_id])
            assert (await presence.look([run_id])).runs[run_id].present == 1
            await presence.say("gateway", left=[run_id])
            await bus.ping()
            await until(lambda: subscriptions.healthy and bool(heard.messages))
        assert "not sent" not in caplog.text


async def test_the_private_names_of_the_driver_are_what_they_were(redis_url: str) -> None:
    """If this fails after an upgrade, common/bus/fanout.py has to read its bytes elsewhere."""
    connection = owned_connection(redis_url, 2.0)
    await connection.connect()  # type: ignore[no-untyped-call]
    assert isinstance(connection._reader, asyncio.StreamReader)
    assert isinstance(connection._writer, asyncio.StreamWriter)
    await connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"])
    assert await connection.read_response() == b"PONG"
    assert connection.is_connected
    await connection.disconnect(nowait=True)
    assert not connection.is_connected
    await asyncio.sleep(0)


class Followers(Heard):
    """One reader a run, with nothing but a cursor."""

    def __init__(self, reader: LogReader, runs: list[str]) -> None:
        super().__init__()
        self.cursors = dict.fromkeys(runs, 0)
        self._channels = {run_channel("", run_id): run_id for run_id in runs}
        self._reader = reader
        self._readings: set[asyncio.Task[None]] = set()

    def on_message(self, channel: str, payload: bytes) -> None:
        self._take(self._channels[channel], Batch.decode(payload))

    def on_confirmed(self, channel: str) -> None:
        reading = asyncio.create_task(self._read(self._channels[channel]))
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)

    async def aclose(self) -> None:
        await asyncio.gather(*self._readings)

    async def _read(self, run_id: str) -> None:
        for batch in await self._reader.read(run_id, self.cursors[run_id], count=1000):
            self._take(run_id, batch)

    def _take(self, run_id: str, batch: Batch) -> None:
        if batch.takes(self.cursors[run_id]):
            self.cursors[run_id] = batch.last


def _batch(last: int) -> Batch:
    return Batch(last - 1, last, last, 1, "", b"id: %d\nevent: x\ndata: {}\n\n" % last)


async def _published_to_nobody(bus: Bus, channel: str) -> bool:
    return await bus.publish(channel, b"is anybody there?") == 0


async def _clients(bus: Bus) -> list[bytes]:
    listed: bytes = await bus.call("CLIENT", "LIST")
    return listed.splitlines()


async def _alone(bus: Bus) -> bool:
    return len(await _clients(bus)) == 1
