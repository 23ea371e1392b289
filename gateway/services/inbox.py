"""The approval inbox: all that the caller may decide (contract §4).

What a token's permissions say is asked of Postgres, what a graph's guard says of its `authorize`,
as for a decision. A card whose guard cannot tell is left out: a decision on it would be refused at
this moment, too. Such a guard is not asked again for a while, since an inbox is polled, and each
call of one that hangs keeps a thread. What the caller has decided stays in their list.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from common.db import interrupts, runs
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.errors import Refused
from common.runs import InterruptStatus
from gateway.auth import Principal
from gateway.schemas import InterruptOut, Page
from gateway.services.hooks import Hooks
from gateway.services.refusals import wire

PORTIONS_MAX: Final = 10  # that are read for one page; a shorter page has a cursor all the same
_CALLS_MAX = 8  # of guards at once, in this process
_REST_S = 5.0


class Inbox:
    def __init__(self, db: Database, hooks: Hooks) -> None:
        self._db, self._hooks = db, hooks
        self._calls = asyncio.Semaphore(_CALLS_MAX)
        self._resting: dict[str, float] = {}

    async def page(
        self, principal: Principal, status: InterruptStatus, cursor: str | None, limit: int
    ) -> Page[InterruptOut]:
        """Newest first. Of those that are decided: what the caller might have decided."""
        shown: list[Interrupt] = []
        for _ in range(PORTIONS_MAX):
            rows, graphs, cursor = await self._read(principal, status, cursor, limit - len(shown))
            shown += await self._decidable(principal, rows, graphs)
            if cursor is None or len(shown) == limit:
                break
        return Page(items=[InterruptOut.of(row) for row in shown], next_cursor=cursor)

    async def _read(
        self, principal: Principal, status: InterruptStatus, cursor: str | None, limit: int
    ) -> tuple[list[Interrupt], Mapping[str, str], str | None]:
        held = sorted(principal.permissions)
        async with self._db.connect() as connection:
            rows, after = await interrupts.inbox(
                connection, principal.user, held, status, cursor, limit
            )
            graphs = await runs.graphs_of(connection, [row.run_id for row in rows])
        return rows, graphs, after

    async def _decidable(
        self, principal: Principal, rows: Sequence[Interrupt], graphs: Mapping[str, str]
    ) -> list[Interrupt]:
        asked = (self._may_decide(principal, row, graphs.get(row.run_id)) for row in rows)
        return [row for row, may in zip(rows, await asyncio.gather(*asked), strict=True) if may]

    async def _may_decide(self, principal: Principal, row: Interrupt, graph: str | None) -> bool:
        """`graph` None: the run has just been deleted."""
        if graph is None or row.resolved_by == principal.user:
            return graph is not None
        async with self._calls:
            if time.monotonic() < self._resting.get(graph, 0.0):
                return False
            try:
                await self._hooks.authorize(graph, principal, wire(row))
            except Refused as refused:
                if refused.code != "PERMISSION_REVOKED":
                    self._resting[graph] = time.monotonic() + _REST_S
                return False
        return True
