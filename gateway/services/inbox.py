"""The approval inbox: all that the caller may decide (contract §4).

What a token's permissions say is asked of Postgres, what a graph's guard says of its `authorize`,
as for a decision. A card whose guard cannot tell is left out: a decision on it would be refused at
this moment, too. The guard is not asked about it again for a while, since an inbox is polled, but
about other cards it is: whoever asks for something that it cannot judge must not hide what others
ask for. Only a guard that hangs rests as a whole, since each such call keeps a thread, and the card
it hung at rests for longer, so that the others come to their turn. What the caller has decided
stays in their list.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from common.db import interrupts, runs
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.errors import Refused
from common.runs import InterruptStatus
from gateway.auth import Principal
from gateway.schemas import InterruptOut, Page
from gateway.services.calling import Late
from gateway.services.hooks import Hooks
from gateway.services.refusals import wire

PORTIONS_MAX: Final = 10  # that are read for one page; a shorter page has a cursor all the same
PAGE_S: Final = 5.0  # after so long a page ends with what it has, likewise
_CALLS_MAX = 8  # of a graph's guard at once, in this process
_REST_S, _LONG_REST_S = 5.0, 60.0
_RESTING_MAX = 10_000


class Inbox:
    def __init__(
        self, db: Database, hooks: Hooks, *, page_s: float = PAGE_S, rest_s: float = _REST_S
    ) -> None:
        self._db, self._hooks = db, hooks
        self._page_s, self._rest_s = page_s, rest_s
        self._calls: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_CALLS_MAX)
        )
        self._resting: dict[tuple[str, ...], float] = {}

    async def page(
        self, principal: Principal, status: InterruptStatus, cursor: str | None, limit: int
    ) -> Page[InterruptOut]:
        """Newest first. Of those that are decided: what the caller might have decided."""
        until = time.monotonic() + self._page_s
        shown: list[Interrupt] = []
        for _ in range(PORTIONS_MAX):
            rows, graphs, cursor = await self._read(principal, status, cursor, limit - len(shown))
            answers = await self._ask(principal, rows, graphs, until)
            shown += [row for row, may in zip(rows, answers, strict=False) if may]
            if len(answers) < len(rows):
                cursor = interrupts.cursor_after(rows[len(answers) - 1])
            if cursor is None or len(shown) == limit or time.monotonic() >= until:
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

    async def _ask(
        self,
        principal: Principal,
        rows: Sequence[Interrupt],
        graphs: Mapping[str, str],
        until: float,
    ) -> list[bool]:
        """Whether the caller may decide each of the first rows. All that came to their turn in
        time; the very first in any case, so that every page leads further."""
        asked = (
            self._may_decide(principal, row, graphs.get(row.run_id), until if index else None)
            for index, row in enumerate(rows)
        )
        return list(_until_none(await asyncio.gather(*asked)))

    async def _may_decide(
        self, principal: Principal, row: Interrupt, graph: str | None, until: float | None
    ) -> bool | None:
        """None: not asked in time. `graph` None: the run has just been deleted."""
        if graph is None or row.resolved_by == principal.user:
            return graph is not None
        async with self._calls[graph]:
            if until is not None and time.monotonic() >= until:
                return None
            whole, card, mine = (graph,), (graph, row.id), (graph, row.id, principal.user)
            if any(map(self._rests, (whole, card, mine))):
                return False
            try:
                await self._hooks.authorize(graph, principal, wire(row))
            except Late:
                self._rest(whole, self._rest_s)
                self._rest(card, _LONG_REST_S)
                return False
            except Refused as refused:
                if refused.code != "PERMISSION_REVOKED":
                    self._rest(mine, self._rest_s)
                return False
        return True

    def _rests(self, what: tuple[str, ...]) -> bool:
        return time.monotonic() < self._resting.get(what, 0.0)

    def _rest(self, what: tuple[str, ...], seconds: float) -> None:
        """Bounded: of more than so many the first is asked again at once."""
        self._resting.pop(what, None)
        self._resting[what] = time.monotonic() + seconds
        if len(self._resting) > _RESTING_MAX:
            del self._resting[next(iter(self._resting))]


def _until_none(answers: Iterable[bool | None]) -> Iterator[bool]:
    for answer in answers:
        if answer is None:
            return
        yield answer
