"""Starting, looking at, resuming and cancelling runs (contract §4, §5)."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from starlette.responses import JSONResponse, Response

from gateway.auth import Principal, Tickets
from gateway.routes.callers import Caller, wants
from gateway.schemas import (
    ChatRequest,
    InterruptAnswer,
    ResumeRequest,
    RunCreated,
    RunOut,
    RunRequest,
    TicketOut,
)
from gateway.services.idempotency import key_of
from gateway.services.resume import Resume
from gateway.services.runs import Runs
from gateway.services.streams import Streams

Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=255)]


def router(
    runs: Runs, resume: Resume, streams: Streams, tickets: Tickets, caller: Caller
) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["runs"])
    who: Any = Depends(caller)
    created: Any = {"status_code": 202, "response_model": RunCreated}

    @routes.post("/conversations/{conversation_id}/runs", **created)
    async def create_run(
        conversation_id: str,
        body: RunRequest,
        request: Request,
        principal: Principal = who,
        idempotency_key: Key = None,
    ) -> Response:
        key = key_of(body.idempotency_key, idempotency_key)
        as_stream = wants(request, "json") == "stream"
        return await start(principal, conversation_id, body, key, as_stream=as_stream)

    @routes.post("/chat", **created)
    async def chat(
        body: ChatRequest,
        request: Request,
        principal: Principal = who,
        idempotency_key: Key = None,
    ) -> Response:
        key = key_of(body.idempotency_key, idempotency_key)
        as_stream = wants(request, "stream") == "stream"
        return await start(principal, body.conversation_id, body, key, as_stream=as_stream)

    @routes.get("/runs/{run_id}")
    async def get_run(run_id: str, principal: Principal = who) -> RunOut:
        return await runs.view(await runs.find(principal, run_id))

    @routes.post("/runs/{run_id}/cancel", status_code=202)
    async def cancel_run(run_id: str, principal: Principal = who) -> RunOut:
        return await runs.view(await runs.cancel(principal, run_id))

    @routes.post("/runs/{run_id}/ticket", status_code=201)
    async def ticket(run_id: str, principal: Principal = who) -> TicketOut:
        run = await runs.find(principal, run_id)
        made = tickets.issue(run.id, principal)
        return TicketOut(
            ticket=made.text,
            stream_url=stream_url(run.id, made.text),
            expires_at=made.expires_at,
        )

    @routes.post(
        "/runs/{run_id}/resume", status_code=202, response_model=RunCreated | InterruptAnswer
    )
    async def resume_run(
        run_id: str, body: ResumeRequest, principal: Principal = who, idempotency_key: Key = None
    ) -> Response:
        key = key_of(body.idempotency_key, idempotency_key)
        resumed = await resume.resume(principal, run_id, body, key)
        answer = resumed.answer
        if resumed.owner:
            made = tickets.issue(run_id, principal)
            url = stream_url(run_id, made.text, resumed.after)
            answer = {**answer, "streamUrl": url}
        return JSONResponse(answer, 202)

    async def start(
        principal: Principal,
        conversation_id: str | None,
        body: RunRequest,
        key: str | None,
        *,
        as_stream: bool,
    ) -> Response:
        if as_stream:
            return await start_stream(principal, conversation_id, body, key)
        made = await runs.create(principal, conversation_id, body, key)
        url = stream_url(made.run_id, tickets.issue(made.run_id, principal).text)
        headers = {"Location": f"/api/runs/{made.run_id}"}
        return JSONResponse({"run": made.answer, "streamUrl": url}, 202, headers)

    async def start_stream(
        principal: Principal, conversation_id: str | None, body: RunRequest, key: str | None
    ) -> Response:
        """The place is taken before the run is made: a full house starts nothing."""
        slot = await streams.reserve(principal.user)
        try:
            made = await runs.create(principal, conversation_id, body, key)
            run = await runs.find_to_follow(principal, made.run_id)
        except BaseException:
            slot.free()
            raise
        where = f"/api/runs/{run.id}"
        headers = {"Location": f"{where}/events", "Content-Location": where}
        return await streams.open(slot, run, 0, "interrupt", headers)

    return routes


def stream_url(run_id: str, ticket: str, after: int = 0) -> str:
    return f"/api/runs/{run_id}/events?after={after}&ticket={ticket}"
