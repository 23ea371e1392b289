"""Clients that stay at it while instances die, and what must be true of what they saw (I1, I6).

A client takes 429, 503 and a cut connection for "try again"; every other answer but
success fails the test. POSTs are repeated with their key.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from common.events import TERMINAL
from deploy.topology import Topology
from tests.support.api import Api, History, Json, split_frames

AGAIN = (429, 503)


@dataclass
class Crowd:
    """Clients at all addresses of a topology; addresses stay while processes are replaced."""

    apis: Sequence[Api]
    rng: random.Random
    retried: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, topology: Topology, rng: random.Random) -> "Crowd":
        urls = [p.url for p in topology.of("gateway") if p.url] + [topology.url]
        return cls([Api(url, topology.jwt_secret) for url in urls], rng)

    async def aclose(self) -> None:
        for api in self.apis:
            await api.http.aclose()

    async def start(self, content: str, graph: str) -> str:
        """The id of a run in a conversation of its own."""
        body = {"message": {"content": content}, "graph": graph}
        answer = await self.post("/api/chat", body, {"Accept": "application/json"})
        return str(answer["run"]["id"])

    async def post(self, path: str, body: Json, headers: Json | None = None) -> Json:
        body = {**body, "idempotencyKey": uuid.uuid4().hex}
        return await self._insist(lambda api: api.http.post(path, json=body, headers=headers))

    async def get(self, path: str) -> Json:
        return await self._insist(lambda api: api.http.get(path))

    async def _insist(self, ask: Callable[[Api], Awaitable[httpx.Response]]) -> Json:
        while True:
            try:
                answer = await ask(self.rng.choice(self.apis))
            except httpx.TransportError as error:
                self.retried.append(type(error).__name__)
            else:
                if answer.is_success:
                    found: Json = answer.json()
                    return found
                assert_retryable(answer)
                self.retried.append(str(answer.status_code))
            await asyncio.sleep(self.rng.uniform(0.05, 0.3))

    async def watch(self, run_id: str, *, until: str = "end", cuts: bool = True) -> History:
        """Read to the end, over any number of connections, some of them cut by the client."""
        history = History()
        while not history.ended:
            most = self.rng.randrange(1, 150) if cuts and self.rng.random() < 0.5 else 1_000_000
            if await self._connect(run_id, history, until, most):
                break
            await asyncio.sleep(self.rng.uniform(0.02, 0.2))
        return history

    async def _connect(self, run_id: str, history: History, until: str, most: int) -> bool:
        """One connection; True when the server ended it cleanly, which it says of the end only."""
        api, query = self.rng.choice(self.apis), {"until": until}
        headers = {"Last-Event-ID": str(history.cursor)}
        history.connections += 1
        path = f"/api/runs/{run_id}/events"
        try:
            async with api.http.stream("GET", path, headers=headers, params=query) as response:
                if response.status_code == 204:
                    return True
                if response.status_code != 200:
                    await response.aread()
                    assert_retryable(response)
                    return False
                return await _take_all(response, history, most)
        except httpx.TransportError:
            return False


async def _take_all(response: httpx.Response, history: History, most: int) -> bool:
    raw, before = b"", len(history.order)
    async for chunk in response.aiter_raw():
        whole, border, rest = (raw + chunk).rpartition(b"\n\n")
        raw = rest if border else raw + chunk
        if border:
            history.take(whole + border)
        if len(history.order) - before >= most:
            return False
    assert not split_frames(raw + b"\n\n") or not raw.strip() or raw.startswith(b":"), raw
    return True


def assert_retryable(answer: httpx.Response) -> None:
    assert answer.status_code in AGAIN, (answer.status_code, answer.text)
    assert answer.headers["retry-after"], answer.headers
    assert answer.json()["code"] in ("UNAVAILABLE", "RATE_LIMITED")


def assert_exact(histories: Sequence[History]) -> list[Json]:
    """Each event once, in order, the same bytes for all, one terminal event and that the last; the
    events of the run."""
    whole = max(histories, key=lambda h: len(h.order))
    for history in histories:
        assert history.order == whole.order
        assert history.frames == whole.frames
    events = whole.events
    at = 0
    for event in events:
        jumps = event["type"] == "run_resumed" and event["reason"] == "failover"
        assert event["sequence"] == at + 1 or (jumps and event["sequence"] > at), event
        at = event["sequence"]
    assert [e["type"] for e in events if e["type"] in TERMINAL] == [events[-1]["type"]]
    epochs = [event["epoch"] for event in events]
    assert epochs == sorted(epochs)
    return events


def folded(events: Sequence[Json]) -> list[Json]:
    """What a client shows at the end: without what was shown under discarded steps."""
    shown: list[Json] = []
    for event in events:
        if event["type"] == "run_resumed":
            gone = set(event["discard"])
            shown = [kept for kept in shown if kept.get("stepId") not in gone]
        shown.append(event)
    return shown


def reasons(events: Sequence[Json]) -> list[Any]:
    return [event["reason"] for event in events if event["type"] == "run_resumed"]


def outline(events: Sequence[Json]) -> str:
    """The course of a run for a failed assertion: customs counted, the rest as it is."""
    lines: list[str] = []
    customs = 0
    for event in events:
        customs += event["type"] == "custom"
        if event["type"] != "custom":
            said = {k: v for k, v in event.items() if k not in ("runId", "at")}
            lines.append(f"{customs} customs, {said}")
            customs = 0
    return "\n".join(lines)
