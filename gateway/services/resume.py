"""Deciding interrupts: the eight steps of contract §5, in their order.

    0 the key            3 not expired         6 the resource and the facts, read anew
    1 pending, of the    4 shape, format,      7 the graph's guard
      run                  validator           8 one conditional update, and the run is queued
    2 who may decide     5 reject and cancel

Steps 1 to 7 only look (`examine`); they hold neither a transaction nor a place in the pool while a
graph author's guard is asked. Step 8 is one transaction (`decide`) that also reserves and stores
the key: of two calls with one key the second waits there for the first one's end. Whoever was
refused before looks once more whether its key has an answer now: the other call may have made it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from common.bus.signals import Signals
from common.db.engine import Connection, Database
from common.errors import Refused
from common.graphfile import GraphFile
from common.masking import Masker
from common.ownership import OwnerActs
from gateway.auth import Principal
from gateway.schemas import ContinueRequest, DecisionRequest, ValuesRequest
from gateway.services.decide import Decide, Stale, Told
from gateway.services.examine import Examine, ReplyRequest
from gateway.services.hooks import Hooks
from gateway.services.idempotency import Answer, answered, fingerprint, once, stored
from gateway.services.refusals import not_found

__all__ = ["Find", "ReplyRequest", "Request", "Resume", "Resumed"]

Request = DecisionRequest | ValuesRequest | ContinueRequest | ReplyRequest
Find = Callable[[Connection], Awaitable[tuple[str, Request]]]
"""Which run is meant and what is asked, once the key is known to be new. It only reads."""

_Write = Callable[[Connection, Told], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Resumed:
    """`answer` is what goes out; the owner also gets a stream that goes on after `after`."""

    answer: Answer
    owner: bool
    after: int


@dataclass(frozen=True, slots=True)
class _Call:
    """Whose call it is, what makes another one the same, and what is asked."""

    principal: Principal
    key: str | None
    made: bytes
    find: Find


class Resume:
    def __init__(
        self,
        db: Database,
        owner: OwnerActs,
        signals: Signals,
        hooks: Hooks,
        masker: Masker,
        graphs: GraphFile,
        *,
        concurrency: int,
    ) -> None:
        self._db = db
        self._examine = Examine(db, hooks, masker, graphs)
        self._decide = Decide(owner, signals)
        self._places = asyncio.Semaphore(concurrency)  # waiting for a key holds a connection

    async def resume(
        self,
        principal: Principal,
        run_id: str,
        request: DecisionRequest | ValuesRequest | ContinueRequest,
        key: str | None,
    ) -> Resumed:
        made = fingerprint("resume", run_id, request.model_dump(mode="json", by_alias=True))

        async def given(_: Connection) -> tuple[str, Request]:
            return run_id, request

        return await self.resume_found(principal, made, key, given)

    async def resume_found(
        self, principal: Principal, made: bytes, key: str | None, find: Find
    ) -> Resumed:
        """The same for what `find` gives; `made` is the fingerprint of the request that came."""
        answer = await self._answer(_Call(principal, key, made, find))
        after = answer.pop("after", 0)
        return Resumed(answer, "run" in answer, after)

    async def _answer(self, call: _Call) -> Answer:
        async with self._db.connect() as connection:
            before = await stored(connection, call.principal, call.key, call.made)
        if before is not None:
            return before
        try:
            return await self._attempt(call)
        except Refused:
            async with self._places:
                meanwhile = await answered(self._db, call.principal, call.key, call.made)
            if meanwhile is None:
                raise
            return meanwhile

    async def _attempt(self, call: _Call) -> Answer:
        try:
            return await self._store(call, await self._look(call))
        except Stale:
            return await self._store(call, await self._look(call))

    async def _look(self, call: _Call) -> _Write:
        """Steps 1 to 7; gives what is left to do."""
        async with self._db.connect() as connection:
            run_id, request = await call.find(connection)
        if isinstance(request, ContinueRequest):
            case = await self._examine.case(call.principal, run_id, [])
            if not case.owner:
                raise not_found()
            return lambda connection, told: self._decide.go_on(connection, case, told)
        ids = list(request.resume) if isinstance(request, ValuesRequest) else [request.interrupt_id]
        case = await self._examine.case(call.principal, run_id, ids)
        choices = await self._examine.choices(case, request)
        return lambda connection, told: self._decide.decide(connection, case, choices, told)

    async def _store(self, call: _Call, write: _Write) -> Answer:
        told = Told()
        async with self._places, self._db.begin() as connection:

            async def act() -> Answer:
                return await write(connection, told)

            answer, _ = await once(connection, call.principal, call.key, call.made, act)
        await self._decide.tell(told)
        return answer
