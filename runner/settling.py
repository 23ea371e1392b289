"""Commits the state of a run together with its events: once, whatever Postgres answers."""

from collections.abc import Awaitable, Callable

from common.db import archive, runs
from common.db.engine import Connection, Database
from common.errors import LeaseLost, Unavailable
from runner.patience import AGAIN_S, Pause, patiently
from runner.writer import RunWriter

Change = Callable[[Connection, int], Awaitable[None]]
"""Stores a state inside the transaction, given the last sequence. Raises LeaseLost or Declined."""


class Declined(Exception):
    """A state turned out not to hold, for example a decision arrived: nothing was stored."""


async def commit(db: Database, writer: RunWriter, change: Change, last: int, pause: Pause) -> None:
    """The state's transaction, tried until Postgres answers or the lease is lost. `last`: the last
    number that `writer` has given the state's events; `pause` raises once the run is lost. Raises
    LeaseLost or Declined.
    """
    unsure = False
    while True:
        try:
            return await _commit_once(db, writer, change, last)
        except Unavailable:
            unsure = True
            await pause(AGAIN_S)
        except LeaseLost:
            if unsure and await _has_committed(db, writer, last, pause):
                return None
            raise


async def _commit_once(db: Database, writer: RunWriter, change: Change, last: int) -> None:
    async with db.begin() as conn:
        batches = writer.unarchived()
        if batches and not await archive.append(conn, writer.run_id, writer.epoch, batches):
            raise LeaseLost(writer.run_id, writer.epoch)
        await change(conn, last)


async def _has_committed(db: Database, writer: RunWriter, last: int, pause: Pause) -> bool:
    """Whether the answer to our commit was lost, not the commit: the row tells."""
    run = await patiently(db, lambda conn: runs.find(conn, writer.run_id), pause)
    return run is not None and run.epoch == writer.epoch and run.last_sequence == last
