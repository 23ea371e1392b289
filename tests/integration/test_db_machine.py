"""Runs, runners and decisions in any order, by stale and fresh owners, against a small model.

It finds a missing fence by itself: take `epoch = :epoch` out of a statement and this fails.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from common.db import archive, interrupts, runners, runs
from common.db.engine import Connection, Database
from common.runs import TRANSITIONS, OnConflict, Status, can_become
from tests.support.rows import BLOCK, GRAPH, USER, batch, conversation, new_run, question, runner

BUDGET = settings(
    max_examples=12,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],  # making a history shorter would take minutes
)

Result = TypeVar("Result")


@dataclass
class Modelled:
    """What a run should be."""

    id: str
    conversation_id: str
    waiting: bool
    status: Status = "queued"
    epoch: int = 0
    holder: str | None = None
    attempts: int = 0
    top: int = 0
    cancel_requested: bool = False
    rollback: bool = False
    asked: int = 0
    untaken: set[str] = field(default_factory=set)

    def held_under(self, epoch: int) -> bool:
        return self.status == "running" and self.epoch == epoch

    def become(self, status: Status) -> None:
        assert can_become(self.status, status)
        self.status = status
        self.holder = None


@dataclass(frozen=True)
class Handle:
    """An owner, who may have been fenced long ago."""

    run: Modelled
    epoch: int

    @property
    def is_fresh(self) -> bool:
        return self.run.held_under(self.epoch)


class Machine(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.database = Database(self.url, application_name="machine", pool_size=1)
        self.runs: dict[str, Modelled] = {}
        self.conversations: list[str] = []
        self.expired: set[str] = set()
        self.dead: set[str] = set()

    handles = Bundle("handles")
    holders = Bundle("holders")
    questions = Bundle("questions")

    def teardown(self) -> None:
        self.do(self.database.aclose())
        self.loop.close()

    def do(self, act: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run(act)

    def db(self, act: Any, *arguments: Any, **values: Any) -> Any:
        async def once() -> Any:
            async with self.database.begin() as connection:
                return await act(connection, *arguments, **values)

        return self.do(once())

    @initialize(target=handles)
    def begin(self) -> Any:
        self.db(sweep)
        self.conversations = [self.db(conversation) for _ in range(2)]
        for conversation_id in self.conversations:
            made = self.db(runs.create, new_run(conversation_id))
            self.runs[made.id] = Modelled(made.id, conversation_id, waiting=False)
        return self.claim_all()

    # from outside

    @rule(
        which=st.integers(0, 1),
        how=st.sampled_from(["reject", "enqueue", "enqueue", "interrupt", "rollback"]),
    )
    def create(self, which: int, how: OnConflict) -> None:
        conversation_id = self.conversations[which]
        active = self.active(conversation_id)
        new = new_run(conversation_id, on_conflict=how)
        made = self.db(runs.create, new)
        assert (made is None) == (active is not None and how == "reject")
        if made is not None:
            assert made.waiting == (active is not None)
            self.supersede(conversation_id, how)
            self.runs[made.id] = Modelled(made.id, conversation_id, made.waiting)

    def supersede(self, conversation_id: str, how: OnConflict) -> None:
        if how in ("interrupt", "rollback") and self.active(conversation_id) is not None:
            for run in self.runs.values():
                if run.conversation_id == conversation_id and TRANSITIONS[run.status]:
                    run.cancel_requested = True
                    run.rollback |= how == "rollback"

    @rule(handle=handles)
    def request_cancel(self, handle: Handle) -> None:
        asked = self.db(runs.request_cancel, handle.run.id, "user")
        assert (asked is not None) == bool(TRANSITIONS[handle.run.status])
        handle.run.cancel_requested |= asked is not None

    @rule(data=st.data(), late=st.booleans())
    def cancel_unheld(self, data: st.DataObject, late: bool) -> None:
        """`late`: whoever acts has seen an older epoch."""
        if not self.runs:
            return
        run = data.draw(st.sampled_from(list(self.runs.values())))
        epoch = run.epoch - late
        ended = self.db(runs.cancel_unheld, run.id, epoch, "user", run.top)
        assert (ended is not None) == (run.status in ("queued", "interrupted") and not late)
        if ended is not None:
            self.end(run, "cancelled", ended[1].promoted)
            run.epoch += 1

    @rule(question=questions)
    def decide(self, question: tuple[Modelled, str]) -> None:
        run, interrupt_id = question
        decided, queued = self.db(decide, interrupt_id)
        if decided:
            run.untaken.add(interrupt_id)
        assert queued == (decided and run.status == "interrupted")
        if queued:
            run.become("queued")
            run.epoch += 1

    # runners

    @rule(target=holders)
    def register(self) -> str:
        return str(self.db(runner))

    @rule(holder=holders)
    def expire(self, holder: str) -> None:
        self.db(expire, holder)
        if holder not in self.dead:
            self.expired.add(holder)

    @rule(holder=holders)
    def renew(self, holder: str) -> None:
        assert self.db(runners.renew, holder, 60.0) == (holder not in self.dead)
        self.expired.discard(holder)

    @rule()
    def reap(self) -> None:
        reaped = self.db(runners.reap, 3600.0, 3600.0)
        assert set(reaped.runners) == self.expired
        self.dead |= self.expired
        self.expired = set()
        lost = [run for run in self.runs.values() if run.holder in self.dead]
        assert set(reaped.runs) == {run.id for run in lost}
        for run in lost:
            run.become("queued")
            run.attempts += 1

    @rule(target=handles, holder=holders, limit=st.integers(1, 3))
    def claim(self, holder: str, limit: int) -> Any:
        claimed = self.db(runs.claim, holder, [GRAPH], limit, BLOCK, "redis")
        free = [run for run in self.runs.values() if run.status == "queued" and not run.waiting]
        lives = holder not in self.expired | self.dead
        assert len(claimed) == (min(limit, len(free)) if lives else 0)
        return multiple(*(self.take(run, holder) for run in claimed))

    def take(self, claimed: Any, holder: str) -> Handle:
        run = self.runs[claimed.id]
        run.become("running")
        run.epoch, run.holder = run.epoch + 1, holder
        assert (claimed.epoch, claimed.archived) == (run.epoch, run.top)
        return Handle(run, run.epoch)

    @rule(target=handles, handle=handles)
    def take_up_again(self, handle: Handle) -> Any:
        """The run goes to a new runner, and an owner stays behind who does not know it."""
        run = handle.run
        if run.status != "running":
            return multiple()
        assert self.db(runs.give_back, run.id, run.epoch)
        run.become("queued")
        return self.claim_all()

    def claim_all(self) -> Any:
        holder = self.db(runner)
        claimed = self.db(runs.claim, holder, [GRAPH], 99, BLOCK, "redis")
        return multiple(*(self.take(run, holder) for run in claimed))

    # owners, stale and fresh

    @rule(handle=handles.filter(lambda handle: not handle.is_fresh))
    def a_stale_owner_tries_everything(self, handle: Handle) -> None:
        """The rows are compared after it, as after every rule."""
        run, key = handle.run, (handle.run.id, handle.epoch)
        late = [batch(run.top + 1, run.top + 9, epoch=handle.epoch)]
        assert not self.db(archive.append, *key, late)
        assert self.db(interrupts.insert, *key, [question(asked=run.asked)]) is None
        assert not self.db(interrupts.mark_taken, *key, list(run.untaken))
        assert not self.db(runs.reserve, *key, 10**6)
        assert not self.db(runs.pause, *key, last_sequence=run.top, next_nodes=[])
        assert not self.db(runs.requeue, *key, last_sequence=run.top, reason="handover")
        assert not self.db(runs.give_back, *key)
        assert not self.db(runs.finish, *key, status="completed", last_sequence=run.top)

    @rule(handle=handles, count=st.integers(1, 3))
    def write(self, handle: Handle, count: int) -> None:
        run = handle.run
        one = batch(run.top + 1, run.top + count, epoch=handle.epoch)
        assert self.db(archive.append, run.id, handle.epoch, [one]) == handle.is_fresh
        if handle.is_fresh:
            assert self.db(runs.reserve, run.id, handle.epoch, one.last + 5)
            run.top = one.last

    @rule(target=questions, handle=handles)
    def ask(self, handle: Handle) -> Any:
        run = handle.run
        new = [question("native", asked=run.asked)]
        rows = self.db(interrupts.insert, run.id, handle.epoch, new)
        assert (rows is not None) == handle.is_fresh
        if rows is None:
            return multiple()
        run.asked += 1
        return run, rows[0].id

    @rule(handle=handles)
    def mark_taken(self, handle: Handle) -> None:
        run = handle.run
        marked = self.db(interrupts.mark_taken, run.id, handle.epoch, list(run.untaken))
        assert marked == handle.is_fresh
        if marked:
            run.untaken.clear()

    @rule(handle=handles)
    def pause(self, handle: Handle) -> None:
        run = handle.run
        may = handle.is_fresh and not run.untaken and not run.cancel_requested
        paused = self.db(runs.pause, run.id, handle.epoch, last_sequence=run.top, next_nodes=[])
        assert paused == may
        if paused:
            run.become("interrupted")
            run.attempts = 0

    @rule(handle=handles, clean=st.booleans())
    def requeue(self, handle: Handle, clean: bool) -> None:
        run, fresh = handle.run, handle.is_fresh
        if clean:
            values = {"last_sequence": run.top, "reason": "handover"}
            assert self.db(runs.requeue, run.id, handle.epoch, **values) == fresh
        else:
            assert self.db(runs.give_back, run.id, handle.epoch) == fresh
        if fresh:
            run.become("queued")

    @rule(handle=handles, status=st.sampled_from(["completed", "failed", "cancelled"]))
    def finish(self, handle: Handle, status: Status) -> None:
        run, fresh = handle.run, handle.is_fresh
        ended = self.db(
            runs.finish,
            run.id,
            handle.epoch,
            status=status,
            last_sequence=run.top,
            error={"code": "GRAPH_ERROR"} if status == "failed" else None,
            cancel_reason="user" if status == "cancelled" else None,
        )
        assert (ended is not None) == (fresh and (status == "cancelled" or not run.rollback))
        if ended is not None:
            self.end(run, status, ended.promoted)

    def end(self, run: Modelled, status: Status, promoted: str | None) -> None:
        was_waiting, run.waiting = run.waiting, False
        run.become(status)
        behind = [
            one
            for one in self.runs.values()
            if one.waiting
            and one.conversation_id == run.conversation_id
            and not one.cancel_requested
        ]
        expected = behind[0] if behind and not was_waiting else None
        assert promoted == (expected and expected.id)
        if expected is not None:
            expected.waiting = False

    def active(self, conversation_id: str) -> Modelled | None:
        for run in self.runs.values():
            is_active = bool(TRANSITIONS[run.status]) and not run.waiting
            if run.conversation_id == conversation_id and is_active:
                return run
        return None

    # always

    @invariant()
    def rows_are_as_modelled(self) -> None:
        rows = self.db(rows_of)
        modelled = {
            run.id: (run.status, run.epoch, run.waiting, run.holder, run.attempts)
            for run in self.runs.values()
        }
        assert {row[0]: tuple(row)[1:] for row in rows} == modelled

    @invariant()
    def nothing_waits_for_nobody(self) -> None:
        for run in self.runs.values():
            busy = self.active(run.conversation_id) is not None
            assert not run.waiting or busy or run.cancel_requested

    @invariant()
    def archives_have_no_holes(self) -> None:
        for run in self.runs.values():
            cursor = 0
            for one in self.db(archive.read, run.id, 0, 999):
                assert one.takes(cursor)
                cursor = one.last
            assert cursor == run.top


async def decide(connection: Connection, interrupt_id: str) -> tuple[bool, bool]:
    """(decided, queued), as the gateway does it without telling."""
    row = await interrupts.find(connection, interrupt_id)
    assert row is not None
    run = await runs.lock(connection, row.run_id)
    assert run is not None
    decided = await interrupts.decide(
        connection, interrupt_id, decision="approve", answer={"value": True}, by=USER
    )
    if decided is None or run.status != "interrupted":
        return decided is not None, False
    queued = await runs.queue_unheld(
        connection, run.id, run.epoch, "decision", run.last_sequence, None
    )
    return True, queued is not None


async def sweep(connection: Connection) -> None:
    """What an earlier example left."""
    await connection.rows("DELETE FROM conversations")
    await connection.rows("DELETE FROM runners")


async def expire(connection: Connection, runner_id: str) -> None:
    await connection.rows(
        "UPDATE runners SET lease_until = now() - interval '1 second'"
        " WHERE id = $1 AND dead_at IS NULL",
        runner_id,
    )


async def rows_of(connection: Connection) -> list[Any]:
    return await connection.rows("SELECT id, status, epoch, waiting, runner_id, attempts FROM runs")


def test_owners_in_any_order_keep_the_rules(database_url: str) -> None:
    here = type("Here", (Machine,), {"url": database_url})
    run_state_machine_as_test(here, settings=BUDGET)
