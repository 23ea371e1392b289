"""Conversations, their messages and facts (contract §4)."""

from collections.abc import Iterable
from typing import Any

from common import facts
from common.db import conversations, interrupts, messages, runs
from common.db.conversations import Conversation
from common.db.engine import Connection, Database
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.errors import Refused
from common.graphfile import GraphFile
from common.ids import is_id, new_id
from common.runs import TERMINAL_STATUSES
from gateway.auth import Principal
from gateway.schemas import (
    ConversationOut,
    ConversationRequest,
    FactsRequest,
    MessageOut,
    Page,
    ResumeState,
    RunOut,
)
from gateway.services.runs import Runs, known_graph

_TITLE = "New conversation"
_TRIES = 10  # of a deletion, while new runs come


class Conversations:
    def __init__(self, db: Database, runs_: Runs, graphs: GraphFile) -> None:
        self._db, self._runs, self._graphs = db, runs_, graphs

    async def create(self, principal: Principal, request: ConversationRequest) -> ConversationOut:
        graph = known_graph(self._graphs, request.graph)
        self._may_change(principal, graph, request.facts)
        async with self._db.begin() as connection:
            made = await conversations.create(
                connection,
                id=new_id("conv"),
                user_id=principal.user,
                title=request.title or _TITLE,
                graph=graph,
                facts=request.facts,
            )
        return self._shown(principal, made, None)

    async def page(
        self, principal: Principal, cursor: str | None, limit: int
    ) -> Page[ConversationOut]:
        async with self._db.snapshot() as connection:
            found, after = await conversations.list_page(connection, principal.user, cursor, limit)
            active = await runs.active_of(connection, [one.id for one in found])
            pending = await interrupts.pending_of(connection, [run.id for run in active.values()])
        items = [self._shown(principal, one, _listed(active.get(one.id), pending)) for one in found]
        return Page(items=items, next_cursor=after)

    async def get(self, principal: Principal, conversation_id: str) -> ConversationOut:
        async with self._db.snapshot() as connection:
            found = await self._find(connection, principal, conversation_id)
            active = await runs.active(connection, found.id)
        run = None if active is None else await self._runs.view(active)
        if run is not None and run.status in TERMINAL_STATUSES:
            run = None  # it has just ended
        return self._shown(principal, found, run)

    async def delete(self, principal: Principal, conversation_id: str) -> None:
        """Runs that have not ended are cancelled first, so that their followers see an end; while
        a runner is at work on one the conversation is busy. The last one first: none is promoted
        and taken up meanwhile."""
        for _ in range(_TRIES):
            async with self._db.begin() as connection:
                found = await self._find(connection, principal, conversation_id)
                unended = await runs.unended(connection, found.id)
                if not unended:
                    await conversations.delete(connection, found.id, principal.user)
                    return
            if any(run.runner_id is not None for run in unended):
                break
            for run in reversed(unended):
                await self._runs.cancel(principal, run.id)
        raise Refused("CONVERSATION_BUSY", "a run is at work; cancel it first")

    async def messages(
        self, principal: Principal, conversation_id: str, cursor: str | None, limit: int
    ) -> Page[MessageOut]:
        async with self._db.connect() as connection:
            found = await self._find(connection, principal, conversation_id)
            rows, after = await messages.list_page(connection, found.id, cursor, limit)
        return Page(items=[MessageOut.of(row) for row in rows], next_cursor=after)

    async def set_facts(
        self, principal: Principal, conversation_id: str, request: FactsRequest
    ) -> ConversationOut:
        """What is checked is what is changed: both stand under the same version."""
        async with self._db.begin() as connection:
            found = await self._find(connection, principal, conversation_id)
            self._may_change(principal, found.graph, {*request.set, *request.unset})
            if found.facts_version == request.version:
                _check(found.facts, facts.changed(found.facts, request.set, request.unset))
            changed = await conversations.set_facts(
                connection,
                found.id,
                principal.user,
                request.set,
                request.unset,
                request.version,
            )
            if changed is None:
                now = await self._find(connection, principal, conversation_id)
                raise Refused(
                    "VERSION_CONFLICT",
                    "the facts have changed meanwhile",
                    facts=self._facts(principal, now),
                    factsVersion=now.facts_version,
                )
        return await self.get(principal, changed.id)

    async def resume_state(self, principal: Principal, conversation_id: str) -> ResumeState:
        """What a fresh page needs to go on: the active run, else the newest one."""
        async with self._db.connect() as connection:
            found = await self._find(connection, principal, conversation_id)
            run = await runs.active(connection, found.id) or await runs.latest(connection, found.id)
        if run is None:
            return _nothing_to_resume(found)
        view = await self._runs.view(run)
        return ResumeState(
            conversation_id=found.id,
            run=view,
            last_sequence=view.last_sequence,
            pending_interrupts=view.pending_interrupts,
            next=view.next,
            resumable=view.status == "interrupted",
        )

    def _shown(
        self, principal: Principal, conversation: Conversation, run: RunOut | None
    ) -> ConversationOut:
        return ConversationOut.of(conversation, run, self._facts(principal, conversation))

    def _facts(self, principal: Principal, conversation: Conversation) -> dict[str, Any]:
        """Those that the caller may see; none while the rules are not known here, because the
        graph is not."""
        spec = self._graphs.graphs.get(conversation.graph)
        if spec is None:
            return {}
        return facts.visible(conversation.facts, spec.fact_permissions, principal.permissions)

    def _may_change(self, principal: Principal, graph: str, keys: Iterable[str]) -> None:
        """Only what one may see."""
        spec = self._graphs.graphs.get(graph)
        for key in keys:
            if spec is None or not facts.may_see(key, spec.fact_permissions, principal.permissions):
                raise Refused("FORBIDDEN", f"{key}: the token does not give the permission")

    async def _find(
        self, connection: Connection, principal: Principal, conversation_id: str
    ) -> Conversation:
        if is_id(conversation_id, "conv"):
            found = await conversations.find(connection, conversation_id, principal.user)
            if found is not None:
                return found
        raise Refused("NOT_FOUND", "there is no such conversation")


def _listed(active: Run | None, pending: dict[str, list[Interrupt]]) -> RunOut | None:
    """In a list `lastSequence` is the stored one: no look at Redis for each line."""
    return None if active is None else RunOut.of(active, pending[active.id])


def _check(before: dict[str, Any], changed: dict[str, Any]) -> None:
    """What would come out is within the bounds too, or nearer to them than it was."""
    try:
        facts.check_change(before, changed)
    except ValueError as error:
        raise Refused("VALIDATION", f"facts: {error}") from error


def _nothing_to_resume(conversation: Conversation) -> ResumeState:
    return ResumeState(
        conversation_id=conversation.id,
        run=None,
        last_sequence=0,
        pending_interrupts=[],
        next=[],
        resumable=False,
    )
