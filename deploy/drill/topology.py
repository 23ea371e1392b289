"""The system under drill: who runs where at this moment, and whether all of it is well again."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from common.bus.client import Bus
from common.db import faults, runners
from common.db.engine import Connection, Database
from common.errors import SteadyrunError, Unavailable
from deploy.own import OwnSystem
from deploy.probe import is_answering
from deploy.topology import ROLES, Process, Role, Topology

LOOK_S = 0.1

Targets = Mapping[Role, Sequence[str]]
"""The names of the children by role."""


class DrillFailed(SteadyrunError):
    """The drill itself cannot go on; nothing is said about the invariants."""


class Site:
    """Everything is read anew at each use: names and ports stay, pids do not."""

    def __init__(self, system: OwnSystem, *, effects: Path, lease_ttl_s: float) -> None:
        self.system = system
        self.effects = effects
        self.lease_ttl_s = lease_ttl_s
        self._doomed: set[int] = set()
        children = system.topology().processes
        self.names = [process.name for process in children]
        self.targets: Targets = {
            role: tuple(p.name for p in children if p.role == role) for role in ROLES
        }

    def topology(self) -> Topology:
        """Raises DrillFailed when the system under drill has ended altogether."""
        if not self.system.is_up:
            raise DrillFailed(f"the system under drill has ended: {self.system.last_words}")
        try:
            return self.system.topology()
        except (OSError, ValueError) as error:
            raise DrillFailed(f"the system under drill has no topology: {error}") from error

    def find(self, name: str) -> Process | None:
        """None while it is not running."""
        return next((p for p in self.topology().processes if p.name == name), None)

    def doom(self, pid: int) -> None:
        """It was told to end: nothing is whole before another has taken its place."""
        self._doomed.add(pid)

    @asynccontextmanager
    async def redis(self) -> AsyncIterator[Bus]:
        bus = Bus(self.topology().redis_url)
        try:
            yield bus
        finally:
            await bus.aclose()

    @asynccontextmanager
    async def postgres(self) -> AsyncIterator[Connection]:
        database = Database(
            self.topology().database_url,
            application_name="steadyrun:drill",
            pool_size=1,
            timeout_s=3.0,
            pool_timeout_s=3.0,
        )
        try:
            async with database.connect() as connection:
                yield connection
        finally:
            await database.aclose()

    async def ailing(self) -> list[str]:
        """The children that are not there, do not answer, or are no living runner to Postgres."""
        topology = self.topology()
        self._doomed &= {process.pid for process in topology.processes}
        lasting = {p.name for p in topology.processes if p.pid not in self._doomed}
        if missing := [name for name in self.names if name not in lasting]:
            return missing
        silent = await asyncio.to_thread(_silent, topology)
        return silent or await self._unregistered(topology)

    async def healed(self, limit_s: float) -> list[str]:
        """Wait until all is well; what is still ailing after the limit."""
        deadline = time.monotonic() + limit_s
        while True:
            ailing = await self.ailing()
            if not ailing or time.monotonic() >= deadline:
                return ailing
            await asyncio.sleep(LOOK_S)

    async def calm(self) -> None:
        """Wait until Postgres has run for more than a lease: before that, a free lock proves no
        death, and a killed runner is noticed by its lease alone."""
        while True:
            lacks_s = self.lease_ttl_s + 1.0 - await self._postgres_age_s()
            if lacks_s <= 0:
                return
            await asyncio.sleep(lacks_s)

    async def _postgres_age_s(self) -> float:
        with suppress(Unavailable):
            async with self.postgres() as connection:
                return await faults.server_age_s(connection)
        return 0.0

    async def _unregistered(self, topology: Topology) -> list[str]:
        """Runners speak no HTTP: their rows say whether they are there (runner/lease)."""
        try:
            async with self.postgres() as connection:
                rows = await runners.list_all(connection)
        except Unavailable:
            return ["postgres"]
        living = {row.pid for row in rows if row.dead_at is None}
        return [p.name for p in topology.of("runner") if p.pid not in living]


def _silent(topology: Topology) -> list[str]:
    """A gateway is ready while Postgres and Redis answer it, so they need no look of their own."""
    return [p.name for p in topology.processes if p.url and not is_answering(f"{p.url}/readyz")]
