"""`onDisconnect: cancel` over two gateways and a runner: who counts as watching, and when."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from common.graphfile import parse
from common.settings import RunnerSettings
from runner.app import serve
from tests.acceptance.conftest import GRAPHS
from tests.support.edge import Edge, Reading, serving, settings
from tests.support.until import until

TTL_S, GRACE_S = 2.0, 1.2
PAUSE_S = 0.05
LONG = round((TTL_S + 2 * GRACE_S) / PAUSE_S)  # events: longer than absence takes to be believed
GRAPH_FILE = parse(GRAPHS)
TEMPO: dict[str, Any] = {"presence_ttl_s": TTL_S, "disconnect_grace_s": GRACE_S}


@dataclass
class World:
    """Two gateways and a runner."""

    first: Edge
    second: Edge

    async def start(self, graph: str = "events", *, events: int = 4000, **fields: Any) -> str:
        content = json.dumps({"events": events, "pause_s": PAUSE_S})
        given = {"graph": graph, "onDisconnect": "cancel", **fields}
        made = await self.first.create(message={"content": content}, **given)
        return str(made["run"]["id"])

    async def run(self, run_id: str) -> dict[str, Any]:
        answer = await self.second.client.get(f"/api/runs/{run_id}")
        found: dict[str, Any] = answer.json()
        return found

    async def until_status(self, run_id: str, *statuses: str) -> dict[str, Any]:
        async def reached() -> bool:
            return (await self.run(run_id))["status"] in statuses

        await until(reached, within_s=60)
        return await self.run(run_id)

    async def until_disconnected(self, run_id: str) -> None:
        ended = await self.until_status(run_id, "completed", "failed", "cancelled")
        assert (ended["status"], ended["cancelReason"]) == ("cancelled", "disconnected")
        async with self.second.read(run_id) as reading:
            await reading.over()
        assert reading.types[-1] == "cancelled"
        assert reading.json()[-1]["reason"] == "disconnected"

    async def long_enough(self) -> None:
        """Time in which an abandoned run would have been ended, told by a run that nobody ends."""
        run_id = await self.start(events=LONG, onDisconnect="continue")
        await self.until_status(run_id, "completed")


@asynccontextmanager
async def running(options: RunnerSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(serve(options, stop))
    yield
    stop.set()
    await task


@pytest.fixture
async def world(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[World]:
    edge = settings(database_url, redis_url, redis_prefix, **TEMPO)
    runner = RunnerSettings(
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        redis_prefix=redis_prefix,
        graphs=GRAPHS,
        claim_poll_s=0.05,
        drain_timeout_s=0.2,
        **TEMPO,
    )
    async with running(runner), serving(edge, GRAPH_FILE) as a, serving(edge, GRAPH_FILE) as b:
        yield World(a, b)


async def test_a_run_ends_when_its_last_watcher_on_any_gateway_has_gone(world: World) -> None:
    run_id = await world.start()
    async with world.second.read(run_id) as staying:
        async with world.first.read(run_id) as leaving:
            await leaving.count(3)
        seen = len(staying.events)
        await staying.count(seen + LONG)
        assert (await world.run(run_id))["status"] == "running"
    await world.until_disconnected(run_id)


async def test_whoever_comes_back_in_time_on_another_gateway_keeps_the_run(world: World) -> None:
    """More often than a grace period lasts in sum."""
    run_id = await world.start(events=LONG)
    edges = [world.first, world.second]
    position = 0
    for turn in range(8):
        async with edges[turn % 2].read(run_id, position) as reading:
            await reading.count(4)
            position = reading.sequences[-1]
    async with world.first.read(run_id, position) as reading:
        await reading.over()
    assert reading.types[-1] == "done"


async def test_runs_that_are_not_to_be_ended_go_on(world: World) -> None:
    """Never watched by a stream; or watched, and `continue`."""

    async def paged() -> str:
        run_id = await world.start(events=LONG)
        url = f"/api/runs/{run_id}/events"
        await world.first.client.head(url)
        await world.first.client.get(url, headers={"Accept": "application/json"})
        return run_id

    async def left() -> str:
        run_id = await world.start(events=LONG, onDisconnect="continue")
        async with world.first.read(run_id) as reading:
            await reading.count(1)
        return run_id

    for run_id in await asyncio.gather(paged(), left()):
        await world.until_status(run_id, "completed")


async def test_a_streaming_post_counts_as_a_stream(world: World) -> None:
    body = {
        "graph": "events",
        "message": {"content": json.dumps({"events": 4000, "pause_s": PAUSE_S})},
        "onDisconnect": "cancel",
    }
    headers = {"Accept": "text/event-stream"}
    client = world.first.client
    async with Reading(client, "POST", "/api/chat", json=body, headers=headers) as reading:
        await reading.count(2)
        run_id = reading.json()[0]["runId"]
    await world.until_disconnected(run_id)


async def test_a_run_that_waits_is_not_abandoned_and_has_its_grace_when_it_goes_on(
    world: World,
) -> None:
    """The client left during the question; the decision comes by a client that does not watch."""
    run_id = await world.start("ask")
    async with world.first.read(run_id, until="interrupt") as reading:
        await reading.over()
    await world.long_enough()
    run = await world.run(run_id)
    assert run["status"] == "interrupted"
    interrupt_id = run["pendingInterrupts"][0]["id"]
    resume = {"resume": {interrupt_id: "yes"}}
    answer = await world.second.client.post(f"/api/runs/{run_id}/resume", json=resume)
    assert answer.status_code == 202, answer.text
    await world.until_status(run_id, "completed")


async def test_a_run_that_is_queued_is_not_abandoned(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    """Watched and left before any runner was there; grace begins when it is taken up."""
    edge = settings(database_url, redis_url, redis_prefix, **TEMPO)
    runner = RunnerSettings(
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        redis_prefix=redis_prefix,
        graphs=GRAPHS,
        **TEMPO,
    )
    async with serving(edge, GRAPH_FILE) as gateway:
        world = World(gateway, gateway)
        run_id = await world.start(events=1)
        async with gateway.read(run_id) as reading:
            await until(lambda: reading.raw != b"")
        other = await world.start(events=4000)
        async with gateway.read(other) as reading:
            await until(lambda: reading.raw != b"")
        async with running(runner):
            await world.until_status(run_id, "completed")
            await world.until_disconnected(other)


async def test_the_graphs_choice_holds_where_the_request_names_none(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    spec = replace(GRAPH_FILE.graphs["events"], on_disconnect="cancel")
    graphs = replace(GRAPH_FILE, graphs={**GRAPH_FILE.graphs, "events": spec})
    async with serving(settings(database_url, redis_url, redis_prefix), graphs) as edge:
        chosen = [
            (await edge.create(graph="events", **body))["run"]["onDisconnect"]
            for body in ({}, {"onDisconnect": "continue"}, {"onDisconnect": "cancel"})
        ]
    assert chosen == ["cancel", "continue", "cancel"]
