"""Answers kept by the caller's key (contract §4): the same request twice has one effect.

`reserve` inserts the key inside the transaction that does the work. A second request with that key
waits there for the first one's end: committed, it gets the answer; rolled back, it goes first.
"""

from dataclasses import dataclass
from typing import Any

from common.db.engine import Connection
from common.db.statement import Statement
from common.db.values import refuse_unstorable


@dataclass(frozen=True, slots=True)
class Reserved:
    """The key is ours: do the work, then `store` in the same transaction."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The work was done before; this was the answer."""

    response: Any


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used for another request: 422 IDEMPOTENCY_MISMATCH."""


_TRIES = 10


async def reserve(
    connection: Connection, user_id: str, key: str, fingerprint: bytes
) -> Reserved | Stored | Mismatch:
    """`fingerprint` identifies the request. In a transaction; a refusal must roll it back."""
    refuse_unstorable(idempotencyKey=key)
    for _ in range(_TRIES):
        if await _RESERVE.found(connection, user=user_id, key=key, fingerprint=fingerprint):
            return Reserved()
        found = await find(connection, user_id, key, fingerprint)
        if found is not None:  # None: it was removed in between, so it is free again
            return found
    return Mismatch()


async def find(
    connection: Connection, user_id: str, key: str, fingerprint: bytes
) -> Stored | Mismatch | None:
    """What is committed under the key; None: nothing, though somebody may be at it."""
    refuse_unstorable(idempotencyKey=key)
    row = await _FIND.row(connection, user=user_id, key=key)
    if row is None:
        return None
    return Stored(row[1]) if row[0] == fingerprint else Mismatch()


async def is_kept(connection: Connection, user_id: str, key: str) -> bool:
    """Whether an answer is kept under the key, whatever the request was."""
    return await _IS_KEPT.found(connection, user=user_id, key=key)


async def store(connection: Connection, user_id: str, key: str, response: Any) -> None:
    await _STORE.rows(connection, user=user_id, key=key, response=response)


async def purge(connection: Connection, retention_s: float, limit: int = 1000) -> int:
    """Forgets up to `limit` keys that are older; any process, any time."""
    return len(await _PURGE.rows(connection, retention=retention_s, limit=limit))


_RESERVE = Statement("""
INSERT INTO idempotency_keys (user_id, key, fingerprint) VALUES (:user, :key, :fingerprint)
ON CONFLICT (user_id, key) DO NOTHING RETURNING 1
""")

_FIND = Statement("""
SELECT fingerprint, response FROM idempotency_keys WHERE user_id = :user AND key = :key
""")

_IS_KEPT = Statement("""
SELECT 1 FROM idempotency_keys WHERE user_id = :user AND key = :key AND response IS NOT NULL
""")

_STORE = Statement("""
UPDATE idempotency_keys SET response = :response WHERE user_id = :user AND key = :key
""")

_PURGE = Statement("""
DELETE FROM idempotency_keys WHERE (user_id, key) IN (
    SELECT user_id, key FROM idempotency_keys
     WHERE created_at < clock_timestamp() - make_interval(secs => :retention::double precision)
     LIMIT :limit)
RETURNING 1
""")
