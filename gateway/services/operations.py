"""What runs where, for the console (contract §4); permission `ops.view`.

One look is a few bounded queries, and all who ask within a second share it: any number of open
consoles costs a gateway the same.
"""

import asyncio
import math
import time

from common.bus.roster import Roster
from common.db import fleet, runners
from common.db.engine import Connection, Database
from common.errors import Refused, Unavailable
from common.events import utc_text
from common.runs import TERMINAL_STATUSES
from gateway.auth import Principal
from gateway.schemas import GatewayOut, OperationsOut, RunnerOut, TakeoverOut
from gateway.services.roll import Roll

PERMISSION = "ops.view"
_ENDED_WITHIN_S = 600
_ENDED_MAX = 10_000
_FRESH_S = 1.0


class Operations:
    def __init__(self, db: Database, roster: Roster, roll: Roll) -> None:
        self._db, self._roster, self._roll = db, roster, roll
        self._one = asyncio.Lock()
        self._looked_at = -math.inf
        self._last: OperationsOut | None = None

    async def look(self, principal: Principal) -> OperationsOut:
        if not principal.holds(PERMISSION):
            raise Refused("FORBIDDEN", f"this needs the permission {PERMISSION}")
        async with self._one:
            if self._last is None or time.monotonic() - self._looked_at >= _FRESH_S:
                self._last = await self._look()
                self._looked_at = time.monotonic()
        return self._last

    async def _look(self) -> OperationsOut:
        gateways, degraded = await self._gateways()
        async with self._db.connect() as connection:
            return await _look(connection, gateways, degraded=degraded)

    async def _gateways(self) -> tuple[list[GatewayOut], bool]:
        """Without Redis this one only, and that is said."""
        try:
            words, degraded = await self._roster.present(), False
        except Unavailable:
            words, degraded = [self._roll.facts()], True
        found = [GatewayOut.model_validate(word) for word in words]
        return sorted(found, key=lambda one: (one.host, one.pid)), degraded


async def _look(
    connection: Connection, gateways: list[GatewayOut], *, degraded: bool
) -> OperationsOut:
    now = await fleet.look(connection)
    ended = await fleet.count_ended(connection, _ENDED_WITHIN_S, _ENDED_MAX)
    counts = {status: ended.get(status, 0) for status in sorted(TERMINAL_STATUSES)}
    known = await runners.list_all(connection)
    taken = await runners.list_takeovers(connection)
    return OperationsOut(
        at=utc_text(),
        degraded=degraded,
        runs={
            "queued": now.queued,
            "running": now.running,
            "interrupted": now.interrupted,
            **counts,
        },
        ended_within_s=_ENDED_WITHIN_S,
        ended_max=_ENDED_MAX,
        queue_age_s=now.queue_oldest_s,
        runners=[RunnerOut.of(runner) for runner in known],
        gateways=gateways,
        takeovers=[TakeoverOut.model_validate(one, from_attributes=True) for one in taken],
    )
