"""Bringing the schema up to date: `steadyrun migrate`, `up`, and the tests.

Any number of processes may call `migrate` at once; one works, the others find nothing to do. The
advisory lock is polled, never waited for: LangGraph's `CREATE INDEX CONCURRENTLY` waits for every
open statement, and one that waits for our lock would be a deadlock.

Migrations give up rather than queue behind a long transaction, since everything else would then
queue behind them (lock 4 s, statement 5 s).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from common.addresses import wrong_postgres
from common.db import checkpoints
from common.db.failures import POSTGRES
from common.errors import Misconfigured, Unavailable, Unusable

# class "steadyrun", object "migration" of Postgres's two-number advisory locks
_LOCK = (0x57EAD, 1)
_LOCK_WAIT_S = 60.0
_LOCK_POLL_S = 0.1
_LIMITS = "-c lock_timeout=4s -c statement_timeout=5s"
_SCRIPTS = Path(__file__).parent / "migrations"


def migrate(url: str) -> None:
    """Idempotent. Raises Unusable or Misconfigured for the URL, and Unavailable."""
    if wrong := wrong_postgres(url):
        raise Unusable(f"DATABASE_URL: {wrong}")
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as guard, _locked(guard):
            _upgrade(url)
            checkpoints.set_up(url)
    except psycopg.OperationalError as error:
        raise _start_failure(error) from error
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None:
            raise
        # libpq cannot read it; its text repeats parts of the URL, the password perhaps
        raise Unusable("DATABASE_URL: cannot be read as a Postgres URL") from None


def head() -> str:
    """The newest revision that this program knows."""
    revision = _scripts().get_current_head()
    if revision is None:
        raise Misconfigured(f"no migrations in {_SCRIPTS.name}; reinstall steadyrun")
    return revision


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(_SCRIPTS), version_locations=[str(_SCRIPTS / "versions")])


@contextmanager
def _locked(guard: psycopg.Connection[Any]) -> Iterator[None]:
    """Held by the session, so a killed process frees it."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while not _try_lock(guard):
        if time.monotonic() > deadline:
            raise Unavailable(POSTGRES)
        time.sleep(_LOCK_POLL_S)
    try:
        yield
    finally:
        guard.execute("SELECT pg_advisory_unlock(%s, %s)", _LOCK)


def _try_lock(guard: psycopg.Connection[Any]) -> bool:
    row = guard.execute("SELECT pg_try_advisory_lock(%s, %s)", _LOCK).fetchone()
    return bool(row and row[0])


def _upgrade(url: str) -> None:
    """Each revision in one transaction with the version it leads to."""
    scripts = _scripts()
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url, options=_LIMITS, connect_timeout=5),
        poolclass=NullPool,
    )
    with (
        engine.connect() as connection,
        EnvironmentContext(Config(), scripts, fn=_steps(scripts)) as environment,
    ):
        environment.configure(connection=connection, transaction_per_migration=True)
        with environment.begin_transaction():
            environment.run_migrations()


def _steps(scripts: ScriptDirectory) -> Any:
    def steps(revision: Any, _context: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    return steps


def _start_failure(error: psycopg.OperationalError) -> Exception:
    """The driver's text may name addresses and users: only its kind is told (I9)."""
    text = str(error)
    if "authentication failed" in text or "does not exist" in text:
        return Misconfigured("DATABASE_URL: Postgres refuses the user, password or database name")
    return Unavailable(POSTGRES)
