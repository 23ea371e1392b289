"""Owning a run's log: taking it over, and acts on a run that no runner holds (design §3).

A new owner of a run (a runner after its claim, or a process that cancels or resolves) has raised
the epoch. Before its first event it opens the log in Redis, which fences the older owner, and
archives the tail that only Redis has: nobody else could, and the archive would get a hole when the
log expires. `open_log` does that and says where its numbers begin:

    the Redis that was noted, and the log was there     after the log's top
    else                                                above all that was reserved

The second is a jump. It is needed because a Redis that lost its tail no longer knows numbers which
clients may have seen (I1). Released cleanly (pause, hand-over, end), a run has its last number as
reserved, so there nothing jumps. Whoever goes on after a jump notes the new Redis in the same
transaction that archives its first event, not before: a noted Redis is trusted by the next owner.

Acts. A queued or interrupted run has no runner to tell of its cancellation or of a decision, so
whoever acts is its owner for one transaction: lock the row, raise the epoch, archive the events,
change the status. Only then are they told (I2), and telling is best effort: gateways follow the
archive where the log has nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from common.batch import Batch
from common.bus.log import Append, LogConnection
from common.bus.signals import Signals
from common.db import archive, interrupts, messages, runs
from common.db.engine import Connection, Database
from common.db.interrupts import Interrupt
from common.db.runs import ClaimedRun, Run
from common.errors import LeaseLost, Unavailable
from common.events import Event, encode_frame, ends_of, utc_text
from common.page import Page
from common.runs import TERMINAL_STATUSES, CancelReason, ResumeReason

_log = logging.getLogger(__name__)
_BATCHES = 50  # read at once: at most some megabytes
_TELL_S = 1.0  # longest that whoever acted waits until it is told


@dataclass(frozen=True, slots=True)
class Opened:
    """Where a new owner goes on. `top` is both what the log holds and what is archived: the first
    batch follows it. `trusted`: the numbers go on without a jump.
    """

    top: int
    next_sequence: int
    trusted: bool


@dataclass(frozen=True, slots=True)
class Act:
    """What was done to a run that nobody held, to be told after the commit."""

    run: Run
    base: int
    batches: tuple[Batch, ...]
    promoted: str | None = None


async def open_log(
    db: Database, log: LogConnection, run: ClaimedRun, reserve_block: int = 0
) -> Opened:
    """Takes the log over for a claimed run. Raises LeaseLost, Unavailable (Redis or Postgres).

    `reserve_block`: numbers to reserve at once, otherwise the caller does before using any.
    """
    await log.connect()
    tail, opened = await _take_log(log, _Former.of_claim(run))
    async with db.begin() as connection:
        held = await runs.reserve(
            connection, run.id, run.epoch, opened.next_sequence - 1 + reserve_block
        )
        if not held or not await archive.append(connection, run.id, run.epoch, tail):
            raise LeaseLost(run.id, run.epoch)
    return opened


async def read_page(
    page: Page, run_id: str, connect: Callable[[], AbstractAsyncContextManager[Connection]]
) -> None:
    """What clients have of a run: its last owner may have died before it stored that.

    All that is archived, a little at a time: a long log must not hold up everybody else.
    """
    after = 0
    while True:
        async with connect() as connection:
            batches = await archive.read(connection, run_id, after, _BATCHES)
        if not batches:
            return
        for batch in batches:
            page.apply_frames(batch.frames)
            await asyncio.sleep(0)
        after = batches[-1].last


class OwnerActs:
    """Cancelling and resolving runs that no runner holds. One a process, for all its callers."""

    def __init__(self, db: Database, log: LogConnection, signals: Signals) -> None:
        self._db = db
        self._bus_log = log
        self._signals = signals
        self._telling: set[asyncio.Task[None]] = set()

    async def cancel(self, run: Run, reason: CancelReason, *, by: str | None = None) -> Run:
        """Ends it at once if nobody holds it, else asks its runner to. Idempotent. `by`: the user
        who asks for it.

        Gives the run as it is then. Raises Unavailable: Postgres is away, or Redis is and a dead
        runner may have left a tail in it; the request stays, and a runner will follow it.
        """
        requested, act = await self._cancel_once(run, reason, by)
        if act is not None:
            await self.tell(act)
            return act.run
        if requested is not None and requested.runner_id is not None:
            await self._signals.cancel(requested.runner_id, requested.id)
        return requested or run

    async def end(self, connection: Connection, run: Run, reason: CancelReason) -> Act | None:
        """The same inside the caller's transaction, for `run` as `runs.lock` just gave it.

        None: its runner holds it (`runs.request_cancel`), or it has ended. Pending interrupts
        become `cancelled`, those whose time is over `expired` under reason `expired`. After the
        commit: `tell`.
        """
        if run.status not in ("queued", "interrupted"):
            return None
        tail, opened = await self._former_log(connection, run)
        epoch = run.epoch + 1
        if reason == "expired":
            await interrupts.expire_overdue(connection, run.id)
        await interrupts.cancel_pending(connection, run.id)
        page = Page()
        await read_page(page, run.id, lambda: nullcontext(connection))
        for batch in tail:
            page.apply_frames(batch.frames)
        events = [*_jump(opened), *page.closing(), *await _untold(connection, run)]
        events.append(Event("cancelled", {"reason": reason}))
        if run.epoch:
            said = list(page.messages(run.id).values())
            await messages.add_unheld(connection, run.id, run.epoch, said)
        batch = _batch(run.id, epoch, opened, events)
        ended = await runs.cancel_unheld(connection, run.id, run.epoch, reason, batch.last)
        if ended is None:
            return None
        await archive.append_unheld(connection, run.id, epoch, [*tail, batch])
        return Act(ended[0], opened.top, (batch,), ended[1].promoted)

    async def resolve(
        self,
        connection: Connection,
        run: Run,
        reason: ResumeReason = "decision",
        principal: dict[str, Any] | None = None,
    ) -> Act | None:
        """Queues an interrupted run again, in the caller's transaction that decided its interrupts
        or continues a breakpoint; `run` as `runs.lock` just gave it. After the commit: `tell`.

        None: the run is not interrupted. If it is queued or running, the stored decision is all
        that is needed: whoever executes it tells and takes it (`decided` wakes that runner).
        """
        if run.status != "interrupted":
            return None
        opened = Opened(run.last_sequence, run.last_sequence + 1, trusted=True)
        events = await _untold(connection, run)
        batches = [_batch(run.id, run.epoch + 1, opened, events)] if events else []
        last = batches[-1].last if batches else run.last_sequence
        queued = await runs.queue_unheld(connection, run.id, run.epoch, reason, last, principal)
        if queued is None:
            return None
        await archive.append_unheld(connection, run.id, queued.epoch, batches)
        return Act(queued, opened.top, tuple(batches))

    async def tell(self, act: Act) -> None:
        """After the commit: the log, then whoever waits. Best effort: it is not cut short when the
        caller is cancelled, nor does the caller wait long for a Redis that does not answer.
        """
        task = asyncio.create_task(self._tell(act))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        await asyncio.wait({task}, timeout=_TELL_S)
        if task.done():
            task.result()

    async def _cancel_once(
        self, run: Run, reason: CancelReason, by: str | None
    ) -> tuple[Run | None, Act | None]:
        """The request is committed first: it outlives whatever stops the act."""
        async with self._db.connect() as connection:
            requested = await runs.request_cancel(connection, run.id, reason, by=by)
        if requested is None or requested.status == "running":
            return requested or await self._find(run.id), None
        async with self._db.begin() as connection:
            locked = await runs.lock(connection, run.id)
            act = None
            if locked is not None:  # the first reason counts
                act = await self.end(connection, locked, locked.cancel_requested or reason)
        return locked, act

    async def _find(self, run_id: str) -> Run | None:
        async with self._db.connect() as connection:
            return await runs.find(connection, run_id)

    async def _former_log(self, connection: Connection, run: Run) -> tuple[list[Batch], Opened]:
        """Of a run that was released cleanly all is archived. After a dead runner the log is taken
        over, inside the transaction: it holds the row, so that nobody claims the run meanwhile.
        """
        if run.sequence_reserved == run.last_sequence:
            return [], Opened(run.last_sequence, run.last_sequence + 1, trusted=True)
        await self._bus_log.connect()
        former = await _Former.of_unheld(connection, run)
        return await _take_log(self._bus_log, former)

    async def _tell(self, act: Act) -> None:
        if act.batches:
            try:
                await self._append(act)
            except Unavailable:
                _log.warning("events of run %s are in the archive only", act.run.id)
                await self._tell_at_least(act)
        if act.run.status not in TERMINAL_STATUSES:
            await self._signals.wake(act.run.id)
        if act.promoted is not None:
            await self._signals.wake(act.promoted)

    async def _append(self, act: Act) -> None:
        """A log that answers otherwise has a newer owner, or lacks what is archived: leave it."""
        log, run = self._bus_log, act.run
        await log.connect()
        answer, top = await log.open(run.id, run.epoch, act.base)
        if answer in ("OPEN", "NEW") and top == act.base:
            await log.append([Append(run.id, batch, act.base) for batch in act.batches])

    async def _tell_at_least(self, act: Act) -> None:
        """A Redis that is full or read-only still carries messages."""
        with suppress(Unavailable):
            await self._bus_log.connect()
            await self._bus_log.tell({act.run.id: act.batches[-1]})


@dataclass(frozen=True, slots=True)
class _Former:
    """What the last owner left of a run, for the owner of `epoch`."""

    run_id: str
    epoch: int
    archived: int
    reserved: int
    identity: str | None

    @classmethod
    def of_claim(cls, run: ClaimedRun) -> "_Former":
        reserved, identity = run.previous_reserved, run.previous_identity
        return cls(run.id, run.epoch, run.archived, reserved, identity)

    @classmethod
    async def of_unheld(cls, connection: Connection, run: Run) -> "_Former":
        archived = await archive.top(connection, run.id)
        return cls(run.id, run.epoch + 1, archived, run.sequence_reserved, run.redis_identity)


async def _take_log(log: LogConnection, former: _Former) -> tuple[list[Batch], Opened]:
    """Fences the log and reads the tail that is to be archived. Raises LeaseLost, Unavailable."""
    answer, top = await log.open(former.run_id, former.epoch, former.archived)
    if answer == "FENCED":
        raise LeaseLost(former.run_id, former.epoch)
    there = answer in ("OPEN", "CLOSED") and top > former.archived
    tail = _follows(await log.tail(former.run_id, former.archived), former) if there else []
    top = tail[-1].last if tail else former.archived
    trusted = answer == "OPEN" and former.identity == log.identity
    following = top if trusted else max(top, former.reserved)
    return tail, Opened(top, following + 1, following == top)


def _follows(batches: list[Batch], former: _Former) -> list[Batch]:
    """Those that continue what is archived without a hole."""
    cursor, taken = former.archived, []
    for batch in batches:
        if not batch.takes(cursor):
            break
        taken.append(batch)
        cursor = batch.last
    return taken


def _jump(opened: Opened) -> list[Event]:
    """Numbers may jump at this event only (contract §3, reading rules)."""
    if opened.trusted:
        return []
    return [Event("run_resumed", {"reason": "failover", "discard": []})]


async def _untold(connection: Connection, run: Run) -> list[Event]:
    """`interrupt_resolved` of every decision that is not in the log yet; marks them told."""
    rows = await interrupts.untold(connection, run.id)
    await interrupts.mark_told_unheld(connection, run.id, [row.id for row in rows])
    return [resolved_event(row) for row in rows]


def resolved_event(row: Interrupt) -> Event:
    """So that other tabs close the card (contract §3)."""
    fields: dict[str, Any] = {"interruptId": row.id, "status": row.status}
    if row.decision is not None:
        fields["decision"] = row.decision
    if row.resolved_by is not None:
        fields["resolvedBy"] = row.resolved_by
    return Event("interrupt_resolved", fields)


def _batch(run_id: str, epoch: int, opened: Opened, events: list[Event]) -> Batch:
    first, at = opened.next_sequence, utc_text()
    frames = b"".join(
        encode_frame(event, run_id=run_id, sequence=sequence, epoch=epoch, at=at)
        for sequence, event in enumerate(events, first)
    )
    last = first + len(events) - 1
    return Batch(opened.top, first, last, epoch, ends_of(events), frames)
