"""Postgres and Valkey as child processes: the same servers as in production, from nothing.

Each server prepares its folder (`prepare`, before every start), says how it is run (`command`) and
whether it answers (`is_ready`). Whoever runs it hands on only DATABASE_URL and REDIS_URL.
Whoever calls `prepare` holds the lock of the state folder: leftovers are stopped without asking.
"""

import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from common.errors import Misconfigured
from deploy.binaries import Postgres, find_postgres, find_redis
from deploy.child import Child
from deploy.process import Command, read_pid, spawn, stop_leftover, working_in
from deploy.state import LOOPBACK, StateFolder
from deploy.unprivileged import Account, can_reach, server_account, shared_folder, stage

USER = "steadyrun"
LABEL = "steadyrun.label"
LOST_ON_CRASH = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class PostgresServer:
    """One cluster per major version below the state folder.

    `durable=False` is for tests: a crash of the machine may destroy the cluster.
    """

    def __init__(self, state: StateFolder, *, durable: bool = True) -> None:
        self._password = state.memory.postgres_password
        self._log = state.log("postgres")
        self._durable = durable
        self._account = server_account()
        self._postgres = _reachable(find_postgres(), self._account)
        self._data = _data_home(state, self._account) / f"pg{self._postgres.major}"
        self._port = state.port("postgres")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self._port}/postgres"

    def child(self) -> Child:
        command = self.command()
        return Child(
            name="postgres",
            role="postgres",
            command=command,
            prepare=self.prepare,
            is_ready=self.is_ready,
            stop_signal=command.death_signal,
            hard_signal=signal.SIGQUIT,
            patience_s=20.0,
        )

    def prepare(self) -> None:
        if not self._data.exists():
            self._initialise()
        self._clear_pid_file()

    def command(self) -> Command:
        options = [
            f"listen_addresses={LOOPBACK}",
            "unix_socket_directories=",  # their paths may be too long, and TCP is enough
            "max_connections=300",
            *(() if self._durable else LOST_ON_CRASH),
        ]
        argv = [str(self._postgres.bin / "postgres"), "-D", str(self._data), "-p", str(self._port)]
        return Command(
            argv=argv + [word for option in options for word in ("-c", option)],
            log=self._log,
            env=_clean_environment(),
            cwd=Path("/"),
            account=self._account,
            death_signal=signal.SIGINT,  # fast shutdown; SIGTERM would wait for clients
        )

    def is_ready(self, pid: int) -> bool:
        """Postgres writes its state on the eighth line of its pid file, as pg_ctl reads it."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    @property
    def label(self) -> str:
        """What `put_label` wrote; it lives and dies with the cluster."""
        file = self._data / LABEL
        return file.read_text() if file.exists() else ""

    def put_label(self, text: str) -> None:
        (self._data / LABEL).write_text(text)
        (self._data / LABEL).chmod(0o644)  # Postgres looks at all its files after a crash

    def _initialise(self) -> None:
        """Make the cluster under another name first: it appears whole or not at all."""
        home = self._data.parent
        for unfinished in home.glob(".initdb-*"):
            shutil.rmtree(unfinished)
        work = Path(tempfile.mkdtemp(prefix=".initdb-", dir=home))
        try:
            self._initdb(work)
            (work / "data").rename(self._data)
        finally:
            shutil.rmtree(work)

    def _initdb(self, work: Path) -> None:
        password = work / "password"
        password.touch(mode=0o600)
        password.write_text(self._password)
        if self._account:
            for path in (work, password):
                os.chown(path, self._account.uid, self._account.gid)
        initdb = Command(
            argv=[
                *(str(self._postgres.bin / "initdb"), "-D", str(work / "data"), "-U", USER),
                *("-A", "scram-sha-256", "--pwfile", str(password), "-E", "UTF8", "--locale=C"),
                *("--no-instructions", *(() if self._durable else ("--no-sync",))),
            ],
            log=self._log,
            env=_clean_environment(),
            cwd=Path("/"),
            account=self._account,
        )
        if spawn(initdb).wait():
            raise Misconfigured(f"no database could be made in {work.parent}: see {self._log}")

    def _clear_pid_file(self) -> None:
        """Postgres refuses to start when the pid in its file lives, whoever that is now."""
        file = self._data / "postmaster.pid"
        if (pid := read_pid(file)) is not None:
            stop_leftover(pid, str(self._data), signal.SIGINT)
        self._end_orphans()
        file.unlink(missing_ok=True)

    def _end_orphans(self) -> None:
        """What a killed postmaster leaves lives on until it looks up, and may still write: a second
        server beside it destroys the data, and without the pid file Postgres cannot see it."""
        while orphans := working_in(self._data, "postgres"):
            for pid in orphans:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


class RedisServer:
    """Valkey or Redis with an append-only file; passwords on a command line can be seen by all."""

    def __init__(self, state: StateFolder, *, durable: bool = True) -> None:
        self._password = state.memory.redis_password
        self._log = state.log("redis")
        self._durable = durable
        self._folder = state.path / "redis"
        self._server = find_redis()
        self._port = state.port("redis")

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"

    def child(self) -> Child:
        return Child(
            name="redis",
            role="redis",
            command=self.command(),
            prepare=self.prepare,
            is_ready=self.is_ready,
            patience_s=10.0,
        )

    def prepare(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if (pid := read_pid(self._folder / "redis.pid")) is not None:
            stop_leftover(pid, str(self._config), signal.SIGTERM)
        self._config.touch(mode=0o600)
        self._config.write_text(self._settings())

    def command(self) -> Command:
        return Command(
            argv=[str(self._server), str(self._config)],
            log=self._log,
            env=_clean_environment(),
            cwd=self._folder,
            death_signal=signal.SIGTERM,
        )

    def is_ready(self, pid: int) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self._port), timeout=1) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                return connection.makefile("rb").read(12) == b"+OK\r\n+PONG\r\n"
        except OSError:
            return False

    @property
    def _config(self) -> Path:
        return self._folder / "redis.conf"

    def _settings(self) -> str:
        folder = re.sub(r'(["\\])', r"\\\1", str(self._folder))
        return "\n".join(
            [
                f"bind {LOOPBACK}",
                f"port {self._port}",
                f'dir "{folder}"',
                f'pidfile "{folder}/redis.pid"',
                f"requirepass {self._password}",
                "set-proc-title no",  # keep the path on the command line: a leftover is known by it
                "daemonize no",
                'save ""',
                f"appendonly {'yes' if self._durable else 'no'}",
                "appendfsync everysec",
                "maxmemory-policy noeviction",
                "client-output-buffer-limit pubsub 64mb 32mb 60",
                "",
            ]
        )


def _reachable(found: Postgres, account: Account | None) -> Postgres:
    """As it is, or copied to where the other account can execute it."""
    if account is None or can_reach(found.bin / "postgres", account):
        return found
    if found.package is None:
        raise Misconfigured(f"{found.bin} cannot be reached by the account {account.name}")
    copy = stage(found.package, found.version)
    return Postgres(copy / found.bin.relative_to(found.package), copy)


def _data_home(state: StateFolder, account: Account | None) -> Path:
    """A state folder made anew under an old name must not meet the old one's data."""
    if account is None or can_reach(state.path / "data", account):
        return state.path
    name = re.sub(r"\W+", "_", str(state.path)).strip("_")
    return shared_folder(f"{name}-{state.memory.place}")


def _clean_environment() -> Mapping[str, str]:
    """No PG* or LC_* of the caller's: a server behaves the same whoever starts it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
