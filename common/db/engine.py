"""Connections to Postgres: SQLAlchemy's pool over asyncpg, spoken to directly.

The statements of this package are fixed texts; neither Core's compiler nor its result objects would
add anything to them, and they cost as much as the statement itself. So the pool is SQLAlchemy's and
each call goes straight to the driver (design §5: plain asyncpg under SQLAlchemy's pool).

`begin()` is one transaction, `connect()` is autocommit: a single statement, reading or writing.
A connection is checked when it leaves the pool: an idle one whose socket is readable has been ended
by the server. That costs a look and no round trip; after a restart the dead ones are replaced.
Failures of the driver are translated at each call (common.db.failures). When a caller is cancelled
inside a statement, or anywhere inside a transaction, its connection is dropped, never given to the
next caller.
"""

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import PoolProxiedConnection

from common.db.failures import FOREIGN, misconfigured, translate
from common.db.values import decode_jsonb, encode_jsonb

CONNECT_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 10.0
CONNECTION_AGE_MAX_S = 1800
# a process that stands still inside a transaction must not hold its rows for ever (core-facts §2)
IDLE_TRANSACTION_MAX_S = 30.0


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
        max_overflow: int = 0,
        timeout_s: float = 15.0,
        pool_timeout_s: float = POOL_TIMEOUT_S,
    ) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._server_settings = _server_settings(application_name, timeout_s)
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._open,
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_timeout=pool_timeout_s,
            pool_recycle=CONNECTION_AGE_MAX_S,
            pool_use_lifo=True,
        )
        event.listen(self._engine.sync_engine, "connect", _speak_json)
        event.listen(self._engine.sync_engine, "checkout", _replace_dead)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """Autocommit: each statement is its own transaction."""
        pooled, connection = await self._check_out()
        try:
            yield connection
        finally:
            _give_back(pooled, drop=connection.in_flight)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        """One transaction (READ COMMITTED): committed at the end, rolled back by any error."""
        pooled, connection = await self._check_out()
        finished = False
        try:
            await connection.rows("BEGIN")
            try:
                yield connection
            except Exception:
                if not connection.in_flight:
                    await connection.rows("ROLLBACK")
                    finished = True
                raise
            await connection.rows("COMMIT")
            finished = True
        finally:
            _give_back(pooled, drop=not finished)

    async def ping(self) -> None:
        """Raises Unavailable unless Postgres answers."""
        async with self.connect() as connection:
            await connection.rows("SELECT 1")

    async def check(self) -> None:
        """For composition roots: like `ping`, but what waiting cannot heal is Misconfigured."""
        try:
            driver = await self._open()
        except FOREIGN as error:
            raise misconfigured(error) or translate(error) or error from error
        await driver.close()

    async def aclose(self) -> None:
        await self._engine.dispose()

    async def _open(self) -> Any:
        return await asyncpg.connect(
            self._url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=self._timeout_s + 1,  # the server's limit should speak first
            server_settings=self._server_settings,
        )

    async def _check_out(self) -> tuple[PoolProxiedConnection, Connection]:
        try:
            pooled = await self._engine.raw_connection()
        except FOREIGN as error:
            if (translated := translate(error)) is not None:
                raise translated from error
            raise
        return pooled, Connection(pooled.driver_connection)


def _server_settings(application_name: str, timeout_s: float) -> dict[str, str]:
    return {
        "application_name": application_name,
        "statement_timeout": str(round(timeout_s * 1000)),
        "idle_in_transaction_session_timeout": str(round(IDLE_TRANSACTION_MAX_S * 1000)),
        "jit": "off",
    }


def _speak_json(adapted: Any, _record: Any) -> None:
    """jsonb columns and parameters are Python values on both sides."""
    adapted.run_async(_set_codec)


async def _set_codec(driver: Any) -> None:
    await driver.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=encode_jsonb, decoder=decode_jsonb
    )


def _replace_dead(adapted: Any, _record: Any, _proxy: Any) -> None:
    driver = adapted.driver_connection
    if driver.is_closed() or _has_something_to_say(driver):
        raise DisconnectionError("the server has ended this session")


def _has_something_to_say(driver: Any) -> bool:
    """The loop may not have come to reading the end of the session yet; the kernel knows it."""
    look = select.poll()
    look.register(driver._transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(look.poll(0))


def _give_back(pooled: PoolProxiedConnection, *, drop: bool) -> None:
    """Never waits, so no cancellation can interrupt it."""
    if drop:
        pooled.driver_connection.terminate()  # type: ignore[union-attr]
        pooled.invalidate()
    pooled.close()
