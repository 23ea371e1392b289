"""What tests of the servers share."""

from collections.abc import AsyncIterator

import pytest

from common.bus.log import LogConnection
from common.db.engine import Connection, Database
from tests.support.edge import Edge, serving, settings
from tests.support.fake_runner import FakeRunner


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool that is wide enough for races."""
    opened = Database(database_url, application_name="test", pool_size=12)
    yield opened
    await opened.aclose()


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    """Autocommit."""
    async with database.connect() as opened:
        yield opened


@pytest.fixture
async def log(redis_url: str, redis_prefix: str) -> AsyncIterator[LogConnection]:
    """The appending connection of a process."""
    connection = LogConnection(redis_url, prefix=redis_prefix)
    yield connection
    await connection.aclose()


@pytest.fixture
async def runner(database: Database, log: LogConnection) -> FakeRunner:
    """A runner that does what the test says."""
    return FakeRunner(database, log)


@pytest.fixture
async def edge(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[Edge]:
    """A gateway on loopback."""
    async with serving(settings(database_url, redis_url, redis_prefix)) as running:
        yield running
