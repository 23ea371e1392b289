"""Signals as a supervisor needs them: a sleep that ends early, and a count of requests to stop."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Signals:
    """Sleep that ends early for a signal; counts the requests to stop."""

    def __init__(self) -> None:
        self.stops = 0
        self._reader, self._writer = os.pipe()

    @classmethod
    @contextmanager
    def watched(cls) -> Iterator["Signals"]:
        """Install before the first child is started. Main thread only."""
        signals = cls()
        os.set_blocking(signals._reader, False)
        os.set_blocking(signals._writer, False)
        watched = [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD]
        if (
            signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
        ):  # under nohup a closed terminal is fine
            watched.append(signal.SIGHUP)
        before = {number: signal.signal(number, signals._take) for number in watched}
        previous = signal.set_wakeup_fd(signals._writer, warn_on_full_buffer=False)
        try:
            yield signals
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(signals._reader)
            os.close(signals._writer)

    def sleep(self, timeout_s: float) -> None:
        if select.select([self._reader], [], [], max(0.0, timeout_s))[0]:
            os.read(self._reader, 4096)

    def _take(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:
            self.stops += 1
