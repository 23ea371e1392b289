"""Ends runs that nobody watches any more, where `onDisconnect` says so (contract §4).

The runner that executes a run is the one who looks, so no gateway has to live for it. One look a
second serves all such runs of the process; what it means is decided in `runner/absence`.
"""

import asyncio
from typing import Final

import structlog

from common.bus.presence import Look, Presence
from common.bus.signals import Order
from common.db import runs
from common.db.engine import Database
from common.errors import Unavailable
from runner.absence import Absence, Held
from runner.housekeeping import keep_house
from runner.worker import Worker

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 1.0


class Attendance:
    def __init__(
        self,
        db: Database,
        presence: Presence,
        worker: Worker,
        absence: Absence,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._db, self._presence, self._worker = db, presence, worker
        self._absence, self._interval_s = absence, interval_s

    async def run(self) -> None:
        """Ends by cancellation. A look that fails cancels nothing."""
        await keep_house("attend", self.look, self._interval_s, spread=0)

    async def look(self) -> None:
        held = {
            run.id: (run.id, run.epoch)
            for run in self._worker.executed
            if run.on_disconnect == "cancel"
        }
        look = await self._looked(held)
        now = asyncio.get_running_loop().time()
        if abandoned := self._absence.looked(now, held, look):
            await self._cancel(abandoned)

    async def _looked(self, held: dict[str, Held]) -> Look:
        try:
            return await self._presence.look(held)
        except Unavailable:
            self._absence.unanswered()
            raise

    async def _cancel(self, abandoned: list[Held]) -> None:
        """Asked for as by a person, but only of a run that we still execute: one that has begun to
        wait meanwhile is not abandoned."""
        async with self._db.connect() as conn:
            asked = await runs.abandon(conn, abandoned)
        for run_id in asked:
            log.info("run_abandoned", run_id=run_id)
            self._worker.order(Order("cancel", run_id))
