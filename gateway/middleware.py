"""What surrounds every request, as plain ASGI: a body limit, one log line, and a last catch.

No BaseHTTPMiddleware: it hides a client's leaving and triples the cost of a stream. A log line has
the path and never the query, which may hold a ticket.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.tracing import Attributes, Tracing, valid
from gateway.metrics import Metrics
from gateway.problems import problem
from gateway.sse import StreamAborted

logger = structlog.get_logger(__name__)

_UNTRACED = Tracing()
_QUIET = ("/healthz", "/readyz", "/metrics")


class BodyLimit:
    """413 for larger bodies: by what the head says, else by counting what comes.

    The connection is kept: closing it under a body that still comes would reset it, and the client
    would never read the answer. The server throws the rest of the body away.
    """

    def __init__(self, app: ASGIApp, bytes_max: int) -> None:
        self._app, self._bytes_max = app, bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _declared_length(scope) > self._bytes_max:
            await problem("PAYLOAD_TOO_LARGE", self._detail)(scope, receive, send)
        else:
            await self._app(scope, self._counted(receive), send)

    @property
    def _detail(self) -> str:
        return f"a request body has at most {self._bytes_max} bytes"

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._bytes_max:
                raise HTTPException(413)  # FastAPI lets this one pass through its body parsing
            return message

        return counted


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


class Requests:
    """One log line and one observation a request; a mistake of ours becomes 500 without details.

    A gateway that is `leaving` keeps no connection, and a request that it has to give up gets 503.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        leaving: Callable[[], bool] = lambda: False,
        tracing: Tracing | None = None,
    ) -> None:
        self._app, self._metrics, self._leaving = app, metrics, leaving
        self._tracing = tracing or Tracing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = _Head(send, self._leaving)
        began_at = asyncio.get_running_loop().time()
        method, parent = scope["method"], _traceparent(scope)
        tracing = _UNTRACED if scope["path"] in _QUIET else self._tracing
        with tracing.span(method, kind="server", parent=parent) as span:
            try:
                await self._caught(scope, receive, head)
            finally:
                self._observe(scope, head, asyncio.get_running_loop().time() - began_at)
                span.rename(f"{method} {_route(scope)}", _described(method, scope, head))

    async def _caught(self, scope: Scope, receive: Receive, head: "_Head") -> None:
        try:
            await self._app(scope, receive, head)
        except StreamAborted:
            raise
        except asyncio.CancelledError:  # by the server, when a drain has lasted too long
            if head.status is not None:
                raise
            await problem("UNAVAILABLE", "this gateway is going away; try again")(
                scope, receive, head
            )
        except Exception:
            logger.exception("request failed", method=scope["method"], path=scope["path"])
            if head.status is not None:
                raise  # the server cuts what has begun
            await problem("INTERNAL", "something went wrong here")(scope, receive, head)

    def _observe(self, scope: Scope, head: "_Head", duration_s: float) -> None:
        if head.status is None or scope["path"] in _QUIET:
            return
        method, status = scope["method"], str(head.status)
        if not head.stream:
            self._metrics.request_s.labels(method, _route(scope), status).observe(duration_s)
        logger.info(
            "request",
            method=method,
            path=scope["path"],
            status=head.status,
            duration_s=round(duration_s, 4),
        )


def _route(scope: Scope) -> str:
    """The template, never the path."""
    return str(getattr(scope.get("route"), "path", "none"))


def _described(method: str, scope: Scope, head: "_Head") -> Attributes:
    found: Attributes = {"http.request.method": method, "http.route": _route(scope)}
    return found if head.status is None else found | {"http.response.status_code": head.status}


def _traceparent(scope: Scope) -> str | None:
    found = next((v for k, v in scope["headers"] if k == b"traceparent"), None)
    return valid(found.decode("latin-1")) if found is not None else None


class _Head:
    """A `send` that remembers what the response began with."""

    def __init__(self, send: Callable[[Message], Any], leaving: Callable[[], bool]) -> None:
        self._send, self._leaving = send, leaving
        self.status: int | None = None
        self.stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kinds = [v for k, v in message.get("headers", ()) if k == b"content-type"]
            self.stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
            if self._leaving():
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)
