"""Ending a run from outside, in the transaction that found that it has to end (design §3)."""

from common.db import runs
from common.db.engine import Connection
from common.db.runs import Run
from common.ownership import Act, OwnerActs
from common.runs import CancelReason


async def end(
    connection: Connection,
    owner: OwnerActs,
    run: Run,
    reason: CancelReason,
    *,
    by: str | None = None,
    at_once: bool = True,
) -> Act | None:
    """Ends `run`, as `runs.lock` just gave it, at once if nobody holds it. None: it is held, and
    its runner is asked to (it waits for the signal `cancel`), or it has ended. `by`: the user who
    wants it; the first reason counts, and who gave it. Not `at_once`: it is only asked for, and
    whoever takes the run up ends it.

    Raises Unavailable where a dead runner's tail is in a Redis that is away.
    """
    asked = await runs.request_cancel(connection, run.id, reason, by=by)
    if asked is None or not at_once:
        return None
    return await owner.end(connection, run, asked.cancel_requested or reason)
