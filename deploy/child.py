"""What a supervisor has to know of one process that it keeps."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from deploy.process import Command
from deploy.topology import Role


def _nothing() -> None:
    return None


def _always(pid: int) -> bool:
    return True


@dataclass(frozen=True)
class Child:
    """How one process is started, known to be ready, and stopped."""

    name: str
    role: Role
    command: Command
    url: str | None = None
    prepare: Callable[[], None] = _nothing  # before every start
    is_ready: Callable[[int], bool] = _always
    stop_signal: signal.Signals = signal.SIGTERM
    hard_signal: signal.Signals = signal.SIGKILL
    patience_s: float = 15.0  # between the two
    probation_s: float = 0.0  # ending by itself so soon after its first start is fatal


@dataclass
class Backoff:
    """How long to wait before the next start of a child that has ended."""

    first_s: float = 0.1
    longest_s: float = 10.0
    calm_s: float = 20.0  # a child that ran so long begins at `first_s` again
    _next_s: float = 0.0

    def after(self, uptime_s: float) -> float:
        if uptime_s >= self.calm_s or not self._next_s:
            self._next_s = self.first_s
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, self.longest_s)
        return delay_s
