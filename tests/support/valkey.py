"""A Valkey of one test's own: for what the shared one must not suffer (FLUSHALL, kills, users)."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from deploy.binaries import find_redis
from deploy.process import Command, spawn


class Valkey:
    """A server on a free loopback port; `durable` keeps what it knows over `kill` and `start`."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._append_only = "yes" if durable else "no"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns once it answers. Call from the main thread only."""
        self._process = spawn(Command(self._argv(), self._folder / "log", cwd=self._folder))
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            time.sleep(0.01)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """Nothing, if it does not run; ends a stopped process too."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(sign)
            process.send_signal(signal.SIGCONT)
            process.wait()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        """Its sockets stay open and nothing answers, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def command(self, *words: str | bytes | int) -> Any:
        """What an operator types."""
        with redis.Redis.from_url(self.url) as client:
            return client.execute_command(*words)

    def _argv(self) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._folder),
            "save": "",
            "appendonly": self._append_only,
            "appendfsync": "always",
        }
        return [str(find_redis()), *(w for name, v in options.items() for w in (f"--{name}", v))]

    def _answers(self) -> bool:
        try:
            return bool(self.command("PING"))
        except (redis.ConnectionError, redis.TimeoutError):
            return False


@contextmanager
def private_valkey(*, durable: bool = False) -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="steadyrun-valkey-") as folder:
        server = Valkey(Path(folder), durable=durable)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
