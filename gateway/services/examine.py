"""Steps 1 to 7 of a decision (contract §5): whether it may be taken, and what the graph gets.

Nothing is written, and no transaction is open while a graph author's code is asked: it may take
its time. So what was read here may be old when the decision is stored; `decide` names all of it in
its conditional update.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common import facts, hitl
from common.db import conversations, interrupts, runs
from common.db.engine import Connection, Database
from common.db.interrupts import Interrupt
from common.errors import Refused
from common.graphfile import GraphFile
from common.ids import is_id
from common.masking import Masker
from gateway.auth import Principal
from gateway.schemas import DecisionRequest, ValuesRequest
from gateway.services.cases import Case, Choice
from gateway.services.changes import compared, refuse_changed
from gateway.services.hooks import Hooks
from gateway.services.refusals import decided_before, expired, not_found, wire
from gateway.services.resources import look


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """A decision in the words of the session facade (contract §6)."""

    interrupt_id: str
    reply: hitl.Reply
    confirm_version: str | None = None


Request = DecisionRequest | ValuesRequest | ReplyRequest


class Examine:
    def __init__(self, db: Database, hooks: Hooks, masker: Masker, graphs: GraphFile) -> None:
        self._db, self._hooks, self._masker, self._graphs = db, hooks, masker, graphs

    async def case(self, principal: Principal, run_id: str, ids: Sequence[str]) -> Case:
        """The run and the named interrupts, as they are now; 1: they are its, and are pending.

        Whoever is neither the owner nor holds the permission learns nothing. 2, the token's part,
        and 3 are decided by the same reading.
        """
        async with self._db.snapshot() as connection:
            case = await _read(connection, principal, run_id, ids)
            now = await interrupts.now(connection)
        for row in case.rows:
            if row.status != "pending":
                raise decided_before(row)
        for row in case.rows:
            _permitted(case, row)
        for row in case.rows:
            await self._hooks.authorize(case.run.graph, principal, wire(row))
        for row in case.rows:
            if row.expires_at is not None and row.expires_at <= now:
                raise expired(row)
        return case

    async def choices(self, case: Case, request: Request) -> list[Choice]:
        """4: shape, format and validator; 5: a reject that cancels asks no more; 6 and 7."""
        choices = [self._choice(case, row, request) for row in case.rows]
        given = [c for c in choices if c.answer is not None and not c.interrupt.is_of_effect]
        if values := {c.interrupt.id: c.answer["value"] for c in given if c.answer is not None}:
            wires = [wire(choice.interrupt) for choice in given]
            await self._hooks.validate(case.run.graph, values, wires, case.principal)
        if any(choice.cancels for choice in choices):
            return choices
        current = await self._unchanged(case, choices, request.confirm_version)
        return [
            choice.accepting(compared(choice.interrupt.resource, current.get(choice.interrupt.id)))
            for choice in choices
        ]

    def _choice(self, case: Case, row: Interrupt, request: Request) -> Choice:
        if isinstance(request, ValuesRequest):
            return self._raw(row, request.resume[row.id])
        by = case.principal.user
        if isinstance(request, ReplyRequest):
            return self._replied(row, request.reply, by)
        return self._formed(row, request.decision, by)

    def _formed(self, row: Interrupt, decision: Any, by: str) -> Choice:
        found = hitl.answer(row, decision, by=by)
        shown = self._masker.value(decision)
        if isinstance(found, hitl.Invalid):
            raise Refused("VALIDATION", f"decision: {found.detail}")
        if isinstance(found, hitl.CancelRun):
            return Choice(row, shown, None, cancels=True)
        return Choice(row, shown, {"value": found.value})

    def _replied(self, row: Interrupt, reply: hitl.Reply, by: str) -> Choice:
        found = hitl.replied(row, reply)
        if isinstance(found, hitl.Invalid):
            raise Refused("VALIDATION", f"response_type: {found.detail}")
        if isinstance(found, hitl.Decided):
            return self._formed(row, found.decision, by)
        return self._raw(row, found.value)

    def _raw(self, row: Interrupt, value: Any) -> Choice:
        invalid = hitl.validate_raw(row, value)
        if invalid is not None:
            raise Refused("VALIDATION", f"resume.{row.id}: {invalid.detail}")
        return Choice(row, self._masker.value({"resume": value}), {"value": value})

    async def _unchanged(
        self, case: Case, choices: Sequence[Choice], confirmed: str | None
    ) -> dict[str, Any]:
        """The resources of questions as they are now: what the person has seen, or accepted."""
        looked = await look(self._hooks, case, choices)
        refuse_changed(
            case.rows, case.conversation, looked, confirmed, self._masker, self._facts(case)
        )
        for one in looked:
            await self._hooks.revalidate(case.run.graph, one.now, case.principal)
        return {one.interrupt_id: one.now for one in looked if one.action is None}

    def _facts(self, case: Case) -> dict[str, Any] | None:
        spec = self._graphs.graphs.get(case.conversation.graph)
        if not case.owner or spec is None:
            return None
        held = case.principal.permissions
        return facts.visible(case.conversation.facts, spec.fact_permissions, held)


async def _read(
    connection: Connection, principal: Principal, run_id: str, ids: Sequence[str]
) -> Case:
    run = await runs.find(connection, run_id) if is_id(run_id, "run") else None
    if run is None:
        raise not_found()
    conversation = await conversations.find(connection, run.conversation_id, run.user_id)
    if conversation is None:
        raise not_found()
    case = Case(principal, run, conversation)
    rows = tuple([await _interrupt(connection, case, interrupt_id) for interrupt_id in ids])
    return Case(principal, run, conversation, rows)


async def _interrupt(connection: Connection, case: Case, interrupt_id: str) -> Interrupt:
    row = await interrupts.find(connection, interrupt_id) if is_id(interrupt_id, "int") else None
    if row is None or row.run_id != case.run.id or not case.sees(row):
        raise not_found()
    return row


def _permitted(case: Case, row: Interrupt) -> None:
    """2: whoever holds the permission by this token; the owner where none is required."""
    if not case.principal.holds(row.required_permission):
        raise Refused(
            "PERMISSION_REVOKED",
            "deciding this needs a permission that the token does not give",
            requiredPermission=row.required_permission,
        )
