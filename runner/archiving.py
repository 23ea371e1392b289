"""Archives the logs of all runs of this process, so that what Postgres lacks stays small, and
reserves numbers ahead. States archive their own events (`runner/settling`), results of steps what
they have shown (`runner/gate`).
"""

import asyncio
from collections.abc import Callable

import structlog

from common.db import archive
from common.db.archive import Found, Portion
from common.db.engine import Database
from common.errors import Unavailable
from runner.metrics import Metrics, Since
from runner.outlet import Outlet, Outlets

log = structlog.get_logger(__name__)

_AGAIN_S = 0.2  # until what could not be archived is tried again


class Archiver:
    """`run` ends by cancellation. `interval_s`: the longest time between rounds just now; each
    waits `window_s` for what else comes.
    """

    def __init__(
        self,
        outlets: Outlets,
        db: Database,
        *,
        window_s: float,
        interval_s: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._outlets = outlets
        self._db = db
        self._window_s, self._interval_s = window_s, interval_s
        self._metrics = metrics
        self._behind = Since()
        metrics.archive_behind_s.set_function(lambda: self._behind.seconds)

    async def run(self) -> None:
        while True:
            await self._wait_until_due()
            try:
                if await self.round():
                    continue
            except Unavailable:
                log.warning("archive_behind", outlets=len(self._outlets))
            await asyncio.sleep(_AGAIN_S)
            self._outlets.to_archive.set()

    async def round(self) -> bool:
        """One statement for all runs. Who no longer holds a run learns it here. False: not all
        could be done. Raises Unavailable.

        Numbered here too, since a round of sending may wait for Redis meanwhile.
        """
        self._outlets.number()
        work = [(o, self._portion(o)) for o in self._outlets if self._wants_archive(o)]
        if not work:
            self._behind.end()
            return True
        self._behind.begin()
        async with self._db.connect() as conn:
            with self._metrics.archive_s.time():
                found = await archive.append_all(conn, [portion for _, portion in work])
        for (outlet, portion), what in zip(work, found, strict=True):
            self._take_found(outlet, portion, what)
        self._outlets.to_send.set()
        if "busy" in found:
            return False
        self._behind.end()
        return True

    async def _wait_until_due(self) -> None:
        due = self._outlets.to_archive
        try:
            async with asyncio.timeout(self._interval_s()):
                await due.wait()
            await asyncio.sleep(self._window_s)
        except TimeoutError:
            pass
        due.clear()

    def _wants_archive(self, outlet: Outlet) -> bool:
        writer = outlet.writer
        return not outlet.leaving and (writer.runs_low or bool(writer.archivable()))

    def _portion(self, outlet: Outlet) -> Portion:
        writer = outlet.writer
        return Portion(writer.run_id, writer.epoch, writer.next_block, writer.archivable())

    def _take_found(self, outlet: Outlet, portion: Portion, found: Found) -> None:
        if found == "lost":
            outlet.lose_unless_settling()
        elif found == "archived":
            outlet.writer.reserve(portion.upto)
            outlet.archived([*portion.batches])
