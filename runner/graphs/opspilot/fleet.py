"""The fleet that OpsPilot looks after: services, their instances and error logs, in Postgres.

This stands in for whatever system an operations team really has, so it behaves like one: it is
shared by everybody, changes under our feet, and a restart is an effect in the outside world. An
instance's `version` rises with every change, and a restart names the version that the person who
confirmed it has seen: what changed in between is not restarted. A restart also carries a key and
is remembered by it, so the same call made again after a crash does nothing and tells the same.

So that a demo can be repeated, an instance degrades again when somebody else looks at it some time
after its restart (`relapse_s`): the visitor (a conversation) that restarted it keeps what it did.
`break_instance` does so at once, and a service called `sandbox-<name>` is made at its first
mention, with an instance of its own that is out of order, so that demos can run side by side.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg import AsyncConnection
from psycopg.rows import class_row

from runner.graphs.opspilot import schema

Connection = AsyncConnection[Any]

_SANDBOX = re.compile(r"sandbox-[a-z0-9]{1,32}")
_CONNECTIONS_MAX = 4


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    description: str
    instances: int
    abnormal: int


@dataclass(frozen=True, slots=True)
class Instance:
    id: str
    service: str
    state: Literal["running", "degraded"]
    version: int
    restarts: int
    host: str
    restarted_at: datetime | None


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    at: datetime
    instance: str
    status: int
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Restart:
    """What became of a restart. `changed`: the instance was no longer at the version asked for."""

    outcome: Literal["restarted", "changed"]
    instance: Instance


class Fleet:
    """Making one touches nothing; the tables are made at the first use.

    A connection lives as long as one call, so there is nothing to close; a few at a time.
    """

    def __init__(self, database_url: str, *, relapse_s: float = 10.0) -> None:
        self._url = database_url
        self._relapse_s = relapse_s
        self._places = asyncio.Semaphore(_CONNECTIONS_MAX)
        self._ready = False

    async def services(self) -> list[Service]:
        """All but the sandboxes, by name."""
        async with self._transaction() as conn, conn.cursor(row_factory=class_row(Service)) as cur:
            await cur.execute(schema.SERVICES)
            return await cur.fetchall()

    async def instances(self, service: str, visitor: str = "") -> list[Instance]:
        """Empty: there is no such service."""
        async with self._transaction() as conn:
            await self._catch_up(conn, service, visitor)
            return await _instances(conn, service)

    async def find_instance(self, instance_id: str) -> Instance | None:
        async with self._transaction() as conn:
            return await _find_instance(conn, instance_id)

    async def errors(self, service: str, *, minutes: int, visitor: str = "") -> list[ErrorEntry]:
        """Of the last `minutes`, newest first, at most 100."""
        wanted = {"service": service, "minutes": minutes}
        async with self._transaction() as conn:
            await self._catch_up(conn, service, visitor)
            async with conn.cursor(row_factory=class_row(ErrorEntry)) as cur:
                await cur.execute(schema.ERRORS, wanted)
                return await cur.fetchall()

    async def restart(
        self, key: str, instance_id: str, *, version: int, visitor: str = ""
    ) -> Restart | None:
        """Restart the instance if it is still at `version`, at most once for each `key`.

        Called again with the same key, it answers what came of the first call; a call that comes
        before the first has committed waits for it. None: no such instance.
        """
        wanted = {"key": key, "id": instance_id, "version": version, "visitor": visitor}
        async with self._transaction() as conn:
            first = await conn.execute(schema.NOTE_RESTART, wanted)
            if first.rowcount == 1:
                await conn.execute(schema.RESTART, wanted)
            done = await (await conn.execute(schema.RESTARTED, wanted)).fetchone()
            instance = await _find_instance(conn, instance_id)
        if instance is None or done is None:
            return None
        return Restart("restarted" if done[0] else "changed", instance)

    async def find_restart(self, key: str, instance_id: str) -> Restart | None:
        """What came of the restart with this key; None: it has not been performed. One that is just
        being committed is not seen: asking for it again with its key waits for it."""
        async with self._transaction() as conn:
            done = await (await conn.execute(schema.RESTARTED, {"key": key})).fetchone()
            instance = await _find_instance(conn, instance_id)
        if instance is None or done is None:
            return None
        return Restart("restarted" if done[0] else "changed", instance)

    async def break_instance(self, service: str, visitor: str = "") -> Instance | None:
        """Put one healthy instance out of order, the troubled one first; None: there is none."""
        async with self._transaction() as conn:
            await self._catch_up(conn, service, visitor)
            broken = await (await conn.execute(schema.BREAK_ONE, {"service": service})).fetchone()
            return await _find_instance(conn, broken[0]) if broken else None

    async def reset(self) -> None:
        """Back to the first day."""
        async with self._transaction() as conn:
            await conn.execute(schema.RESET)
            await conn.execute(schema.SEED)

    async def _catch_up(self, conn: Connection, service: str, visitor: str) -> None:
        """What time has done to the service since somebody last looked at it."""
        if _SANDBOX.fullmatch(service):
            await conn.execute(schema.SANDBOX, {"service": service})
        looked = {"service": service, "visitor": visitor, "relapse_s": self._relapse_s}
        await conn.execute(schema.RELAPSE, looked)
        await conn.execute(schema.GO_WRONG, {"service": service})

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        async with (
            self._places,
            await AsyncConnection.connect(
                self._url, connect_timeout=5, application_name="opspilot"
            ) as conn,
        ):
            if not self._ready:
                await _set_up(conn)
                self._ready = True
            yield conn


def fleet_of(environ: Mapping[str, str]) -> Fleet:
    """The fleet that the environment names, for the agent and for its guard."""
    relapse_s = float(environ.get("STEADYRUN_OPSPILOT_RELAPSE_S", "10"))
    return Fleet(environ.get("DATABASE_URL", ""), relapse_s=relapse_s)


async def _set_up(conn: Connection) -> None:
    """Idempotent, one process at a time: CREATE … IF NOT EXISTS alone races in the catalog."""
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock(%s)", (schema.LOCK,))
        for statement in schema.TABLES:
            await conn.execute(statement)
        await conn.execute(schema.SEED)


async def _instances(conn: Connection, service: str) -> list[Instance]:
    async with conn.cursor(row_factory=class_row(Instance)) as cur:
        await cur.execute(schema.INSTANCES, {"service": service})
        return await cur.fetchall()


async def _find_instance(conn: Connection, instance_id: str) -> Instance | None:
    async with conn.cursor(row_factory=class_row(Instance)) as cur:
        await cur.execute(schema.INSTANCE, {"id": instance_id})
        return await cur.fetchone()
