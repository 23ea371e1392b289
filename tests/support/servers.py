"""The Postgres and Redis that tests talk to.

Chosen once, by the process that controls the workers: TEST_DATABASE_URL and TEST_REDIS_URL if
set; containers if STEADYRUN_TEST_SERVICES=containers (never a silent fallback when asked for);
else the embedded servers, with fsync off. The addresses reach workers through the environment.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.embedded import PostgresServer, RedisServer
from deploy.process import spawn
from deploy.state import StateFolder


@dataclass(frozen=True)
class Servers:
    origin: str
    database_url: str
    redis_url: str


@contextmanager
def servers(environment: Mapping[str, str]) -> Iterator[Servers]:
    """Raises pytest.UsageError when what is asked for is not to be had."""
    given = environment.get("TEST_DATABASE_URL"), environment.get("TEST_REDIS_URL")
    kind = environment.get("STEADYRUN_TEST_SERVICES", "embedded")
    if given[0] and given[1]:
        yield Servers("environment", given[0], given[1])
    elif given[0] or given[1]:
        raise pytest.UsageError("set both TEST_DATABASE_URL and TEST_REDIS_URL, or neither")
    elif kind == "containers":
        with containers() as found:
            yield found
    elif kind == "embedded":
        with embedded() as found:
            yield found
    else:
        raise pytest.UsageError(f"STEADYRUN_TEST_SERVICES={kind}: not containers or embedded")


@contextmanager
def embedded() -> Iterator[Servers]:
    folder = Path(tempfile.mkdtemp(prefix="steadyrun-test-"))
    folder.chmod(0o755)  # when we are root, Postgres runs as somebody else
    with ExitStack() as cleaning:
        cleaning.callback(shutil.rmtree, folder, ignore_errors=True)
        state = cleaning.enter_context(StateFolder.open(folder))
        redis = RedisServer(state, durable=False)
        postgres = PostgresServer(state, durable=False)
        for server in (redis, postgres):
            cleaning.enter_context(_running(server))
        yield Servers("embedded", postgres.url, redis.url)


@contextmanager
def containers() -> Iterator[Servers]:
    import docker
    from testcontainers.community.postgres import PostgresContainer
    from testcontainers.community.redis import RedisContainer

    try:
        docker.from_env(timeout=2).ping()
    except docker.errors.DockerException as error:
        raise pytest.UsageError(
            "STEADYRUN_TEST_SERVICES=containers, but no docker daemon answers"
        ) from error
    command = "postgres -c fsync=off -c max_connections=300"
    postgres = PostgresContainer("postgres:18-alpine", driver=None).with_command(command)
    with postgres, RedisContainer("valkey/valkey:9-alpine") as redis:
        address = f"{redis.get_container_host_ip()}:{redis.get_exposed_port(6379)}"
        yield Servers("containers", postgres.get_connection_url(), f"redis://{address}/0")


def need_servers(arguments: list[str]) -> bool:
    """Whether any of pytest's arguments can select a test that is not in tests/unit."""
    paths = [Path(a.partition("::")[0]) for a in arguments]
    return not paths or not all(p.parts[:2] == ("tests", "unit") for p in paths)


def announce(found: Servers) -> None:
    os.environ["TEST_DATABASE_URL"] = found.database_url
    os.environ["TEST_REDIS_URL"] = found.redis_url


@contextmanager
def _running(server: PostgresServer | RedisServer) -> Iterator[None]:
    server.prepare()
    command = server.command()
    process = spawn(command)
    try:
        while not server.is_ready(process.pid):
            if process.poll() is not None:
                raise pytest.UsageError(f"no servers for tests: {command.log.read_text()[-500:]}")
            time.sleep(0.01)
        yield
    finally:
        process.send_signal(command.death_signal)
        process.wait()
