"""What one user may take of the whole installation (contract §4, RATE_LIMITED).

Counted in Redis over all gateways. While Redis is away a request is let through, and of streams
each gateway allows what it alone would: a limit is a defence, no part of what is promised.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request

from common.bus.usage import Places, Rate
from common.db import idempotency
from common.db.engine import Database
from common.errors import Refused, Unavailable
from gateway.metrics import Metrics
from gateway.services.beat import Beat
from gateway.sse import Slot, Slots


def limited(metrics: Metrics, limit: str, most: int, retry_after_s: float = 1) -> Refused:
    """The refusal that names the limit; `Retry-After` is made of it."""
    metrics.limited.labels(limit).inc()
    detail = {
        "requests": f"at most {most} requests a minute",
        "runs": f"at most {most} runs that are queued or running",
        "streams": f"at most {most} open streams",
    }[limit]
    after = max(1, math.ceil(retry_after_s))
    return Refused(
        "RATE_LIMITED", f"{detail} of one user", limit=limit, most=most, retryAfterS=after
    )


class RequestLimit:
    """One trip to Redis a request. None is made while it is off (`rate` is None)."""

    def __init__(self, rate: Rate | None, db: Database, metrics: Metrics) -> None:
        self._rate, self._db, self._metrics = rate, db, metrics

    async def check(self, user: str, request: Request) -> None:
        if self._rate is None:
            return
        try:
            wait_s = await self._rate.take(user)
        except Unavailable:
            return
        if wait_s and not await self._is_repeat(user, request):
            raise limited(self._metrics, "requests", self._rate.per_minute, wait_s)

    async def _is_repeat(self, user: str, request: Request) -> bool:
        """Whoever lost an answer gets it again, however often he asks."""
        key = await _key(request) if request.method == "POST" else None
        if key is None:
            return False
        async with self._db.connect() as connection:
            return await idempotency.is_kept(connection, user, key)


async def _key(request: Request) -> str | None:
    """From the header, else from the body, which is read once and kept with the request."""
    key: Any = request.headers.get("idempotency-key")
    if key is None:
        try:
            body = orjson.loads(await request.body())
        except orjson.JSONDecodeError:
            return None
        key = body.get("idempotencyKey") if isinstance(body, dict) else None
    return key if isinstance(key, str) and 0 < len(key) <= 255 and "\0" not in key else None


class StreamPlaces:
    """Places for streams and calls that wait: of this process first, then of all gateways.

    `beat` is to be run: it says how many a user has here, again and again, and once when the number
    has fallen. `most` 0: only this process's own limits hold, and nothing is said.
    """

    def __init__(
        self, slots: Slots, places: Places, most: int, metrics: Metrics, *, beat_interval_s: float
    ) -> None:
        self._slots, self._places, self._most, self._metrics = slots, places, most, metrics
        self.beat = Beat("open streams", self._users, self._say, interval_s=beat_interval_s)

    async def take(self, user: str) -> Slot:
        """A place; refuses with RATE_LIMITED (429)."""
        slot = self._slots.take(user)
        if self._most:
            slot.on_free(partial(self.beat.changed, user))
            try:
                await self._admit(user)
            except BaseException:
                slot.free()
                raise
        return slot

    async def _admit(self, user: str) -> None:
        try:
            admitted = await self._places.take(user, self._slots.open_of(user), self._most)
        except Unavailable:
            self.beat.changed(user)  # to be said when Redis is back
            return
        if not admitted:
            raise limited(self._metrics, "streams", self._most)

    def _users(self) -> set[str]:
        return self._slots.users if self._most else set()

    async def _say(self, users: set[str]) -> None:
        await self._places.say({user: self._slots.open_of(user) for user in users})
