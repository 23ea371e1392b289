"""What is loaded: a topology of our own in a temporary folder, or one that runs already."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from common.errors import Misconfigured
from deploy.own import Wanted, own_system, passing_folder
from deploy.topology import Topology

_ENVIRONMENT = {"STEADYRUN_STREAMS_PER_USER_MAX": "100000", "STEADYRUN_LOG_LEVEL": "warning"}


@contextmanager
def own_topology(*, gateways: int = 1, runners: int = 1) -> Iterator[Topology]:
    """`steadyrun up` with the load graph, stopped at the end. Raises Misconfigured with its log."""
    graphs = Path(str(files("runner"))) / "graphs" / "load" / "langgraph.json"
    wanted = Wanted(graphs, gateways, runners, environment=_ENVIRONMENT)
    with passing_folder("steadyrun-load-") as folder, own_system(folder, wanted) as system:
        yield system.topology()


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
