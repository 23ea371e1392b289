"""The reaper: calls dead runners dead and hands their runs back (theory: runner/lease.py).

Every runner has one and all do the same; nothing coordinates them. A look is one idempotent
statement that is its own transaction, so a reaper that is stopped or killed at any point holds no
row, and what it left undone the next look of anybody does. The more runners there are, the less
often each looks: the load on Postgres stays the same, and no death is noticed later.
Whether a runner's free lock counts stands in its row, not here: runners with and without a lock
(death_notice) may live side by side.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from common.bus.signals import Signals
from common.db import runners
from common.db.engine import Database
from common.errors import Unavailable
from runner.metrics import Metrics

log = logging.getLogger(__name__)

PAUSE_PER_RUNNER_S: Final = 0.01
JITTER: Final = 0.2
SWEEP_INTERVAL_S: Final = 10.0


class LastLook:
    """When this process last reached Postgres to look; outlives the lives of a runner.

    Leases that ran out while nobody could renew say nothing about the runners, so a look after a
    gap charges no run. A process that has just started cannot know, and charges.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: float | None = None

    def was_within(self, seconds: float) -> bool:
        return self._at is None or self._clock() - self._at <= seconds

    def note(self) -> None:
        self._at = self._clock()


class Reaper:
    """One of all that look for the dead. Wake-ups are best effort: claims poll as well (§5)."""

    def __init__(
        self,
        *,
        database: Database,
        signals: Signals,
        lease_ttl_s: float,
        reap_interval_s: float,
        reap_grace_s: float,
        last_look: LastLook | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._database = database
        self._signals = signals
        self._lease_ttl_s = lease_ttl_s
        self._interval_s = reap_interval_s
        self._grace_s = reap_grace_s
        self._last_look = last_look or LastLook()
        self._metrics = metrics or Metrics()
        self._alive = 1
        self._sweep_at = float("-inf")

    async def run(self) -> None:
        """Look, pause, for ever. Waits out a Postgres that is away; ends by cancellation."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                log.warning("no look for dead runners: %s", error)
            await asyncio.sleep(pause_s(self._interval_s, self._alive, random.random()))

    async def look(self) -> None:
        """Hand back what dead runners hold, wake the living, end the sessions of the dead.

        Raises Unavailable; what was done before stands, the rest is left to the next look.
        """
        charged = self._last_look.was_within(self._lease_ttl_s / 2)
        async with self._database.connect() as connection:
            reaped = await runners.reap(
                connection, self._grace_s, self._lease_ttl_s, charged=charged
            )
        self._last_look.note()
        self._metrics.dead_found.inc(len(reaped.runners))
        self._metrics.handed_back.inc(len(reaped.runs))
        for run_id in reaped.runs:
            log.warning("run %s is handed back", run_id)
            await self._signals.wake(run_id)
        for runner_id in reaped.runners:
            log.warning("runner %s is dead", runner_id)
        if reaped.runners or time.monotonic() >= self._sweep_at:
            await self._sweep()

    async def _sweep(self) -> None:
        """After a death, and now and then: whoever found the death may have died right after it.

        A stopped process can hold rows in an open transaction; the look passes them over, and
        takes them once the session is ended.
        """
        async with self._database.connect() as connection:
            if ended := await runners.terminate_sessions(connection):
                log.warning("%d sessions of dead runners are ended", ended)
            await runners.purge(connection)
            self._alive = await runners.count_alive(connection)
        self._sweep_at = time.monotonic() + SWEEP_INTERVAL_S


def pause_s(interval_s: float, alive: int, chance: float) -> float:
    """Between two looks: longer with many runners, never in step. `chance` is in [0, 1)."""
    return max(interval_s, PAUSE_PER_RUNNER_S * alive) * (1 - JITTER + 2 * JITTER * chance)
