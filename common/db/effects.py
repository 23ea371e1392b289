"""Guarded side effects: intent before, outcome after, under the run's epoch (I5).

An intent without an outcome means that nobody knows whether the effect happened: it is never
performed again without `verify` or a person saying so (design §6).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from common.db.engine import Connection
from common.db.statement import Statement


@dataclass(frozen=True, slots=True)
class Effect:
    """`begun_now`: this call wrote the intent, so perform it. `outcome` is {"value": …} or None."""

    key: str
    epoch: int
    outcome: dict[str, Any] | None
    started_at: datetime
    begun_now: bool


async def begin(connection: Connection, run_id: str, epoch: int, key: str) -> Effect | None:
    """Writes the intent, or finds what an earlier execution left. Fenced: None."""
    row = await _BEGIN.row(connection, run=run_id, epoch=epoch, key=key)
    return None if row is None else Effect(*row)


async def complete(connection: Connection, run_id: str, epoch: int, key: str, value: Any) -> bool:
    """The outcome; the first one stays. False: fenced, or no such intent."""
    return await _COMPLETE.found(
        connection, run=run_id, epoch=epoch, key=key, outcome={"value": value}
    )


async def forget(connection: Connection, run_id: str, epoch: int, key: str) -> bool:
    """Takes the intent back: the effect is known not to have happened. False: fenced."""
    return await _FORGET.found(connection, run=run_id, epoch=epoch, key=key)


_HELD = """
WITH held AS (SELECT id FROM runs
               WHERE id = :run AND epoch = :epoch AND status = 'running' FOR SHARE)
"""

# the update that changes nothing gives the row that is there; xmax = 0 tells a fresh one
_BEGIN = Statement(f"""{_HELD}
INSERT INTO effects AS e (run_id, key, epoch)
SELECT held.id, :key, :epoch FROM held
ON CONFLICT (run_id, key) DO UPDATE SET key = e.key
RETURNING e.key, e.epoch, e.outcome, e.started_at, e.xmax = 0
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
