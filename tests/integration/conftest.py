"""What tests of the servers share."""

from collections.abc import AsyncIterator

import pytest

from common.db.engine import Connection, Database


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
