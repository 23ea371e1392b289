"""User code that goes on after its run was taken off, and what a runner does about it.

A run is taken off at once: stop the graph, wait a moment, store the outcome. What its code does
afterwards has no effect, since rows, log, checkpoints and guarded effects are fenced by epoch and
status. But neither a thread nor a task that swallows its cancellation can be ended from outside, so
code that goes on for `patience_s` is ended together with its process: the runner claims nothing
more, hands its other runs over as for SIGTERM, and exits with status 1 for its supervisor to start
it again.

    async node that swallows cancellation   taken off after `execution.CANCEL_GRACE_S`, then here
    sync node that never returns            its task ends, its thread is counted (runner/guarding)
    node that blocks the event loop         nothing here runs any more. Another runner takes the run
                                            away seconds after a cancellation or the time limit
                                            (common/db/runners.reap), all of them when the lease is
                                            over; `runner/ending` ends the process
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from runner.guarding import Work

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Leftover:
    run_id: str
    task: "asyncio.Task[object]"
    work: Work
    deadline: float

    @property
    def has_ended(self) -> bool:
        return self.task.done() and self.work.calls == 0


class Leftovers:
    """Of one process, over all lives of its runner."""

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._left: list[_Leftover] = []

    def __len__(self) -> int:
        self._left = [one for one in self._left if not one.has_ended]
        return len(self._left)

    def add(self, run_id: str, task: "asyncio.Task[object]", work: Work) -> None:
        """The run is off; `task` or calls of `work` go on."""
        left = _Leftover(run_id, task, work, self._clock() + self._patience_s)
        if not left.has_ended:
            log.warning("code_goes_on", threads=work.calls, task=not task.done())
            self._left.append(left)

    async def watch(self) -> str:
        """The run whose code does not end, once its time is over."""
        while True:
            if (stuck := self._overdue()) is not None:
                log.error("code_does_not_end", run_id=stuck.run_id, threads=stuck.work.calls)
                return stuck.run_id
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _overdue(self) -> _Leftover | None:
        now = self._clock()
        return next((one for one in self._left if now > one.deadline), None) if len(self) else None
