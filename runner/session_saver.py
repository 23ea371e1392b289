"""LangGraph's Postgres saver on sessions of ours, and what it leaves of a thread that rests."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import psycopg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncCursor
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.rows import DictRow

from common.db.failures import is_away
from common.errors import Unavailable
from runner.sessions import Sessions


class SessionSaver(AsyncPostgresSaver):
    """LangGraph's saver on sessions of ours: one for each use, so that no lock is needed."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(cast(Any, sessions))
        self._sessions = sessions

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[AsyncCursor[DictRow]]:
        """`pipeline` asks for one transaction."""
        async with self._sessions.connection() as session, AsyncExitStack() as stack:
            if pipeline:
                await stack.enter_async_context(session.transaction())
            async with session.cursor(binary=True) as cursor:
                yield cursor


async def prune(sessions: Sessions, thread_id: str) -> bool:
    """Leaves a thread what its next run needs: the newest checkpoint of each namespace.

    False: somebody changes the thread. A thread with a `DeltaChannel` is left as it is: its newest
    values are rebuilt from older checkpoints. Raises `Unavailable`.
    """
    async with translated():
        try:
            await SessionSaver(sessions).aprune([thread_id])
        except NotImplementedError:
            return True
        except (SerializationFailure, DeadlockDetected):
            return False
    return True


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Turn "Postgres cannot do it now" into `Unavailable`; leave every other error alone."""
    try:
        yield
    except psycopg.Error as error:
        if not _is_away(error):
            raise
        raise Unavailable("Postgres") from error


def _is_away(error: psycopg.Error) -> bool:
    """Without a state it comes from libpq: the connection is broken."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_away(error.sqlstate)
