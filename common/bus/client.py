"""The ordinary Redis client of a process: short commands of all its callers on one connection.

Appending to logs has a connection of its own (common.bus.log), and so have subscriptions
(common.bus.fanout). Rights that a Redis user needs for all of this (one of Redis ≥ 7 begins without
any channel):

    ~<prefix>run:* ~<prefix>user:* ~<prefix>gateways
    &<prefix>run:* &<prefix>wake &<prefix>runner:* &<prefix>probe:*
    +ping +info +select +publish +subscribe +unsubscribe +eval +evalsha +script|load +time
    +xadd +xtrim +xrange +xrevrange +get +set +hget +hmget +hgetall +hset +hdel +del +expire
    +zadd +zrem +zremrangebyscore +zscore +zcount
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from common.bus.wire import Wire, packed
from common.errors import Unavailable

_PAUSE_S = 0.5  # between two tries to reach a Redis that is away


class Bus:
    """One per process. Every method raises Unavailable when Redis cannot do it now.

    While Redis is `away` (it could not be reached, or did not answer in time) calls fail at once
    and one task of ours tries to reach it again: nobody waits for an absent server, neither a
    reader who has the archive nor a request whose signal is best effort.

    A caller may be cancelled at any moment: the command itself then still runs to its end.
    """

    def __init__(self, url: str, *, prefix: str = "", timeout_s: float = 2.0) -> None:
        self.prefix = prefix
        self._wire = Wire(url, timeout_s)
        self._connecting = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._coming_back: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Whether Redis was away lately and has not been reached since."""
        return self._coming_back is not None and not self._coming_back.done()

    async def call(self, *command: bytes | str | int | float) -> Any:
        """One command; its reply as the server sends it: bytes, integers, lists of them."""
        [reply] = await self.batch(command)
        return reply

    async def batch(self, *commands: Sequence[bytes | str | int | float]) -> list[Any]:
        """Commands in one round trip on one connection. One that fails makes it Unavailable."""
        if self.away:
            raise Unavailable("Redis")
        task = asyncio.create_task(self._execute([packed(*command) for command in commands]))
        self._calls.add(task)
        task.add_done_callback(self._settled)
        return await asyncio.shield(task)

    async def ping(self) -> None:
        await self.call("PING")

    async def publish(self, channel: str, payload: bytes | str) -> int:
        """How many connections got it."""
        return int(await self.call("PUBLISH", channel, payload))

    async def aclose(self) -> None:
        """Waits for commands whose callers have gone, each bounded by the time limit."""
        if self._calls:
            await asyncio.wait(self._calls)
        if self._coming_back is not None:
            self._coming_back.cancel()
            await asyncio.wait({self._coming_back})
        await self._wire.aclose()

    async def _execute(self, commands: list[bytes]) -> list[Any]:
        """Once more where a connection turns out to be closed: all that is sent here may be
        repeated."""
        try:
            return await self._ask(commands)
        except Unavailable as error:
            if self.away or isinstance(error.__cause__, ResponseError):
                raise
            if isinstance(error.__cause__, TimeoutError):
                self._went_away()
                raise
        try:
            return await self._ask(commands)
        except Unavailable as error:
            if not isinstance(error.__cause__, ResponseError):
                self._went_away()
            raise

    async def _ask(self, commands: list[bytes]) -> list[Any]:
        await self._connect()
        replies = await self._wire.exchange(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise Unavailable("Redis") from reply
        return replies

    async def _connect(self) -> None:
        async with self._connecting:
            if self.away:
                raise Unavailable("Redis")
            if not self._wire.connected:
                await self._wire.connect()

    def _went_away(self) -> None:
        if not self.away:
            self._coming_back = asyncio.create_task(self._come_back())

    async def _come_back(self) -> None:
        """Until Redis answers again."""
        ping = packed("PING")
        while True:
            await asyncio.sleep(_PAUSE_S * random.uniform(0.8, 1.2))
            try:
                async with self._connecting:
                    await self._wire.connect()
                    [reply] = await self._wire.exchange([ping])
            except Unavailable:
                continue
            if not isinstance(reply, ResponseError):
                return

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, also when the caller has gone
