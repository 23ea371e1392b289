"""Step 8 of a decision (contract §5): the conditional update and what belongs to it, in the
transaction of the caller; after its commit, `tell`.

What was examined may have changed since: the update names it, and who loses is told why.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.bus.signals import Signals
from common.db import conversations, interrupts, runs
from common.db.engine import Connection
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.ending import end
from common.errors import Refused
from common.ownership import Act, OwnerActs
from gateway.schemas import RunOut
from gateway.services.cases import Case, Choice
from gateway.services.idempotency import Answer
from gateway.services.refusals import (
    decided_before,
    not_found,
    not_resumable,
    wire,
)


@dataclass(slots=True)
class Told:
    """What is to be done after the commit."""

    act: Act | None = None
    runner: tuple[str, str, str] | None = None  # (order, runner id, run id)


class Stale(Refused):
    """The facts have changed since they were compared: compare them again, to tell what they are
    now."""


class Decide:
    def __init__(self, owner: OwnerActs, signals: Signals) -> None:
        self._owner, self._signals = owner, signals

    async def decide(
        self, connection: Connection, case: Case, choices: Sequence[Choice], told: Told
    ) -> Answer:
        """All of them or, by a refusal, none."""
        run = await runs.lock(connection, case.run.id)
        if run is None:
            raise not_found()
        decided = [await _win(connection, case, choice) for choice in choices]
        if any(choice.cancels for choice in choices):
            await self._end(connection, case, run, told)
        else:
            await self._queue(connection, case, run, told)
        return await _answer(connection, case, run, decided)

    async def go_on(self, connection: Connection, case: Case, told: Told) -> Answer:
        """`continue`: from a pause in which nothing is asked."""
        run = await runs.lock(connection, case.run.id)
        pending = await interrupts.of_run(connection, case.run.id, "pending")
        if run is None or run.status != "interrupted" or pending:
            raise not_resumable(run or case.run, pending)
        principal = case.principal.stored()
        told.act = await self._owner.resolve(connection, run, "continue", principal)
        return await _answer(connection, case, run, [])

    async def tell(self, told: Told) -> None:
        if told.act is not None:
            await self._owner.tell(told.act)
        elif told.runner is not None:
            order, runner_id, run_id = told.runner
            signal = self._signals.cancel if order == "cancel" else self._signals.decided
            await signal(runner_id, run_id)

    async def _end(self, connection: Connection, case: Case, run: Run, told: Told) -> None:
        """5: a reject that cancels; no tool runs."""
        by = case.principal.user
        told.act = await end(connection, self._owner, run, "rejected", by=by)
        if told.act is None:
            _order(told, "cancel", run)

    async def _queue(self, connection: Connection, case: Case, run: Run, told: Told) -> None:
        """The run's context is built from the owner's last request; an approver's changes nothing
        about what the run may do."""
        principal = case.principal.stored() if case.owner else None
        told.act = await self._owner.resolve(connection, run, "decision", principal)
        if told.act is None:
            if principal is not None:
                await runs.note_principal(connection, run.id, principal)
            _order(told, "decided", run)


async def _win(connection: Connection, case: Case, choice: Choice) -> Interrupt:
    row = await interrupts.decide(
        connection,
        choice.interrupt.id,
        decision=choice.shown,
        answer=choice.answer,
        by=case.principal.user,
        facts_version=None if choice.cancels else case.conversation.facts_version,
    )
    if row is not None:
        return row
    winner = await interrupts.find(connection, choice.interrupt.id)
    if winner is None:
        raise not_found()
    if winner.status == "pending" and await _facts_changed(connection, case):
        raise Stale("VERSION_CONFLICT", "the facts have just changed")
    raise decided_before(winner)


async def _facts_changed(connection: Connection, case: Case) -> bool:
    """While the guard was asked."""
    before = case.conversation
    now = await conversations.find(connection, before.id, before.user_id)
    return now is not None and now.facts_version != before.facts_version


async def _answer(
    connection: Connection, case: Case, before: Run, decided: Sequence[Interrupt]
) -> Answer:
    if not case.owner:
        shown = [wire(row) for row in decided]
        return {"interrupt": shown[0]} | ({"interrupts": shown} if len(shown) > 1 else {})
    run = await runs.find(connection, before.id) or before
    pending = await interrupts.of_run(connection, run.id, "pending")
    view = RunOut.of(run, pending).model_dump(mode="json", by_alias=True)
    return {"run": view, "after": before.last_sequence}


def _order(told: Told, order: str, run: Run) -> None:
    if run.runner_id is not None:
        told.runner = (order, run.runner_id, run.id)
