"""Moves the logs of all runs of this process to Redis and to the archive, off the graphs' path.

* One loop sends (`runner/sending`).
* One loop archives and reserves numbers ahead (`runner/archiving`).
* `Outlet.settle` stores a state: its events are archived in the state's own transaction and are
  sent only after it has committed (I2).

While Redis is away execution goes on: the archive is written more often and gateways follow it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from common.bus.log import LogConnection
from common.db.engine import Database
from runner.archiving import Archiver
from runner.metrics import Metrics
from runner.outlet import Outlet, Outlets
from runner.sending import Sender
from runner.writer import RunWriter


@dataclass(frozen=True, slots=True)
class PublisherLimits:
    """`fresh_s`: how long after its claim a new run's log may be opened without asking Postgres."""

    window_s: float
    archive_interval_s: float
    away_interval_s: float
    buffer_bytes_max: int
    fresh_s: float


class Publisher:
    """Of one life of a runner; `run` ends by cancellation. `may_send`: whether the lease lasts."""

    def __init__(
        self,
        db: Database,
        bus_log: LogConnection,
        limits: PublisherLimits,
        may_send: Callable[[], bool] = lambda: True,
        metrics: Metrics | None = None,
    ) -> None:
        metrics = metrics or Metrics()
        self._db = db
        self._limits = limits
        self.outlets = Outlets()
        self.sender = Sender(
            *(self.outlets, db, bus_log),
            window_s=limits.window_s,
            fresh_s=limits.fresh_s,
            may_send=may_send,
            metrics=metrics,
        )
        self.archiver = Archiver(
            *(self.outlets, db),
            window_s=limits.window_s,
            interval_s=self._archive_interval_s,
            metrics=metrics,
        )

    def outlet(
        self,
        writer: RunWriter,
        *,
        generation: int,
        on_lost: Callable[[], None],
        noted: str | None = None,
    ) -> Outlet:
        """Take a run's log on; `generation` is NEVER unless it is open on that connection.

        `noted`: the Redis that the claim has noted for the run.
        """
        outlet = Outlet(
            *(self.outlets, self._db, writer),
            generation=generation,
            noted=noted,
            on_lost=on_lost,
            bytes_max=self._limits.buffer_bytes_max,
        )
        self.outlets.add(outlet)
        return outlet

    @property
    def held_bytes(self) -> int:
        """Of all runs: what Redis or the archive lacks."""
        return sum(outlet.writer.held_bytes for outlet in self.outlets)

    @property
    def redis_away(self) -> bool:
        return self.sender.redis_away

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sender.run())
            group.create_task(self.archiver.run())

    async def flush(self) -> None:
        """Archive and send what is there, once; used when the process leaves."""
        await self.archiver.round()
        await self.sender.round()

    def _archive_interval_s(self) -> float:
        away = self.sender.redis_away
        return self._limits.away_interval_s if away else self._limits.archive_interval_s
