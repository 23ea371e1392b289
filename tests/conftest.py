"""Servers, a database for each test, and markers by folder."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import redis
import structlog
from psycopg import sql

from tests.support.chromium import MISSING, find_chromium, wants_browser
from tests.support.servers import announce, need_servers, servers

HERE = Path(__file__).parent
STARTED = pytest.StashKey[ExitStack]()
ORIGIN = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist inherit the addresses from the process that controls them."""
    _log_plainly()
    if hasattr(config, "workerinput") or not need_servers(config.args):
        return
    config.stash[STARTED] = started = ExitStack()
    found = started.enter_context(servers(os.environ))
    config.stash[ORIGIN] = found.origin
    announce(found)


def _log_plainly() -> None:
    """structlog shows the locals of every frame where rich is installed: seconds for one error of
    a graph, in which the loop under test stands still."""
    processors = structlog.get_config()["processors"][:-1]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])


def pytest_unconfigure(config: pytest.Config) -> None:
    if started := config.stash.get(STARTED, None):
        started.close()


def pytest_report_header(config: pytest.Config) -> str:
    browser = find_chromium() or f"left out, {MISSING}"
    return f"servers: {config.stash.get(ORIGIN, 'none needed')}; browser tests: {browser}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The folder of a test is its marker; load runs only where `-m` names it, and the browser's
    tests where there is a Chromium, or where they are asked for by name: then they fail without."""
    for item in items:
        item.add_marker(item.path.relative_to(HERE).parts[0])
    if find_chromium() is None and not wants_browser(config.args):
        leave_out(config, items, "browser")
    if "load" not in config.option.markexpr:
        leave_out(config, items, "load")


def leave_out(config: pytest.Config, items: list[pytest.Item], marker: str) -> None:
    left_out = [item for item in items if item.get_closest_marker(marker)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def template_database() -> Iterator[str]:
    """A migrated database of this worker that each test's database is a copy of."""
    name = f"template_{uuid.uuid4().hex[:12]}"
    _execute("CREATE DATABASE {}", name)
    _migrate(_address(name))
    yield name
    _execute("DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def database_url(template_database: str) -> Iterator[str]:
    """A fresh, migrated database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    _execute("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", name, template_database)
    yield _address(name)
    _execute("DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Like tmp_path, but open to other accounts: Postgres and nginx's workers change theirs when we
    are root, and pytest's folders are closed."""
    with tempfile.TemporaryDirectory(prefix="steadyrun-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def redis_url() -> str:
    return os.environ["TEST_REDIS_URL"]


@pytest.fixture
def redis_prefix(redis_url: str) -> Iterator[str]:
    """Put before every key and channel: pub/sub takes no notice of database numbers."""
    prefix = f"t{uuid.uuid4().hex[:8]}:"
    yield prefix
    with redis.Redis.from_url(redis_url) as client:
        for key in client.scan_iter(match=f"{prefix}*", count=1000):
            client.delete(key)


def _execute(statement: str, *names: str) -> None:
    with psycopg.connect(os.environ["TEST_DATABASE_URL"], autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _migrate(url: str) -> None:
    """Imported late: a run of unit tests alone needs no database."""
    from common.db.migrate import migrate

    migrate(url)


def _address(database: str) -> str:
    parts = urlsplit(os.environ["TEST_DATABASE_URL"])
    return urlunsplit(parts._replace(path=f"/{database}"))
