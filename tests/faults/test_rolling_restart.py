"""Everything is restarted, in turn or at once, under runs that stream, ask and are decided.

Nothing is lost, no client is told an end that is none, no POST gets an answer that cannot be
repeated (I1, I2, I6). STEADYRUN_FAULT_ROUNDS rounds, beginning with STEADYRUN_FAULT_SEED.
"""

import asyncio
import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import GRAPHS
from tests.support.api import Api
from tests.support.cluster import Cluster
from tests.support.until import until
from tests.support.watching import Crowd, assert_exact, folded, outline, reasons

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("STEADYRUN_FAULT_SEED", "1"))
LEGS, EVENTS = 6, 15
ORDER = json.dumps({"legs": LEGS, "events": EVENTS, "pause_s": 0.02})
SIGNALS = {"postgres": signal.SIGINT}  # where SIGTERM would wait for clients


@dataclass
class Load:
    """Runs in all stages, one after the other, until `stop` is set; then all are brought to an
    end and looked at."""

    crowd: Crowd
    lanes: int = 3
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ended: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)

    async def run(self) -> None:
        lanes = [self._lane("legs") for _ in range(self.lanes)] + [self._lane("ask")]
        await asyncio.gather(*lanes)

    async def _lane(self, graph: str) -> None:
        while not self.stop.is_set():
            run_id = await self.crowd.start(ORDER, graph)
            watching = [asyncio.create_task(self.crowd.watch(run_id)) for _ in range(3)]
            if graph == "ask":
                await decide(self.crowd, run_id)
            events = assert_exact(await asyncio.gather(*watching))
            assert events[-1]["type"] == "done", outline(events)
            self.ended.append((graph, events))
            if graph == "legs":
                assert_whole(events)


def assert_whole(events: list[dict[str, Any]]) -> None:
    """Every step's events stand once in what a client shows at the end."""
    shown = [e["data"] for e in folded(events) if e["type"] == "custom"]
    wanted = [{"leg": leg, "n": n} for leg in range(LEGS) for n in range(EVENTS)]
    assert shown == wanted, outline(events)


async def decide(crowd: Crowd, run_id: str) -> None:
    await crowd.watch(run_id, until="interrupt", cuts=False)
    run = await crowd.get(f"/api/runs/{run_id}")
    for asked in run["pendingInterrupts"]:
        decision = {"interruptId": asked["id"], "decision": "approve"}
        await crowd.post(f"/api/runs/{run_id}/resume", decision)


async def restart(cluster: Cluster, name: str) -> None:
    """By the signal that an operator sends; returns when it is there again."""
    pid = cluster.kill(name, SIGNALS.get(name, signal.SIGTERM))
    deadline = time.monotonic() + 60
    while (found := cluster.named(name)) is None or found.pid == pid:
        assert time.monotonic() < deadline, f"{name} is not replaced: {cluster.said}"
        await asyncio.sleep(0.05)


async def until_serving(crowd: Crowd) -> None:
    """Every gateway is ready, through nginx too: one at a time is what makes a restart rolling."""
    for api in crowd.apis:
        await until(partial(is_ready, api), within_s=60)


async def is_ready(api: Api) -> bool:
    try:
        return (await api.http.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_rolling_restart_of_everything_loses_nothing(cluster: Cluster, number: int) -> None:
    rng = random.Random(SEED * 1000 + number)
    crowd = Crowd.of(cluster.topology, rng)
    load = Load(crowd)
    loading = asyncio.create_task(load.run())
    names = [process.name for process in cluster.topology.processes]
    rng.shuffle(names)
    for name in names:
        await restart(cluster, name)
        if name.startswith(("gateway", "nginx")):
            await until_serving(crowd)
        await asyncio.sleep(rng.uniform(0, 0.5))
        if loading.done():
            break
    load.stop.set()
    await loading
    assert {graph for graph, _ in load.ended} == {"legs", "ask"}
    resumed = [reason for _, events in load.ended for reason in reasons(events)]
    assert "handover" in resumed or number
    await crowd.aclose()


@pytest.mark.timeout(300)
async def test_everything_killed_at_once_and_started_again_goes_on(cluster: Cluster) -> None:
    """The supervisor too; on the same state folder runs go on and questions can be decided."""
    rng = random.Random(SEED)
    crowd = Crowd.of(cluster.topology, rng)
    asks = await crowd.start("{}", "ask")
    await crowd.watch(asks, until="interrupt", cuts=False)
    for _ in range(ROUNDS):
        streams = [await crowd.start(ORDER, "legs") for _ in range(3)]
        watching = [asyncio.create_task(crowd.watch(run)) for run in streams for _ in range(2)]
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        pids = [process.pid for process in cluster.topology.processes]
        cluster.signal(signal.SIGKILL)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it went with its parent
        cluster.wait()
        cluster.start("--graphs", str(GRAPHS))
        await asyncio.to_thread(cluster.until_ready, 120)
        histories = await asyncio.gather(*watching)
        for at in range(len(streams)):
            events = assert_exact(histories[2 * at : 2 * at + 2])
            assert events[-1]["type"] == "done", outline(events)
            assert_whole(events)
    await decide(crowd, asks)
    assert assert_exact([await crowd.watch(asks)])[-1]["type"] == "done"
    await crowd.aclose()
