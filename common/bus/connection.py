"""What every connection to Redis has in common: how it is made, and whose errors it raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import Connection, ConnectionPool
from redis.exceptions import RedisError

from common.errors import Unavailable, Unusable


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
    one for each exchange. RESP2, whose messages cost less to read than RESP3's pushes. Raises
    Unusable, so that a process does not start: it pings before anything else.
    """
    try:
        pool = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_connect_timeout=timeout_s,
            socket_timeout=None,
            socket_keepalive=True,
            driver_info=None,
        )
        connection: Connection = pool.make_connection()  # type: ignore[no-untyped-call]
    except (TypeError, ValueError):  # its text may repeat parts of the URL
        raise Unusable("REDIS_URL: the driver cannot read it, or an option after its `?`") from None
    return connection
