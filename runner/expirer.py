"""Expires questions that nobody has decided in time (the act is common/expiry.py).

Every runner looks once a second, by an index that holds pending questions only: a look that finds
nothing costs a few microseconds of Postgres, so that the number of runners does not matter. Who
comes second to a run finds it locked or done. A run that cannot be expired is set aside for a
while, so that it neither hides those behind it nor fails every second.
"""

import random
import time
from collections.abc import Callable
from typing import Final

import structlog

from common.bus.signals import Signals
from common.db import interrupts
from common.db.engine import Database
from common.errors import LeaseLost, Unavailable
from common.expiry import Expired, expire
from common.ownership import OwnerActs
from runner.housekeeping import keep_house

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 1.0
PORTION: Final = 20
PAUSE_MIN_S: Final = 5.0
PAUSE_MAX_S: Final = 300.0
ASIDE_MAX: Final = 1000


class Aside:
    """Runs that could not be expired: each waits twice as long as the last time. Bounded: of more
    than so many the first is tried again at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[str, tuple[float, float]] = {}  # until when, and how long that was

    def put(self, run_id: str) -> None:
        _, pause_s = self._runs.pop(run_id, (0.0, PAUSE_MIN_S / 2))
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
        self._runs[run_id] = self._clock() + pause_s, pause_s
        if len(self._runs) > ASIDE_MAX:
            del self._runs[next(iter(self._runs))]

    def take_back(self, run_id: str) -> None:
        self._runs.pop(run_id, None)

    def waiting(self) -> set[str]:
        now = self._clock()
        return {run_id for run_id, (until, _) in self._runs.items() if now < until}


class Expirer:
    def __init__(
        self,
        db: Database,
        owner: OwnerActs,
        signals: Signals,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db, self._owner, self._signals = db, owner, signals
        self._interval_s = interval_s
        self._aside = Aside(clock)

    async def run(self) -> None:
        """Ends by cancellation."""
        await keep_house("expire", self.sweep, self._interval_s)

    async def sweep(self) -> int:
        """All that is overdue, each run once; how many were expired by us. Raises Unavailable."""
        passed, count = self._aside.waiting(), 0
        while overdue := await self._overdue(passed):
            for run_id in overdue:
                if await self._expire_and_tell(run_id):
                    count += 1
                else:
                    passed.add(run_id)
        return count

    async def _overdue(self, passed: set[str]) -> list[str]:
        async with self._db.connect() as connection:
            overdue = await interrupts.overdue_runs(connection, PORTION, but=passed)
        random.shuffle(overdue)  # two that sweep at once shall not queue behind each other
        return overdue

    async def _expire_and_tell(self, run_id: str) -> bool:
        """Told at once, and one that cannot be expired holds up no other."""
        try:
            expired = await self._expire(run_id)
            if expired is not None:
                await self._tell(expired)
        except Unavailable:
            raise
        except Exception:
            log.exception("expiry_failed", run_id=run_id)
            self._aside.put(run_id)
            return False
        self._aside.take_back(run_id)
        return expired is not None

    async def _expire(self, run_id: str) -> Expired | None:
        try:
            return await self._expired(run_id)
        except LeaseLost:  # its log has a newer owner, so somebody else is at it
            log.info("expiry_taken_over", run_id=run_id)
        except Unavailable as error:
            if error.what != "Redis":
                raise
            return await self._expired(run_id, at_once=False)
        return None

    async def _expired(self, run_id: str, *, at_once: bool = True) -> Expired | None:
        async with self._db.begin() as connection:
            return await expire(connection, self._owner, run_id, at_once=at_once)

    async def _tell(self, expired: Expired) -> None:
        run = expired.run
        ids = [question.id for question in expired.questions]
        log.info("interrupts_expired", run_id=run.id, interrupts=ids)
        if expired.act is not None:
            await self._owner.tell(expired.act)
        elif run.runner_id is not None:
            signal = self._signals.cancel if expired.order == "cancel" else self._signals.decided
            await signal(run.runner_id, run.id)
