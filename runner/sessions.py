"""The Postgres sessions that checkpoints are read and written on: a small pool of our own.

psycopg's pool connects in the background and waits twice as long after each failure, so a runner
would come back many seconds after its database. Here a caller that finds no living session opens
one itself: it learns at once that nobody listens, and at once that somebody does again.

An idle session whose socket is readable has been ended by the server; it costs a look and no round
trip to see that. Sessions do not hang for ever on a lost route: both sides ask whether the other
still lives.
"""

import asyncio
import os
import select
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Self

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from common.errors import Unavailable

Session = AsyncConnection[DictRow]

CONNECT_TIMEOUT_S: Final = 5
IDLE_MAX_S: Final = 300.0
# a peer that acknowledges nothing for so long is gone
_SILENCE: Final = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Sessions:
    """At most `size` sessions, opened as they are needed; the last one used is used next.

    autocommit, because one statement is one transaction; a statement is prepared on its first use.
    """

    def __init__(
        self, url: str, *, application_name: str, size: int, timeout_s: float = 5.0
    ) -> None:
        self._url = url
        self._application_name = application_name
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(size)
        self._idle: list[tuple[float, Session]] = []
        self._used: set[Session] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Session]:
        """One session for the caller alone. Raises Unavailable: none is free, none can be had.

        Errors of what is done with it are psycopg's.
        """
        await self._take_place()
        try:
            session = await self._living() or await self._connect()
            self._used.add(session)
            try:
                yield session
            finally:
                self._used.discard(session)
                await self._give_back(session)
        finally:
            self._places.release()

    async def close(self) -> None:
        """For good; what is still under way fails at once."""
        self._closed = True
        for _, session in self._idle:
            await _end(session)
        self._idle.clear()
        for session in self._used:
            _hang_up(session)

    async def _take_place(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise Unavailable("Postgres") from error

    async def _living(self) -> Session | None:
        while self._idle:
            _, session = self._idle.pop()
            if not _is_over(session):
                return session
            await _end(session)
        return None

    async def _connect(self) -> Session:
        if self._closed:
            raise Unavailable("Postgres")
        given: dict[str, Any] = {**_SILENCE, "application_name": self._application_name}
        try:
            return await AsyncConnection.connect(
                self._url, autocommit=True, prepare_threshold=0, row_factory=dict_row, **given
            )
        except psycopg.Error as error:
            raise Unavailable("Postgres") from error

    async def _give_back(self, session: Session) -> None:
        usable = session.pgconn.transaction_status == TransactionStatus.IDLE
        if self._closed or not usable:
            await _end(session)
        else:
            self._idle.append((time.monotonic(), session))
        while self._idle and time.monotonic() - self._idle[0][0] > IDLE_MAX_S:
            await _end(self._idle.pop(0)[1])


def _is_over(session: Session) -> bool:
    if session.closed:
        return True
    look = select.poll()
    look.register(session.fileno(), select.POLLIN)
    return bool(look.poll(0))


def _hang_up(session: Session) -> None:
    """Wakes whoever waits for an answer. Closing instead would leave it waiting on a number that
    the next file may have."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(session.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


async def _end(session: Session) -> None:
    with suppress(psycopg.Error):
        await session.close()
