"""A gateway on loopback in the test's own loop, and clients of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import httpx
import jwt

from common.graphfile import GraphFile, GraphSpec
from common.loading import Reference
from common.settings import GatewaySettings
from common.sse import Decoder, ServerEvent
from common.tracing import Tracing
from gateway.app import Gateway, create_app
from gateway.server import DrainingServer, listen, server
from tests.support import rows
from tests.support.counted import counted
from tests.support.until import until

SECRET = "edge-secret-of-more-than-32-bytes!"


def settings(database_url: str, redis_url: str, prefix: str, **others: Any) -> GatewaySettings:
    given: dict[str, Any] = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "redis_prefix": prefix,
        "jwt_secret": SECRET,
        "drain_window_s": 0.05,
        "follow_linger_s": 0.05,
    }
    return GatewaySettings(**{**given, **others})


def graph_file(**spec: Any) -> GraphFile:
    """One graph, under the name that rows.py uses; its code is never loaded by a gateway."""
    made = GraphSpec(rows.GRAPH, Reference(Path("graph.py"), "graph"), **spec)
    return GraphFile(Path("langgraph.json"), {rows.GRAPH: made}, rows.GRAPH)


def token(user: str = rows.USER, *permissions: str, **claims: Any) -> str:
    expires_at = datetime.now(UTC) + timedelta(minutes=5)
    given = {"sub": user, "permissions": list(permissions), "exp": expires_at, **claims}
    return jwt.encode(given, SECRET, "HS256")


def bearer(user: str = rows.USER, *permissions: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(user, *permissions)}"}


class Edge:
    """A running gateway."""

    def __init__(self, gateway: Gateway, running: DrainingServer, url: str) -> None:
        self.gateway, self.server, self.url = gateway, running, url
        self.client = httpx.AsyncClient(base_url=url, headers=bearer(), timeout=20)

    def metric(self, name: str, **labels: str) -> float:
        return counted(self.gateway.metrics, name, **labels)

    async def create(self, **body: Any) -> dict[str, Any]:
        """A run in a conversation of its own."""
        body = {"message": {"content": "restart pump 7"}, **body}
        headers = {"Accept": "application/json"}
        response = await self.client.post("/api/chat", json=body, headers=headers)
        assert response.status_code == 202, response.text
        made: dict[str, Any] = response.json()
        return made

    def read(self, run_id: str, after: int | None = None, **params: Any) -> "Reading":
        query = params if after is None else {"after": after, **params}
        return Reading(self.client, "GET", f"/api/runs/{run_id}/events", params=query)


@asynccontextmanager
async def serving(
    options: GatewaySettings, graphs: GraphFile | None = None, tracing: Tracing | None = None
) -> AsyncIterator[Edge]:
    app = create_app(options, graphs or graph_file(), tracing)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    running = server(
        app.state.front,
        app.state.gateway.drain,
        options.drain_window_s,
        receive_timeout_s=options.receive_timeout_s,
    )
    task = asyncio.create_task(running.serve(sockets=[listener]))
    await until(lambda: running.started)
    edge = Edge(app.state.gateway, running, url)
    try:
        await until(lambda: edge.gateway.hub.healthy)
        yield edge
    finally:
        await edge.client.aclose()
        running.should_exit = True
        await task


class Reading:
    """One response of events. `ended`: cleanly; `cut`: the connection was closed under it."""

    def __init__(self, client: httpx.AsyncClient, method: str, path: str, **request: Any) -> None:
        self._open: Callable[[], Any] = lambda: client.stream(method, path, **request)
        self.events: list[ServerEvent] = []
        self.raw = b""
        self.ended = self.cut = False
        self._decoder = Decoder()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._context = self._open()
        self.response: httpx.Response = await self._context.__aenter__()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._context.__aexit__(None, None, None)

    @property
    def sequences(self) -> list[int]:
        return [int(event.id) for event in self.events]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def frames(self) -> bytes:
        """What came, without comments and `retry` lines."""
        lines = self.raw.split(b"\n")
        return b"\n".join(line for line in lines if not line.startswith((b":", b"retry: ")))

    def json(self) -> list[dict[str, Any]]:
        return [json.loads(event.data) for event in self.events]

    async def until(self, holds: Callable[[Self], bool], within_s: float = 15) -> Self:
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: holds(self))
        return self

    async def count(self, number: int) -> Self:
        return await self.until(lambda r: len(r.events) >= number)

    async def over(self) -> Self:
        return await self.until(lambda r: r.ended or r.cut)

    async def _read(self) -> None:
        try:
            async for chunk in self.response.aiter_raw():
                await self._take(chunk)
        except httpx.HTTPError:
            self.cut = True
        else:
            self.ended = True
        await self._take(b"")

    async def _take(self, chunk: bytes) -> None:
        async with self._changed:
            self.raw += chunk
            self.events += self._decoder.feed(chunk)
            self._changed.notify_all()
