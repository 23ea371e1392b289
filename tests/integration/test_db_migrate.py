"""The schema: made once by any number of processes, and the same as the metadata says."""

import asyncio
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from common.db.engine import Connection, Database
from common.db.migrate import migrate
from common.db.revision import NEEDED, is_ready
from common.db.tables import metadata
from common.errors import Misconfigured, Unavailable
from deploy.state import free_port

ROOT = Path(__file__).parents[2]

_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text = ANY(%s)
 ORDER BY 1, 2
"""
_INDEXES = """
SELECT indexname, indexdef FROM pg_indexes
 WHERE schemaname = 'public' AND tablename = ANY(%s) ORDER BY 1
"""


@pytest.fixture
def empty_url(database_url: str) -> Iterator[str]:
    """A database in which nothing was ever made."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(database_url, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield database_url.rsplit("/", 1)[0] + f"/{name}"
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def tables_of(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {row[0] for row in rows}


async def current(url: str) -> bool:
    database = Database(url, application_name="t", pool_size=1)
    async with database.connect() as connection:
        found = await is_ready(connection)
    await database.aclose()
    return found


async def test_migrating_twice_from_nothing_leaves_one_complete_schema(empty_url: str) -> None:
    assert not await current(empty_url)
    await asyncio.to_thread(migrate, empty_url)
    assert await current(empty_url)
    await asyncio.to_thread(migrate, empty_url)
    assert await current(empty_url)
    checkpoints = {"checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations"}
    assert tables_of(empty_url) == set(metadata.tables) | checkpoints | {"alembic_version"}


async def test_four_processes_may_migrate_at_once(empty_url: str) -> None:
    program = "import os; from common.db.migrate import migrate; migrate(os.environ['URL'])"
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), cwd=ROOT, env={**os.environ, "URL": empty_url}
        )
        for _ in range(4)
    ]
    assert [await process.wait() for process in processes] == [0, 0, 0, 0]
    assert await current(empty_url)


async def test_an_older_schema_is_not_ready_and_a_newer_one_is(connection: Connection) -> None:
    """A newer one was expanded for a program that is being rolled out beside this one."""
    assert await is_ready(connection)
    for version, ready in (("0000", False), (NEEDED, True)):
        await connection.rows("UPDATE alembic_version SET version_num = $1", version)
        assert await is_ready(connection) is ready


def test_the_migrations_lead_to_the_metadata(database_url: str, empty_url: str) -> None:
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(empty_url), poolclass=NullPool
    )
    with engine.begin() as made:
        metadata.create_all(made)
        assert not compare_metadata(MigrationContext.configure(made), metadata)
    tables = list(metadata.tables)
    with psycopg.connect(database_url) as migrated, psycopg.connect(empty_url) as created:
        for query in (_CONSTRAINTS, _INDEXES):
            there = migrated.execute(query, [tables]).fetchall()
            assert there == created.execute(query, [tables]).fetchall()


def test_columns_are_the_same_in_the_metadata(database_url: str, empty_url: str) -> None:
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(empty_url), poolclass=NullPool
    )
    metadata.create_all(engine)
    query = """
    SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name,
           is_identity
      FROM information_schema.columns
     WHERE table_schema = 'public' AND table_name = ANY(%s) ORDER BY table_name, ordinal_position
    """
    tables = list(metadata.tables)
    with psycopg.connect(database_url) as migrated, psycopg.connect(empty_url) as created:
        there = migrated.execute(query, [tables]).fetchall()
        assert there == created.execute(query, [tables]).fetchall()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        migrate(f"postgresql://nobody@127.0.0.1:{free_port()}/x")


def test_a_database_that_does_not_exist_is_misconfigured(database_url: str) -> None:
    with pytest.raises(Misconfigured, match="DATABASE_URL"):
        migrate(database_url.rsplit("/", 1)[0] + "/nowhere")


@pytest.mark.parametrize("url", ["foo", "mysql://a:hunter2@b/c", "postgresql://a:hunter2@[b/c"])
def test_a_url_that_cannot_be_used_is_one_line_without_its_parts(url: str) -> None:
    with pytest.raises(Misconfigured, match="DATABASE_URL") as caught:
        migrate(url)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
