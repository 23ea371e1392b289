"""The way of events from a runner to Redis and to the archive, with faults in between."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from common.batch import Batch
from common.bus.client import Bus
from common.bus.log import LogConnection, LogReader
from common.bus.names import head_key, log_key
from common.db import archive, runs
from common.db.engine import Connection, Database
from common.db.runs import ClaimedRun
from common.errors import LeaseLost
from common.events import Event
from runner.checkpointer import FencedSaver
from runner.gate import Gate
from runner.outlet import NEVER, Outlet
from runner.publisher import Publisher, PublisherLimits
from runner.sessions import Sessions
from runner.settling import Declined
from runner.steps import Steps
from runner.writer import RunWriter
from tests.support.claims import claimed_run, new_runner
from tests.support.until import until

LIMITS = PublisherLimits(
    window_s=0.002,
    archive_interval_s=0.05,
    away_interval_s=0.02,
    buffer_bytes_max=20_000,
    fresh_s=5,
)


@dataclass
class World:
    db: Database
    log: LogConnection
    bus: Bus
    publisher: Publisher
    prefix: str
    runner_id: str
    lost: int = 0

    async def outlet(self) -> tuple[ClaimedRun, Outlet]:
        await self.log.connect()
        run = await claimed_run(self.db, self.runner_id, identity=self.log.identity, reserve=50)
        writer = RunWriter(
            run.id,
            run.epoch,
            top=0,
            archived=0,
            next_sequence=1,
            reserved=50,
            block=50,
            batch_bytes_max=4000,
        )
        outlet = self.publisher.outlet(
            writer, generation=NEVER, on_lost=self.on_lost, noted=run.redis_identity
        )
        return run, outlet

    def on_lost(self) -> None:
        self.lost += 1

    async def log_of(self, run: ClaimedRun) -> list[Batch]:
        return await LogReader(self.bus).read(run.id, 0, 10_000)

    async def archive_of(self, run: ClaimedRun) -> list[Batch]:
        async with self.db.connect() as conn:
            return await archive.read(conn, run.id, 0, 10_000)

    async def forget(self, run: ClaimedRun) -> None:
        """What FLUSHALL does to one run."""
        await self.bus.call("DEL", log_key(self.prefix, run.id), head_key(self.prefix, run.id))

    async def sees(self, run: ClaimedRun) -> list[int]:
        """What a reader gets that follows the log and falls back on the archive."""
        cursor, seen = 0, list[int]()
        while True:
            batches = [*await self.log_of(run), *await self.archive_of(run)]
            fit = next((batch for batch in batches if batch.takes(cursor)), None)
            if fit is None:
                return seen
            seen += numbers(fit)
            cursor = fit.last


def numbers(batch: Batch) -> list[int]:
    return [json.loads(f.split(b"\ndata: ")[1])["data"] for f in batch.frames.split(b"\n\n") if f]


def has_sent(writer: RunWriter, last: int) -> bool:
    return writer.sent == last


def custom(*data: int) -> list[Event]:
    return [Event("custom", {"data": n}) for n in data]


@pytest.fixture
async def world(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[World]:
    db = Database(database_url, application_name="test", pool_size=4)
    log = LogConnection(redis_url, prefix=redis_prefix)
    bus = Bus(redis_url, prefix=redis_prefix)
    publisher = Publisher(db, log, LIMITS)
    task = asyncio.create_task(publisher.run())
    yield World(db, log, bus, publisher, redis_prefix, await new_runner(db))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await log.aclose()
    await bus.aclose()
    await db.aclose()


def ending(run: ClaimedRun, **columns: Any) -> Any:
    async def change(conn: Connection, last: int) -> None:
        ended = await runs.finish(
            conn, run.id, run.epoch, status="completed", last_sequence=last, **columns
        )
        if ended is None:
            raise LeaseLost(run.id, run.epoch)

    return change


async def test_events_reach_the_log_and_then_the_archive(world: World) -> None:
    run, outlet = await world.outlet()
    outlet.emit(custom(*range(120)))
    await until(lambda: outlet.writer.archived == 120)
    assert [n for b in await world.archive_of(run) for n in numbers(b)] == list(range(120))
    assert await world.sees(run) == list(range(120))
    assert world.lost == 0


async def test_a_state_is_archived_with_its_transaction_and_sent_afterwards(world: World) -> None:
    run, outlet = await world.outlet()
    outlet.emit(custom(0, 1))
    assert await outlet.settle([Event("done")], ending(run), leaves=True)
    archived = await world.archive_of(run)
    assert (archived[-1].last, archived[-1].ends) == (3, "run")
    await until(lambda: not outlet.writer.has_work)
    assert [b.ends for b in await world.log_of(run)][-1] == "run"


async def test_nothing_is_told_after_the_state_with_which_the_run_was_left(world: World) -> None:
    """Found by the state machine: while the state's own events still lay in the buffer."""
    run, outlet = await world.outlet()
    assert await outlet.settle([Event("run_paused")], ending(run), leaves=True)
    outlet.emit(custom(0, 1))
    await until(lambda: not outlet.writer.has_work)
    assert [b.last for b in await world.log_of(run)] == [1]
    assert [b.last for b in await world.archive_of(run)] == [1]


async def test_a_declined_state_leaves_no_trace(world: World) -> None:
    run, outlet = await world.outlet()
    outlet.emit(custom(0))

    async def change(conn: Connection, last: int) -> None:
        raise Declined

    assert not await outlet.settle([Event("run_paused")], change, leaves=True)
    outlet.emit(custom(1))
    await until(lambda: outlet.writer.archived == 2)
    assert await world.sees(run) == [0, 1]


async def test_a_log_that_redis_forgot_is_opened_again_without_a_hole(world: World) -> None:
    run, outlet = await world.outlet()
    writer = outlet.writer
    for first in range(0, 40, 5):
        outlet.emit(custom(*range(first, first + 5)))
        await until(partial(has_sent, writer, first + 5))
        await world.forget(run)
    outlet.emit(custom(40))
    await until(lambda: writer.sent == 41)
    assert await world.sees(run) == list(range(41))
    assert world.lost == 0


async def test_a_broken_connection_loses_and_repeats_nothing(world: World) -> None:
    run, outlet = await world.outlet()
    for n in range(60):
        outlet.emit(custom(n))
        if n % 10 == 5:
            await world.log.aclose()
        await asyncio.sleep(0.003)
    await until(lambda: outlet.writer.sent == outlet.writer.top == 60)
    assert await world.sees(run) == list(range(60))
    assert world.log.generation > 1
    assert world.lost == 0


async def test_the_owner_of_an_older_epoch_is_lost_and_adds_nothing(world: World) -> None:
    run, outlet = await world.outlet()
    outlet.emit(custom(0))
    await until(lambda: outlet.writer.archived == 1)
    async with world.db.begin() as conn:
        await conn.rows("UPDATE runs SET epoch = epoch + 1 WHERE id = $1", run.id)
    await world.log.open(run.id, run.epoch + 1, 1)
    outlet.emit(custom(1))
    await until(lambda: world.lost == 1)
    assert await world.sees(run) == [0]
    with pytest.raises(LeaseLost):
        await outlet.settle([Event("done")], ending(run), leaves=True)


async def test_a_fenced_owner_whose_fence_redis_lost_is_stopped_by_postgres(world: World) -> None:
    """The script's fence is off: only the proof before opening again stands."""
    run, outlet = await world.outlet()
    outlet.emit(custom(0))
    await until(lambda: outlet.writer.archived == 1)
    async with world.db.begin() as conn:
        await conn.rows("UPDATE runs SET epoch = epoch + 1 WHERE id = $1", run.id)
    await world.forget(run)
    outlet.emit(custom(1))
    await until(lambda: world.lost == 1)
    assert await world.log_of(run) == []
    assert await world.sees(run) == [0]


async def test_a_terminal_event_is_told_although_redis_forgot_the_log(world: World) -> None:
    run, outlet = await world.outlet()
    outlet.emit(custom(0))
    await until(lambda: outlet.writer.archived == 1)
    await world.forget(run)
    await outlet.settle([Event("done")], ending(run), leaves=True)
    await until(lambda: not outlet.writer.has_work)
    assert [(b.last, b.ends) for b in await world.log_of(run)] == [(2, "run")]
    assert world.lost == 0


async def test_numbers_are_reserved_before_they_are_used(world: World) -> None:
    run, outlet = await world.outlet()
    outlet.emit(custom(*range(333)))

    async def reserved() -> bool:
        async with world.db.connect() as conn:
            row = await runs.find(conn, run.id)
        assert row is not None
        assert row.sequence_reserved >= outlet.writer.top
        return outlet.writer.top == 333

    await until(reserved)
    await until(lambda: outlet.writer.archived == 333)
    assert await world.sees(run) == list(range(333))


async def test_results_and_a_state_that_archive_the_same_at_once_archive_it_once(
    world: World, database_url: str
) -> None:
    """Steps that end together, and a decision that is told meanwhile. The row's lock orders them:
    of two that insert the same batch at once one would fail (common/db/archive)."""

    async def nothing_more(conn: Connection, last: int) -> None:
        pass

    run, outlet = await world.outlet()
    gate = Gate()
    gate.open(Steps(), outlet)
    async with Sessions(database_url, application_name="test", size=4) as sessions:
        saver = FencedSaver(sessions, run.id, run.epoch, gate=gate)
        for n in range(40):
            outlet.emit(custom(2 * n))
            at: Any = {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": str(n)}
            written = [
                saver.aput_writes({"configurable": at}, [("log", n)], f"step {step}")
                for step in range(4)
            ]
            told = outlet.settle(custom(2 * n + 1), nothing_more, leaves=False)
            await asyncio.gather(*written, told)
    assert [n for b in await world.archive_of(run) for n in numbers(b)] == list(range(80))
    assert world.lost == 0


@pytest.mark.parametrize("what", ["result", "state"])
async def test_whoever_archives_has_the_run_s_row_alone(
    world: World, database_url: str, what: str
) -> None:
    """Not beside another one that only shares it: both might archive the same."""

    async def nothing_more(conn: Connection, last: int) -> None:
        pass

    async def waits() -> bool:
        async with world.db.connect() as conn:
            return bool(
                await conn.rows(
                    "SELECT 1 FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
            )

    run, outlet = await world.outlet()
    gate = Gate()
    gate.open(Steps(), outlet)
    at: Any = {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}
    async with Sessions(database_url, application_name="test", size=1) as sessions:
        saver = FencedSaver(sessions, run.id, run.epoch, gate=gate)
        async with world.db.begin() as sharing:
            await sharing.rows("SELECT 1 FROM runs WHERE id = $1 FOR SHARE", run.id)
            outlet.emit(custom(0))
            writing = asyncio.gather(
                saver.aput_writes({"configurable": at}, [("log", 0)], "step")
                if what == "result"
                else outlet.settle(custom(1), nothing_more, leaves=False)
            )
            await until(waits)
        await writing
    archived = [n for b in await world.archive_of(run) for n in numbers(b)]
    assert archived == ([0] if what == "result" else [0, 1])


async def test_a_lost_state_leaves_no_outlet_behind(world: World) -> None:
    run, outlet = await world.outlet()
    async with world.db.begin() as conn:
        await conn.rows("UPDATE runs SET epoch = epoch + 1 WHERE id = $1", run.id)
    with pytest.raises(LeaseLost):
        await outlet.settle([Event("done")], ending(run), leaves=True)
    assert outlet not in world.publisher.outlets
    assert world.lost == 1


async def test_an_owner_that_has_forgotten_what_follows_opens_again(world: World) -> None:
    """Everything was archived and forgotten while the log was being opened: as LOST, not lost."""
    run, outlet = await world.outlet()
    outlet.emit(custom(0, 1, 2))
    await until(lambda: outlet.writer.archived == 3 and outlet.writer.sent == 3)
    outlet.emit(custom(3))
    outlet.writer.number()
    world.publisher.sender._opened(outlet, world.log.generation, "OPEN", 1)
    assert world.lost == 0
    await until(lambda: outlet.writer.sent == 4)
    assert await world.sees(run) == [0, 1, 2, 3]


async def test_a_later_owner_without_redis_is_not_taken_for_the_first(world: World) -> None:
    """Redis comes back with the first owner's log, and the second one owns the run."""
    run, outlet = await world.outlet()
    outlet.emit(custom(0))
    await until(lambda: outlet.writer.sent == outlet.writer.archived == 1)
    world.publisher.outlets.discard(outlet)
    async with world.db.begin() as conn:
        await conn.rows("DELETE FROM run_events WHERE run_id = $1", run.id)
        await conn.rows("UPDATE runs SET epoch = epoch + 1 WHERE id = $1", run.id)
    writer = RunWriter(
        run.id, 2, top=0, archived=0, next_sequence=51, reserved=99, block=50, batch_bytes_max=4000
    )
    second = world.publisher.outlet(writer, generation=NEVER, on_lost=world.on_lost)
    second.emit(custom(7))
    await until(lambda: second.writer.sent == 51)
    assert world.lost == 0
    assert await world.sees(run) == [7]


async def test_a_graph_waits_also_while_nothing_can_be_numbered(world: World) -> None:
    _, outlet = await world.outlet()
    outlet.writer.reserved = 0
    outlet.emit([Event("custom", {"data": "x" * 15_000})])
    outlet.emit([Event("custom", {"data": "x" * 15_000})])
    assert not outlet._room.is_set()
    await outlet.room()  # numbers are reserved, and the archive has taken it
    assert outlet.writer.held_bytes <= LIMITS.buffer_bytes_max


async def test_a_graph_waits_when_nothing_takes_its_events(world: World) -> None:
    _, outlet = await world.outlet()
    outlet.emit([Event("custom", {"data": "x" * 30_000})])
    outlet.writer.number()
    outlet.emit([])
    room = asyncio.create_task(outlet.room())
    await room  # the archive has taken it
    assert outlet.writer.kept_bytes <= LIMITS.buffer_bytes_max


async def test_a_run_whose_row_somebody_has_locked_does_not_hold_up_the_others(
    world: World,
) -> None:
    """A gateway that stands still in a transaction keeps a row for many seconds."""
    (run, locked), (other, free) = await world.outlet(), await world.outlet()
    async with world.db.begin() as stopped:
        await runs.lock(stopped, run.id)
        locked.emit(custom(1))
        free.emit(custom(*range(300)))
        await until(lambda: free.writer.archived == 300, within_s=4)
    await until(lambda: locked.writer.archived == 1)
    assert await world.sees(other) == list(range(300))
    assert await world.sees(run) == [1]
