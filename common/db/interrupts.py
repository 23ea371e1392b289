"""Interrupts: durable requests for a person (contract §5). One decision wins (I4).

A row is `pending` until one conditional update decides it. `answer` is what the graph gets, wrapped
as {"value": …}; it is sent until the durable state shows that it was `taken` (core-facts §4).
`told` says that `interrupt_resolved` is in the run's log.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from common.db import interrupt_sql
from common.db.engine import Connection
from common.db.paging import at_position, encode, page
from common.runs import InterruptStatus, InterruptType


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A row of `interrupts`, all of it. `decision` is what the person sent, masked."""

    id: str
    run_id: str
    conversation_id: str
    user_id: str
    native_id: str
    asked: int
    type: InterruptType
    format: str
    status: InterruptStatus
    payload: Any
    allowed_decisions: list[str]
    actions: list[dict[str, Any]]
    required_permission: str | None
    expires_at: datetime | None
    on_reject: Literal["cancel", "continue"]
    on_expire: Literal["cancel", "reject"]
    resource: Any
    answer_schema: Any
    facts_version: int
    decision: Any
    answer: dict[str, Any] | None
    resolved_by: str | None
    resolved_at: datetime | None
    told: bool
    taken: bool
    position: int
    created_at: datetime

    @property
    def is_of_effect(self) -> bool:
        """Whether it asks about a guarded effect (runner/effectcard), not for the graph."""
        return self.native_id.startswith("eff_")

    @property
    def answer_value(self) -> Any:
        """What `interrupt()` returns to the graph; None without an answer."""
        return None if self.answer is None else self.answer["value"]


@dataclass(frozen=True, slots=True)
class NewInterrupt:
    """A question as the runner stores it. `asked`: how often `native_id` was answered before.

    `id` is for instance `stable_id("int", run_id, native_id, str(asked))`. The user, conversation
    and version of the facts are read from the run's rows in the same statement. `expires_at` is by
    the database's clock (`now`), and the same in the row as in the event that tells of it.
    """

    id: str
    native_id: str
    asked: int
    type: InterruptType
    format: str
    payload: Any
    allowed_decisions: Sequence[str]
    actions: Sequence[dict[str, Any]]
    on_reject: Literal["cancel", "continue"]
    on_expire: Literal["cancel", "reject"]
    required_permission: str | None = None
    expires_at: datetime | None = None
    resource: Any = None
    answer_schema: Any = None


async def insert(
    connection: Connection, run_id: str, epoch: int, new: Sequence[NewInterrupt]
) -> list[Interrupt] | None:
    """Stores the questions and gives their rows in this order. Fenced: None.

    One that was stored before (same native id and count) comes back as it is now, perhaps decided.
    """
    if not new:
        return []
    rows = await interrupt_sql.INSERT.rows(
        connection, run=run_id, epoch=epoch, new=[_values(n) for n in new]
    )
    if not rows:
        return None
    stored = {(row["native_id"], row["asked"]): Interrupt(*row) for row in rows}
    return [stored[n.native_id, n.asked] for n in new]


async def of_run(
    connection: Connection, run_id: str, status: InterruptStatus | None = None
) -> list[Interrupt]:
    """In the order in which they were asked."""
    rows = await interrupt_sql.OF_RUN.rows(connection, run=run_id, status=status)
    return [Interrupt(*row) for row in rows]


async def pending_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[Interrupt]]:
    """Pending ones by run, for pages of runs and conversations."""
    found: dict[str, list[Interrupt]] = {run_id: [] for run_id in run_ids}
    for row in await interrupt_sql.PENDING_OF.rows(connection, runs=list(run_ids)):
        found[row["run_id"]].append(Interrupt(*row))
    return found


async def untaken(connection: Connection, run_id: str) -> list[Interrupt]:
    """Decided, with an answer for the graph that it has not taken yet."""
    rows = await interrupt_sql.UNTAKEN.rows(connection, run=run_id)
    return [Interrupt(*row) for row in rows]


async def untold(connection: Connection, run_id: str) -> list[Interrupt]:
    """Decided, without `interrupt_resolved` in the log."""
    rows = await interrupt_sql.UNTOLD.rows(connection, run=run_id)
    return [Interrupt(*row) for row in rows]


async def now(connection: Connection) -> datetime:
    """The database's clock, which decides what has expired."""
    moment: datetime = await interrupt_sql.NOW.value(connection)
    return moment


async def find(connection: Connection, interrupt_id: str) -> Interrupt | None:
    row = await interrupt_sql.FIND.row(connection, id=interrupt_id)
    return None if row is None else Interrupt(*row)


async def inbox(
    connection: Connection,
    user_id: str,
    permissions: Sequence[str],
    status: InterruptStatus,
    cursor: str | None,
    limit: int,
) -> tuple[list[Interrupt], str | None]:
    """All that the caller may decide or might have: by permission, or as the owner where none is
    required (contract §5). Newest first.
    """
    rows = await interrupt_sql.INBOX.rows(
        connection,
        user=user_id,
        permissions=list(permissions),
        status=status,
        position=at_position(cursor),
        limit=limit + 1,
    )
    return page([Interrupt(*row) for row in rows], limit, _place)


def cursor_after(row: Interrupt) -> str:
    """Of the inbox: where a page goes on that ends with `row`."""
    return encode(_place(row))


def _place(row: Interrupt) -> tuple[int]:
    return (row.position,)


async def decide(
    connection: Connection,
    interrupt_id: str,
    *,
    decision: Any,
    answer: dict[str, Any] | None,
    status: InterruptStatus = "resolved",
    by: str | None,
    facts_version: int | None = None,
) -> Interrupt | None:
    """The one conditional update that makes the winner. None: somebody else was first.

    `answer` None gives the graph nothing (a reject that cancels). In a transaction that holds the
    run by `runs.lock`. A person's decision on one that has expired loses, too: its status says why.
    So does one whose conversation no longer has the `facts_version` that was compared, if given.
    """
    row = await interrupt_sql.DECIDE.row(
        connection,
        id=interrupt_id,
        decision=decision,
        answer=answer,
        status=status,
        by=by,
        facts_version=facts_version,
    )
    return None if row is None else Interrupt(*row)


async def cancel_pending(connection: Connection, run_id: str) -> list[Interrupt]:
    """What is still pending when the run ends is cancelled. Gives these rows, to tell of them."""
    rows = await interrupt_sql.CANCEL_PENDING.rows(connection, run=run_id)
    return [Interrupt(*row) for row in rows]


async def expire_overdue(connection: Connection, run_id: str) -> list[Interrupt]:
    """Pending ones of a run whose time is over become `expired`, without an answer."""
    rows = await interrupt_sql.EXPIRE_OVERDUE.rows(connection, run=run_id)
    return [Interrupt(*row) for row in rows]


async def overdue_of(connection: Connection, run_id: str) -> list[Interrupt]:
    """Pending ones of a run whose time is over. Under `runs.lock` they stay so."""
    rows = await interrupt_sql.OVERDUE_OF.rows(connection, run=run_id)
    return [Interrupt(*row) for row in rows]


async def overdue_runs(
    connection: Connection, limit: int, *, but: Collection[str] = ()
) -> list[str]:
    """Runs with pending ones whose time is over, for the sweep of any process (common.expiry):
    those of the `limit` longest overdue, `but` these runs left out. Empty: there is no other."""
    return [
        row[0] for row in await interrupt_sql.OVERDUE_RUNS.rows(connection, limit=limit, but=[*but])
    ]


async def mark_told(connection: Connection, run_id: str, epoch: int, ids: Sequence[str]) -> bool:
    """In the transaction that archives their `interrupt_resolved`. Fenced."""
    return await interrupt_sql.MARK_TOLD.found(connection, run=run_id, epoch=epoch, ids=list(ids))


async def mark_told_unheld(connection: Connection, run_id: str, ids: Sequence[str]) -> None:
    """The same for an owner's act (common.ownership), under `runs.lock`."""
    await interrupt_sql.MARK_TOLD_UNHELD.rows(connection, run=run_id, ids=list(ids))


async def mark_taken(connection: Connection, run_id: str, epoch: int, ids: Sequence[str]) -> bool:
    """The graph has these answers, by its durable state. Fenced. Never taken back."""
    return await interrupt_sql.MARK_TAKEN.found(connection, run=run_id, epoch=epoch, ids=list(ids))


def _values(new: NewInterrupt) -> dict[str, Any]:
    """One element of the array that `INSERT` unpacks; absent is JSON null."""
    return {
        "id": new.id,
        "native_id": new.native_id,
        "asked": new.asked,
        "type": new.type,
        "format": new.format,
        "payload": new.payload,
        "allowed_decisions": list(new.allowed_decisions),
        "actions": list(new.actions),
        "on_reject": new.on_reject,
        "on_expire": new.on_expire,
        "required_permission": new.required_permission,
        "expires_at": None if new.expires_at is None else new.expires_at.isoformat(),
        "resource": new.resource,
        "answer_schema": new.answer_schema,
    }
