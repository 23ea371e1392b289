"""What processes cost, read from /proc: CPU seconds and resident memory. Linux only.

A Postgres server is a family: its postmaster and a process for each connection. The processor time
of those that have ended is in the postmaster's account of its children, so nothing is lost.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.topology import Role, Topology

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/<pid>/stat that matter here (proc_pid_stat(5))."""

    parent: int
    cpu_s: float
    reaped_cpu_s: float  # of children that have ended and were waited for
    resident_bytes: int

    @classmethod
    def parse(cls, line: str) -> "Stat":
        """The name in parentheses may hold blanks and parentheses itself."""
        fields = line.rpartition(")")[2].split()
        user, system, reaped_user, reaped_system = (int(f) for f in fields[11:15])
        return cls(
            parent=int(fields[1]),
            cpu_s=(user + system) / _TICKS_PER_S,
            reaped_cpu_s=(reaped_user + reaped_system) / _TICKS_PER_S,
            resident_bytes=int(fields[21]) * _PAGE_BYTES,
        )


class Machine:
    """The processes of a topology, by role."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def cpu_s(self) -> dict[Role, float]:
        """CPU seconds of each role so far; only differences mean something."""
        stats = _stats()
        roles: dict[Role, float] = {}
        for process in self._topology.processes:
            cpu_s = family_cpu_s(process.pid, stats)
            roles[process.role] = roles.get(process.role, 0.0) + cpu_s
        return roles

    def cpu_of(self, names: Collection[str]) -> float:
        """CPU seconds so far of the processes of these names."""
        stats = _stats()
        named = (p for p in self._topology.processes if p.name in names)
        return sum(family_cpu_s(process.pid, stats) for process in named)

    def resident_bytes(self, role: Role) -> int:
        stats = _stats()
        return sum(stats[p.pid].resident_bytes for p in self._topology.of(role) if p.pid in stats)


def family_cpu_s(pid: int, stats: dict[int, Stat]) -> float:
    """Of a process, its living descendants, and its children that have ended."""
    if pid not in stats:
        return 0.0
    own = stats[pid].cpu_s + stats[pid].reaped_cpu_s
    children = (child for child, stat in stats.items() if stat.parent == pid)
    return own + sum(family_cpu_s(child, stats) for child in children)


def spent(before: dict[Role, float], after: dict[Role, float]) -> dict[Role, float]:
    return {role: after[role] - before.get(role, 0.0) for role in after}


def _stats() -> dict[int, Stat]:
    return dict(_living(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()))


def _living(pids: Iterable[int]) -> Iterable[tuple[int, Stat]]:
    for pid in pids:
        try:
            yield pid, Stat.parse((_PROC / str(pid) / "stat").read_text())
        except OSError:  # it has ended in between
            continue
