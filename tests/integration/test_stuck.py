"""User code that does not return: its run is taken off at once, and what it does later is void."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from common.bus.client import Bus
from common.bus.log import LogReader
from common.db import messages, runs
from common.settings import RunnerSettings
from runner.app import serve
from tests.integration.test_runner import World, types, world
from tests.support import rows
from tests.support.proxy import Proxy
from tests.support.until import until

__all__ = ["world"]

LONG_S = 600.0


class Runner:
    """A runner as a task, that answers why it ended."""

    def __init__(self, settings: RunnerSettings, **changed: Any) -> None:
        self._stop = asyncio.Event()
        given = settings.model_copy(update={"stuck_patience_s": LONG_S, **changed})
        self.task = asyncio.create_task(serve(given, self._stop))

    async def stop(self) -> str | None:
        self._stop.set()
        return await self.task


class Code:
    """Of the graph `misbehaves`: what it is ordered to do, and what it does."""

    def __init__(self, folder: Path, how: str) -> None:
        self.free, self.count = folder / "free", folder / "count"
        self.order = json.dumps({"how": how, "free": str(self.free), "count": str(self.count)})

    @property
    def turns(self) -> int:
        return self.count.stat().st_size if self.count.exists() else 0

    async def goes_on(self, turns: int = 20) -> None:
        wanted = self.turns + turns
        await until(lambda: self.turns >= wanted, within_s=30)


@pytest.fixture(params=["swallow", "sit"])
async def code(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Code]:
    """Ended at the end of the test, whatever became of it."""
    code = Code(tmp_path, request.param)
    yield code
    code.free.touch()
    seen = -1
    while seen != code.turns:
        seen = code.turns
        await asyncio.sleep(0.2)


async def cancel(world: World, run_id: str) -> None:
    async with world.db.connect() as conn:
        await runs.request_cancel(conn, run_id, "user")


async def everything_of(world: World, run_id: str, reader: LogReader) -> Any:
    """Log, archive, messages and checkpoints of a run and its conversation."""
    run = await world.find(run_id)
    async with world.db.connect() as conn:
        stored, _ = await messages.list_page(conn, run.conversation_id, None, 50)
        saved = [
            await conn.rows(
                f"SELECT * FROM {table} WHERE thread_id = $1 ORDER BY 1, 2, 3", run.conversation_id
            )
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        ]
    last = (await reader.read(run_id, 0))[-1:]  # what is archived may leave Redis meanwhile
    return run, await world.events(run_id), last, stored, saved


async def test_a_cancelled_run_is_taken_off_while_its_code_goes_on_without_effect(
    world: World, code: Code, redis_url: str, redis_prefix: str
) -> None:
    runner = Runner(world.settings)
    bus = Bus(redis_url, prefix=redis_prefix)
    run_id = await world.start("misbehaves", code.order)
    await code.goes_on()
    await cancel(world, run_id)
    run = await world.until_status(run_id, "cancelled")
    reader = LogReader(bus)
    await until(lambda: _is_closed(reader, run_id), within_s=20)
    before = await everything_of(world, run_id, reader)
    await code.goes_on()
    assert await everything_of(world, run_id, reader) == before
    assert types(before[1])[-1] == "cancelled"
    async with world.db.begin() as conn:
        later = await runs.create(
            conn, rows.new_run(run.conversation_id, graph="events", input={"content": "{}"})
        )
    assert later is not None
    await world.until_status(later.id, "completed")
    await code.goes_on()
    code.free.touch()
    assert await runner.stop() is None
    await bus.aclose()


async def _is_closed(reader: LogReader, run_id: str) -> bool:
    """In Redis, too, which comes after the archive."""
    return [batch.ends for batch in (await reader.read(run_id, 0))[-1:]] == ["run"]


async def test_a_run_whose_time_is_over_is_taken_off_while_its_code_goes_on(
    world: World, code: Code
) -> None:
    runner = Runner(world.settings, run_timeout_s=1.0)
    run_id = await world.start("misbehaves", code.order)
    run = await world.until_status(run_id, "failed")
    assert run.error is not None
    assert run.error["code"] == "RUN_TIMEOUT"
    await code.goes_on()
    code.free.touch()
    assert await runner.stop() is None


async def test_a_runner_whose_code_does_not_end_hands_over_and_ends(
    world: World, code: Code
) -> None:
    runner = Runner(world.settings, stuck_patience_s=0.3)
    run_id = await world.start("misbehaves", code.order)
    await code.goes_on()
    neighbour = await world.start("steps", '{"steps": 200}')
    await world.until_status(neighbour, "running")
    await cancel(world, run_id)
    assert await runner.task == run_id
    assert (await world.find(run_id)).status == "cancelled"
    left = await world.find(neighbour)
    assert (left.status, left.attempts, left.resume_reason) == ("queued", 0, "handover")


async def test_a_drain_leaves_code_that_does_not_stop_and_its_run_goes_elsewhere(
    world: World, code: Code
) -> None:
    runner = Runner(world.settings, drain_timeout_s=0.5)
    run_id = await world.start("misbehaves", code.order)
    await code.goes_on()
    await runner.stop()
    run = await world.find(run_id)
    assert (run.status, run.attempts, run.runner_id) == ("queued", 0, None)
    last = len(await world.events(run_id))
    await code.goes_on()
    assert len(await world.events(run_id)) == last == run.last_sequence


async def test_code_that_ends_in_time_costs_its_runner_nothing(world: World, code: Code) -> None:
    runner = Runner(world.settings, stuck_patience_s=3.0)
    run_id = await world.start("misbehaves", code.order)
    await code.goes_on()
    await cancel(world, run_id)
    await world.until_status(run_id, "cancelled")
    code.free.touch()
    await asyncio.wait({runner.task}, timeout=4)
    assert not runner.task.done()
    assert await runner.stop() is None


@pytest.mark.parametrize("why", ["cancelled", "time", "worn out"])
async def test_a_run_that_is_to_end_is_not_executed_again(
    world: World, tmp_path: Path, why: str
) -> None:
    """Its code may be what took the last runner from us."""
    code = Code(tmp_path, "block")
    run_id = await world.start("misbehaves", code.order)
    async with world.db.connect() as conn:
        if why == "cancelled":
            await runs.request_cancel(conn, run_id, "user")
        column = {"time": "executed_s = 3600", "worn out": "attempts = 3"}.get(why, "epoch = 0")
        await conn.rows(f"UPDATE runs SET {column} WHERE id = $1", run_id)
    runner = Runner(world.settings)
    run = await world.until_status(run_id, "failed", "cancelled")
    ended = {"cancelled": None, "time": "RUN_TIMEOUT", "worn out": "RUNNER_LOST"}[why]
    assert (run.error or {}).get("code") == ended
    assert code.turns == 0
    await runner.stop()


async def test_a_factory_that_never_returns_is_stopped_by_a_cancellation(world: World) -> None:
    runner = Runner(world.settings)
    run_id = await world.start("never_built")
    await world.until_status(run_id, "running")
    await cancel(world, run_id)
    await world.until_status(run_id, "cancelled")
    assert types(await world.events(run_id)) == ["run_started", "cancelled"]
    assert await runner.stop() is None


async def test_a_factory_that_never_returns_fails_its_run_in_time(world: World) -> None:
    runner = Runner(world.settings, run_timeout_s=0.5)
    run_id = await world.start("never_built")
    run = await world.until_status(run_id, "failed")
    assert (run.error or {})["code"] == "RUN_TIMEOUT"
    assert await runner.stop() is None


async def test_time_counts_over_all_takeups_and_not_while_a_person_is_asked(world: World) -> None:
    first = Runner(world.settings)
    run_id = await world.start("steps", '{"steps": 10000}')
    await until(lambda: _has_events(world, run_id), within_s=20)
    await first.stop()
    once = (await world.find(run_id)).executed_s
    assert once > 0
    second = Runner(world.settings, run_timeout_s=once + 1.0)
    run = await world.until_status(run_id, "failed")
    await second.stop()
    assert (run.error or {})["code"] == "RUN_TIMEOUT"
    assert run.executed_s >= once + 1.0


async def test_waiting_for_a_person_is_no_execution(world: World) -> None:
    runner = Runner(world.settings)
    run_id = await world.start("ask")
    waiting = await world.until_status(run_id, "interrupted")
    async with world.db.connect() as conn:
        await conn.rows(
            "UPDATE runs SET updated_at = updated_at - interval '1 day',"
            " started_at = started_at - interval '1 day' WHERE id = $1",
            run_id,
        )
    [question] = await world.interrupts(run_id)
    await world.decide(run_id, question, "yes")
    run = await world.until_status(run_id, "completed")
    await runner.stop()
    assert waiting.executed_s <= run.executed_s < LONG_S


async def _has_events(world: World, run_id: str) -> bool:
    return len(await world.events(run_id)) > 3


async def test_a_run_is_cancelled_while_redis_is_away(world: World, redis_url: str) -> None:
    async with Proxy(redis_url) as network:
        runner = Runner(world.settings, redis_url=SecretStr(network.url), redis_timeout_s=0.5)
        run_id = await world.start("steps", '{"steps": 10000}')
        await until(lambda: _has_events(world, run_id), within_s=20)
        network.refusing = True
        await network.cut()
        await cancel(world, run_id)
        await world.until_status(run_id, "cancelled")
        await runner.stop()


async def test_a_cancellation_does_not_wait_for_the_redis_of_a_dead_runner(
    world: World, redis_url: str
) -> None:
    """The run is being taken over, and Redis may hold the tail of its log: away for ever."""
    async with Proxy(redis_url) as network:
        runner = Runner(world.settings, redis_url=SecretStr(network.url), redis_timeout_s=0.5)
        await world.until_status(await world.start("events"), "completed")
        network.refusing = True
        await network.cut()
        async with world.db.begin() as conn:
            run = await rows.queued_run(conn, graph="steps", input={"content": '{"steps": 9999}'})
            await conn.rows(
                "UPDATE runs SET epoch = 1, resume_reason = 'failover', sequence_reserved = 100"
                " WHERE id = $1",
                run.id,
            )
        await world.until_status(run.id, "running")
        await cancel(world, run.id)
        await world.until_status(run.id, "cancelled")
        await runner.stop()
