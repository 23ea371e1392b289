"""The load itself: many runs and many streams from one process, frames counted, never parsed."""

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import httpx

Json = dict[str, Any]

_NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)


@dataclass(frozen=True, slots=True)
class Order:
    """What one run shall say; the load graph reads it from the message."""

    kind: str
    events: int
    rate: float = 0.0
    hold: bool = False

    def body(self) -> Json:
        content = {name: getattr(self, name) for name in ("kind", "events", "rate", "hold")}
        return {"message": {"content": json.dumps(content)}}


@dataclass(slots=True)
class Counter:
    """Events of one stream. A frame ends with a blank line and comments do not (contract §3)."""

    events: int = 0
    first_s: float | None = None  # from the request to the first event
    _last: bytes = b""

    def take(self, chunk: bytes, now_s: float) -> None:
        joined = self._last + chunk
        self.events += joined.count(b"\n\n")
        self._last = joined[-1:] if not joined.endswith(b"\n\n") else b""
        if self.events and self.first_s is None:
            self.first_s = now_s


class LoadClient:
    """Talks to the given addresses in turn, as one user."""

    def __init__(self, addresses: Sequence[str], token: str) -> None:
        self._addresses = cycle(addresses)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"},
            limits=_NO_LIMITS,
            timeout=httpx.Timeout(30.0, read=60.0),
        )

    async def __aenter__(self) -> "LoadClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def runs(self, order: Order, count: int, *, at_once: int = 4) -> list[Counter]:
        """`count` runs, each in a conversation of its own, each followed to its end."""
        left = iter(range(count))

        async def work() -> list[Counter]:
            return [await self.run(order) for _ in left]

        done = await asyncio.gather(*(work() for _ in range(at_once)))
        return [counter for each in done for counter in each]

    async def run(self, order: Order) -> Counter:
        url = f"{next(self._addresses)}/api/chat"
        return await self._count("POST", url, json=order.body())

    async def hold(self, order: Order) -> Json:
        """A run that waits for a decision; the answer is the run (contract §9)."""
        conversation = await self._json("POST", "/api/conversations", {})
        path = f"/api/conversations/{conversation['id']}/runs"
        run: Json = (await self._json("POST", path, order.body()))["run"]
        while run["status"] != "interrupted":
            if run["status"] not in ("queued", "running"):
                raise RuntimeError(f"the load graph is {run['status']}: {run['error']}")
            await asyncio.sleep(0.05)
            run = await self.find(run["id"])
        return run

    async def find(self, run_id: str) -> Json:
        return await self._json("GET", f"/api/runs/{run_id}")

    async def release(self, run: Json) -> None:
        (interrupt,) = run["pendingInterrupts"]
        path = f"/api/runs/{run['id']}/resume"
        await self._json("POST", path, {"resume": {interrupt["id"]: True}})

    async def follow(self, run_id: str, attached: asyncio.Semaphore) -> Counter:
        """The events of the run from its beginning to its end; `attached` rises at the first."""
        url = f"{next(self._addresses)}/api/runs/{run_id}/events"
        return await self._count("GET", url, attached=attached)

    async def _count(
        self, method: str, url: str, *, attached: asyncio.Semaphore | None = None, json: Any = None
    ) -> Counter:
        headers = {"Accept": "text/event-stream", "Idempotency-Key": uuid.uuid4().hex}
        counter, start = Counter(), time.perf_counter()
        async with self._http.stream(method, url, json=json, headers=headers) as response:
            if response.is_error:
                raise RuntimeError(f"{method} {url}: {response.status_code}")
            async for chunk in response.aiter_raw():
                counter.take(chunk, time.perf_counter() - start)
                if attached and counter.events:
                    attached.release()
                    attached = None
        return counter

    async def _json(self, method: str, path: str, body: Any = None) -> Json:
        headers = {"Accept": "application/json"}
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex
        url = f"{next(self._addresses)}{path}"
        response = await self._http.request(method, url, json=body, headers=headers)
        response.raise_for_status()
        answer: Json = response.json()
        return answer
