"""Live messages: the one pub/sub connection of a process.

Redis keeps no message for a subscriber that is away, and a broken connection says nothing about
what was missed. So this module promises only that every *confirmation* of a channel, the first and
each one after a reconnect, is reported: whoever follows a run then reads its log (common.bus.log),
and the join has no hole. Having written SUBSCRIBE is not being subscribed; only the server's
confirmation is.

redis-py makes the connection (URL, TLS, AUTH); its bytes are read here with hiredis, ten times
cheaper than by redis-py's pub/sub. That takes two private names of redis-py, pinned by a test.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import uuid4

import hiredis
from redis.exceptions import RedisError

from common.bus.client import Bus
from common.bus.connection import owned_connection
from common.bus.names import probe_channel
from common.bus.wire import packed
from common.errors import Unavailable

_CHANNELS_A_COMMAND = 512
_GOOD_S = 5.0  # a connection that lasted so long resets the backoff
_MISSED_MAX = 2  # probes that were published and did not come back


class _Wanted:
    """A channel that somebody follows; `confirmed` is done at its first confirmation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Subscriptions:
    """`run` supervises the connection; everything else is synchronous and may be called any time.

    `on_message(channel, payload)` and `on_confirmed(channel)` are called in the reading task, in
    the order of the connection, and must neither block nor raise. `last_error` names the kind of
    the last failure, for readiness and logs; it stays when the connection is good again.
    """

    def __init__(
        self,
        url: str,
        bus: Bus,
        *,
        prefix: str,
        on_message: Callable[[str, bytes], None],
        on_confirmed: Callable[[str], None],
        probe_interval_s: float = 2.0,
        timeout_s: float = 2.0,
        backoff_s: tuple[float, float] = (0.05, 1.0),
    ) -> None:
        self.last_error: str | None = None
        self.reconnects = 0
        self.trip_s: float | None = None
        """What the last probe took, all the way through Redis; None on a connection without any."""
        self._url, self._bus, self._timeout_s = url, bus, timeout_s
        self._on_message, self._on_confirmed = on_message, on_confirmed
        self._interval_s, self._backoff_s = probe_interval_s, backoff_s
        self._probe = probe_channel(prefix, uuid4().hex)
        self._probe_key = self._probe.encode()
        self._probing = asyncio.Event()  # the probe's channel is confirmed on this connection
        self._seen_at: float | None = None  # when a probe came back last on this connection
        self._missed = 0
        self._asked_at = 0.0  # when the last probe was published
        self._wanted: dict[bytes, _Wanted] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._log = logging.getLogger(__name__)

    @property
    def healthy(self) -> bool:
        """Whether a probe has come back lately, by the whole way through Redis."""
        age_s = self.probe_age_s
        return age_s is not None and age_s <= 2.5 * self._interval_s

    @property
    def probe_age_s(self) -> float | None:
        """Since the last probe came back; None on a connection that has seen none."""
        if self._seen_at is None:
            return None
        return asyncio.get_running_loop().time() - self._seen_at

    def subscribe(self, channel: str) -> asyncio.Future[None]:
        """Follow a channel. The future is done at its first confirmation, be it after reconnects.

        It is shared and shielded: a cancelled waiter harms nobody. It is also done when the channel
        is unsubscribed before. After a quick unsubscribe and subscribe, the confirmation of the
        former subscription can end it early; the right one follows and is reported.
        """
        wanted = self._wanted.get(channel.encode())
        if wanted is None:
            wanted = self._wanted[channel.encode()] = _Wanted(channel)
            self._send("SUBSCRIBE", [channel.encode()])
        return asyncio.shield(wanted.confirmed)

    def unsubscribe(self, channel: str) -> None:
        """Leave a channel; nothing, if it is not followed."""
        wanted = self._wanted.pop(channel.encode(), None)
        if wanted is not None:
            _resolve(wanted.confirmed)
            self._send("UNSUBSCRIBE", [channel.encode()])

    async def run(self) -> None:
        """Keeps the connection; ends by cancellation only."""
        loop = asyncio.get_running_loop()
        delay_s = self._backoff_s[0]
        while True:
            started_at = loop.time()
            try:
                await self._one_connection()
            except Exception as error:
                self._failed(error)
            if loop.time() - started_at > _GOOD_S:
                delay_s = self._backoff_s[0]
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))
            delay_s = min(delay_s * 2, self._backoff_s[1])

    def _failed(self, error: Exception) -> None:
        """An expected failure is named; any other one is a mistake (of a callback) and is shown."""
        expected = isinstance(error, (RedisError, OSError, EOFError, hiredis.HiredisError))
        self.reconnects += 1
        self.last_error = _described(error)
        self._log.warning("subscriptions lost: %s", self.last_error, exc_info=not expected)

    async def _one_connection(self) -> None:
        connection = owned_connection(self._url, self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]
            reader, self._writer = connection._reader, connection._writer
            assert reader is not None
            await _until_one_fails(self._read(reader), self._ask_and_watch())
        finally:
            self._writer, self._seen_at, self._missed = None, None, 0
            self.trip_s = None
            self._probing.clear()
            await connection.disconnect(nowait=True)
            await asyncio.sleep(0)  # the transport says goodbye in the next turn of the loop

    async def _ask_and_watch(self) -> None:
        """Raises when probes, published by another connection, do not come back on this one."""
        await self._subscribe_all()
        async with asyncio.timeout(self._timeout_s):
            await self._probing.wait()
        while self._missed < _MISSED_MAX:
            await self._publish_probe()
            await asyncio.sleep(self._interval_s)
        raise ConnectionError("probes do not come back")

    async def _subscribe_all(self) -> None:
        """The probe and all that is wanted; what is unsubscribed meanwhile is left out."""
        self._send("SUBSCRIBE", [self._probe_key])
        for channels in _chunks(list(self._wanted)):
            if still := [channel for channel in channels if channel in self._wanted]:
                self._send("SUBSCRIBE", still)
            if self._writer is not None:
                async with asyncio.timeout(self._timeout_s):
                    await self._writer.drain()

    async def _publish_probe(self) -> None:
        """Counted as missed until it is seen. One that could not be published proves nothing."""
        self._asked_at = asyncio.get_running_loop().time()
        try:
            await self._bus.publish(self._probe, b"")
        except Unavailable:
            return
        self._missed += 1

    async def _read(self, reader: asyncio.StreamReader) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(1 << 18):
            parser.feed(data)
            while (reply := parser.gets()) is not False:
                self._handle(reply)
        raise ConnectionError("closed by the server")

    def _handle(self, reply: Any) -> None:
        """RESP2 does not say to which channel an error reply belongs: it fails the connection."""
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        kind, channel, payload = reply
        if channel == self._probe_key:
            self._probed(kind)
        elif (wanted := self._wanted.get(channel)) is None:
            pass  # left meanwhile
        elif kind == b"message":
            self._on_message(wanted.name, payload)
        elif kind == b"subscribe":
            _resolve(wanted.confirmed)
            self._on_confirmed(wanted.name)

    def _probed(self, kind: bytes) -> None:
        if kind == b"message":
            self._missed = 0
            self._seen_at = asyncio.get_running_loop().time()
            self.trip_s = self._seen_at - self._asked_at
        else:
            self._probing.set()

    def _send(self, command: str, channels: list[bytes]) -> None:
        """Nothing without a connection: the next one asks for all that is wanted."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(packed(command, *channels))


async def _until_one_fails(*forever: Coroutine[Any, Any, None]) -> None:
    """Raises the failure. Not a TaskGroup: before Python 3.13 a failure in one can swallow a
    cancellation that comes with it, and `run` would go on for ever."""
    tasks = [asyncio.create_task(each) for each in forever]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _chunks(channels: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(channels), _CHANNELS_A_COMMAND):
        yield channels[start : start + _CHANNELS_A_COMMAND]


def _described(error: Exception) -> str:
    """The kind and, of an error reply, its code: never an address or a driver's text (I9)."""
    if isinstance(error, hiredis.ReplyError):
        return f"{type(error).__name__}: {str(error).partition(' ')[0]}"
    return type(error).__name__
