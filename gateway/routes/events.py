"""A run's events: a stream, or a page of JSON, by `Accept` (contract §3).

A Starlette route, not FastAPI's: opening a stream is the one thing that thousands of clients do at
once when a gateway has gone away. Authorised first, on a connection that is given back before the
stream begins.
"""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.db.runs import Run
from common.runs import TERMINAL_STATUSES
from gateway.auth import Authenticator, Principal, Tickets
from gateway.metrics import Metrics
from gateway.routes.callers import limit_of, position_of, until_of, wants
from gateway.services.history import History
from gateway.services.limits import RequestLimit
from gateway.services.ring import Cursor
from gateway.services.runs import Runs
from gateway.services.streams import Streams
from gateway.sse import HEADERS

_PAGE_MAX = 1000
_PAGE_BATCHES = 100
_PAGE_BYTES = 1 << 20
PATH = "/api/runs/{run_id}/events"


class Events:
    def __init__(
        self,
        runs: Runs,
        history: History,
        streams: Streams,
        authenticator: Authenticator,
        tickets: Tickets,
        metrics: Metrics,
        limit: RequestLimit,
    ) -> None:
        self._runs, self._history, self._streams = runs, history, streams
        self._authenticator, self._tickets, self._metrics = authenticator, tickets, metrics
        self._limit = limit

    def route(self) -> Route:
        return Route(PATH, self.get, methods=["GET"])

    async def get(self, request: Request) -> Response:
        principal = await self._principal(request)
        await self._limit.check(principal.user, request)
        run = await self._runs.find_to_follow(principal, request.path_params["run_id"])
        position = position_of(request)
        if wants(request, "stream") == "json":
            return await self._page(run, position, limit_of(request, _PAGE_MAX, _PAGE_MAX))
        until = until_of(request)
        if run.status in TERMINAL_STATUSES and position >= run.last_sequence:
            self._metrics.resumes.labels("204").inc()
            return Response(status_code=204)
        if request.method == "HEAD":
            return Response(headers=HEADERS)
        slot = await self._streams.reserve(principal.user)
        return await self._streams.open(slot, run, position, until)

    async def _principal(self, request: Request) -> Principal:
        """A ticket counts only where there is no header: `EventSource` cannot send one."""
        ticket = request.query_params.get("ticket")
        authorization = request.headers.get("authorization")
        if ticket is not None and authorization is None:
            return self._tickets.principal(ticket, request.path_params["run_id"])
        return await self._authenticator.principal(authorization)

    async def _page(self, run: Run, position: int, limit: int) -> Response:
        events: list[dict[str, Any]] = []
        cursor = Cursor(position, "end")
        complete = run.status in TERMINAL_STATUSES and position >= run.last_sequence
        while len(events) < limit and not complete:
            batches = await self._history.read(
                run.id, cursor.position, _PAGE_BATCHES, archived=run.last_sequence
            )
            portion = cursor.take(batches, _PAGE_BYTES)
            if not portion.frames:
                break
            events += parsed(portion.frames)
            complete = portion.ends == "run"
        if len(events) > limit:
            del events[limit:]
            complete = False
        return _json(events, events[-1]["sequence"] if events else position, complete)


def parsed(frames: bytes) -> list[dict[str, Any]]:
    """The events as objects: the JSON of their `data` lines."""
    blocks = [block.rpartition(b"\ndata: ")[2] for block in frames.split(b"\n\n") if block]
    return [orjson.loads(line) for line in blocks]


def _json(events: list[dict[str, Any]], after: int, complete: bool) -> Response:
    document = {"events": events, "next": after, "complete": complete}
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(document), 200, headers, media_type="application/json")
