"""Who loads: one user at the given addresses, runs to order, streams without number."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from common.errors import SteadyrunError
from deploy.client import Client, Run
from deploy.load.tap import Counter, Tap, open_tap

Json = dict[str, Any]


class LoadFailed(SteadyrunError):
    """The system under load did what it must not; nothing that was measured would mean anything."""


@dataclass(frozen=True, slots=True)
class Order:
    """What one run shall say; the load graph reads it from the message."""

    kind: str
    events: int
    rate: float = 0.0
    hold: bool = False

    @property
    def content(self) -> str:
        return json.dumps(
            {name: getattr(self, name) for name in ("kind", "events", "rate", "hold")}
        )


class LoadClient:
    """Talks to the given addresses in turn, as one user."""

    def __init__(self, addresses: Sequence[str], token: str) -> None:
        self.addresses = list(addresses)
        self._in_turn = cycle(addresses)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._clients = {address: Client(address, token) for address in self.addresses}

    async def __aenter__(self) -> "LoadClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.aclose()

    @property
    def any(self) -> Client:
        return self._clients[next(self._in_turn)]

    async def runs(self, order: Order, count: int, *, at_once: int = 4) -> list[Tap]:
        """`count` runs, each in a conversation of its own, each followed to its end."""
        left = iter(range(count))

        async def work() -> list[Tap]:
            return [await self.run(order) for _ in left]

        done = await asyncio.gather(*(work() for _ in range(at_once)))
        return [tap for each in done for tap in each]

    async def run(self, order: Order, counter: Counter | None = None) -> Tap:
        """One run, whose POST is its stream."""
        body = json.dumps({"message": {"content": order.content}}).encode()
        key = {"Idempotency-Key": uuid.uuid4().hex}
        address = next(self._in_turn)
        tap = await open_tap(address, "/api/chat", self._headers | key, body=body, counter=counter)
        if not await tap.ended or tap.status != 200:
            raise LoadFailed(f"POST {address}/api/chat: {tap.status}, or cut")
        return tap

    async def hold(self, order: Order) -> Run:
        """A run that waits for a decision."""
        stream = self.any.chat(order.content)
        async for _ in stream:
            pass
        run = await self.any.run(stream.run_id or "")
        if run["status"] != "interrupted":
            raise LoadFailed(f"the load graph is {run['status']}: {run['error']}")
        return run

    async def release(self, run: Run) -> None:
        (question,) = run["pendingInterrupts"]
        await self.any.answer(run["id"], {question["id"]: True})

    async def follow(
        self,
        run_id: str,
        *,
        after: int | None = None,
        address: str | None = None,
        counter: Counter | None = None,
    ) -> Tap:
        """A stream of the run to its end, from its beginning or from `after` on."""
        at = {} if after is None else {"Last-Event-ID": str(after)}
        where = address or next(self._in_turn)
        path = f"/api/runs/{run_id}/events"
        return await open_tap(where, path, self._headers | at, counter=counter)

    async def follow_many(self, run_ids: Sequence[str], **how: Any) -> list[Tap]:
        """A stream of each, all of them attached when this returns; not all at the same instant."""
        gate = asyncio.Semaphore(100)

        async def one(run_id: str) -> Tap:
            async with gate:
                tap = await self.follow(run_id, **how)
                await tap.has_begun()
                if tap.status != 200:
                    raise LoadFailed(f"a stream was answered {tap.status or 'not at all'}")
                return tap

        return list(await asyncio.gather(*map(one, run_ids)))
