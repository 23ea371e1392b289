"""Guarded side effects: intent before, outcome after, under the run's epoch (I5).

An intent without an outcome means that nobody knows whether the effect happened: it is never
performed again without `verify` or a person saying so (design §6). The epoch of a row is that of
the owner who may perform it: only `begin` of a new row, `take_over` and `repeat` set it, in the
statement that checks that this owner holds the run, so no older owner comes in between.

What a person says is a decision on an interrupt of the run, whose `native_id` is the effect's
`outside_key_of`. It is followed once: the statement that changes the ledger marks it as taken, and
notes in `decisions` who said what and when.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from common.db.engine import Connection
from common.db.statement import Statement
from common.runs import CancelReason


@dataclass(frozen=True, slots=True)
class Effect:
    """`outcome` is {"value": …} or {"refused": why}, None while it is not known. `runner_id` held
    `epoch`."""

    key: str
    epoch: int
    outcome: dict[str, Any] | None
    started_at: datetime
    runner_id: str | None


@dataclass(frozen=True, slots=True)
class Word:
    """A person's answer that nothing has been done about yet."""

    interrupt_id: str
    answer: Any


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


async def word(connection: Connection, run_id: str, native_id: str) -> Word | None:
    """What a person has said of an effect, and is still to be followed."""
    row = await _WORD.row(connection, run=run_id, native=native_id)
    return None if row is None else Word(row["id"], row["answer"]["value"])


async def repeat(
    connection: Connection, run_id: str, epoch: int, key: str, interrupt_id: str
) -> bool:
    """A person says: do it again. The intent becomes this epoch's, once. False: fenced."""
    return await _REPEAT.found(connection, run=run_id, epoch=epoch, key=key, interrupt=interrupt_id)


async def believe(
    connection: Connection, run_id: str, epoch: int, key: str, interrupt_id: str, value: Any
) -> bool:
    """A person says: it has happened, and gave this value. False: fenced."""
    outcome = {"value": value}
    return await _BELIEVE.found(
        connection, run=run_id, epoch=epoch, key=key, interrupt=interrupt_id, outcome=outcome
    )


async def forget(connection: Connection, run_id: str, epoch: int, key: str) -> bool:
    """Takes the intent back: the effect is known not to have happened. False: fenced."""
    return await _FORGET.found(connection, run=run_id, epoch=epoch, key=key)


_HELD = """
WITH held AS (SELECT id, runner_id, cancel_requested FROM runs
               WHERE id = :run AND epoch = :epoch AND status = 'running' FOR SHARE)
"""

# the update that changes nothing gives the row that is there
_BEGIN = Statement(f"""{_HELD},
begun AS (
    INSERT INTO effects AS e (run_id, key, epoch, runner_id)
    SELECT held.id, :key, :epoch, held.runner_id FROM held WHERE cancel_requested IS NULL
    ON CONFLICT (run_id, key) DO UPDATE SET key = e.key
    RETURNING e.key, e.epoch, e.outcome, e.started_at, e.runner_id)
SELECT held.cancel_requested, begun.* FROM held LEFT JOIN begun ON true
""")

_TAKE_OVER = Statement(f"""{_HELD}
UPDATE effects SET epoch = :epoch, started_at = clock_timestamp(), runner_id = held.runner_id
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

_WORD = Statement("""
SELECT id, answer FROM interrupts
 WHERE run_id = :run AND native_id = :native AND answer IS NOT NULL AND NOT taken
 ORDER BY asked DESC LIMIT 1
""")

# sent again after a lost reply these find nothing to take any more, and their own work done
_SAID = f"""{_HELD},
said AS (UPDATE interrupts SET taken = true FROM held
          WHERE run_id = held.id AND interrupts.id = :interrupt AND answer IS NOT NULL
            AND NOT taken
      RETURNING interrupts.id, decision, resolved_by, resolved_at),
noted AS (SELECT coalesce(jsonb_agg(jsonb_build_object(
            'interruptId', id, 'decision', decision, 'by', resolved_by, 'at', resolved_at)), '[]')
            AS decisions FROM said)
"""

_REPEAT = Statement(f"""{_SAID}
UPDATE effects SET epoch = :epoch, started_at = clock_timestamp(), runner_id = held.runner_id,
       decisions = effects.decisions || noted.decisions
  FROM held, noted WHERE effects.run_id = held.id AND effects.key = :key AND outcome IS NULL
   AND (EXISTS (SELECT FROM said) OR effects.epoch = :epoch)
RETURNING 1
""")

_BELIEVE = Statement(f"""{_SAID}
UPDATE effects SET outcome = coalesce(outcome, :outcome::jsonb),
       finished_at = coalesce(finished_at, clock_timestamp()),
       decisions = effects.decisions || noted.decisions
  FROM held, noted WHERE effects.run_id = held.id AND effects.key = :key
   AND (EXISTS (SELECT FROM said) OR outcome IS NOT NULL)
RETURNING 1
""")
