"""Keeps a set of child processes running, and stops all of them in order.

One thread, the main one (children die with the thread that forked them, and Python delivers
signals to it). It sleeps until a signal arrives: SIGCHLD looks after the children, the first
SIGINT or SIGTERM stops, the second one stops by force.

A child that ends is started again, later each time it ends soon. While a child starts for the first
time, ending with a status of its own is a cause to give up (`ChildFailed`); being killed is not.
"""

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from common.errors import Misconfigured, SteadyrunError
from deploy.child import Backoff, Child
from deploy.process import Command, has_exited, kill_group, spawn
from deploy.signals import Signals
from deploy.topology import Process, Role

STOP_ORDER: tuple[Role, ...] = ("nginx", "gateway", "runner", "redis", "postgres")


class ChildFailed(SteadyrunError):
    """A child cannot be started; the message names it, its last words and its log."""

    def __init__(self, message: str, last_words: str = "") -> None:
        super().__init__(message)
        self.last_words = last_words


class Stopped(Exception):
    """Somebody asked us to stop while something was still being started."""


@dataclass
class _Kept:
    """A child and its present life."""

    child: Child
    process: Popen[bytes] | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    lives: int = 0
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started_at


class Supervisor:
    """`on_change` gets the living processes after every change; `say` one line for a person."""

    def __init__(
        self,
        signals: Signals,
        *,
        on_change: Callable[[Sequence[Process]], None],
        say: Callable[[str], object],
    ) -> None:
        self._signals = signals
        self._on_change = on_change
        self._say = say
        self._kept: list[_Kept] = []

    def start(self, children: Iterable[Child], timeout_s: float = 120.0) -> None:
        """Start `children` side by side; return when all are ready.

        Raises ChildFailed, or Stopped when a request to stop came first.
        """
        new = [_Kept(child) for child in children]
        for kept in new:
            self._stop_if_asked()
            kept.child.prepare()
            self._kept.append(kept)
            self._spawn(kept)
        deadline = time.monotonic() + timeout_s
        for kept in new:
            while not self._is_ready(kept):
                if time.monotonic() > deadline:
                    raise ChildFailed(f"{kept.child.name} is not ready after {timeout_s:.0f} s")
                self._turn(0.02, starting=new)

    def run_once(self, name: str, command: Command) -> None:
        """Run a command to its end, looking after the children; raises as `start` does."""
        before = command.log.stat().st_size if command.log.exists() else 0
        process = spawn(command)
        try:
            while not has_exited(process):
                self._turn(0.1)
        finally:
            kill_group(process.pid)
            process.wait()
        if process.returncode:
            said = _last_line(command.log, before) if process.returncode > 0 else ""
            raise ChildFailed(_obituary(name, process.returncode, command.log, before), said)

    def watch(self) -> None:
        """Keep all children running until somebody asks us to stop."""
        while not self._signals.stops:
            self._look_after([])
            self._signals.sleep(self._until_due_s())

    def stop(self) -> None:
        """Stop all children in order; a second request to stop does it by force."""
        for role in STOP_ORDER:
            self._stop([k for k in self._kept if k.child.role == role and k.process])
            self._announce()

    # one turn

    def _turn(self, timeout_s: float, starting: Sequence[_Kept] = ()) -> None:
        self._look_after(starting)
        self._signals.sleep(timeout_s)
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._signals.stops:
            raise Stopped

    def _look_after(self, starting: Sequence[_Kept]) -> None:
        for kept in self._kept:
            if kept.process and has_exited(kept.process):
                self._bury(kept, is_starting=kept in starting)
            elif not kept.process and time.monotonic() >= kept.due_at:
                self._restart(kept)

    def _until_due_s(self) -> float:
        waiting = [k.due_at for k in self._kept if not k.process]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else 60.0

    # one child

    def _is_ready(self, kept: _Kept) -> bool:
        return kept.process is not None and kept.child.is_ready(kept.process.pid)

    def _spawn(self, kept: _Kept) -> None:
        kept.process = spawn(kept.child.command)
        kept.started_at = time.monotonic()
        kept.lives += 1
        self._announce()

    def _restart(self, kept: _Kept) -> None:
        """A child that cannot even be forked (full disk, no memory) is tried again later."""
        try:
            kept.child.prepare()
            self._spawn(kept)
        except (OSError, Misconfigured) as error:
            kept.due_at = time.monotonic() + kept.backoff.after(0.0)
            self._say(f"{kept.child.name} cannot be started again: {error}")

    def _bury(self, kept: _Kept, *, is_starting: bool) -> None:
        assert kept.process is not None
        status = kept.process.returncode
        kept.process = None
        self._announce()
        epitaph = _obituary(kept.child.name, status, kept.child.command.log)
        on_probation = kept.lives == 1 and kept.uptime_s < kept.child.probation_s
        if status >= 0 and (is_starting or on_probation):
            raise ChildFailed(epitaph)
        delay_s = kept.backoff.after(kept.uptime_s)
        kept.due_at = time.monotonic() + delay_s
        self._say(f"{epitaph}; it is started again in {delay_s:.1f} s")

    def _announce(self) -> None:
        """A state folder that cannot be written must not take the system down."""
        living = [(k.child, k.process) for k in self._kept if k.process]
        try:
            self._on_change([Process(c.name, c.role, p.pid, c.url) for c, p in living])
        except OSError as error:
            self._say(f"the list of processes cannot be written: {error}")

    def _stop(self, group: list[_Kept]) -> None:
        patience_s = max((k.child.patience_s for k in group), default=0.0)
        self._signal(group, lambda child: child.stop_signal)
        self._await(group, patience_s, is_forced=lambda: self._signals.stops > 1)
        self._signal(group, lambda child: child.hard_signal)
        self._await(group, 5.0)
        self._signal(group, lambda child: signal.SIGKILL)
        self._await(group, 5.0)

    def _signal(self, group: list[_Kept], choose: Callable[[Child], signal.Signals]) -> None:
        for kept in group:
            if kept.process and not has_exited(kept.process):
                kept.process.send_signal(choose(kept.child))

    def _await(
        self, group: list[_Kept], timeout_s: float, is_forced: Callable[[], bool] = lambda: False
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not is_forced():
            for kept in group:
                if kept.process and has_exited(kept.process):
                    kept.process = None
            if not any(k.process for k in group):
                return
            self._signals.sleep(0.1)


def _obituary(name: str, status: int, log: Path, since: int = 0) -> str:
    cause = f"was killed by {signal.Signals(-status).name}" if status < 0 else "ended"
    said = _last_line(log, since) if status > 0 else ""
    return f"{name} {cause} (status {status}{': ' + said if said else ''}, log {log})"


def _last_line(log: Path, since: int = 0) -> str:
    """Of what was written after the first `since` bytes: others have written there before."""
    try:
        lines = log.read_bytes()[since:].decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""
