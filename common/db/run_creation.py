"""Creating runs, also behind or instead of others of their conversation (contract §4, onConflict).

Waiting runs. A run that is enqueued behind an active one sets `followed` on the active one's row.
Both that and the ending are updates of this one row, so they come one after the other: either the
ending sees `followed` and promotes, or the enqueuing sees no active run and needs not wait. They
go in order of `position`; one whose cancellation was asked for is passed over.

Superseding. A run that comes with `interrupt` or `rollback` is wanted instead of all that has not
ended: the active run and those that wait are asked to be cancelled, so of any number that come at
once the newest is executed. It locks the active run before it looks, so that nobody can begin to
wait unseen. A run that is to be rolled back can only end as cancelled: nothing of it may be told as
stored and then be gone. All locks of a conversation's runs are taken in order of `position`.
"""

from typing import Any, Final

from common.db import run_sql
from common.db.engine import Connection
from common.db.run_rows import NewRun, Run
from common.db.values import refuse_unstorable
from common.errors import Unavailable

_CREATE_TRIES: Final = 10


async def create(connection: Connection, new: NewRun) -> Run | None:
    """The user's message and its run, in one statement. None: the conversation is busy.

    Not `reject`: the run waits behind the active one, in order of arrival. `interrupt` and
    `rollback`, in a transaction, also ask for the cancellation of all `unended` runs before it.
    Whoever calls then cancels them (`common.ownership.OwnerActs.cancel`); should that be lost, the
    runner's next heartbeat or the sweep of `to_cancel` finds them.
    """
    refuse_unstorable(content=new.content, input=new.input, metadata=new.metadata)
    values = _creation_values(new)
    if new.on_conflict == "reject":
        row = await run_sql.CREATE.row(connection, **values)
        return None if row is None else Run(*row)
    for _ in range(_CREATE_TRIES):
        row = await _enqueue(connection, new, values)
        if row is not None:
            return Run(*row)
    raise Unavailable("Postgres")


async def has_room(
    connection: Connection, user_id: str, most: int, instead_of: str | None = None
) -> bool:
    """Whether fewer than `most` runs of the user are queued or running, those of the conversation
    `instead_of` left out. In the transaction that creates the run, before it: whoever creates
    another one for the user waits here until this one is committed, and then counts it.
    """
    values = {"user": user_id, "most": most, "instead_of": instead_of}
    return bool(await run_sql.HAS_ROOM.value(connection, **values))


def _creation_values(new: NewRun) -> dict[str, Any]:
    return {
        "id": new.id,
        "conversation": new.conversation_id,
        "user": new.user_id,
        "message": new.user_message_id,
        "graph": new.graph,
        "content": new.content,
        "input": new.input,
        "principal": new.principal,
        "metadata": new.metadata,
        "on_disconnect": new.on_disconnect,
        "traceparent": new.traceparent,
    }


async def _enqueue(connection: Connection, new: NewRun, values: dict[str, Any]) -> Any | None:
    """No row: the active run ended while we waited for it, and another one was there already."""
    if new.on_conflict == "enqueue":
        return await run_sql.ENQUEUE.row(connection, **values)
    active = await run_sql.LOCK_ACTIVE.value(connection, conversation=new.conversation_id)
    if active is None:
        return await run_sql.CREATE.row(connection, **values)
    rollback = new.on_conflict == "rollback"
    return await run_sql.SUPERSEDE.row(connection, rollback=rollback, **values)
