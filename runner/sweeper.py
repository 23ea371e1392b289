"""Finishes what somebody began on a run that no runner holds, and died before finishing.

A cancellation is asked for in one transaction and acted on in the next; between them the process
may die. Every runner sweeps; the acts are idempotent, so any number may do it at once (I6).
"""

from typing import Final

import structlog

from common.db import runs
from common.db.engine import Database
from common.db.runs import Run
from common.errors import LeaseLost, Unavailable
from common.ownership import OwnerActs
from common.runs import CancelReason
from runner.housekeeping import keep_house
from runner.metrics import Metrics

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 5.0
OLDER_S: Final = 3.0  # whoever asked is given so long to act


class Sweeper:
    def __init__(
        self,
        db: Database,
        owner: OwnerActs,
        *,
        interval_s: float = INTERVAL_S,
        metrics: Metrics | None = None,
    ) -> None:
        self._db = db
        self._owner = owner
        self._interval_s = interval_s
        self._metrics = metrics or Metrics()

    async def run(self) -> None:
        """Ends by cancellation."""
        await keep_house("sweep", self.sweep, self._interval_s)

    async def sweep(self, older_s: float = OLDER_S) -> None:
        async with self._db.connect() as conn:
            left = await runs.to_cancel(conn, older_s)
        for run in left:
            if run.cancel_requested is not None:
                await self._cancel(run, run.cancel_requested)

    async def _cancel(self, run: Run, reason: CancelReason) -> None:
        """One that cannot be ended holds up no other. Raises Unavailable for Postgres only."""
        try:
            await self._owner.cancel(run, reason)
            self._metrics.cancellations.inc()
            log.info("cancellation_finished", run_id=run.id)
        except LeaseLost:  # somebody else is at it
            log.info("cancellation_taken_over", run_id=run.id)
        except Unavailable as error:
            if error.what != "Redis":
                raise
            log.warning("cancellation_waits", run_id=run.id)  # for a dead runner's tail
        except Exception:
            log.exception("cancellation_failed", run_id=run.id)
