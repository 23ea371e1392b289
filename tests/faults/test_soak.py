"""I8 over time: what has ended goes away in Postgres and Redis, what a person is asked stays."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from redis.asyncio import Redis

from deploy.topology import Topology
from tests.acceptance.conftest import GRAPHS
from tests.support.api import Api
from tests.support.cluster import Cluster
from tests.support.until import until

PHASES = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "2"))
RUNS = 24
AT_ONCE = 6
KEEP = {
    "STEADYRUN_CLEANUP_INTERVAL_S": "0.4",
    "STEADYRUN_EVENTS_RETENTION_S": "1",
    "STEADYRUN_CHECKPOINTS_RETENTION_S": "1",
    "STEADYRUN_IDEMPOTENCY_RETENTION_S": "2",
    "STEADYRUN_RUNS_RETENTION_S": "6",
    "STEADYRUN_CONVERSATIONS_RETENTION_S": "6",
    "STEADYRUN_ENDED_LOG_RETENTION_S": "1",
}
TABLES = (
    *("conversations", "messages", "runs", "run_events", "interrupts", "effects"),
    *("idempotency_keys", "checkpoints", "checkpoint_blobs", "checkpoint_writes"),
)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "state", gateways=1, runners=2, environment=KEEP)
    with cluster.running("--graphs", str(GRAPHS), "--no-nginx") as running:
        yield running


@pytest.fixture
async def api(forgetful: Cluster) -> AsyncIterator[Api]:
    async with Api(forgetful.url, forgetful.topology.jwt_secret) as client:
        yield client


async def sizes(topology: Topology) -> dict[str, int]:
    """Rows of each table, keys of Redis."""
    query = " UNION ALL ".join(f"SELECT '{table}', count(*) FROM {table}" for table in TABLES)
    async with (
        await psycopg.AsyncConnection.connect(topology.database_url) as connection,
        Redis.from_url(topology.redis_url) as redis,
    ):
        rows = await (await connection.execute(query)).fetchall()
        return {**dict(rows), "redis": int(await redis.dbsize())}


@pytest.mark.timeout(180)
async def test_a_soaked_system_keeps_only_what_somebody_is_asked(
    forgetful: Cluster, api: Api
) -> None:
    asking = await api.start("{}", graph="ask")
    asked = await api.read(asking["id"], until="interrupt")
    await until(lambda: is_settled(forgetful, {"idempotency_keys": 0}), within_s=30)
    baseline = await sizes(forgetful.topology)
    for _ in range(PHASES):
        run_ids = await many_runs(api)
        await until(lambda ids=run_ids: is_expired(api, ids[-1]), within_s=30)  # type: ignore[misc]
        await until(lambda: is_settled(forgetful, baseline), within_s=40)
    (question,) = (await api.run(asking["id"]))["pendingInterrupts"]
    answer = await api.resume(asking["id"], resume={question["id"]: "yes"})
    assert answer.status_code == 202, answer.text
    ended = await api.read(asking["id"], history=asked)
    assert ended.ended
    assert ended.order == list(range(1, len(ended.order) + 1))


async def many_runs(api: Api) -> list[str]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> str:
        async with places:
            run = await api.start('{"events": 20}', graph="events")
            history = await api.read(run["id"])
        assert history.ended
        return str(run["id"])

    return await asyncio.gather(*(one() for _ in range(RUNS)))


async def is_expired(api: Api, run_id: str) -> bool:
    """410 while the run is still kept; a page and a stream agree."""
    url = f"/api/runs/{run_id}/events"
    answers = [
        await api.http.get(url, headers={"Accept": accept}, params={"after": 1})
        for accept in ("application/json", "text/event-stream")
    ]
    return {answer.status_code for answer in answers} == {410}


async def is_settled(cluster: Cluster, wanted: dict[str, int]) -> bool:
    found = await sizes(cluster.topology)
    return all(found[name] <= most for name, most in wanted.items())
