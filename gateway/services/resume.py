"""Deciding interrupts: the eight steps of contract §5, in their order, in one transaction.

    0 the key            3 not expired         6 the resource and the facts, read anew
    1 pending, of the    4 shape, format,      7 the graph's guard
      run                  validator           8 one conditional update, and the run is queued
    2 who may decide     5 reject and cancel

The transaction is open from the key on, since a second call with the key has to wait for the first
one's end; that is why only some of the pool's connections may be in here at once. Whoever is
neither the run's owner nor holds the permission learns nothing: that comes before step 1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common import hitl
from common.bus.signals import Signals
from common.db import conversations, interrupts, runs
from common.db.engine import Connection, Database
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.errors import Refused
from common.ids import is_id
from common.masking import Masker
from common.ownership import Act, OwnerActs
from gateway.auth import Principal
from gateway.schemas import (
    ContinueRequest,
    DecisionRequest,
    RunOut,
    ValuesRequest,
)
from gateway.services.hooks import Hooks
from gateway.services.idempotency import Answer, fingerprint, once
from gateway.services.refusals import (
    decided_before,
    expired,
    not_found,
    not_resumable,
    refuse_changed,
    wire,
)


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """A decision in the words of the session facade (contract §6)."""

    interrupt_id: str
    reply: hitl.Reply
    confirm_version: str | None = None


Request = DecisionRequest | ValuesRequest | ContinueRequest | ReplyRequest
Find = Callable[[Connection], Awaitable[tuple[str, Request]]]
"""Which run is meant and what is asked, in the transaction, once the key is known to be new."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """`answer` is what goes out; the owner also gets a stream that goes on after `after`."""

    answer: Answer
    owner: bool
    after: int


@dataclass(slots=True)
class _Told:
    """What is to be done after the commit."""

    act: Act | None = None
    runner: tuple[str, str, str] | None = None  # (order, runner id, run id)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A decision that passed its validation: what the graph gets, or that the run ends."""

    interrupt: Interrupt
    shown: Any
    answer: dict[str, Any] | None
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """One call: who asks for what on which run."""

    principal: Principal
    run: Run
    told: _Told = field(default_factory=_Told)

    @property
    def owner(self) -> bool:
        return self.run.user_id == self.principal.user


class Resume:
    def __init__(
        self,
        db: Database,
        owner: OwnerActs,
        signals: Signals,
        hooks: Hooks,
        masker: Masker,
        *,
        concurrency: int,
    ) -> None:
        self._db, self._owner, self._signals = db, owner, signals
        self._hooks, self._masker = hooks, masker
        self._places = asyncio.Semaphore(concurrency)

    async def resume(
        self,
        principal: Principal,
        run_id: str,
        request: DecisionRequest | ValuesRequest | ContinueRequest,
        key: str | None,
    ) -> Resumed:
        made = fingerprint("resume", run_id, request.model_dump(mode="json", by_alias=True))

        async def given(_: Connection) -> tuple[str, Request]:
            return run_id, request

        return await self.resume_found(principal, made, key, given)

    async def resume_found(
        self, principal: Principal, made: bytes, key: str | None, find: Find
    ) -> Resumed:
        """The same for what `find` gives; `made` is the fingerprint of the request that came."""
        told = _Told()
        async with self._places, self._db.begin() as connection:

            async def act() -> Answer:
                run_id, request = await find(connection)
                case = await self._case(connection, principal, run_id, told)
                return await self._act(connection, case, request)

            answer, _ = await once(connection, principal, key, made, act)
        await self._tell(told)
        after = answer.pop("after", 0)
        return Resumed(answer, "run" in answer, after)

    async def _case(
        self, connection: Connection, principal: Principal, run_id: str, told: _Told
    ) -> _Case:
        run = await runs.find(connection, run_id) if is_id(run_id, "run") else None
        if run is None:
            raise not_found()
        return _Case(principal, run, told)

    async def _act(self, connection: Connection, case: _Case, request: Request) -> Answer:
        if isinstance(request, ContinueRequest):
            return await self._go_on(connection, case)
        ids = request.resume if isinstance(request, ValuesRequest) else [request.interrupt_id]
        rows = [await self._pending(connection, case, interrupt_id) for interrupt_id in ids]
        for row in rows:
            await self._may_decide(case, row)
        await _notexpired(connection, rows)
        choices = await self._choices(case, rows, request)
        if not any(choice.cancels for choice in choices):
            await self._unchanged(connection, case, rows, request.confirm_version)
        return await self._decide(connection, case, choices)

    # 1: the interrupt belongs to the run and is pending

    async def _pending(self, connection: Connection, case: _Case, interrupt_id: str) -> Interrupt:
        row = None
        if is_id(interrupt_id, "int"):
            row = await interrupts.find(connection, interrupt_id)
        if row is None or row.run_id != case.run.id or not _sees(case, row):
            raise not_found()
        if row.status != "pending":
            raise decided_before(row)
        return row

    # 2: the caller may decide it

    async def _may_decide(self, case: _Case, row: Interrupt) -> None:
        if not case.principal.holds(row.required_permission):
            raise Refused(
                "PERMISSION_REVOKED",
                "deciding this needs a permission that the token does not give",
                requiredPermission=row.required_permission,
            )
        await self._hooks.authorize(case.run.graph, case.principal, wire(row))

    # 4: shape, format and validator

    async def _choices(
        self,
        case: _Case,
        rows: Sequence[Interrupt],
        request: DecisionRequest | ValuesRequest | ReplyRequest,
    ) -> list[_Choice]:
        if isinstance(request, ValuesRequest):
            choices = [self._raw(row, request.resume[row.id]) for row in rows]
        elif isinstance(request, ReplyRequest):
            by = case.principal.user
            choices = [self._replied(row, request.reply, by) for row in rows]
        else:
            by = case.principal.user
            choices = [self._formed(row, request.decision, by) for row in rows]
        values = {c.interrupt.id: c.answer["value"] for c in choices if c.answer is not None}
        if values:
            wires = [wire(row) for row in rows]
            await self._hooks.validate(case.run.graph, values, wires, case.principal)
        return choices

    def _formed(self, row: Interrupt, decision: Any, by: str) -> _Choice:
        found = hitl.answer(row, decision, by=by)
        shown = self._masker.value(decision)
        if isinstance(found, hitl.Invalid):
            raise Refused("VALIDATION", f"decision: {found.detail}")
        if isinstance(found, hitl.CancelRun):
            return _Choice(row, shown, None, cancels=True)
        return _Choice(row, shown, {"value": found.value})

    def _replied(self, row: Interrupt, reply: hitl.Reply, by: str) -> _Choice:
        found = hitl.replied(row, reply)
        if isinstance(found, hitl.Invalid):
            raise Refused("VALIDATION", f"response_type: {found.detail}")
        if isinstance(found, hitl.Decided):
            return self._formed(row, found.decision, by)
        return self._raw(row, found.value)

    def _raw(self, row: Interrupt, value: Any) -> _Choice:
        invalid = hitl.validate_raw(row, value)
        if invalid is not None:
            raise Refused("VALIDATION", f"resume.{row.id}: {invalid.detail}")
        return _Choice(row, self._masker.value({"resume": value}), {"value": value})

    # 6 and 7: what changed meanwhile, and the guard

    async def _unchanged(
        self,
        connection: Connection,
        case: _Case,
        rows: Sequence[Interrupt],
        confirmed: str | None,
    ) -> None:
        conversation = await conversations.find(
            connection, case.run.conversation_id, case.run.user_id
        )
        if conversation is None:
            raise not_found()
        current = {
            row.id: await self._hooks.reload(case.run.graph, row.resource)
            for row in rows
            if row.resource is not None
        }
        shown = {key: self._masker.value(resource) for key, resource in current.items()}
        refuse_changed(case.owner, rows, conversation, current, shown, confirmed)
        for resource in current.values():
            await self._hooks.revalidate(case.run.graph, resource, case.principal)

    # 5 and 8: the conditional update, in the transaction that queues or ends the run

    async def _decide(
        self, connection: Connection, case: _Case, choices: Sequence[_Choice]
    ) -> Answer:
        run = await runs.lock(connection, case.run.id)
        if run is None:
            raise not_found()
        decided = [await self._win(connection, case, choice) for choice in choices]
        if any(choice.cancels for choice in choices):
            await self._end(connection, case, run)
        else:
            await self._queue(connection, case, run)
        return await self._answer(connection, case, run, decided)

    async def _win(self, connection: Connection, case: _Case, choice: _Choice) -> Interrupt:
        row = await interrupts.decide(
            connection,
            choice.interrupt.id,
            decision=choice.shown,
            answer=choice.answer,
            by=case.principal.user,
        )
        if row is None:
            winner = await interrupts.find(connection, choice.interrupt.id)
            raise not_found() if winner is None else decided_before(winner)
        return row

    async def _end(self, connection: Connection, case: _Case, run: Run) -> None:
        case.told.act = await self._owner.end(connection, run, "rejected")
        if case.told.act is None:
            await runs.request_cancel(connection, run.id, "rejected")
            _order(case.told, "cancel", run)

    async def _queue(self, connection: Connection, case: _Case, run: Run) -> None:
        principal = case.principal.stored() if case.owner else None
        case.told.act = await self._owner.resolve(connection, run, "decision", principal)
        if case.told.act is None:
            _order(case.told, "decided", run)

    async def _go_on(self, connection: Connection, case: _Case) -> Answer:
        """`continue`: only the owner, only from a pause in which nothing is asked."""
        if not case.owner:
            raise not_found()
        run = await runs.lock(connection, case.run.id)
        pending = await interrupts.of_run(connection, case.run.id, "pending")
        if run is None or run.status != "interrupted" or pending:
            raise not_resumable(run or case.run, pending)
        case.told.act = await self._owner.resolve(
            connection, run, "continue", case.principal.stored()
        )
        return await self._answer(connection, case, run, [])

    async def _answer(
        self, connection: Connection, case: _Case, before: Run, decided: Sequence[Interrupt]
    ) -> Answer:
        if not case.owner:
            return {"interrupt": wire(decided[0])}
        run = await runs.find(connection, before.id) or before
        pending = await interrupts.of_run(connection, run.id, "pending")
        shown = RunOut.of(run, pending).model_dump(mode="json", by_alias=True)
        return {"run": shown, "after": before.last_sequence}

    async def _tell(self, told: _Told) -> None:
        if told.act is not None:
            await self._owner.tell(told.act)
        elif told.runner is not None:
            order, runner_id, run_id = told.runner
            signal = self._signals.cancel if order == "cancel" else self._signals.decided
            await signal(runner_id, run_id)


def _sees(case: _Case, row: Interrupt) -> bool:
    """The owner, or whoever holds the permission that the interrupt requires."""
    required = row.required_permission
    return case.owner or (required is not None and case.principal.holds(required))


def _order(told: _Told, order: str, run: Run) -> None:
    if run.runner_id is not None:
        told.runner = (order, run.runner_id, run.id)


# 3: the time of the question is not over


async def _notexpired(connection: Connection, rows: Sequence[Interrupt]) -> None:
    now = await interrupts.now(connection)
    for row in rows:
        if row.expires_at is not None and row.expires_at <= now:
            raise expired(row)
