"""A system of our own, to load or to drill: `steadyrun up` as a child, in a folder of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import Misconfigured
from deploy.local import PROGRAM, WELCOME
from deploy.process import Command, has_exited, spawn
from deploy.state import free_port
from deploy.topology import Topology

_READY_S = 180.0
_STOP_S = 60.0


@dataclass(frozen=True)
class Wanted:
    """What `up` is asked for. `environment` is added to the caller's, less its servers: nobody's
    database is loaded or killed by accident."""

    graphs: Path
    gateways: int = 1
    runners: int = 1
    nginx: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


class OwnSystem:
    """A running `up` whose children may die and come back under other pids."""

    def __init__(self, folder: Path, child: "subprocess.Popen[bytes]") -> None:
        self.folder = folder
        self._child = child

    @property
    def is_up(self) -> bool:
        return not has_exited(self._child)

    @property
    def said(self) -> str:
        return (self.folder / "up.log").read_text(errors="replace")

    @property
    def last_words(self) -> str:
        return " / ".join(self.said.splitlines()[-3:])

    def topology(self) -> Topology:
        """As it is now; raises OSError when `up` has ended."""
        return Topology.read(self.folder / "topology.json")


@contextmanager
def own_system(folder: Path, wanted: Wanted) -> Iterator[OwnSystem]:
    """Until the block ends; then stopped, by force if need be. Main thread only.

    Raises Misconfigured with its last words when it does not start.
    """
    child = spawn(_up(folder, wanted))
    try:
        system = OwnSystem(folder, child)
        _wait_until_ready(system)
        yield system
    finally:
        _stop(child)


@contextmanager
def passing_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder that goes with the block."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _up(folder: Path, wanted: Wanted) -> Command:
    argv = [
        *(*PROGRAM, "up", "--nginx" if wanted.nginx else "--no-nginx"),
        *("--gateways", str(wanted.gateways)),
        *("--runners", str(wanted.runners)),
        *("--port", str(free_port())),
        *("--graphs", str(wanted.graphs)),
        *("--state", str(folder)),
    ]
    kept = {k: v for k, v in os.environ.items() if not k.endswith(("DATABASE_URL", "REDIS_URL"))}
    return Command(
        argv=argv,
        log=folder / "up.log",
        env={**kept, **wanted.environment},
        death_signal=signal.SIGTERM,
    )


def _wait_until_ready(system: OwnSystem) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and system.is_up:
        if WELCOME in system.said:
            return
        time.sleep(0.1)
    raise Misconfigured(f"the system does not start: {system.last_words}")


def _stop(child: "subprocess.Popen[bytes]") -> None:
    """A second Ctrl-C in here leaves `up` with its signal, and it stops by itself."""
    if has_exited(child):
        return
    child.terminate()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
