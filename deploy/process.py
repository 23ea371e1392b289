"""Child processes that cannot outlive us, and the truth about processes that we did not start.

A child is its own session: Ctrl-C in a terminal reaches the supervisor only, else the database
would be gone before the gateways have drained. On Linux the kernel ends a child when the *thread*
that forked it ends (PR_SET_PDEATHSIG), so children are started from the main thread.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.unprivileged import Account

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Command:
    """What to execute, as whom and where; `death_signal` comes when we are gone."""

    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    account: Account | None = None
    death_signal: signal.Signals = signal.SIGKILL


def hear_the_keyboard() -> None:
    """For a child with a session of its own. `nohup` and the background of a script leave their
    commands deaf to these signals, and what is deaf hands that on to all that it starts."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def spawn(command: Command) -> subprocess.Popen[bytes]:
    """Start `command` with its output appended to its log. Call from the main thread only."""
    parent = os.getpid()

    def die_with_parent() -> None:  # between fork and exec, after the change of user
        hear_the_keyboard()
        if LIBC is not None:
            LIBC.prctl(PR_SET_PDEATHSIG, int(command.death_signal), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    account = command.account
    with command.log.open("ab") as log:
        return subprocess.Popen(
            list(command.argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=command.cwd,
            env=command.env,
            start_new_session=True,
            preexec_fn=die_with_parent,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )


def has_exited(child: subprocess.Popen[bytes]) -> bool:
    """True once `child` is dead. What is left of its process group is killed before it is reaped:
    while it is a zombie its number cannot belong to another group (nginx's workers outlive a killed
    master and would keep its port)."""
    if child.returncode is not None:
        return True
    if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return False
    kill_group(child.pid)
    child.wait()
    return True


def kill_group(pgid: int, timeout_s: float = 5.0) -> None:
    """Kill what there is of a process group; return when it has let go of its ports."""
    deadline = time.monotonic() + timeout_s
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)
        while group_members(pgid) and time.monotonic() < deadline:
            time.sleep(0.005)


def command_line(pid: int) -> str | None:
    """The command line of a living process, None when there is none or it is a zombie."""
    if sys.platform != "linux":
        return _command_line_by_ps(pid)
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return None if state in "ZX" else words.replace(b"\0", b" ").decode(errors="replace")


def _command_line_by_ps(pid: int) -> str | None:
    ps = subprocess.run(
        ["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    text = ps.stdout.strip()
    return None if ps.returncode or text.startswith("Z") else text


def stop_leftover(pid: int, mark: str, gentle: signal.Signals, patience_s: float = 20.0) -> None:
    """End process `pid` if it is really the one whose command line holds `mark`.

    A pid file of a dead process may name a stranger by now, above all in containers.
    """
    for sign, wait_s in ((gentle, patience_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + wait_s
        if mark not in (command_line(pid) or ""):
            return
        os.kill(pid, sign)
        while mark in (command_line(pid) or "") and time.monotonic() < deadline:
            time.sleep(0.02)


def group_members(pgid: int) -> list[int]:
    """Living processes of a process group (Linux only, else none)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == pgid and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found


def family(pid: int) -> list[int]:
    """A living process and all its descendants, parents first (Linux only, else just itself).

    Postgres' backends are sessions of their own: no group holds them together."""
    parents = _parents()
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found


def _parents() -> dict[int, int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return parents


def working_in(folder: Path, name: str) -> list[int]:
    """Living processes called `name` whose working folder this is (Linux only, else none)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_called = (process / "comm").read_text().strip() == name
            if is_called and (process / "cwd").readlink() == folder.resolve():
                found.append(int(process.name))
    return found


def read_pid(pid_file: Path) -> int | None:
    """The number on the first line of a pid file, None when there is none."""
    try:
        return int(pid_file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
