"""I8: clients that stop reading cost no memory and slow nobody."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.topology import Topology
from tests.support.api import Api, History
from tests.support.cluster import Cluster

CLIENTS = 200
EVENTS = 1500
SIZE = 2000  # characters of three bytes: 9 MB a client, more than the kernel takes for it
GROWTH_MAX = 50 << 20


def resident(topology: Topology, role: str) -> int:
    """Bytes of the resident sets of a role's processes and their children."""
    pids = {str(p.pid) for p in topology.processes if p.role == role}
    found = [status(p) for p in Path("/proc").iterdir() if p.name.isdigit()]
    ours = [s for s in found if {s.get("Pid"), s.get("PPid")} & pids]
    return sum(int(s["VmRSS"].split()[0]) << 10 for s in ours)


def status(process: Path) -> dict[str, str]:
    """A process that has just ended has none."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def stalled(api: Api, run_id: str, count: int) -> Iterator[socket.socket]:
    """Clients that ask for the stream and never read."""
    parts = urlsplit(str(api.http.base_url))
    assert parts.hostname
    request = (
        f"GET /api/runs/{run_id}/events HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: {api.http.headers['authorization']}\r\n\r\n"
    ).encode()
    for _ in range(count):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((parts.hostname, parts.port))
        client.sendall(request)
        yield client


@pytest.mark.timeout(180)
async def test_two_hundred_clients_that_stop_reading_cost_little_and_slow_nobody(
    cluster: Cluster, gateways: list[Api]
) -> None:
    warm = await gateways[0].start('{"events": 50, "size": 2000}', graph="events")
    for api in gateways:
        await api.read(warm["id"])
    topology = cluster.topology
    before = {role: resident(topology, role) for role in ("gateway", "nginx")}
    content = json.dumps({"events": EVENTS, "size": SIZE, "pause_s": 0.004})
    run = await gateways[0].start(content, graph="events")
    with ExitStack() as stack:
        for api, share in zip(gateways, (70, 70, 60), strict=True):
            for client in stalled(api, run["id"], share):
                stack.enter_context(client)
        reading: list[History] = await asyncio.gather(*(api.read(run["id"]) for api in gateways))
        after = {role: resident(topology, role) for role in before}
    for history in reading:
        assert history.order == list(range(1, len(history.order) + 1))
        assert history.connections == 1
        assert history.ended
    growth = {role: after[role] - before[role] for role in before}
    assert growth["gateway"] < GROWTH_MAX, growth
    assert growth["nginx"] < GROWTH_MAX, growth
