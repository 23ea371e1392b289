"""The session facade: one call, one answer (contract §6)."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import JSONResponse, Response

from common.errors import Refused
from gateway.agent_schemas import AgentAnswer, AgentResumeRequest, InvokeRequest, SessionAnswer
from gateway.auth import Principal
from gateway.problems import problem
from gateway.routes.callers import Caller
from gateway.services.idempotency import key_of
from gateway.services.sessions import Begun, Sessions
from gateway.services.waiting import Wait, Waits

Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=255)]
Seconds = Annotated[float, Query(ge=0, le=3600, allow_inf_nan=False)]

_CLIENT_LEFT = 499  # as nginx writes it; nobody reads it but the log


def router(sessions: Sessions, waits: Waits, caller: Caller) -> APIRouter:
    routes = APIRouter(prefix="/agent", tags=["session facade"])
    who: Any = Depends(caller)
    answers: Any = {
        "response_model": AgentAnswer,
        "responses": {202: {"model": AgentAnswer, "description": "It runs: ask for the task"}},
    }

    @routes.post("/invoke", **answers)
    async def invoke_agent(
        body: InvokeRequest,
        request: Request,
        principal: Principal = who,
        idempotency_key: Key = None,
    ) -> Response:
        """Starts a run of the caller's session; `async` answers 202 at once."""
        own(principal, body.user_id)
        key = key_of(None, idempotency_key)
        begin = partial(sessions.invoke, principal, body, key)
        return await answer(body.mode, request, principal, begin)

    @routes.post("/resume", **answers)
    async def resume_agent(
        body: AgentResumeRequest,
        request: Request,
        principal: Principal = who,
        idempotency_key: Key = None,
    ) -> Response:
        """Answers the pending question of the caller's session."""
        own(principal, body.user_id)
        key = key_of(None, idempotency_key)
        begin = partial(sessions.resume, principal, body, key)
        return await answer(body.mode, request, principal, begin)

    @routes.get("/session/{user_id}")
    async def get_session(
        user_id: str, request: Request, principal: Principal = who, wait_s: Seconds = 0
    ) -> SessionAnswer:
        """`wait_s`: while the session's run is at work the answer comes when it has stopped, or
        after so many seconds."""
        own(principal, user_id)
        found = await sessions.view(principal.user)
        if found.status == "running" and found.task_id and wait_s:
            async with waits.place(principal.user, request.receive, wait_s) as wait:
                await wait.until_stopped(found.task_id)
            found = await sessions.view(principal.user)
        return found

    @routes.get("/tasks/{task_id}")
    async def get_task(
        task_id: str, request: Request, principal: Principal = who, wait_s: Seconds = 0
    ) -> AgentAnswer:
        found = await sessions.task(principal, task_id)
        if found.status == "running" and wait_s:
            async with waits.place(principal.user, request.receive, wait_s) as wait:
                await wait.until_stopped(task_id)
            found = await sessions.task(principal, task_id)
        return found

    @routes.delete("/session/{user_id}", status_code=204)
    async def delete_session(user_id: str, principal: Principal = who) -> None:
        """A run that has not ended is cancelled; the conversation stays in the list."""
        own(principal, user_id)
        await sessions.end(principal.user)

    async def answer(
        mode: str, request: Request, principal: Principal, begin: Callable[[], Awaitable[Begun]]
    ) -> Response:
        """At once, or when the run has stopped; a place to wait is had before anything begins."""
        if mode == "async":
            return _accepted(await begin())
        async with waits.place(principal.user, request.receive) as wait:
            return await settle(wait, principal, await begin())

    async def settle(wait: Wait, principal: Principal, begun: Begun) -> Response:
        while (outcome := await wait.until_stopped(begun.task_id)) == "stopped":
            answer = await sessions.task(principal, begun.task_id)
            if answer.status != "running":  # else somebody has resumed it in between
                return JSONResponse(answer.model_dump(mode="json"))
        if outcome == "drained":
            return _going_away(begun)
        return Response(status_code=_CLIENT_LEFT) if outcome == "left" else _accepted(begun)

    return routes


def own(principal: Principal, user_id: str | None) -> None:
    """Identity comes from the token; a name beside it can only agree."""
    if user_id is not None and user_id != principal.user:
        raise Refused("FORBIDDEN", "user_id: not the user of the token")


def _accepted(begun: Begun) -> Response:
    answer = AgentAnswer(session_id=begun.session_id, task_id=begun.task_id, status="running")
    headers = {"Location": f"/agent/tasks/{begun.task_id}"}
    return JSONResponse(answer.model_dump(mode="json"), 202, headers)


def _going_away(begun: Begun) -> Response:
    return problem(
        "UNAVAILABLE",
        "this gateway is going away; the run goes on: ask for the session, or repeat the call with"
        " its Idempotency-Key",
        extra={"session_id": begun.session_id, "task_id": begun.task_id},
    )
