"""Before FastAPI: event streams are served from here, everything else by the application.

A stream stays open, and with it every layer that called it: under FastAPI that is a third of what
an idle stream costs, and most of what it takes to open one when thousands reconnect at once. The
application has the same route for what this does not take (HEAD, 405, OpenAPI).
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import Refused, Unavailable
from gateway import problems

_PATH = re.compile(r"/api/runs/([^/]+)/events")


class Front:
    """`around` puts the application's own middleware around the streams as well."""

    def __init__(
        self,
        app: ASGIApp,
        get: Callable[[Request], Awaitable[Response]],
        route: Route,
        around: Callable[[ASGIApp], ASGIApp],
    ) -> None:
        self._app = app
        self._get = get
        self._route = route  # what metrics are told by
        self._streams = around(self._stream)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        """Not a coroutine of its own: it would be one more that waits."""
        if scope["type"] == "http" and scope["method"] == "GET" and _PATH.fullmatch(scope["path"]):
            return self._streams(scope, receive, send)
        return self._app(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(scope, receive)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        found = _PATH.fullmatch(scope["path"])
        scope["path_params"] = {"run_id": found[1] if found else ""}
        scope["route"] = self._route
        try:
            return await self._get(Request(scope, receive))
        except (Refused, Unavailable, HTTPException) as error:
            return problems.of(error)
