"""Guarded side effects: intent before, outcome after, under the run's epoch (I5).

An intent without an outcome means that nobody knows whether the effect happened: it is never
performed again without `verify` or a person saying so (design §6). The epoch of a row is that of
the owner who may perform it: only `begin` of a new row and `take_over` set it, in the statement
that checks that this owner holds the run, so no older owner comes in between.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from common.db.engine import Connection
from common.db.statement import Statement
from common.runs import CancelReason


@dataclass(frozen=True, slots=True)
class Effect:
    """`begun_now`: this call wrote the intent, so perform it. `outcome` is {"value": …} or
    {"refused": why}, None while it is not known."""

    key: str
    epoch: int
    outcome: dict[str, Any] | None
    started_at: datetime
    begun_now: bool


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody has asked for the run's cancellation: nothing was begun, nothing may be."""

    reason: CancelReason


async def begin(
    connection: Connection, run_id: str, epoch: int, key: str
) -> Effect | CancelAsked | None:
    """Writes the intent, or finds what an earlier execution left. Fenced: None."""
    row = await _BEGIN.row(connection, run=run_id, epoch=epoch, key=key)
    if row is None:
        return None
    cancel_requested, *effect = row
    return CancelAsked(cancel_requested) if cancel_requested else Effect(*effect)


async def take_over(connection: Connection, run_id: str, epoch: int, key: str) -> bool:
    """An intent that is known not to have been performed becomes this epoch's. False: fenced."""
    return await _TAKE_OVER.found(connection, run=run_id, epoch=epoch, key=key)


async def complete(
    connection: Connection,
    run_id: str,
    epoch: int,
    key: str,
    value: Any,
    *,
    refused: str | None = None,
) -> bool:
    """The outcome; the first one stays. `refused`: it happened, and why its value is not kept.
    False: fenced, or no such intent."""
    outcome = {"value": value} if refused is None else {"refused": refused}
    return await _COMPLETE.found(connection, run=run_id, epoch=epoch, key=key, outcome=outcome)


async def forget(connection: Connection, run_id: str, epoch: int, key: str) -> bool:
    """Takes the intent back: the effect is known not to have happened. False: fenced."""
    return await _FORGET.found(connection, run=run_id, epoch=epoch, key=key)


_HELD = """
WITH held AS (SELECT id, cancel_requested FROM runs
               WHERE id = :run AND epoch = :epoch AND status = 'running' FOR SHARE)
"""

# the update that changes nothing gives the row that is there; xmax = 0 tells a fresh one
_BEGIN = Statement(f"""{_HELD},
begun AS (
    INSERT INTO effects AS e (run_id, key, epoch)
    SELECT held.id, :key, :epoch FROM held WHERE cancel_requested IS NULL
    ON CONFLICT (run_id, key) DO UPDATE SET key = e.key
    RETURNING e.key, e.epoch, e.outcome, e.started_at, e.xmax = 0)
SELECT held.cancel_requested, begun.* FROM held LEFT JOIN begun ON true
""")

_TAKE_OVER = Statement(f"""{_HELD}
UPDATE effects SET epoch = :epoch, started_at = clock_timestamp()
  FROM held WHERE effects.run_id = held.id AND effects.key = :key AND outcome IS NULL
RETURNING 1
""")

_COMPLETE = Statement(f"""{_HELD}
UPDATE effects SET outcome = coalesce(outcome, :outcome::jsonb),
       finished_at = coalesce(finished_at, clock_timestamp())
  FROM held WHERE effects.run_id = held.id AND effects.key = :key RETURNING 1
""")

_FORGET = Statement(f"""{_HELD},
forgotten AS (DELETE FROM effects USING held
               WHERE effects.run_id = held.id AND effects.key = :key AND outcome IS NULL)
SELECT 1 FROM held
""")
