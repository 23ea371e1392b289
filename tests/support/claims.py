"""Claimed runs for tests of the runner, on the rows of tests/support/rows."""

from common.db import runs
from common.db.engine import Database
from common.db.runs import ClaimedRun
from tests.support import rows


async def new_runner(db: Database) -> str:
    async with db.connect() as conn:
        return await rows.runner(conn, ttl_s=600)


async def claimed_run(
    db: Database, runner_id: str, *, identity: str | None, reserve: int
) -> ClaimedRun:
    async with db.begin() as conn:
        queued = await rows.queued_run(conn)
        claimed = await runs.claim(conn, runner_id, [rows.GRAPH], 100, reserve, identity)
    return next(run for run in claimed if run.id == queued.id)
