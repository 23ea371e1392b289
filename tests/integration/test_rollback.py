"""`rollback`: the thread is as it was before the run, wherever that stood at that moment."""

from dataclasses import dataclass
from typing import Any

import pytest

from common.bus.client import Bus
from common.bus.log import LogConnection
from common.bus.signals import Signals
from common.db import conversations, runs
from common.ownership import OwnerActs
from common.runs import OnConflict
from tests.integration.test_runner import Serving, World, types, world
from tests.support import rows
from tests.support.until import until

__all__ = ["world"]

LONG = '{"events": 5000, "pause_s": 0.02}'
TABLES = {
    "messages": "SELECT id, content FROM messages WHERE conversation_id = $1 ORDER BY position",
    "checkpoints": "SELECT * FROM checkpoints WHERE thread_id = $1 ORDER BY 1, 2, 3",
    "blobs": "SELECT * FROM checkpoint_blobs WHERE thread_id = $1 ORDER BY 1, 2, 3, 4",
    "writes": "SELECT * FROM checkpoint_writes WHERE thread_id = $1 ORDER BY 1, 2, 3, 4, 6",
    "summary": "SELECT summary, summary_covers FROM conversations WHERE id = $1",
}


@dataclass
class Thread:
    world: World
    id: str

    async def start(self, graph: str, content: str = "{}", how: OnConflict = "reject") -> str:
        new = rows.new_run(
            self.id, graph=graph, content=content, input={"content": content}, on_conflict=how
        )
        async with self.world.db.begin() as conn:
            assert await runs.create(conn, new) is not None
        return new.id

    async def supersede(self) -> str:
        """By a run that no runner can execute, so that it changes nothing."""
        return await self.start("nobody has this graph", how="rollback")

    async def content(self) -> dict[str, list[Any]]:
        async with self.world.db.connect() as conn:
            found = {name: await conn.rows(sql, self.id) for name, sql in TABLES.items()}
        return {name: [tuple(row) for row in rows_] for name, rows_ in found.items()}

    async def is_as(self, before: dict[str, list[Any]]) -> None:
        """But for the message of the run that superseded."""
        now = await self.content()
        assert len(now["messages"]) == len(before["messages"]) + 1
        now["messages"].pop()
        assert now == before

    async def until_executing(self, run_id: str) -> None:
        async def executing() -> bool:
            return len(await self.world.events(run_id)) > 5

        await until(executing, within_s=30)


@pytest.fixture
async def thread(world: World) -> tuple[Thread, dict[str, list[Any]]]:
    """A conversation with one finished run, and all that it holds."""
    async with world.db.connect() as conn:
        made = Thread(world, await rows.conversation(conn))
    first = await made.start("breakpoints")
    serving = Serving(world.settings)
    await world.until_status(first, "completed")
    await serving.stop()
    before = await made.content()
    assert all(before[name] for name in ("messages", "checkpoints", "blobs"))
    return made, before


async def test_a_run_that_is_executed_right_now(
    thread: tuple[Thread, dict[str, list[Any]]],
) -> None:
    conversation, before = thread
    world = conversation.world
    serving = Serving(world.settings)
    run_id = await conversation.start("events", LONG)
    await conversation.until_executing(run_id)
    async with world.db.connect() as conn:
        assert await conversations.set_summary(conn, run_id, 1, "of this run", "msg_1", None)
    await conversation.supersede()
    run = await world.until_status(run_id, "cancelled", "completed", "failed")
    await serving.stop()
    assert run.cancel_reason == "superseded"
    assert types(await world.events(run_id))[-1] == "cancelled"
    await conversation.is_as(before)


async def test_a_run_that_was_handed_over_and_one_whose_runner_died(
    thread: tuple[Thread, dict[str, list[Any]]],
) -> None:
    """Taken up by another runner only to be ended; nothing of it is executed again."""
    conversation, before = thread
    world = conversation.world
    serving = Serving(world.settings)
    run_id = await conversation.start("events", LONG)
    await conversation.until_executing(run_id)
    async with world.db.connect() as conn:
        claimed = await runs.find(conn, run_id)
        assert claimed is not None
        assert await runs.give_back(conn, run_id, claimed.epoch, charged=True)
        await conversation.supersede()
    run = await world.until_status(run_id, "cancelled", "completed", "failed")
    await serving.stop()
    assert run.cancel_reason == "superseded"
    await conversation.is_as(before)


async def test_a_run_that_waits_for_a_person(
    thread: tuple[Thread, dict[str, list[Any]]], redis_url: str, redis_prefix: str
) -> None:
    conversation, before = thread
    world = conversation.world
    serving = Serving(world.settings)
    run_id = await conversation.start("approving")
    await world.until_status(run_id, "interrupted")
    await serving.stop()
    assert await conversation.content() != before
    await conversation.supersede()
    bus, log = Bus(redis_url, prefix=redis_prefix), LogConnection(redis_url, prefix=redis_prefix)
    await OwnerActs(world.db, log, Signals(bus)).cancel(await world.find(run_id), "superseded")
    assert types(await world.events(run_id))[-2:] == ["interrupt_resolved", "cancelled"]
    await conversation.is_as(before)
    await log.aclose()
    await bus.aclose()


async def test_what_is_to_be_rolled_back_does_not_end_as_done(
    thread: tuple[Thread, dict[str, list[Any]]],
) -> None:
    """The graph comes to its end before the order to cancel arrives."""
    conversation, before = thread
    world = conversation.world
    run_id = await conversation.start("events")
    async with world.db.connect() as conn:
        await conn.rows("UPDATE runs SET rollback = true WHERE id = $1", run_id)
    serving = Serving(world.settings)
    await conversation.until_executing(run_id)
    async with world.db.connect() as conn:
        await runs.request_cancel(conn, run_id, "superseded")
    run = await world.until_status(run_id, "cancelled", "completed", "failed")
    await serving.stop()
    assert run.status == "cancelled"
    assert types(await world.events(run_id))[-1] == "cancelled"
    now = await conversation.content()
    assert now == before


async def test_what_is_to_be_rolled_back_is_not_executed_again_to_wait_for_the_order(
    thread: tuple[Thread, dict[str, list[Any]]],
) -> None:
    """It fails at the same moment; executing it once more would only repeat what it does."""
    conversation, _ = thread
    world = conversation.world
    run_id = await conversation.start("raises")
    async with world.db.connect() as conn:
        await conn.rows("UPDATE runs SET rollback = true WHERE id = $1", run_id)
    serving = Serving(world.settings)
    run = await world.until_status(run_id, "cancelled", "completed", "failed")
    await serving.stop()
    assert (run.status, run.cancel_reason) == ("cancelled", "superseded")
    assert types(await world.events(run_id)).count("step_started") == 1
