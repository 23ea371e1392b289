"""What is loaded: a topology of our own in a temporary folder, or one that runs already."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from common.errors import Misconfigured
from deploy.local import PROGRAM
from deploy.probe import is_answering
from deploy.process import Command, spawn
from deploy.state import free_port
from deploy.topology import Topology

_READY_S = 180.0
_STOP_S = 30.0


@contextmanager
def own_topology(*, gateways: int = 1, runners: int = 1) -> Iterator[Topology]:
    """`steadyrun up` with the load graph, stopped at the end. Raises Misconfigured with its log."""
    folder = Path(tempfile.mkdtemp(prefix="steadyrun-load-"))
    try:
        child = spawn(_up(folder, gateways, runners))
        try:
            yield _wait_until_ready(child, folder)
        finally:
            _stop(child)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def running_topology(url: str, state: Path) -> Topology:
    """The topology behind `url`: with its processes if it is the local `up` of this folder."""
    try:
        topology = Topology.read(state / "topology.json")
    except (OSError, ValueError):
        topology = None
    if topology is not None and url.rstrip("/") in _addresses(topology):
        return topology
    secret = os.environ.get("STEADYRUN_JWT_SECRET")
    if secret is None:
        raise Misconfigured(
            f"no secret to sign with for {url}: set STEADYRUN_JWT_SECRET, or name by --state the"
            " folder of the `up` that runs there"
        )
    return Topology(url=url, database_url="", redis_url="", jwt_secret=secret)


def gateways_of(topology: Topology) -> list[str]:
    """The gateways themselves, so that nginx is no part of the figures; else the one address."""
    return [p.url for p in topology.of("gateway") if p.url] or [topology.url]


def _addresses(topology: Topology) -> set[str]:
    return {topology.url.rstrip("/"), *(p.url for p in topology.processes if p.url)}


def _up(folder: Path, gateways: int, runners: int) -> Command:
    graphs = Path(str(files("runner"))) / "graphs" / "load" / "langgraph.json"
    argv = [
        *PROGRAM,
        "up",
        "--no-nginx",
        *("--gateways", str(gateways)),
        *("--runners", str(runners)),
        *("--port", str(free_port())),
        *("--graphs", str(graphs)),
        *("--state", str(folder)),
    ]
    log = folder / "up.log"
    return Command(argv=argv, log=log, env=_environment(), death_signal=signal.SIGTERM)


def _environment() -> dict[str, str]:
    """Embedded servers always: nobody's database is loaded by accident."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith(("DATABASE_URL", "REDIS_URL"))}
    return kept | {"STEADYRUN_STREAMS_PER_USER_MAX": "100000", "STEADYRUN_LOG_LEVEL": "warning"}


def _wait_until_ready(child: "subprocess.Popen[bytes]", folder: Path) -> Topology:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and child.poll() is None:
        try:
            topology = Topology.read(folder / "topology.json")
        except (OSError, ValueError):
            topology = None
        if topology and topology.of("runner") and is_answering(f"{topology.url}/readyz"):
            return topology
        time.sleep(0.2)
    log = (folder / "up.log").read_text(errors="replace").splitlines()
    raise Misconfigured(f"the system does not start: {' / '.join(log[-3:])}")


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
