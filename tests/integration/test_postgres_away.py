"""A gateway whose Postgres is away: what it still serves, how soon it says that it cannot (I1, I6).

In this process, with a proxy for the network between gateway and Postgres.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg
import pytest
from psycopg import sql

from tests.support.edge import Edge, bearer, serving, settings
from tests.support.fake_runner import FakeRunner
from tests.support.proxy import Proxy
from tests.support.until import until

WAIT_S, STATEMENT_S = 0.3, 0.4
SOON_S = 8.0  # generous: both limits, several times, on a busy machine


@dataclass
class World:
    edge: Edge
    network: Proxy

    async def lose_postgres(self, how: str) -> None:
        """`silent`: nothing is answered, as when it is stopped; or nobody listens."""
        if how == "silent":
            self.network.stall()
            return
        self.network.refusing = True
        await self.network.cut()

    def find_postgres(self) -> None:
        self.network.refusing = False
        self.network.resume()

    async def create(self, key: str | None = None) -> httpx.Response:
        body: dict[str, Any] = {"message": {"content": "x"}, "idempotencyKey": key}
        return await self.edge.client.post(
            "/api/chat", json=body, headers={"Accept": "application/json"}
        )


@pytest.fixture
async def world(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[World]:
    async with Proxy(database_url) as network:
        options = settings(
            network.url,
            redis_url,
            redis_prefix,
            postgres_wait_s=WAIT_S,
            postgres_timeout_s=STATEMENT_S,
        )
        async with serving(options) as edge:
            yield World(edge, network)


def assert_unavailable(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.json()["code"] == "UNAVAILABLE"
    assert int(answer.headers["retry-after"]) >= 1


# --- answers in bounded time


@pytest.mark.parametrize("how", ["silent", "refused"])
async def test_whatever_needs_postgres_is_503_soon_while_that_is_away(
    world: World, how: str
) -> None:
    """More requests than the pool has places, and none waits for the others."""
    made = (await world.create()).json()
    run = f"/api/runs/{made['run']['id']}"
    client = world.edge.client

    async def ask(turn: int) -> httpx.Response:
        if turn % 3 == 0:
            return await world.create("k")
        return await (client.get(run) if turn % 3 == 1 else client.post(f"{run}/cancel"))

    await world.lose_postgres(how)
    async with asyncio.timeout(SOON_S):
        for answer in await asyncio.gather(*map(ask, range(30))):
            assert_unavailable(answer)
    world.find_postgres()

    async def is_back() -> bool:
        return (await world.create("k")).status_code == 202

    await until(is_back)
    assert (await client.get(run)).status_code == 200


async def test_a_pool_without_a_place_is_503_soon(world: World) -> None:
    held = [world.edge.gateway.db.connect() for _ in range(8)]
    for connection in held:
        await connection.__aenter__()
    async with asyncio.timeout(SOON_S):
        assert_unavailable(await world.create())
    for connection in held:
        await connection.__aexit__(None, None, None)
    assert (await world.create()).status_code == 202


# --- streams


@pytest.mark.parametrize("how", ["silent", "refused"])
async def test_streams_go_on_and_are_replayed_while_postgres_is_away(
    world: World, runner: FakeRunner, how: str
) -> None:
    """A stream that is open goes on live; one that is opened again gets what Redis has."""
    await world.create()
    run = await runner.start()
    await run.say("one")
    async with world.edge.read(run.id) as reading:
        await reading.count(2)
        await world.lose_postgres(how)
        await run.say("two")
        await reading.count(3)
        async with world.edge.read(run.id, 1) as again, world.edge.read(run.id, 0) as whole:
            await again.count(2)
            await run.say("three")
            for reader, events in ((reading, 4), (again, 3), (whole, 4)):
                await reader.count(events)
            stranger = await world.edge.client.get(
                f"/api/runs/{run.id}/events", headers=bearer("somebody-else")
            )
            assert_unavailable(stranger)
            world.find_postgres()
            await run.finish()
            for reader in (reading, again, whole):
                await reader.over()
                assert reader.ended
    assert reading.frames == whole.frames == b"".join(batch.frames for batch in run.told)
    assert again.sequences == reading.sequences[1:]


async def test_reads_of_redis_do_not_wait_behind_reads_of_a_silent_archive(
    world: World, runner: FakeRunner, redis_url: str, redis_prefix: str
) -> None:
    """Ten readers want what only the archive has; an eleventh wants what Redis has."""
    await world.create()
    lost = await runner.start()
    await lost.finish()
    await world.create()
    kept = await runner.start()
    await kept.say("x")
    readings = [world.edge.read(run.id) for run in (lost, kept)]
    for reading in readings:
        async with reading:
            await reading.count(1)
    history = world.edge.gateway.history
    world.network.stall()
    stuck = [asyncio.create_task(history.read("run_nowhere", 0, 10)) for _ in range(10)]
    async with asyncio.timeout(WAIT_S / 2):
        assert await history.read(kept.id, 0, 10)
    world.network.resume()
    await asyncio.wait(stuck)
    for task in stuck:
        task.exception()


# --- a commit whose answer is lost


async def test_a_request_whose_commit_was_not_answered_is_repeated_by_its_key(
    world: World,
) -> None:
    world.network.loses = lambda data: b"COMMIT\0" in data
    for _ in range(3):
        assert_unavailable(await world.create("click"))
    world.network.loses = lambda data: False
    again = await world.create("click")
    assert again.status_code == 202
    assert (await world.create("click")).json()["run"] == again.json()["run"]
    listed = (await world.edge.client.get("/api/conversations")).json()["items"]
    assert len(listed) == 1


async def test_a_decision_whose_commit_was_not_answered_is_repeated_by_its_key(
    world: World, runner: FakeRunner
) -> None:
    await world.create()
    run = await runner.start()
    [interrupt] = await run.ask()
    world.network.loses = lambda data: b"COMMIT\0" in data

    async def decide(decision: str, key: str) -> httpx.Response:
        return await world.edge.client.post(
            f"/api/runs/{run.id}/resume",
            json={"interruptId": interrupt.id, "decision": decision, "idempotencyKey": key},
        )

    assert_unavailable(await decide("approve", "click"))
    world.network.loses = lambda data: False
    assert (await decide("reject", "other")).status_code == 409
    assert (await decide("approve", "click")).status_code == 202


async def test_sessions_that_a_pooler_drops_between_requests_are_not_noticed(
    world: World,
) -> None:
    """Idle connections are ended again and again; no request fails for it."""
    for number in range(10):
        await world.network.cut()
        assert (await world.create(f"k{number}")).status_code == 202


@contextmanager
def limited_role(url: str) -> Iterator[tuple[str, Callable[[int], None]]]:
    """A role without a free connection, until it is allowed some."""
    name = f"limited_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as admin:

        def run(text: str) -> None:
            admin.execute(sql.SQL(text).format(sql.Identifier(name)))

        run("CREATE ROLE {} LOGIN PASSWORD 'p' CONNECTION LIMIT 0")
        run("GRANT pg_read_all_data, pg_write_all_data TO {}")
        parts = urlsplit(url)
        address = f"{name}:p@{parts.hostname}:{parts.port}"
        yield (
            urlunsplit(parts._replace(netloc=address)),
            lambda most: run(f"ALTER ROLE {{}} CONNECTION LIMIT {most}"),
        )
        run("DROP OWNED BY {}")
        run("DROP ROLE {}")


async def test_a_full_postgres_is_503_until_it_has_room(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    """`53300`: a role that may have no connection is refused as one is by a full server."""
    with limited_role(database_url) as (url, allow):
        options = settings(url, redis_url, redis_prefix, postgres_wait_s=WAIT_S)
        async with serving(options) as edge:
            world = World(edge, Proxy(url))
            assert_unavailable(await world.create("k"))
            allow(10)
            assert (await world.create("k")).status_code == 202
