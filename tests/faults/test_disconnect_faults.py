"""`onDisconnect: cancel` while a gateway is killed and Redis forgets who watches (contract §4).

A watched run is never ended by that, and one that nobody watches any more is ended all the same.
"""

import asyncio
import json
import os
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.acceptance.conftest import GRAPHS
from tests.support.api import Api, History
from tests.support.cluster import Cluster

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("STEADYRUN_FAULT_SEED", "0"))
TTL_S, GRACE_S = 4.0, 3.0
WATCHED_S = 11.0  # longer than absence takes to be believed after the last fault
TEMPO = {
    "STEADYRUN_PRESENCE_TTL_S": str(TTL_S),
    "STEADYRUN_DISCONNECT_GRACE_S": str(GRACE_S),
}


@asynccontextmanager
async def clients(cluster: Cluster) -> AsyncIterator[list[Api]]:
    """The two gateways as long as they live, and nginx."""
    topology = cluster.topology
    urls = [p.url for p in topology.processes if p.role == "gateway" and p.url] + [topology.url]
    made = [Api(url, topology.jwt_secret) for url in urls]
    yield made
    for api in made:
        await api.http.aclose()


async def start(api: Api, lasting_s: float) -> str:
    """Asked for again while it is refused with 503: a gateway may just have been killed."""
    content = json.dumps({"events": round(lasting_s / 0.1), "pause_s": 0.1})
    body = {"graph": "events", "message": {"content": content}, "onDisconnect": "cancel"}
    headers = {"Accept": "application/json", "Idempotency-Key": uuid.uuid4().hex}
    while (answer := await api.http.post("/api/chat", json=body, headers=headers)).is_server_error:
        await asyncio.sleep(0.2)
    return str(answer.json()["run"]["id"])


@dataclass
class Watcher(History):
    """Knows for how long it was away at most: between two readings, in seconds."""

    read_at: float = field(default_factory=time.monotonic)
    away_s: float = 0

    def take(self, raw: bytes) -> None:
        now = time.monotonic()
        self.away_s, self.read_at = max(self.away_s, now - self.read_at), now
        super().take(raw)

    @property
    def was_kept(self) -> bool:
        """Ended by itself; by others only if nobody came back in time: on a busy machine."""
        end = self.events[-1]
        by_itself = end["type"] == "done"
        return by_itself or (end.get("reason") == "disconnected" and self.away_s > GRACE_S)


async def watch(apis: list[Api], rng: random.Random, cut_after: int = 1_000_000) -> Watcher:
    """To the end, on any gateway, coming back within the grace period whatever happens."""
    run_id = await start(apis[-1], WATCHED_S)
    watcher = Watcher()
    while not watcher.ended:
        await rng.choice(apis).connect(run_id, watcher, events_max=rng.randint(5, cut_after))
        await asyncio.sleep(rng.uniform(0, GRACE_S / 10))
    assert watcher.order == list(range(1, watcher.cursor + 1))
    return watcher


async def leave(apis: list[Api], rng: random.Random, after_s: float) -> str:
    """Watches for a time, and then nobody does; how the run ended."""
    run_id = await start(apis[-1], 600)
    try:
        async with asyncio.timeout(after_s):
            await watch_for_ever(apis, rng, run_id)
    except TimeoutError:
        pass
    async with asyncio.timeout(60):
        while (run := await apis[-1].run(run_id))["status"] == "running":
            await asyncio.sleep(0.2)
    return f"{run['status']} {run['cancelReason']}"


async def watch_for_ever(apis: list[Api], rng: random.Random, run_id: str) -> None:
    history = History()
    while True:
        await rng.choice(apis).connect(run_id, history)
        await asyncio.sleep(0.1)


async def break_things(cluster: Cluster, rng: random.Random) -> None:
    """A gateway dies and comes back; Redis forgets everything, and is killed and started again."""

    async def kill(name: str) -> None:
        await asyncio.to_thread(lambda: cluster.until_replaced(name, cluster.kill(name)))

    async def forget() -> None:
        """As soon as it answers: it may just have been started again."""
        async with Redis.from_url(cluster.topology.redis_url) as redis, asyncio.timeout(30):
            while True:
                with suppress(RedisError):
                    await redis.flushall()
                    return
                await asyncio.sleep(0.05)

    acts = [lambda: kill(rng.choice(["gateway-1", "gateway-2"])), forget]
    acts.append(lambda: kill("redis"))
    rng.shuffle(acts)
    for act in acts:
        await asyncio.sleep(rng.uniform(0.2, 1.2))
        await act()


@pytest.mark.timeout(120 * ROUNDS)
async def test_watched_runs_go_on_and_abandoned_ones_end_whatever_is_killed(folder: Path) -> None:
    with Cluster(folder / "state", environment=TEMPO).running("--graphs", str(GRAPHS)) as cluster:
        for seed in range(SEED, SEED + ROUNDS):
            rng = random.Random(seed)
            async with clients(cluster) as apis, asyncio.timeout(100):
                *watchers, left, _ = await asyncio.gather(
                    watch(apis, random.Random(seed)),
                    watch(apis, random.Random(seed + 1), cut_after=20),
                    watch(apis[-1:], random.Random(seed + 2)),
                    leave(apis, random.Random(seed + 3), rng.uniform(0.5, 4)),
                    break_things(cluster, rng),
                )
            for watcher in watchers:
                assert isinstance(watcher, Watcher)
                assert watcher.was_kept, (seed, watcher.away_s, watcher.events[-1])
            assert left == "cancelled disconnected", seed
