"""A client of the wire for tests: exact about bytes, so that histories can be compared."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from common.events import TERMINAL
from common.sse import Decoder
from deploy.signing import sign

Json = dict[str, Any]


def split_frames(raw: bytes) -> list[bytes]:
    """The frames of a stream's bytes, without comments, `retry` and an unfinished one."""
    *blocks, _ = raw.split(b"\n\n")
    return [
        b"".join(
            line + b"\n" for line in block.split(b"\n") if not line.startswith((b":", b"retry:"))
        )
        for block in blocks
    ]


@dataclass
class History:
    """What one client saw of one run, over any number of connections."""

    cursor: int = 0
    frames: dict[int, bytes] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    connections: int = 0

    def take(self, raw: bytes) -> None:
        for frame in split_frames(raw):
            sequence = int(frame.split(b"\n")[0].removeprefix(b"id: "))
            self.order.append(sequence)
            self.frames[sequence] = frame
            self.cursor = sequence

    @property
    def events(self) -> list[Json]:
        return [body(self.frames[sequence]) for sequence in self.order]

    @property
    def ended(self) -> bool:
        return bool(self.order) and self.events[-1]["type"] in TERMINAL


def body(frame: bytes) -> Json:
    parsed: Json = json.loads(frame.split(b"\ndata: ")[1])
    return parsed


class Api:
    """One user at one address."""

    def __init__(
        self, url: str, secret: str, *, user: str = "ada", permissions: tuple[str, ...] = ()
    ) -> None:
        token = sign(secret, user, permissions, ttl_s=3600)
        self.http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(30, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def conversation(self, **fields: Any) -> str:
        answer = await self.http.post("/api/conversations", json=fields)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def start(self, content: str, *, conversation: str | None = None, **fields: Any) -> Json:
        """A run, in a conversation of its own unless one is named; the run of the answer."""
        graph = fields.pop("graph", None)
        named = {"graph": graph} if graph else {}
        conversation = conversation or await self.conversation(**named)
        answer = await self.http.post(
            f"/api/conversations/{conversation}/runs",
            json={"message": {"content": content}, "idempotencyKey": uuid.uuid4().hex, **fields},
        )
        assert answer.status_code == 202, answer.text
        run: Json = answer.json()["run"]
        return run

    async def run(self, run_id: str) -> Json:
        answer = await self.http.get(f"/api/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        run: Json = answer.json()
        return run

    async def resume(self, run_id: str, **fields: Any) -> httpx.Response:
        fields.setdefault("idempotencyKey", uuid.uuid4().hex)
        return await self.http.post(f"/api/runs/{run_id}/resume", json=fields)

    async def read(
        self, run_id: str, *, until: str = "end", history: History | None = None
    ) -> History:
        """Follow to a pause or the end, over as many connections as it takes."""
        history = history or History()
        while not await self.connect(run_id, history, until=until):
            pass
        return history

    async def connect(
        self,
        run_id: str,
        history: History,
        *,
        until: str = "end",
        events_max: int = 1_000_000,
    ) -> bool:
        """One connection from the history's cursor; True when the response ended cleanly."""
        headers = {"Last-Event-ID": str(history.cursor)}
        query = {"until": until}
        history.connections += 1
        raw, seen = b"", 0
        try:
            async with self.http.stream(
                "GET", f"/api/runs/{run_id}/events", headers=headers, params=query
            ) as response:
                if response.status_code == 204:
                    return True
                if response.status_code == 503:  # with Retry-After: come again
                    await asyncio.sleep(0.2)
                    return False
                assert response.status_code == 200, await response.aread()
                async for chunk in response.aiter_raw():
                    raw += chunk
                    whole, border, rest = raw.rpartition(b"\n\n")
                    if border:
                        before = len(history.order)
                        history.take(whole + border)
                        seen += len(history.order) - before
                        raw = rest
                    if seen >= events_max:
                        return False
        except httpx.TransportError:
            return False
        return True

    async def pages(self, run_id: str, limit: int = 100) -> list[Json]:
        """The log by its JSON pages."""
        events: list[Json] = []
        after = 0
        while True:
            answer = await self.http.get(
                f"/api/runs/{run_id}/events",
                params={"after": after, "limit": limit},
                headers={"Accept": "application/json"},
            )
            assert answer.status_code == 200, answer.text
            page = answer.json()
            events += page["events"]
            after = page["next"]
            if page["complete"] or not page["events"]:
                return events


async def decoded(response: httpx.Response) -> AsyncIterator[Json]:
    """The events of a streaming response, by the decoder that our clients use."""
    decoder = Decoder()
    async for chunk in response.aiter_raw():
        for event in decoder.feed(chunk):
            yield json.loads(event.data)
