"""The ordinary Redis client of a process: short commands on a small pool.

Appending to logs has a connection of its own (common.bus.log), and so have subscriptions
(common.bus.fanout). Rights that a Redis user needs for all of this (one of Redis ≥ 7 begins without
any channel):

    ~<prefix>run:* &<prefix>run:* &<prefix>wake &<prefix>runner:* &<prefix>probe:*
    +ping +info +select +publish +subscribe +unsubscribe +eval +evalsha +script|load +time
    +xadd +xtrim +xrange +xrevrange +hget +hmget +hset +del +expire
    +zadd +zrem +zremrangebyscore +zscore +zcount
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from common.errors import Unavailable


class Bus:
    """One per process. Every method raises Unavailable when Redis cannot do it now.

    A caller may be cancelled at any moment: the command itself then still runs to its end in a task
    of ours, because a connection whose reply nobody has read must not serve the next caller.
    """

    def __init__(
        self, url: str, *, prefix: str = "", max_connections: int = 2, timeout_s: float = 2.0
    ) -> None:
        self.prefix = prefix
        self._client = Redis(connection_pool=_pool(url, max_connections, timeout_s))
        self._calls: set[asyncio.Task[Any]] = set()

    async def call(self, *command: bytes | str | int | float) -> Any:
        """One command; values come back as bytes."""
        return await self._shielded(self._execute(*command))

    async def batch(self, *commands: Sequence[bytes | str | int | float]) -> list[Any]:
        """Commands in one round trip on one connection. One that fails makes it Unavailable."""
        replies: list[Any] = await self._shielded(self._execute_all(commands))
        return replies

    async def ping(self) -> None:
        await self.call("PING")

    async def publish(self, channel: str, payload: bytes | str) -> int:
        """How many connections got it."""
        return int(await self.call("PUBLISH", channel, payload))

    async def aclose(self) -> None:
        """Waits for commands whose callers have gone, each bounded by the time limit."""
        if self._calls:
            await asyncio.wait(self._calls)
        await self._client.aclose(close_connection_pool=True)

    async def _execute(self, *command: bytes | str | int | float) -> Any:
        with translated():
            return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def _execute_all(self, commands: Sequence[Sequence[bytes | str | int | float]]) -> Any:
        with translated():
            async with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return await pipeline.execute()

    async def _shielded(self, act: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.create_task(act)
        self._calls.add(task)
        task.add_done_callback(self._settled)
        return await asyncio.shield(task)

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, also when the caller has gone


@contextmanager
def translated() -> Iterator[None]:
    """The one place where errors of the driver and the socket become ours."""
    try:
        yield
    except (RedisError, OSError, EOFError, TimeoutError) as error:
        raise Unavailable("Redis") from error


def owned_connection(url: str, timeout_s: float) -> Connection:
    """A connection outside any pool, not connected yet; it belongs to whoever asked for it.

    redis-py does URL, TLS, AUTH and SELECT. There is no limit for single reads: their owner sets
    one for each exchange. RESP2, whose messages cost less to read than RESP3's pushes.
    """
    pool = ConnectionPool.from_url(
        url,
        protocol=2,
        socket_connect_timeout=timeout_s,
        socket_timeout=None,
        socket_keepalive=True,
        driver_info=None,
    )
    connection: Connection = pool.make_connection()  # type: ignore[no-untyped-call]
    return connection


def _pool(url: str, max_connections: int, timeout_s: float) -> BlockingConnectionPool:
    """One more try, and only where an idle connection turns out to be closed."""
    return BlockingConnectionPool.from_url(
        url,
        protocol=2,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_keepalive=True,
        driver_info=None,
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    )
