"""Sees to it that a runner's process really ends, whatever user code does in it.

Python waits at its exit for every thread that is no daemon, and asyncio for every task; user code
may keep either for ever. And while the event loop stands still, neither signals nor a lost lease
can be acted upon. Here are the two last means, both without the loop:

* `end_within` a few seconds, from a thread, once the runner has done its last work;
* `LoopWatch`, from a thread too, when the loop has stood still for so long that the lease must be
  over. A node that keeps the interpreter's lock as well stops this thread; then faulthandler's
  timer, which needs no lock, ends the process and names the code that stands.

A process that was stopped (SIGSTOP) as a whole has missed nothing: the watch begins anew.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

log = logging.getLogger(__name__)

BEAT_INTERVAL_S: Final = 1.0


def end_now(status: int) -> None:
    """No clean-up but of what was written already."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def end_within(seconds: float, status: int) -> None:
    """The process ends by itself until then, or by force."""

    def wait() -> None:
        time.sleep(seconds)
        end_now(status)

    threading.Thread(target=wait, name="ending", daemon=True).start()


class LoopWatch:
    """`beat` from the loop; `end` is called when it has not come for `limit_s`."""

    def __init__(
        self,
        limit_s: float,
        end: Callable[[int], None] = end_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._end = end
        self._clock = clock
        self._beat_at = self._looked_at = clock()

    def beat(self) -> None:
        self._beat_at = self._clock()

    def start(self) -> None:
        threading.Thread(target=self._look_forever, name="loop watch", daemon=True).start()

    def look(self) -> None:
        """Once an interval."""
        now = self._clock()
        if now - self._looked_at > 3 * BEAT_INTERVAL_S:  # we were stopped ourselves
            self._beat_at = now
        self._looked_at = now
        if now - self._beat_at > self._limit_s:
            log.critical("the event loop stands still: this process ends")
            self._end(1)

    def _look_forever(self) -> None:
        while True:
            self.look()
            faulthandler.dump_traceback_later(self._limit_s + 5 * BEAT_INTERVAL_S, exit=True)
            time.sleep(BEAT_INTERVAL_S)
