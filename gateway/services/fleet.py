"""The numbers of the whole system on every gateway's /metrics: one query, made when it is asked.

Whoever scrapes pays, and several scrapes within `fresh_s` share one look. With Postgres away the
numbers are NaN, so that an old queue is not taken for the present one; `server_up` says why.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from common.db import fleet
from common.db.engine import Database
from common.db.fleet import Fleet
from common.errors import Unavailable
from gateway.metrics import Metrics

_TIMEOUT_S = 2.0
_NAN = math.nan
_UNKNOWN = Fleet(*([_NAN] * len(Fleet.__dataclass_fields__)))  # type: ignore[arg-type]


class FleetLook:
    def __init__(
        self,
        db: Database,
        ping_redis: Callable[[], Awaitable[None]],
        metrics: Metrics,
        fresh_s: float = 2.0,
    ) -> None:
        self._db, self._ping_redis, self._metrics = db, ping_redis, metrics
        self._fresh_s = fresh_s
        self._looked_at = -math.inf
        self._one = asyncio.Lock()

    async def refresh(self) -> None:
        """Never raises for a server that is away, and never takes much longer than its limit."""
        async with self._one:
            if time.monotonic() - self._looked_at >= self._fresh_s:
                found, redis = await asyncio.gather(self._look(), _answers(self._ping_redis))
                self._set(found or _UNKNOWN)
                self._metrics.server_up.labels("postgres").set(found is not None)
                self._metrics.server_up.labels("redis").set(redis)
                self._looked_at = time.monotonic()

    async def _look(self) -> Fleet | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._db.connect() as connection:
                return await fleet.look(connection)
        except (Unavailable, TimeoutError):
            return None

    def _set(self, found: Fleet) -> None:
        metrics = self._metrics
        for status in ("queued", "running", "interrupted"):
            metrics.runs.labels(status).set(getattr(found, status))
        metrics.runs_overdue.set(found.overdue)
        metrics.queue_s.set(found.queue_oldest_s)
        metrics.pending.set(found.pending)
        metrics.pending_s.set(found.pending_oldest_s)
        metrics.runners.labels("serving").set(found.runners)
        metrics.runners.labels("draining").set(found.draining)
        metrics.places.set(found.places)


async def _answers(ping: Callable[[], Awaitable[None]]) -> bool:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await ping()
    except (Unavailable, TimeoutError):
        return False
    return True
