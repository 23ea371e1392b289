"""Stores the outcome of an execution, then tells it: one transaction, fenced and archived (I2)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from common.db import interrupts, messages, runs
from common.db.engine import Connection
from common.db.interrupts import Interrupt
from common.db.messages import NewMessage
from common.db.runs import ClaimedRun, Ended
from common.errors import LeaseLost, Unavailable
from common.events import Event
from common.ownership import resolved_event
from common.page import Page
from common.runs import CancelReason, ResumeReason, Status
from runner import history
from runner.durable import Durable
from runner.kit import Kit
from runner.outcomes import Asked, Cancelled, Failed, Finished, HandedOver, Outcome, Paused, Waiting
from runner.outlet import Outlet
from runner.patience import Act, patiently
from runner.registry import Graph
from runner.settling import Change, Declined
from runner.telling import interrupt_event

log = structlog.get_logger(__name__)

T = TypeVar("T")

_NAMES = {
    Finished: "completed",
    Waiting: "interrupted",
    Paused: "paused",
    Failed: "failed",
    Cancelled: "cancelled",
    HandedOver: "handed_over",
}


class Storing:
    """The last step of the chain, for one take-up of a run."""

    def __init__(
        self,
        kit: Kit,
        run: ClaimedRun,
        graph: Graph | None,
        outlet: Outlet,
        page: Page,
        read_values: Callable[[], Awaitable[Any]],
    ) -> None:
        self.asked = run.resume_reason is not None  # interrupts of this run may be stored
        self._kit = kit
        self._run = run
        self._graph = graph
        self._outlet = outlet
        self._page = page
        self._read_values = read_values
        self._promoted: str | None = None

    async def store(self, outcome: Outcome) -> bool:
        """False: a decision came in between; look at the state again. A cancel request that came in
        between is followed here: nothing is executed once more to wait for its order.

        Raises LeaseLost.
        """
        stored = await self._store(outcome)
        if not stored and (reason := await self._cancel_asked()) is not None:
            outcome = Cancelled(reason)
            stored = await self._cancel(outcome)
        if stored:
            log.info("outcome_stored", outcome=type(outcome).__name__)
            self._kit.metrics.outcomes.labels(_NAMES[type(outcome)]).inc()
            if isinstance(outcome, Failed):
                self._kit.metrics.failures.labels(outcome.code).inc()
        if self._promoted is not None:
            await self._kit.signals.wake(self._promoted)
        return stored

    async def tell_decisions(self) -> None:
        """Decisions that arrived while the run is executed: other tabs close their cards."""
        untold = await self._patiently(lambda conn: interrupts.untold(conn, self._run.id))
        if untold:
            ids = [row.id for row in untold]
            events = [resolved_event(row) for row in untold]
            await self._outlet.settle(events, self._mark_told(ids), leaves=False)

    async def _store(self, outcome: Outcome) -> bool:
        match outcome:
            case Finished(state):
                return await self._finish(state)
            case Waiting():
                return await self._wait(outcome)
            case Asked():
                raise AssertionError("becomes Waiting before it is stored")
            case Paused(state):
                return await self._pause(state, [_paused("breakpoint", state)], at=state.standing)
            case Failed():
                return await self._fail(outcome)
            case Cancelled():
                return await self._cancel(outcome)
            case HandedOver(reason):
                change = self._requeue(reason)
                if stored := await self._outlet.settle([], change, leaves=True):
                    await self._kit.signals.wake(self._run.id)
                return stored

    async def _finish(self, state: Durable) -> bool:
        stored = self._messages(state.values)
        message_id = history.last_assistant(stored)
        output = self._output(state.values)
        fields = {"messageId": message_id, "output": output}
        event = Event("done", {name: value for name, value in fields.items() if value is not None})
        return await self._end(event, "completed", stored, message_id=message_id, output=output)

    def _unshown(self, stored: list[NewMessage]) -> list[Event]:
        return [
            Event("text_delta", {"messageId": message.id, "delta": message.content})
            for message in history.unshown(stored, self._page)
        ]

    async def _fail(self, failed: Failed) -> bool:
        error = {"code": failed.code, "message": failed.message}
        event = Event("error", {**error, "retryable": failed.retryable})
        return await self._end(event, "failed", await self._messages_so_far(), error=error)

    async def _cancel(self, cancelled: Cancelled) -> bool:
        event = Event("cancelled", {"reason": cancelled.reason})
        stored = await self._messages_so_far()
        return await self._end(event, "cancelled", stored, cancel_reason=cancelled.reason)

    async def _end(
        self, event: Event, status: Status, stored: list[NewMessage], **columns: Any
    ) -> bool:
        """The last event of the log. Tool calls and questions that are open are closed before it.

        A decision that comes in between counts: then it is told as what it is. False: the run is
        to be rolled back, and so can only be cancelled.
        """
        shown = [*self._page.closing(), *self._unshown(stored)]
        while True:
            open_rows = await self._open_rows()
            events = [*shown, *map(_closed, open_rows), event]
            change = self._ending(status, stored, open_rows, columns)
            if await self._outlet.settle(events, change, leaves=True):
                return True
            if status != "cancelled" and await self._cancel_asked() is not None:
                return False

    async def _cancel_asked(self) -> CancelReason | None:
        run = await self._patiently(lambda conn: runs.find(conn, self._run.id))
        if run is None:
            return None
        return run.cancel_requested or ("superseded" if run.rollback else None)

    async def _open_rows(self) -> list[Interrupt]:
        """Questions without a decision, and decisions that the log does not tell of yet."""
        if not self.asked:
            return []
        rows = await self._patiently(lambda conn: interrupts.of_run(conn, self._run.id))
        return [row for row in rows if row.status == "pending" or not row.told]

    async def _wait(self, waiting: Waiting) -> bool:
        """New questions are stored, then told; those that were told before are not told again."""
        self.asked = True
        known = await self._patiently(lambda conn: interrupts.of_run(conn, self._run.id))
        now = await self._patiently(interrupts.now)
        assert self._graph is not None  # it has just been executed
        state = waiting.state
        rows = self._kit.questions.new(self._run, self._graph, state, known, now, waiting.unknown)
        events = [interrupt_event(row) for row in rows] or [_paused("pending_interrupts", state)]
        return await self._pause(state, events, rows, given=waiting.given)

    async def _pause(
        self,
        state: Durable,
        events: list[Event],
        rows: list[interrupts.NewInterrupt] | None = None,
        at: Sequence[str] = (),
        given: Sequence[str] = (),
    ) -> bool:
        run = self._run
        stored = self._messages(state.values)

        async def change(conn: Connection, last: int) -> None:
            if not await runs.hold(conn, run.id, run.epoch):
                raise LeaseLost(run.id, run.epoch)
            await messages.replace(conn, run.id, run.epoch, stored)
            if rows:
                await interrupts.insert(conn, run.id, run.epoch, rows)
            if not await runs.pause(
                *(conn, run.id, run.epoch),
                last_sequence=last,
                next_nodes=state.next,
                paused_at=" ".join(at) or None,
                given=given,
            ):
                raise Declined

        events = [*self._unshown(stored), *events]
        return await self._outlet.settle(events, change, leaves=True)

    def _requeue(self, reason: ResumeReason) -> Change:
        run = self._run

        async def change(conn: Connection, last: int) -> None:
            if not await runs.requeue(conn, run.id, run.epoch, last_sequence=last, reason=reason):
                raise LeaseLost(run.id, run.epoch)

        return change

    def _mark_told(self, ids: list[str]) -> Change:
        run = self._run

        async def change(conn: Connection, last: int) -> None:
            if not await interrupts.mark_told(conn, run.id, run.epoch, ids):
                raise LeaseLost(run.id, run.epoch)

        return change

    def _ending(
        self,
        status: Status,
        stored: list[NewMessage],
        open_rows: list[Interrupt],
        columns: dict[str, Any],
    ) -> Change:
        run = self._run

        async def change(conn: Connection, last: int) -> None:
            if self.asked:
                await self._check_open(conn, open_rows)
            if not await messages.replace(conn, run.id, run.epoch, stored):
                raise LeaseLost(run.id, run.epoch)
            ended: Ended | None = await runs.finish(
                conn, run.id, run.epoch, status=status, last_sequence=last, **columns
            )
            if ended is None and await runs.hold(conn, run.id, run.epoch):
                raise Declined
            if ended is None:
                raise LeaseLost(run.id, run.epoch)
            self._promoted = ended.promoted

        return change

    async def _check_open(self, conn: Connection, open_rows: list[Interrupt]) -> None:
        """Under the lock that deciding takes, too: what will be told is what is so."""
        run = self._run
        if not await runs.hold(conn, run.id, run.epoch):
            raise LeaseLost(run.id, run.epoch)
        rows = await interrupts.of_run(conn, run.id)
        now = {row.id: row.status for row in rows if row.status == "pending" or not row.told}
        if now != {row.id: row.status for row in open_rows}:
            raise Declined
        decided = [row.id for row in open_rows if row.status != "pending"]
        await interrupts.mark_told(conn, run.id, run.epoch, decided)

    async def _patiently(self, read: Act[T]) -> T:
        """A read that outlasts a Postgres that is away, as settling does. Raises LeaseLost."""
        return await patiently(self._kit.db, read, self._outlet.wait_or_lost)

    async def _messages_so_far(self) -> list[NewMessage]:
        """What the thread and the clients have of a run that did not come to its end."""
        try:
            values = await self._read_values()
        except Unavailable:
            values = None
        return self._messages(values)

    def _messages(self, values: Any) -> list[NewMessage]:
        run = self._run
        return history.of_run(run.id, run.user_message_id, values, self._page, self._kit.masker)

    def _output(self, values: Any) -> Any:
        """The final state without its messages, masked and bounded (contract §9)."""
        if isinstance(values, dict):
            values = {name: value for name, value in values.items() if name != "messages"}
        if not values:
            return None
        return self._kit.masker.value(values, self._kit.settings.output_bytes_max)


def _paused(reason: str, state: Durable) -> Event:
    return Event("run_paused", {"reason": reason, "next": state.next})


def _closed(row: Interrupt) -> Event:
    """A question that nobody has decided is cancelled by the same transaction that ends the run."""
    return resolved_event(replace(row, status="cancelled") if row.status == "pending" else row)
