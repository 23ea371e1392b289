"""Gateways and runners as processes, with variables that nobody reads."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deploy.state import free_port
from tests.acceptance.conftest import GRAPHS
from tests.support.cluster import ROOT

ROLES = ("gateway", "runner")


@contextmanager
def process(
    role: str, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", role],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


@pytest.fixture
def environment(database_url: str, redis_url: str, redis_prefix: str) -> dict[str, str]:
    port = str(free_port())
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "STEADYRUN_REDIS_PREFIX": redis_prefix,
        "STEADYRUN_GRAPHS": str(GRAPHS),
        "STEADYRUN_JWT_SECRET": "s" * 32,
        "STEADYRUN_GATEWAY_PORT": port,
        "STEADYRUN_METRICS_PORT": port,
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_process_does_not_start_with_a_misspelt_setting(
    role: str, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with process(role, environment | {"STEADYRUN_LEASE_TTL": "3"}, log) as child:
        assert child.wait(60) == 2
    assert log.read_text() == (
        f"steadyrun {role}: STEADYRUN_LEASE_TTL is no setting: did you mean"
        " STEADYRUN_LEASE_TTL_S?\n"
    )


@pytest.mark.parametrize("role", ROLES)
def test_a_process_starts_with_a_setting_that_it_does_not_know_and_tells_it(
    role: str, environment: dict[str, str], tmp_path: Path
) -> None:
    log, strange = tmp_path / "log", {"STEADYRUN_CONCURRENCY": "hunter2", "STEADYRUN_NEWER": "1"}
    url = f"http://127.0.0.1:{environment['STEADYRUN_METRICS_PORT']}/metrics"
    with process(role, environment | strange, log) as child:
        page = until_answered(url, child)
    assert f"steadyrun_{role}_unknown_settings 2.0" in page
    said = log.read_text()
    assert said.count('"unknown_setting"') == 2
    assert '"nearest": "STEADYRUN_RUNNER_CONCURRENCY"' in said
    assert "hunter2" not in said


def until_answered(url: str, child: "subprocess.Popen[bytes]") -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert child.poll() is None, "it has ended"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
        time.sleep(0.05)
    raise AssertionError("nothing answers")
