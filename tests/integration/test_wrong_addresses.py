"""Processes with addresses that something is wrong with: one line, no traceback, no password."""

import os
import subprocess
import sys
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.acceptance.conftest import GRAPHS
from tests.support.cluster import ROOT


def said(verb: str, environment: dict[str, str]) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "deploy.cli", verb],
        cwd=ROOT,
        env=os.environ | {"STEADYRUN_GRAPHS": str(GRAPHS), "STEADYRUN_JWT_SECRET": "s" * 32}
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


def changed(url: str, **parts: str) -> str:
    return urlunsplit(urlsplit(url)._replace(**parts))


def assert_told(status: int, text: str, cause: str) -> None:
    assert status in (1, 2)
    assert text.startswith("steadyrun")
    assert text.count("\n") == 1, text
    assert cause in text


@pytest.mark.parametrize("verb", ["migrate", "gateway", "runner"])
@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"path": "/nowhere"}, "DATABASE_URL"),
        ({"query": "nonsense=1"}, "DATABASE_URL"),
        ({"query": "sslmode=verify-full&sslrootcert=/nowhere"}, "DATABASE_URL"),
        ({"query": "sslmode=require"}, "Postgres"),
    ],
)
def test_what_postgres_does_not_take_is_named(
    verb: str, parts: dict[str, str], cause: str, database_url: str, redis_url: str
) -> None:
    password = urlsplit(database_url).password or "none"
    url = changed(database_url, **parts)
    status, text = said(verb, {"DATABASE_URL": url, "REDIS_URL": redis_url})
    assert_told(status, text, cause)
    assert password not in text


@pytest.mark.parametrize("verb", ["gateway", "runner"])
@pytest.mark.parametrize("query", ["nonsense=1", "socket_timeout=x", "db=x"])
def test_what_the_driver_of_redis_does_not_take_is_named(
    verb: str, query: str, database_url: str, redis_url: str
) -> None:
    password = urlsplit(redis_url).password or "none"
    url = changed(redis_url, query=query)
    status, text = said(verb, {"DATABASE_URL": database_url, "REDIS_URL": url})
    assert_told(status, text, "REDIS_URL")
    assert status == 2
    assert password not in text
