"""Real runner processes whose user code misbehaves, or that were stopped past their lease."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from psycopg import sql

from common.bus.log import LogConnection
from common.db import runners, runs
from common.db.engine import Database
from common.ids import new_id
from common.ownership import open_log
from common.settings import RunnerSettings
from tests.acceptance.conftest import GRAPHS
from tests.integration.test_runner import Serving, World, types
from tests.support import rows
from tests.support.runner_process import RunnerProcess, runner_process
from tests.support.until import until

pytestmark = pytest.mark.timeout(180)  # processes start slowly on a shared machine

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
SCALED = {"lease_ttl_s": 2.0, "lease_renew_interval_s": 0.5, "reap_interval_s": 0.1}


@pytest.fixture
async def world(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[World]:
    settings = RunnerSettings(
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        redis_prefix=redis_prefix,
        graphs=GRAPHS,
        claim_poll_s=0.1,
        archive_interval_s=0.1,
    ).model_copy(update=SCALED)
    db = Database(database_url, application_name="test", pool_size=3)
    yield World(db, settings)
    await db.aclose()


class Starter:
    """Starts runner processes for one world."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self._folder = world, folder

    def __call__(self, **settings: Any) -> Any:
        given = self._world.settings
        return runner_process(
            self._folder,
            given.database_url.get_secret_value(),
            given.redis_url.get_secret_value(),
            given.redis_prefix,
            **(SCALED | settings),
        )


@pytest.fixture
def start(world: World, tmp_path: Path) -> Starter:
    return Starter(world, tmp_path)


def order(how: str, **more: Any) -> str:
    return json.dumps({"how": how, **more})


async def cancel(world: World, run_id: str) -> None:
    async with world.db.connect() as conn:
        await runs.request_cancel(conn, run_id, "user")


async def has_events(world: World, run_id: str, more_than: int = 3) -> bool:
    return len(await world.events(run_id)) > more_than


def has_turned(count: Path) -> bool:
    return count.exists() and count.stat().st_size > 5


def exact(events: list[dict[str, Any]]) -> bool:
    return [e["sequence"] for e in events] == list(range(1, len(events) + 1))


# --- code that does not return


@pytest.mark.parametrize("how", ["swallow", "sit"])
async def test_a_runner_ends_with_code_that_does_not_and_its_other_runs_go_on(
    world: World, start: Starter, tmp_path: Path, how: str
) -> None:
    async with start(stuck_patience_s=0.5) as child:
        count = tmp_path / "count"
        run_id = await world.start("misbehaves", order(how, count=str(count)))
        neighbour = await world.start("steps", '{"steps": 150}')
        await until(lambda: has_events(world, neighbour), within_s=30)
        await until(lambda: has_turned(count), within_s=30)
        await cancel(world, run_id)
        assert (await world.until_status(run_id, "cancelled")).epoch == 1
        assert await child.ended() == 1
        assert f"code of run {run_id} does not end" in child.said
    other = Serving(world.settings)
    run = await world.until_status(neighbour, "completed")
    await other.stop()
    assert run.attempts == 0
    assert exact(await world.events(neighbour))
    assert types(await world.events(run_id))[-1] == "cancelled"


async def test_sigterm_ends_a_runner_whose_code_does_not_return(
    world: World, start: Starter, tmp_path: Path
) -> None:
    """A thread and a task at once, and the runs go on elsewhere without a charge."""
    async with start(drain_timeout_s=0.5) as child:
        ids = []
        for how in ("swallow", "sit"):
            count = tmp_path / how
            ids.append(await world.start("misbehaves", order(how, count=str(count))))
            await until(lambda count=count: has_turned(count), within_s=30)  # type: ignore[misc]
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
    for run_id in ids:
        run = await world.find(run_id)
        assert (run.status, run.attempts, run.resume_reason) == ("queued", 0, "handover")
        assert exact(await world.events(run_id))


# --- code that keeps the event loop


async def test_a_node_that_blocks_the_loop_for_a_while_costs_nobody_anything(
    world: World, start: Starter
) -> None:
    """For longer than a lease, and somebody else reaps."""
    other = Serving(world.settings)
    async with world.db.connect() as conn:
        await until(lambda: _count(conn, 1), within_s=30)
        [reaping] = await runners.list_all(conn)
        await runners.drain(conn, reaping.id)  # it claims nothing and reaps on
    async with start(lease_ttl_s=4.0) as child:
        neighbour = await world.start("steps", '{"steps": 100}')
        await until(lambda: has_events(world, neighbour), within_s=30)
        run_id = await world.start("misbehaves", order("block", block_s=6.0))
        done = [await world.until_status(r, "completed") for r in (run_id, neighbour)]
        assert [(run.epoch, run.attempts) for run in done] == [(1, 0), (1, 0)]
        assert exact(await world.events(neighbour))
        assert exact(await world.events(run_id))
        assert child.process.returncode is None
    await other.stop()


async def _count(conn: Any, wanted: int) -> bool:
    return len(await runners.list_all(conn)) == wanted


async def test_a_node_that_blocks_the_loop_for_ever_loses_its_run_and_its_process(
    world: World, start: Starter, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    run_id = await world.start("misbehaves", order("block", count=str(count)))
    for deaths in (1, 2):
        async with start(loop_stall_max_s=1.0) as child:
            assert await child.ended() == 1
            assert "the event loop stands still" in child.said
        async with world.db.connect() as conn:
            await conn.rows("UPDATE runners SET lease_until = lease_until - interval '1 hour'")
            await runners.reap(conn, 0.3, 2.0)
        assert (await world.find(run_id)).attempts == deaths
    last = Serving(world.settings.model_copy(update={"attempts_max": 2}))
    run = await world.until_status(run_id, "failed")
    await last.stop()
    assert (run.error or {})["code"] == "RUNNER_LOST"


async def test_a_cancellation_takes_a_run_from_a_loop_that_stands_still(
    world: World, start: Starter, tmp_path: Path
) -> None:
    """Long before the lease of its runner is over."""
    count = tmp_path / "count"
    async with start(lease_ttl_s=60.0) as child:
        run_id = await world.start("misbehaves", order("block", count=str(count)))
        await until(lambda: has_turned(count), within_s=30)
        await cancel(world, run_id)
        other = Serving(world.settings)
        run = await world.until_status(run_id, "cancelled")
        await other.stop()
        assert run.attempts == 0
        assert child.process.returncode is None
        assert types(await world.events(run_id))[-1] == "cancelled"


# --- code that ends the process


@pytest.mark.parametrize("how", ["kill", "exit", "built"])
async def test_a_run_that_ends_its_process_fails_in_time_and_its_conversation_goes_on(
    world: World, start: Starter, how: str
) -> None:
    graph = "kills_when_built" if how == "built" else "misbehaves"
    run_id = await world.start(graph, order(how))
    for _ in range(2):
        async with start(attempts_max=2) as child:
            assert await child.ended() in (3, -signal.SIGKILL)
    last = Serving(world.settings.model_copy(update={"attempts_max": 2}))
    run = await world.until_status(run_id, "failed")
    assert (run.error or {})["code"] == "RUNNER_LOST"
    async with world.db.begin() as conn:
        later = await runs.create(
            conn,
            rows.new_run(run.conversation_id, graph="misbehaves", input={"content": order("well")}),
        )
    assert later is not None
    await world.until_status(later.id, "completed")
    await last.stop()


# --- a process that was stopped past its lease


@pytest.mark.parametrize("round", range(ROUNDS))
@pytest.mark.parametrize("blind", ["0", "1"], ids=["all defences", "the fences alone"])
async def test_a_runner_stopped_past_its_lease_changes_nothing_when_it_goes_on(
    world: World, start: Starter, monkeypatch: pytest.MonkeyPatch, blind: str, round: int
) -> None:
    monkeypatch.setenv("STEADYRUN_TEST_BLIND", blind)
    async with start(publish_window_s=0.01 + round % 3 * 0.05) as child:
        ids = [
            await world.start("steps", '{"steps": 100000}'),
            await world.start("events", '{"events": 100000, "pause_s": 0.01}'),
            await world.start("misbehaves", order("sit")),
        ]
        for run_id in ids:
            await until(lambda run_id=run_id: has_events(world, run_id), within_s=30)  # type: ignore[misc]
        child.signal(signal.SIGSTOP)
        await take_over(world, ids)
        before = everything(world)
        child.signal(signal.SIGCONT)
        await has_let_go(child, blind, ids)
        assert everything(world) == before


async def take_over(world: World, ids: list[str]) -> None:
    """Its lease runs out; another owner claims the runs and opens their logs, and does nothing."""
    other = new_id("rnr")
    async with world.db.connect() as conn:
        await runners.register(conn, id=other, host="test", pid=1, capacity=9, ttl_s=600)

        async def handed_back() -> bool:
            await runners.reap(conn, 0.3, 60.0)
            await asyncio.sleep(0.1)
            return all([(await world.find(run_id)).status == "queued" for run_id in ids])

        await until(handed_back, within_s=30)
        await runners.terminate_sessions(conn)
        names = ["steps", "events", "misbehaves"]
        claimed = await runs.claim(conn, other, names, 9, 1000, None)
    settings = world.settings
    log = LogConnection(settings.redis_url.get_secret_value(), prefix=settings.redis_prefix)
    await log.connect()
    for run in claimed:
        await open_log(world.db, log, run)
    await log.aclose()


async def has_let_go(child: RunnerProcess, blind: str, ids: list[str]) -> None:
    """A new life, or each of its runs has met a fence."""
    if blind == "0":
        await child.lives(2)
        return
    await until(lambda: all(_lost(child.said, run_id) for run_id in ids[:2]), within_s=60)


def _lost(said: str, run_id: str) -> bool:
    return any("run_lost" in line and run_id in line for line in said.splitlines())


def everything(world: World) -> dict[str, Any]:
    """Every row of every table but `runners`, and what every key of Redis holds."""
    settings = world.settings
    found: dict[str, Any] = {}
    with psycopg.connect(settings.database_url.get_secret_value()) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
            " AND table_name <> 'runners' ORDER BY 1"
        ).fetchall()
        for (table,) in tables:
            query = sql.SQL("SELECT t::text FROM {} t ORDER BY 1").format(sql.Identifier(table))
            found[table] = connection.execute(query).fetchall()
    with redis.Redis.from_url(settings.redis_url.get_secret_value()) as client:
        for key in client.scan_iter(match=f"{settings.redis_prefix}*", count=1000):
            found[key.decode()] = client.dump(key)
    assert any(found["checkpoints"])
    assert any(":log" in name for name in found)
    return found
