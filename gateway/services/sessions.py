"""The session facade: one active session a user, which is a conversation (contract §6).

Nothing is kept in memory. What the session is doing is what its newest run is doing, so any gateway
can tell, also after a restart of everything. Invoking and ending take the user's lock first: of two
invokes at once one begins a run and the other finds the session busy, and none begins a run in a
session that is being ended.

A repeated key finds the run that the first call was about, and its answer is what that run has come
to; how the answer is wanted (`mode`) is no part of the request.
"""

from dataclasses import dataclass
from typing import Any

import structlog

from common import hitl
from common.db import conversations, interrupts, messages, runs
from common.db.conversations import Conversation
from common.db.engine import Connection, Database
from common.db.runs import Run
from common.errors import LeaseLost, Refused, Unavailable
from common.graphfile import GraphFile
from common.ids import is_id, new_id
from common.ownership import OwnerActs
from gateway.agent_schemas import AgentAnswer, AgentResumeRequest, InvokeRequest, SessionAnswer
from gateway.auth import Principal
from gateway.schemas import ContinueRequest, RunRequest, UserMessage
from gateway.services.answers import STATUS, answer_of, find_run
from gateway.services.idempotency import Answer, fingerprint, once
from gateway.services.refusals import decided_before, not_resumable
from gateway.services.resume import ReplyRequest, Request, Resume
from gateway.services.runs import Runs, known_graph, title_of

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that was accepted: the run that it is about is the task."""

    session_id: str
    task_id: str


class Sessions:
    def __init__(
        self, db: Database, runs_: Runs, resume: Resume, owner: OwnerActs, graphs: GraphFile
    ) -> None:
        self._db, self._runs, self._resume = db, runs_, resume
        self._owner, self._graphs = owner, graphs

    async def invoke(self, principal: Principal, request: InvokeRequest, key: str | None) -> Begun:
        """409 CONVERSATION_BUSY while the session's run is at work or waits for a person."""
        made = fingerprint("agent/invoke", None, request.model_dump(mode="json", exclude={"mode"}))
        async with self._db.begin() as connection:

            async def act() -> Answer:
                await conversations.lock_session(connection, principal.user)
                session = await self._begin(connection, principal, request)
                run = await self._start(connection, principal, session, request)
                return {"session_id": session.id, "task_id": run.id}

            answer, fresh = await once(connection, principal, key, made, act)
        if fresh:
            await self._runs.announce(answer["task_id"])
        return Begun(**answer)

    async def resume(
        self, principal: Principal, request: AgentResumeRequest, key: str | None
    ) -> Begun:
        """Answers the question that is named, else the oldest pending one, by contract §5."""
        body = request.model_dump(mode="json", exclude_unset=True, exclude={"mode"})

        chosen: list[tuple[str, Request]] = []  # once: looking again must not find the next one

        async def find(connection: Connection) -> tuple[str, Request]:
            if not chosen:
                chosen.append(await self._meant(connection, principal, request))
            return chosen[0]

        made = fingerprint("agent/resume", request.session_id, body)
        resumed = await self._resume.resume_found(principal, made, key, find)
        run = resumed.answer["run"]
        return Begun(run["conversationId"], run["id"])

    async def view(self, user: str) -> SessionAnswer:
        """All that a client needs to go on after a crash, as of one moment."""
        async with self._db.snapshot() as connection:
            session = await self._session(connection, user)
            run = await _newest(connection, session)
            if run is None:
                return await _idle(connection, session)
            answer = await answer_of(connection, run)
        return SessionAnswer(
            session_id=session.id,
            task_id=run.id,
            status=answer.status,
            last_query=run.input["content"],
            last_response=None if answer.status == "running" else answer,
            last_updated=run.updated_at,
        )

    async def task(self, principal: Principal, task_id: str) -> AgentAnswer:
        """Of any run of the caller."""
        if not is_id(task_id, "run"):
            raise Refused("NOT_FOUND", "there is no such task")
        async with self._db.snapshot() as connection:
            return await answer_of(connection, await find_run(connection, task_id, principal.user))

    async def end(self, user: str) -> None:
        """The conversation stays in the list; what has not ended in it is cancelled."""
        async with self._db.begin() as connection:
            await conversations.lock_session(connection, user)
            session = await self._session(connection, user)
            unended = await runs.unended(connection, session.id)
            for run in unended:
                await runs.request_cancel(connection, run.id, "user", by=user)
            await conversations.end_session(connection, user)
        await self._cancel(unended)

    async def _begin(
        self, connection: Connection, principal: Principal, request: InvokeRequest
    ) -> Conversation:
        session = await conversations.begin_session(
            connection,
            id=new_id("conv"),
            user_id=principal.user,
            title=title_of(request.query),
            graph=known_graph(self._graphs, request.graph),
        )
        if request.graph not in (None, session.graph):
            raise Refused("VALIDATION", "graph: the session has another one; end it first")
        return session

    async def _start(
        self,
        connection: Connection,
        principal: Principal,
        session: Conversation,
        request: InvokeRequest,
    ) -> Run:
        """Whoever calls may leave: the run goes on whatever its graph says of disconnects."""
        asked = RunRequest(message=UserMessage(content=request.query), onDisconnect="continue")
        system = request.system_message
        more: dict[str, Any] = {} if not system else {"systemMessage": system}
        try:
            return await self._runs.insert(connection, principal, session, asked, **more)
        except Refused as refused:
            if refused.code == "CONVERSATION_BUSY":
                raise await _busy(connection, session) from refused
            raise

    async def _meant(
        self, connection: Connection, principal: Principal, request: AgentResumeRequest
    ) -> tuple[str, Request]:
        session = await self._session(connection, principal.user)
        if session.id != request.session_id:
            raise Refused("BAD_REQUEST", "session_id: not the active session")
        return await _question(connection, session, request)

    async def _session(self, connection: Connection, user: str) -> Conversation:
        session = await conversations.find_session(connection, user)
        if session is None:
            raise Refused("NOT_FOUND", "there is no session; invoke begins one")
        return session

    async def _cancel(self, unended: list[Run]) -> None:
        """The last one first: none is promoted meanwhile. The requests are committed: what fails
        here is done by the runners' sweep, and is no failure of the call."""
        try:
            for run in reversed(unended):
                await self._owner.cancel(run, "user")
        except (LeaseLost, Unavailable) as error:
            logger.warning("cancelling a session's run is left to the sweep", cause=str(error))


async def _newest(connection: Connection, session: Conversation) -> Run | None:
    return await runs.active(connection, session.id) or await runs.latest(connection, session.id)


async def _idle(connection: Connection, session: Conversation) -> SessionAnswer:
    """No run: those there were are kept no longer; the messages are."""
    asked = await messages.latest(connection, session.id, "user")
    return SessionAnswer(
        session_id=session.id,
        task_id=None,
        status="idle",
        last_query=None if asked is None else asked.content,
        last_response=None,
        last_updated=session.updated_at,
    )


async def _busy(connection: Connection, session: Conversation) -> Refused:
    run = await _newest(connection, session)
    known = {} if run is None else {"task_id": run.id, "session_status": STATUS[run.status]}
    detail = "the session's run has not ended: wait for it, answer its question or end the session"
    return Refused("CONVERSATION_BUSY", detail, session_id=session.id, **known)


async def _question(
    connection: Connection, session: Conversation, request: AgentResumeRequest
) -> tuple[str, Request]:
    """The run and what is asked for on it; a refusal tells who decided the last question."""
    if request.interrupt_id is not None:
        return await _named(connection, session, request.interrupt_id, request)
    run = await _newest(connection, session)
    if run is None:
        raise Refused("RUN_NOT_RESUMABLE", "the session has no run")
    asked = await interrupts.of_run(connection, run.id)
    pending = [row for row in asked if row.status == "pending"]
    if pending:
        return run.id, _reply(pending[0].id, request)
    if run.status == "interrupted" and request.response_type == "accept":
        return run.id, ContinueRequest.model_validate({"continue": True})
    if run.status == "interrupted":
        raise Refused("VALIDATION", "response_type: only 'accept' goes on from a breakpoint")
    raise decided_before(asked[-1]) if asked else not_resumable(run, ())


async def _named(
    connection: Connection, session: Conversation, interrupt_id: str, request: AgentResumeRequest
) -> tuple[str, Request]:
    row = await interrupts.find(connection, interrupt_id) if is_id(interrupt_id, "int") else None
    if row is None or row.conversation_id != session.id:
        raise Refused("NOT_FOUND", "the session has no such interrupt")
    return row.run_id, _reply(row.id, request)


def _reply(interrupt_id: str, request: AgentResumeRequest) -> ReplyRequest:
    given = "args" in request.model_fields_set
    reply = hitl.Reply(request.response_type, request.args, given)
    return ReplyRequest(interrupt_id, reply, request.confirm_version)
