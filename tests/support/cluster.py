"""A topology of its own for a test: `steadyrun up` as a child, in a folder of the test.

Two replicas on one machine, as a class:

    with Cluster(tmp_path, gateways=2, runners=2).running() as cluster:
        httpx.get(f"{cluster.url}/readyz")
        cluster.kill("gateway-1")                 # SIGKILL by pid; it is started again
        cluster.until_replaced("gateway-1", pid)
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

from deploy.process import Command, spawn
from deploy.state import free_port
from deploy.topology import Process, Topology
from deploy.unprivileged import Account

UP = (sys.executable, "-m", "deploy.cli")
STANDIN = (sys.executable, "-m", "tests.support.standin")
ROOT = Path(__file__).parents[2]


class ClusterFailed(AssertionError):
    """`up` ended, or did not do what was waited for; holds what it said."""


class Cluster:
    """One `up`. `environment` is added to the test's; servers of the test are not handed on, so
    that each cluster has its own, unless DATABASE_URL and REDIS_URL are given there."""

    def __init__(
        self,
        state: Path,
        *,
        gateways: int = 2,
        runners: int = 2,
        program: Sequence[str] = UP,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        account: Account | None = None,
        output: Path | None = None,
    ) -> None:
        self.state = state
        self.port = port or free_port()
        self.process: Popen[bytes] | None = None
        self._output = output or state.parent / f"{state.name}.out"
        self._account = account
        self.environment = dict(environment or {})
        self._argv = [
            *(*program, "up", "--state", str(state), "--port", str(self.port)),
            *("--gateways", str(gateways), "--runners", str(runners)),
        ]

    @contextmanager
    def running(self, *options: str, timeout_s: float = 60.0) -> Iterator["Cluster"]:
        """Until the block ends; then stopped, by force if need be."""
        self.start(*options)
        try:
            self.until_ready(timeout_s)
            yield self
        finally:
            self.stop()

    def start(self, *options: str) -> None:
        kept = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
        self._output.unlink(missing_ok=True)
        self.process = spawn(
            Command(
                argv=[*self._argv, *options],
                log=self._output,
                env=kept | self.environment,
                cwd=ROOT,
                account=self._account,
                death_signal=signal.SIGTERM,  # a killed test leaves nothing
            )
        )

    def until_ready(self, timeout_s: float = 60.0) -> None:
        self.until(lambda: "Steadyrun runs at" in self.said, timeout_s)

    @property
    def said(self) -> str:
        return self._output.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def topology(self) -> Topology:
        return Topology.read(self.state / "topology.json")

    def named(self, name: str) -> Process | None:
        """A living child, None while it is not running."""
        return next((p for p in self.topology.processes if p.name == name), None)

    def pid(self, name: str) -> int:
        found = self.named(name)
        assert found is not None, f"{name} is not running"
        return found.pid

    def kill(self, name: str, sign: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a child; returns the pid it had."""
        pid = self.pid(name)
        os.kill(pid, sign)
        return pid

    def until_replaced(self, name: str, pid: int, timeout_s: float = 30.0) -> int:
        """Wait until `name` runs under another pid than `pid`."""
        self.until(lambda: (found := self.named(name)) is not None and found.pid != pid, timeout_s)
        return self.pid(name)

    def until(self, happened: Callable[[], bool], timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            if self.process is None or self.process.poll() is not None:
                raise ClusterFailed(f"`up` has ended: {self.said}")
            if time.monotonic() > deadline:
                raise ClusterFailed(f"not within {timeout_s} s: {self.said}")
            time.sleep(0.02)

    def signal(self, sign: signal.Signals) -> None:
        """Send a signal to `up` itself."""
        assert self.process is not None
        self.process.send_signal(sign)

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit status of `up`."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, then what `up` ended with; SIGKILL if it does not end."""
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(60.0)
        self.process.kill()
        return self.process.wait()
