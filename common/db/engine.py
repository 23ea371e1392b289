"""Connections to Postgres: asyncpg and its pool.

The statements of this package are fixed texts, so nothing stands between them and the driver (ADR
0004). `begin()` is one transaction, `snapshot()` one that reads of a single moment, `connect()` is
autocommit: a single statement, reading or writing. A connection is checked when it leaves the pool:
an idle one whose socket is readable has been ended by the server. That costs a look and no round
trip; after a restart the dead ones are replaced. Failures of the driver are translated at each call
(common.db.failures). When a caller is cancelled inside a statement, or anywhere inside a
transaction, its connection is dropped, never given to the next caller.
"""

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from common.db.failures import FOREIGN, POSTGRES, misconfigured, translate
from common.db.values import decode_jsonb, encode_jsonb
from common.errors import Unavailable

CONNECT_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 5.0  # for a free connection and, if need be, a new one
IDLE_MAX_S = 300.0
# a process that stands still inside a transaction must not hold its rows for ever (core-facts §2)
IDLE_TRANSACTION_MAX_S = 30.0

# what the pool says of a connection that ended meanwhile and has left it by itself: nothing is lost
_LEFT_THE_POOL = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class Connection:
    """One checked-out connection. Not for two tasks at once."""

    __slots__ = ("_driver", "in_flight")

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.in_flight = False

    async def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """All rows, as asyncpg records: tuples whose values can also be had by name."""
        self.in_flight = True
        try:
            rows: list[Any] = await self._driver.fetch(sql, *arguments)
        except FOREIGN as error:
            self.in_flight = isinstance(error, TimeoutError)
            if (translated := translate(error)) is not None:
                raise translated from error
            raise
        self.in_flight = False
        return rows

    async def row(self, sql: str, *arguments: Any) -> Any | None:
        rows = await self.rows(sql, *arguments)
        return rows[0] if rows else None

    async def value(self, sql: str, *arguments: Any) -> Any:
        """The first column of the first row; None without a row."""
        row = await self.row(sql, *arguments)
        return None if row is None else row[0]


class Database:
    """The pool of one process. `application_name` shows it in pg_stat_activity.

    `postgres://` and `postgresql://` URLs are taken as libpq takes them, with `sslmode` and so on.
    """

    def __init__(
        self,
        url: str,
        *,
        application_name: str,
        pool_size: int,
        timeout_s: float = 5.0,
        pool_timeout_s: float = POOL_TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._pool_size = pool_size
        self._pool_timeout_s = pool_timeout_s
        self._pool: Any = None  # made in the loop that uses it
        self._closed = False
        self._settings = {
            "dsn": url,
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": timeout_s + 1,  # the server's limit should speak first
            "server_settings": _server_settings(application_name, timeout_s),
        }

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """Autocommit: each statement is its own transaction."""
        driver = await self._check_out()
        connection = Connection(driver)
        try:
            yield connection
        finally:
            await self._give_back(driver, drop=connection.in_flight)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        """One transaction (READ COMMITTED): committed at the end, rolled back by any error."""
        async with self._transaction("BEGIN", end="COMMIT") as connection:
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """For reading only: all statements see the same moment. What is shown together is read so:
        a run that waits for a person, and the questions it waits for."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        async with self._transaction(begin, end="ROLLBACK") as reading:  # nothing is to be kept
            yield reading

    @asynccontextmanager
    async def _transaction(self, begin: str, *, end: str) -> AsyncIterator[Connection]:
        driver = await self._check_out()
        connection, finished = Connection(driver), False
        try:
            await connection.rows(begin)
            try:
                yield connection
            except Exception:
                if not connection.in_flight:
                    await connection.rows("ROLLBACK")
                    finished = True
                raise
            await connection.rows(end)
            finished = True
        finally:
            await self._give_back(driver, drop=not finished)

    async def ping(self) -> None:
        """Raises Unavailable unless Postgres answers."""
        async with self.connect() as connection:
            await connection.rows("SELECT 1")

    async def check(self) -> None:
        """For composition roots: like `ping`, but what waiting cannot heal is Misconfigured."""
        try:
            driver = await asyncpg.connect(**self._settings)
        except FOREIGN as error:
            raise misconfigured(error) or translate(error) or error from error
        await driver.close()

    async def aclose(self) -> None:
        """Closes the pool for good, whatever is still under way."""
        self._closed = True
        if self._pool is not None:
            self._pool.terminate()
            self._pool = None

    async def _check_out(self) -> Any:
        try:
            pool = await self._opened()
            while _is_dead(driver := await pool.acquire(timeout=self._pool_timeout_s)):
                await self._give_back(driver, drop=True)
            return driver
        except FOREIGN as error:
            if (translated := translate(error)) is not None:
                raise translated from error
            raise

    async def _opened(self) -> Any:
        """The pool; its connections are opened as they are needed."""
        if self._closed:
            raise Unavailable(POSTGRES)
        if self._pool is None:
            self._pool = asyncpg.create_pool(
                min_size=0,
                max_size=self._pool_size,
                max_queries=0xFFFF_FFFF,
                max_inactive_connection_lifetime=IDLE_MAX_S,
                init=_speak_json,
                reset=_leave_as_it_is,
                **self._settings,
            )
        if not self._pool._initialized:
            await self._pool
        return self._pool

    async def _give_back(self, driver: Any, *, drop: bool) -> None:
        """A cancellation cannot interrupt it: the pool shields what it does."""
        if drop:
            with suppress(*_LEFT_THE_POOL):
                driver.terminate()
        if self._pool is not None:
            with suppress(*_LEFT_THE_POOL):
                await self._pool.release(driver)


def _server_settings(application_name: str, timeout_s: float) -> dict[str, str]:
    return {
        "application_name": application_name,
        "statement_timeout": str(round(timeout_s * 1000)),
        "idle_in_transaction_session_timeout": str(round(IDLE_TRANSACTION_MAX_S * 1000)),
        "jit": "off",
    }


async def _speak_json(driver: Any) -> None:
    """jsonb columns and parameters are Python values on both sides."""
    await driver.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=encode_jsonb, decoder=decode_jsonb
    )


async def _leave_as_it_is(_driver: Any) -> None:
    """No statement of ours changes its session, so none is needed to reset it."""


def _is_dead(driver: Any) -> bool:
    """The loop may not have come to reading the end of the session yet; the kernel knows it."""
    try:
        if driver.is_closed():
            return True
        look = select.poll()
        look.register(driver._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(look.poll(0))
    except asyncpg.InterfaceError:  # it ended between leaving the pool and this look
        return True
