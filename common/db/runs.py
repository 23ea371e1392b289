"""Runs: finding them, and the acts of a runner under its epoch (contract §2, design §5).

`create` and what it does with a busy conversation stand in common.db.run_creation.

Fenced statements name (id, epoch, status 'running') and give nothing when another owner has the
run; the caller raises LeaseLost (I3). In a transaction of several statements `hold` comes first: it
orders the owners of one run, and whoever decides something on the run takes the same lock (`lock`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from common.db import checkpoints, conversations, run_sql
from common.db.engine import Connection
from common.db.run_creation import create, has_room
from common.db.run_rows import ClaimedRun, Ended, NewRun, Run
from common.runs import CancelReason, ResumeReason, Status

__all__ = ["ClaimedRun", "Ended", "NewRun", "Run", "create", "has_room"]

OVERDUE_AFTER_S = 5.0
"""So long after its time limit a run is taken from an owner that has not ended it."""

_NEVER = -1


async def find(connection: Connection, run_id: str) -> Run | None:
    row = await run_sql.FIND.row(connection, id=run_id)
    return None if row is None else Run(*row)


async def find_for_user(connection: Connection, run_id: str, user_id: str) -> Run | None:
    """Another user's run is None, as if it were not there (contract §4)."""
    run = await find(connection, run_id)
    return run if run is not None and run.user_id == user_id else None


async def active(connection: Connection, conversation_id: str) -> Run | None:
    """The run that makes the conversation busy; a waiting one does not count."""
    row = await run_sql.ACTIVE.row(connection, conversation=conversation_id)
    return None if row is None else Run(*row)


async def unended(connection: Connection, conversation_id: str) -> list[Run]:
    """The active run and those that wait behind it, in their order."""
    rows = await run_sql.UNENDED.rows(connection, conversation=conversation_id)
    return [Run(*row) for row in rows]


async def active_of(connection: Connection, conversation_ids: list[str]) -> dict[str, Run]:
    """Active runs by conversation, for a page of conversations."""
    rows = await run_sql.ACTIVE_OF.rows(connection, conversations=conversation_ids)
    return {row["conversation_id"]: Run(*row) for row in rows}


async def graphs_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, str]:
    """The graph's name by run; one that is deleted is missing."""
    return {row[0]: row[1] for row in await run_sql.GRAPHS_OF.rows(connection, ids=[*run_ids])}


async def latest(connection: Connection, conversation_id: str) -> Run | None:
    """The newest run of a conversation, whatever its status."""
    row = await run_sql.LATEST.row(connection, conversation=conversation_id)
    return None if row is None else Run(*row)


async def count_by_status(connection: Connection) -> dict[str, int]:
    return {row[0]: row[1] for row in await run_sql.COUNT.rows(connection)}


async def lock(connection: Connection, run_id: str) -> Run | None:
    """The run as it is now, and nobody changes it before this transaction ends.

    The first statement of everything that is decided on a run from outside.
    """
    row = await run_sql.LOCK.row(connection, id=run_id)
    return None if row is None else Run(*row)


async def try_lock(connection: Connection, run_id: str) -> Run | None:
    """The same without waiting. None: another transaction has the row, or there is none."""
    row = await run_sql.TRY_LOCK.row(connection, id=run_id)
    return None if row is None else Run(*row)


async def claim(
    connection: Connection,
    runner_id: str,
    graphs: list[str],
    limit: int,
    reserve: int,
    redis_identity: str | None,
    *,
    timeouts_s: Mapping[str, float] | None = None,
    attempts_max: int = 1,
) -> list[ClaimedRun]:
    """Up to `limit` queued runs, the longest waiting first; each goes to one claimer only.

    Raises each epoch. A run that never had an owner gets its first `reserve` numbers and its Redis
    noted right here. Nothing for a runner that is dead or whose lease is over.

    `timeouts_s`: longest execution by graph, over all owners; the owner ends the run itself then,
    and loses it to the reapers some seconds later if it does not. `attempts_max`: of those whose
    last attempt it is, a runner holds one at a time, since one of them may be what kills runners.
    """
    rows = await run_sql.CLAIM.rows(
        connection,
        runner=runner_id,
        graphs=graphs,
        limit=limit,
        reserve=reserve,
        identity=redis_identity,
        timeouts=dict(timeouts_s or {}),
        overdue_after=OVERDUE_AFTER_S,
        last_attempt=attempts_max - 1 or _NEVER,
    )
    return [ClaimedRun(*row) for row in rows]


async def reserve(connection: Connection, run_id: str, epoch: int, upto: int) -> bool:
    """Numbers up to `upto` may be used from now on. Fenced."""
    return await run_sql.RESERVE.found(connection, id=run_id, epoch=epoch, upto=upto)


async def note_identity(
    connection: Connection, run_id: str, epoch: int, identity: str | None, upto: int
) -> bool:
    """Notes the Redis that this owner writes to, and reserves numbers as `reserve` does. Fenced."""
    return await run_sql.NOTE.found(
        connection, id=run_id, epoch=epoch, identity=identity, upto=upto
    )


async def hold(connection: Connection, run_id: str, epoch: int) -> bool:
    """Whether the run is ours; it stays so to the end of this transaction. Fenced.

    Stronger than FOR SHARE: two transactions of one owner that both shared the row and then
    updated it would wait for each other. Fenced single statements (checkpoints) wait meanwhile.
    """
    return await run_sql.HOLD.found(connection, id=run_id, epoch=epoch)


async def finish(
    connection: Connection,
    run_id: str,
    epoch: int,
    *,
    status: Status,
    last_sequence: int,
    message_id: str | None = None,
    output: Any = None,
    error: dict[str, Any] | None = None,
    cancel_reason: CancelReason | None = None,
) -> Ended | None:
    """Ends a held run: completed (message_id, output), failed (error), cancelled (cancel_reason).

    None: fenced; or the run is held, to be rolled back, and may only be cancelled. In a transaction
    with the archive of the terminal event. Interrupts that are still pending are cancelled with it,
    and count as told: their `interrupt_resolved` stands before that event.
    """
    row = await run_sql.FINISH.row(
        connection,
        id=run_id,
        epoch=epoch,
        status=status,
        last=last_sequence,
        message=message_id,
        output=output,
        error=error,
        reason=cancel_reason,
    )
    return None if row is None else await _after_end(connection, run_id, *row)


async def cancel_unheld(
    connection: Connection, run_id: str, epoch: int, reason: CancelReason, last_sequence: int
) -> tuple[Run, Ended] | None:
    """Ends a run that no runner holds, as a new owner: the epoch rises from `epoch` by one.

    Called by common.ownership under `lock`. None: it is held, has ended, or has a newer epoch.
    """
    row = await run_sql.CANCEL_UNHELD.row(
        connection, id=run_id, epoch=epoch, reason=reason, last=last_sequence
    )
    if row is None:
        return None
    *fields, followed = row
    run = Run(*fields)
    return run, await _after_end(connection, run.id, run.conversation_id, followed, run.rollback)


async def pause(
    connection: Connection,
    run_id: str,
    epoch: int,
    *,
    last_sequence: int,
    next_nodes: list[str],
    paused_at: str | None = None,
    given: Sequence[str] = (),
) -> bool:
    """running → interrupted. In a transaction that began with `hold`.

    A run that came to ask a person works so far: its deaths are forgotten (`attempts`), which
    cannot go on for ever without people.

    False after a `hold` that was True: a decision or a cancel request came in between. The run must
    not wait then: look again, and go on (contract §5). `paused_at` names the breakpoint at which it
    stands, for whoever takes it up after it was continued; None leaves the last one. `given`:
    interrupts whose answers the graph had, and will need again since it was stopped to ask more.
    """
    return await run_sql.PAUSE.found(
        connection,
        id=run_id,
        epoch=epoch,
        last=last_sequence,
        next=next_nodes,
        paused_at=paused_at,
        given=list(given),
    )


async def requeue(
    connection: Connection, run_id: str, epoch: int, *, last_sequence: int, reason: ResumeReason
) -> bool:
    """running → queued, cleanly: all events up to `last_sequence` are archived. Fenced.

    Not charged as an attempt: only a dead runner is (design §5).
    """
    return await run_sql.REQUEUE.found(
        connection, id=run_id, epoch=epoch, last=last_sequence, reason=reason
    )


async def give_back(
    connection: Connection, run_id: str, epoch: int, *, charged: bool = False
) -> bool:
    """running → queued, uncleanly: a tail of the log may be in Redis only, and numbers that were
    reserved may have been used. For a run that its runner holds but does not execute. `charged`:
    it counts as an attempt, as the death of a runner does. Fenced.
    """
    return await run_sql.GIVE_BACK.found(connection, id=run_id, epoch=epoch, charged=int(charged))


async def queue_unheld(
    connection: Connection,
    run_id: str,
    epoch: int,
    reason: ResumeReason,
    last_sequence: int,
    principal: dict[str, Any] | None,
) -> Run | None:
    """interrupted → queued, as a new owner: the epoch rises from `epoch` by one.

    Called by common.ownership under `lock`. `principal`: who asked, None leaves it as it is.
    """
    row = await run_sql.QUEUE_UNHELD.row(
        connection,
        id=run_id,
        epoch=epoch,
        reason=reason,
        last=last_sequence,
        principal=principal,
    )
    return None if row is None else Run(*row)


async def note_principal(connection: Connection, run_id: str, principal: dict[str, Any]) -> None:
    """Who asked last, for the context of the next take-up. Under `lock`."""
    await run_sql.NOTE_PRINCIPAL.rows(connection, id=run_id, principal=principal)


async def request_cancel(
    connection: Connection, run_id: str, reason: CancelReason, *, by: str | None = None
) -> Run | None:
    """The first reason counts, and `by` whom it was: a user; None where nobody asked. Gives the
    run; None if it has ended or never was."""
    row = await run_sql.REQUEST_CANCEL.row(connection, id=run_id, reason=reason, by=by)
    return None if row is None else Run(*row)


async def abandon(connection: Connection, held: Sequence[tuple[str, int]]) -> list[str]:
    """Asks for the cancellation, reason `disconnected`, of those (run, epoch) that are still held.

    Gives their ids. Fenced: a run that waits or is queued is not abandoned (contract §4).
    """
    ids, epochs = [run_id for run_id, _ in held], [epoch for _, epoch in held]
    return [row[0] for row in await run_sql.ABANDON.rows(connection, ids=ids, epochs=epochs)]


async def owned(
    connection: Connection, runner_id: str
) -> dict[str, tuple[int, CancelReason | None]]:
    """(epoch, cancel request) of every run that the runner holds: what is missing it has lost."""
    rows = await run_sql.OWNED.rows(connection, runner=runner_id)
    return {row[0]: (row[1], row[2]) for row in rows}


async def to_cancel(connection: Connection, older_s: float, limit: int = 100) -> list[Run]:
    """Runs that no runner holds though their cancellation was asked `older_s` ago: somebody died
    between asking and acting. Any process may finish it (OwnerActs.cancel).
    """
    rows = await run_sql.TO_CANCEL.rows(connection, older=older_s, limit=limit)
    return [Run(*row) for row in rows]


async def _after_end(
    connection: Connection, run_id: str, conversation_id: str, followed: bool, rollback: bool
) -> Ended:
    if rollback:
        await run_sql.DELETE_MESSAGES.rows(connection, id=run_id)
        await checkpoints.roll_back(connection, conversation_id, run_id)
        await conversations.drop_summary(connection, conversation_id, run_id)
    if not followed:
        return Ended(promoted=None)
    return Ended(promoted=await run_sql.PROMOTE.value(connection, conversation=conversation_id))
