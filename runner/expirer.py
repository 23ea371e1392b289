"""Expires questions that nobody has decided in time (the act is common/expiry.py).

Every runner looks once a second, by an index that holds pending questions only: a look that finds
nothing costs a few microseconds of Postgres, so that the number of runners does not matter. Who
comes second to a run finds it locked or done.
"""

import random
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


class Expirer:
    def __init__(
        self, db: Database, owner: OwnerActs, signals: Signals, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._db, self._owner, self._signals = db, owner, signals
        self._interval_s = interval_s

    async def run(self) -> None:
        """Ends by cancellation."""
        await keep_house("expire", self._sweep_all, self._interval_s)

    async def _sweep_all(self) -> None:
        while await self.sweep() == PORTION:
            pass

    async def sweep(self) -> int:
        """A portion of what is overdue; how many runs were expired by us. Raises Unavailable."""
        async with self._db.connect() as connection:
            overdue = await interrupts.overdue_runs(connection, PORTION)
        random.shuffle(overdue)  # two that sweep at once shall not queue behind each other
        return sum([await self._expire_and_tell(run_id) for run_id in overdue])

    async def _expire_and_tell(self, run_id: str) -> bool:
        """Told at once, and one that cannot be expired holds up no other."""
        try:
            if (expired := await self._expire(run_id)) is None:
                return False
            await self._tell(expired)
        except Unavailable:
            raise
        except Exception:
            log.exception("expiry_failed", run_id=run_id)
            return False
        return True

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
