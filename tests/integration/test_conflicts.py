"""`onConflict` in any order at once: creations, ends, cancellations, decisions, crashes between.

Seeded worlds on real Postgres. Some requests die between their commit and their act; a sweep does
what they left. A model is not needed: what must hold can be seen at each claim and at the end.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from common.bus.client import Bus
from common.bus.log import LogConnection
from common.bus.signals import Signals
from common.db import archive, conversations, messages, runs
from common.db.engine import Connection, Database
from common.db.messages import NewMessage
from common.db.runs import ClaimedRun, Run
from common.errors import LeaseLost, Refused
from common.ids import new_id
from common.ownership import OwnerActs
from common.runs import TERMINAL_STATUSES, OnConflict
from tests.support import rows

SEEDS = range(int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "4")))
POLICIES: list[OnConflict] = ["reject", "enqueue", "interrupt", "rollback"]
SUPERSEDING = ("interrupt", "rollback")


@dataclass
class World:
    """One conversation. `made` and `claimed` are in the order in which they were seen."""

    db: Database
    owner: OwnerActs
    rng: random.Random
    conversation_id: str
    holder: str
    how: dict[str, OnConflict] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)

    async def create(self, how: OnConflict) -> None:
        """As a gateway does it; or it dies after the commit."""
        new = rows.new_run(self.conversation_id, on_conflict=how)
        self.how[new.id] = how
        async with self.db.begin() as connection:
            run = await runs.create(connection, new)
        if run is None:
            assert how == "reject"
            return
        self.acknowledged.append(run.id)
        if how in SUPERSEDING and self.rng.random() < 0.7:
            async with self.db.connect() as connection:
                unended = await runs.unended(connection, self.conversation_id)
            for old in unended:
                if old.id != run.id and old.cancel_requested is not None:
                    await self.owner.cancel(old, "superseded")

    async def cancel(self) -> None:
        async with self.db.connect() as connection:
            unended = await runs.unended(connection, self.conversation_id)
        if unended:
            await self.owner.cancel(self.rng.choice(unended), "user")

    async def execute(self) -> None:
        """Claim and end, pause or lose a run, as a runner does."""
        wanted = len(self.acknowledged)
        async with self.db.connect() as connection:
            claimed = await rows.claim(connection, self.holder, limit=1)
        for run in claimed:
            self.check_claim(run, self.acknowledged[:wanted])
            await self.end(run)

    def check_claim(self, run: ClaimedRun, acknowledged: list[str]) -> None:
        """Nothing is begun that was superseded before, or before one that came earlier."""
        if run.epoch > 1:
            return
        self.claimed.append(run.id)
        if run.cancel_requested is None:
            self.executed.append(run.id)
            earlier = acknowledged[acknowledged.index(run.id) :] if run.id in acknowledged else []
            assert not [one for one in earlier[1:] if self.how[one] in SUPERSEDING]

    async def end(self, run: ClaimedRun) -> None:
        how = self.rng.choice(["complete", "complete", "fail", "pause", "die"])
        async with self.db.begin() as connection:
            stored = [NewMessage(new_id("msg"), "assistant", "an answer")]
            await messages.replace(connection, run.id, run.epoch, stored)
        await asyncio.sleep(self.rng.uniform(0, 0.01))
        if how == "die":
            async with self.db.connect() as connection:
                await runs.give_back(connection, run.id, run.epoch, charged=True)
            return
        async with self.db.begin() as connection:
            if not await runs.hold(connection, run.id, run.epoch):
                return
            now = await runs.find(connection, run.id)
            assert now is not None
            if how == "pause" and await runs.pause(
                connection, run.id, run.epoch, last_sequence=run.last_sequence, next_nodes=["act"]
            ):
                return
            await self.finish(connection, now, failed=how == "fail")

    async def finish(self, connection: Connection, run: Run, *, failed: bool) -> None:
        last = run.last_sequence
        if run.cancel_requested is not None:
            assert await runs.finish(
                connection,
                run.id,
                run.epoch,
                status="cancelled",
                last_sequence=last,
                cancel_reason=run.cancel_requested,
            )
        elif failed:
            error = {"code": "GRAPH_ERROR", "message": "no"}
            assert await runs.finish(
                connection, run.id, run.epoch, status="failed", last_sequence=last, error=error
            )
        else:
            assert await runs.finish(
                connection, run.id, run.epoch, status="completed", last_sequence=last
            )

    async def decide(self) -> None:
        """Continue what waits for a person."""
        async with self.db.begin() as connection:
            active = await runs.active(connection, self.conversation_id)
            locked = None if active is None else await runs.lock(connection, active.id)
            if locked is not None and locked.status == "interrupted":
                await self.owner.resolve(connection, locked, "continue")

    async def sweep(self) -> None:
        async with self.db.connect() as connection:
            left = await runs.to_cancel(connection, 0)
        for run in left:
            try:
                await self.owner.cancel(run, run.cancel_requested or "user")
            except LeaseLost:
                continue

    async def settle(self) -> list[Run]:
        """Nobody comes any more; everything that was begun is brought to its end."""
        for _ in range(400):
            await self.sweep()
            await self.decide()
            await self.execute()
            async with self.db.connect() as connection:
                if not await runs.unended(connection, self.conversation_id):
                    return await self.all_runs(connection)
        raise AssertionError("something is stuck")

    async def all_runs(self, connection: Connection) -> list[Run]:
        ids = await connection.rows("SELECT id FROM runs ORDER BY position")
        found = [await runs.find(connection, row[0]) for row in ids]
        return [run for run in found if run is not None]


async def repeat(act: Callable[[], Awaitable[None]], times: int, rng: random.Random) -> None:
    for _ in range(times):
        await asyncio.sleep(rng.uniform(0, 0.02))
        await act()


@pytest.fixture
async def owner(
    database: Database, log: LogConnection, redis_url: str, redis_prefix: str
) -> AsyncIterator[OwnerActs]:
    bus = Bus(redis_url, prefix=redis_prefix)
    yield OwnerActs(database, log, Signals(bus))
    await bus.aclose()


async def new_world(database: Database, owner: OwnerActs, seed: int) -> World:
    async with database.connect() as connection:
        holder = await rows.runner(connection, ttl_s=600)
        conversation_id = await rows.conversation(connection)
    return World(database, owner, random.Random(seed), conversation_id, holder)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policies", [["enqueue"], ["interrupt"], ["rollback"], POLICIES])
async def test_whatever_comes_at_once_each_policy_keeps_its_word(
    database: Database, owner: OwnerActs, policies: list[OnConflict], seed: int
) -> None:
    world = await new_world(database, owner, seed)
    rng = world.rng

    async def create() -> None:
        await world.create(rng.choice(policies))

    await asyncio.gather(
        *(repeat(create, 3, rng) for _ in range(4)),
        repeat(world.execute, 12, rng),
        repeat(world.decide, 6, rng),
        repeat(world.cancel, 2, rng),
        repeat(world.sweep, 2, rng),
    )
    found = await world.settle()
    assert all(run.status in TERMINAL_STATUSES and not run.waiting for run in found)
    order = {run.id: place for place, run in enumerate(found)}
    assert world.claimed == sorted(world.claimed, key=order.__getitem__), "first come, first served"
    if policies == ["enqueue"]:
        unasked = {run.id for run in found if run.cancel_reason != "user"}
        assert unasked <= set(world.executed)
    async with database.connect() as connection:
        for run in found:
            await check_end(connection, run)


async def check_end(connection: Connection, run: Run) -> None:
    """A rolled back run has left nothing but its row and its log; every other has its message."""
    stored = await connection.value("SELECT count(*) FROM messages WHERE run_id = $1", run.id)
    if run.rollback:
        assert (run.status, stored) == ("cancelled", 0)
    else:
        assert stored >= 1
    if run.status == "cancelled":
        assert run.cancel_reason in ("user", "superseded")


async def test_of_interrupts_at_once_the_newest_alone_is_executed(
    database: Database, owner: OwnerActs
) -> None:
    """Also of those that waited already: it is wanted instead of all that has not ended."""
    for seed in SEEDS:
        world = await new_world(database, owner, seed)
        await world.create("enqueue")
        async with database.connect() as connection:
            [active] = await rows.claim(connection, world.holder)
        for _ in range(3):
            await world.create("enqueue")
        await asyncio.gather(*(world.create("interrupt") for _ in range(6)))
        async with database.begin() as connection:
            now = await runs.find(connection, active.id)
            assert now is not None
            assert now.cancel_requested == "superseded"
            await world.finish(connection, now, failed=False)
        await world.sweep()
        async with database.connect() as connection:
            [newest] = await runs.unended(connection, world.conversation_id)
            assert not newest.waiting
            await world.execute()
            position = await connection.value(
                "SELECT id FROM runs WHERE conversation_id = $1 ORDER BY position DESC LIMIT 1",
                world.conversation_id,
            )
            assert newest.id == position
            await world.settle()


async def test_a_run_that_is_to_be_rolled_back_can_only_be_cancelled(
    connection: Connection,
) -> None:
    """It came to its end at the same moment: what `done` would tell of is gone."""
    active = await rows.running_run(connection)
    await runs.create(connection, rows.new_run(active.conversation_id, on_conflict="rollback"))
    key = (connection, active.id, active.epoch)
    assert await runs.finish(*key, status="completed", last_sequence=3) is None
    error = {"code": "GRAPH_ERROR"}
    assert await runs.finish(*key, status="failed", last_sequence=3, error=error) is None
    assert await runs.finish(*key, status="cancelled", last_sequence=3, cancel_reason="superseded")


async def test_cancelling_a_waiting_run_promotes_nobody(
    database: Database, owner: OwnerActs
) -> None:
    world = await new_world(database, owner, 0)
    for how in POLICIES[1:]:
        await world.create(how)
    async with database.connect() as connection:
        first, *_ = await world.all_runs(connection)
    assert first.status in ("queued", "cancelled")
    await world.settle()


async def test_deleting_and_ending_at_once_never_deadlock(database: Database) -> None:
    for _ in SEEDS:
        async with database.connect() as connection:
            active = await rows.running_run(connection)
            for _ in range(3):
                await runs.create(
                    connection, rows.new_run(active.conversation_id, on_conflict="enqueue")
                )

        async def finish(run: ClaimedRun = active) -> None:
            async with database.begin() as connection:
                await runs.finish(
                    connection, run.id, run.epoch, status="completed", last_sequence=3
                )

        async def delete(conversation_id: str = active.conversation_id) -> None:
            async with database.begin() as connection:
                await conversations.delete(connection, conversation_id, rows.USER)

        async def create(conversation_id: str = active.conversation_id) -> None:
            with suppress(Refused):  # it is not there any more
                async with database.begin() as connection:
                    new = rows.new_run(conversation_id, on_conflict="interrupt")
                    await runs.create(connection, new)

        await asyncio.gather(finish(), delete(), create(), create())
        async with database.connect() as connection:
            assert await archive.top(connection, active.id) == 0
