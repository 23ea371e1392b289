"""One whole system for all acceptance tests of a worker: nginx, 2 gateways, 2 runners, servers."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.drill.truth import EFFECTS_VARIABLE
from tests.support.api import Api
from tests.support.cluster import ROOT, Cluster

GRAPHS = ROOT / "tests" / "support" / "graphs" / "langgraph.json"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        Path(name).chmod(0o755)
        (effects := Path(name) / "effects").mkdir()
        environment = {EFFECTS_VARIABLE: str(effects), "STEADYRUN_OPSPILOT_DELAY_MS": "1"}
        cluster = Cluster(Path(name) / "state", environment=environment)
        with cluster.running("--graphs", str(GRAPHS)) as running:
            yield running


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    async with Api(cluster.url, cluster.topology.jwt_secret) as client:
        yield client


@pytest.fixture
async def gateways(cluster: Cluster) -> AsyncIterator[list[Api]]:
    """The two gateways and nginx, as one user."""
    topology = cluster.topology
    urls = [p.url for p in topology.processes if p.role == "gateway" and p.url] + [topology.url]
    clients = [Api(url, topology.jwt_secret) for url in urls]
    yield clients
    for client in clients:
        await client.http.aclose()
