"""Runs from outside: creating, looking, cancelling (contract §4).

A run is created in one transaction with its message, its conversation where none is named, and its
answer under the idempotency key. What follows the commit (waking runners, ending a superseded run)
is best effort here: runners also poll, and a sweep of theirs finishes cancellations.
"""

from dataclasses import dataclass, replace
from typing import Any

import structlog

from common import tracing
from common.bus.log import LogReader
from common.bus.signals import Signals
from common.db import archive, conversations, interrupts, runs
from common.db.conversations import Conversation
from common.db.engine import Connection, Database
from common.db.runs import NewRun, Run
from common.errors import LeaseLost, Refused, Unavailable
from common.graphfile import GraphFile
from common.ids import is_id, new_id
from common.ownership import OwnerActs
from common.runs import TERMINAL_STATUSES
from gateway.auth import Principal
from gateway.metrics import Metrics
from gateway.schemas import ChatRequest, RunOut, RunRequest
from gateway.services.idempotency import fingerprint, once
from gateway.services.known import KnownRuns
from gateway.services.limits import limited

logger = structlog.get_logger(__name__)

_TITLE_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Created:
    """`answer` is the run as it was when it was created; `run_id` names it."""

    run_id: str
    answer: dict[str, Any]


class Runs:
    def __init__(
        self,
        db: Database,
        log: LogReader,
        signals: Signals,
        owner: OwnerActs,
        graphs: GraphFile,
        content_bytes_max: int,
        metrics: Metrics,
        user_runs_max: int = 0,
    ) -> None:
        self._db, self._log, self._signals, self._owner = db, log, signals, owner
        self._graphs, self._content_bytes_max = graphs, content_bytes_max
        self._metrics, self._user_runs_max = metrics, user_runs_max
        self._known = KnownRuns()

    async def create(
        self,
        principal: Principal,
        conversation_id: str | None,
        request: RunRequest,
        key: str | None,
    ) -> Created:
        """Without a conversation a new one is made (POST /api/chat)."""
        self._check_size(request)
        body = request.model_dump(mode="json", by_alias=True)
        made = fingerprint("run", conversation_id, body)
        async with self._db.begin() as connection:

            async def act() -> dict[str, Any]:
                found = await self._conversation(connection, principal, conversation_id, request)
                run = await self.insert(connection, principal, found, request)
                return RunOut.of(run, []).model_dump(mode="json", by_alias=True)

            answer, fresh = await once(connection, principal, key, made, act)
        if fresh:
            await self._announce(answer["id"], answer["conversationId"], request)
        return Created(answer["id"], answer)

    async def find(self, principal: Principal, run_id: str) -> Run:
        """The caller's own run; 404 for anybody else's."""
        if is_id(run_id, "run"):
            async with self._db.connect() as connection:
                run = await runs.find_for_user(connection, run_id, principal.user)
            if run is not None:
                return run
        raise Refused("NOT_FOUND", "there is no such run")

    async def find_to_follow(self, principal: Principal, run_id: str) -> Run:
        """As `find`, for reading its log: a run that was read here before is found while Postgres
        is away, too."""
        try:
            run = await self.find(principal, run_id)
        except Unavailable:
            if (known := self._known.find(run_id, principal.user)) is None:
                raise
            return known
        except Refused:
            self._known.forget(run_id, principal.user)
            raise
        self._known.note(run)
        return run

    async def view(self, run: Run) -> RunOut:
        """As it is now, with the questions of the same moment: one that was decided between two
        reads would leave a run that waits for nothing."""
        async with self._db.snapshot() as connection:
            run = await runs.find(connection, run.id) or run
            pending = await interrupts.of_run(connection, run.id, "pending")
        return RunOut.of(run, pending, await self.last_sequence(run))

    async def last_sequence(self, run: Run) -> int:
        """Of the last event that can be read now: the log is ahead of the row while a run runs."""
        if run.status not in ("queued", "running"):
            return run.last_sequence
        try:
            top = await self._log.top(run.id)
        except Unavailable:
            top = None
        if top is None:
            async with self._db.connect() as connection:
                top = await archive.top(connection, run.id)
        return max(top, run.last_sequence)

    async def cancel(self, principal: Principal, run_id: str) -> Run:
        """Idempotent; what has ended stays as it is."""
        run = await self.find(principal, run_id)
        if run.status in TERMINAL_STATUSES:
            return run
        return await self._owner.cancel(run, "user", by=principal.user)

    def _check_size(self, request: RunRequest) -> None:
        if len(request.message.content.encode()) > self._content_bytes_max:
            most = self._content_bytes_max
            raise Refused("PAYLOAD_TOO_LARGE", f"message.content: at most {most} bytes")

    async def _conversation(
        self,
        connection: Connection,
        principal: Principal,
        conversation_id: str | None,
        request: RunRequest,
    ) -> Conversation:
        graph = request.graph if isinstance(request, ChatRequest) else None
        if conversation_id is None:
            return await self._new_conversation(connection, principal, graph, request)
        found = None
        if is_id(conversation_id, "conv"):
            found = await conversations.find(connection, conversation_id, principal.user)
        if found is None:
            raise Refused("NOT_FOUND", "there is no such conversation")
        if graph is not None and graph != found.graph:
            raise Refused("VALIDATION", "graph: the conversation has another one")
        return found

    async def _new_conversation(
        self,
        connection: Connection,
        principal: Principal,
        graph: str | None,
        request: RunRequest,
    ) -> Conversation:
        return await conversations.create(
            connection,
            id=new_id("conv"),
            user_id=principal.user,
            title=title_of(request.message.content),
            graph=known_graph(self._graphs, graph),
            facts={},
        )

    async def insert(
        self,
        connection: Connection,
        principal: Principal,
        conversation: Conversation,
        request: RunRequest,
        **more: Any,
    ) -> Run:
        """`more` goes to the run's input. After the commit: `announce`."""
        self._check_size(request)
        new = self._new_run(principal, conversation, request)
        has_room = await self._has_room(connection, new)
        run = (
            await runs.create(connection, replace(new, input=new.input | more))
            if has_room
            else None
        )
        if run is not None:
            return run
        active = await runs.active(connection, conversation.id)
        if has_room or (active is not None and request.on_conflict == "reject"):
            extra = {} if active is None else {"activeRun": active.id, "status": active.status}
            raise Refused("CONVERSATION_BUSY", "a run of this conversation is active", **extra)
        raise limited(self._metrics, "runs", self._user_runs_max)

    async def _has_room(self, connection: Connection, new: NewRun) -> bool:
        """A run that supersedes others of its conversation counts instead of them."""
        if not self._user_runs_max:
            return True
        supersedes = new.on_conflict in ("interrupt", "rollback")
        instead_of = new.conversation_id if supersedes else None
        return await runs.has_room(connection, new.user_id, self._user_runs_max, instead_of)

    async def announce(self, run_id: str) -> None:
        await self._signals.wake(run_id)

    def _new_run(
        self, principal: Principal, conversation: Conversation, request: RunRequest
    ) -> NewRun:
        spec = self._graphs.graphs[known_graph(self._graphs, conversation.graph)]
        return NewRun(
            id=new_id("run"),
            conversation_id=conversation.id,
            user_id=principal.user,
            user_message_id=new_id("msg"),
            graph=conversation.graph,
            content=request.message.content,
            input={
                "content": request.message.content,
                "inputFormat": request.input_format,
                "interruptBefore": request.interrupt_before,
                "interruptAfter": request.interrupt_after,
            },
            principal=principal.stored(),
            metadata=request.metadata,
            on_disconnect=request.on_disconnect or spec.on_disconnect,
            on_conflict=request.on_conflict,
            traceparent=tracing.current(),
        )

    async def _announce(self, run_id: str, conversation_id: str, request: RunRequest) -> None:
        await self.announce(run_id)
        if request.on_conflict in ("interrupt", "rollback"):
            await self._supersede(run_id, conversation_id)

    async def _supersede(self, run_id: str, conversation_id: str) -> None:
        """End the runs that stand in the way; their cancellation is stored already, and so is the
        new run: nothing that fails here may be told as a failure of the request."""
        try:
            async with self._db.connect() as connection:
                unended = await runs.unended(connection, conversation_id)
            for run in unended:
                if run.id != run_id and run.cancel_requested is not None:
                    await self._owner.cancel(run, "superseded")
        except (LeaseLost, Unavailable) as error:
            logger.warning("superseding is left to the sweep", run_id=run_id, cause=str(error))


def known_graph(graphs: GraphFile, name: str | None) -> str:
    """The graph's name, the default one for None; 422 when this installation does not have it."""
    if name is None:
        return graphs.default
    if name not in graphs.graphs:
        raise Refused("VALIDATION", "graph: there is no graph of this name here")
    return name


def title_of(content: str) -> str:
    line = next(iter(content.strip().splitlines()), "")
    return line if len(line) <= _TITLE_CHARACTERS else line[: _TITLE_CHARACTERS - 1] + "…"
