"""One answer for one key: the act and its stored answer are one transaction (contract §4).

A second call with the same key waits in `reserve` until the first has committed and then gets its
answer; a refusal rolls the transaction back and so frees the key.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

import orjson
import structlog

from common.db import idempotency
from common.db.engine import Connection, Database
from common.errors import Refused, Unavailable
from gateway.auth import Principal

logger = structlog.get_logger(__name__)

Answer = dict[str, Any]

_FORGET_AT_ONCE = 1000


def fingerprint(act: str, target: str | None, body: dict[str, Any]) -> bytes:
    """The same for the same request, whatever the order of its fields and the place of its key."""
    request = [act, target, {k: v for k, v in body.items() if k != "idempotencyKey"}]
    return blake2b(orjson.dumps(request, option=orjson.OPT_SORT_KEYS), digest_size=32).digest()


async def once(
    connection: Connection,
    principal: Principal,
    key: str | None,
    request: bytes,
    act: Callable[[], Awaitable[Answer]],
) -> tuple[Answer, bool]:
    """The answer, and whether it was made by this very call. In the caller's transaction."""
    if key is None:
        return await act(), True
    found = await idempotency.reserve(connection, principal.user, key, request)
    if not isinstance(found, idempotency.Reserved):
        return _answer_in(found) or {}, False
    answer = await act()
    await idempotency.store(connection, principal.user, key, answer)
    return answer, True


async def stored(
    connection: Connection, principal: Principal, key: str | None, request: bytes
) -> Answer | None:
    """The answer that the key has by now; one that is being worked on is not waited for."""
    if key is None:
        return None
    return _answer_in(await idempotency.find(connection, principal.user, key, request))


async def answered(
    db: Database, principal: Principal, key: str | None, request: bytes
) -> Answer | None:
    """The same, but a call with the key that has come as far as its transaction is waited for."""
    if key is None:
        return None
    try:
        async with db.begin() as connection:
            found = await idempotency.reserve(connection, principal.user, key, request)
            if isinstance(found, idempotency.Reserved):
                raise _Free
    except _Free:
        return None
    return _answer_in(found)


class _Free(Exception):
    """Takes the reservation back: nobody works on the key."""


def _answer_in(found: idempotency.Stored | idempotency.Mismatch | None) -> Answer | None:
    if isinstance(found, idempotency.Mismatch):
        raise Refused("IDEMPOTENCY_MISMATCH", "this key was used for another request")
    answer: Answer | None = None if found is None else found.response
    return answer


def key_of(body_key: str | None, header_key: str | None) -> str | None:
    """The key of a request, from its body or its header; both must agree."""
    if body_key is not None and header_key is not None and body_key != header_key:
        raise Refused("VALIDATION", "idempotencyKey and Idempotency-Key differ")
    key = body_key if body_key is not None else header_key
    if key is not None and not 0 < len(key) <= 255:
        raise Refused("VALIDATION", "an idempotency key has 1 to 255 characters")
    return key


class Forgetting:
    """Removes answers that are older than the retention. Every gateway does; it is idempotent."""

    def __init__(self, db: Database, retention_s: float, interval_s: float) -> None:
        self._db, self._retention_s, self._interval_s = db, retention_s, interval_s

    async def run(self) -> None:
        """Ends by cancellation only."""
        while True:
            await asyncio.sleep(self._interval_s * random.uniform(0.5, 1.5))
            try:
                while await self.forget() == _FORGET_AT_ONCE:
                    pass  # there is more
            except Unavailable as error:
                logger.warning("old answers are kept for now", cause=str(error))

    async def forget(self) -> int:
        """One bounded statement; how many it removed."""
        async with self._db.connect() as connection:
            return await idempotency.purge(connection, self._retention_s, _FORGET_AT_ONCE)
