"""What ends an execution from outside, and how long it may last."""

import asyncio
from typing import Any, Final

from common.db.runs import ClaimedRun
from common.errors import LeaseLost
from runner.outcomes import Cancelled, Failed, Outcome

LAST_LOOK_S: Final = 3.0
"""At a run whose time is over: it may have come to its end unstored."""

TIMED_OUT: Final = Failed("RUN_TIMEOUT", "The run took longer than it may.", True)


class Stop:
    """Of one take-up. The first order counts; time is that of the loop, over all take-ups."""

    def __init__(self, run: ClaimedRun, timeout_s: float) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._ordered: asyncio.Future[Outcome | None] = self._loop.create_future()
        self._over_at = self._loop.time() + timeout_s - run.executed_s
        self._deadline = max(self._over_at, self._loop.time() + min(LAST_LOOK_S, timeout_s))

    def order(self, outcome: Outcome | None) -> None:
        """End the execution with this; None: the run is lost, and nothing may be stored."""
        if not self._ordered.done():
            self._ordered.set_result(outcome)

    @property
    def is_ordered(self) -> bool:
        return self._ordered.done()

    @property
    def is_lost(self) -> bool:
        return self._ordered.done() and self._ordered.result() is None

    @property
    def is_cancelled(self) -> bool:
        return self._ordered.done() and isinstance(self._ordered.result(), Cancelled)

    @property
    def outcome(self) -> Outcome | None:
        """What was ordered, None where nothing was. Raises LeaseLost when the run is lost."""
        if self.is_lost:
            raise LeaseLost(self._run.id, self._run.epoch)
        return self._ordered.result() if self._ordered.done() else None

    @property
    def time_is_over(self) -> bool:
        return self._loop.time() >= self._over_at

    @property
    def is_past_deadline(self) -> bool:
        """Not even a last look is to be had."""
        return self._loop.time() >= self._deadline

    async def first_of(self, *others: asyncio.Future[Any]) -> None:
        """Until one of the others is done, an order comes or the deadline."""
        remaining_s = self._deadline - self._loop.time()
        awaited = {*others, self._ordered}
        await asyncio.wait(awaited, timeout=remaining_s, return_when="FIRST_COMPLETED")
