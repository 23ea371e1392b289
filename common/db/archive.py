"""The archive of every run's events: rows of batches, as they went through the log (design §3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from common.batch import Batch
from common.db.engine import Connection
from common.db.statement import Statement

Found = Literal["archived", "busy", "lost"]
"""`busy`: still held, but somebody has the run's row locked just now, so that nothing was written;
`lost`: no longer held, nothing was written."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What the owner of a run under `epoch` archives; numbers up to `upto` are reserved with it."""

    run_id: str
    epoch: int
    upto: int
    batches: Sequence[Batch]


async def append(connection: Connection, run_id: str, epoch: int, batches: Sequence[Batch]) -> bool:
    """Archives batches of a running run, in one statement. False: fenced, nothing was written.

    One that is there already is left alone, so sending again is safe. Each batch keeps its own
    epoch: a new owner archives the tail that the last one left in the log.
    """
    return await _APPEND.found(connection, run=run_id, epoch=epoch, **columns(batches))


async def append_unheld(
    connection: Connection, run_id: str, epoch: int, batches: Sequence[Batch]
) -> bool:
    """The same for an owner's act on a run that no runner holds (common.ownership): in the
    transaction that raised the epoch to `epoch`.
    """
    return await _APPEND_UNHELD.found(connection, run=run_id, epoch=epoch, **columns(batches))


async def append_all(connection: Connection, portions: Sequence[Portion]) -> list[Found]:
    """`append` and `runs.reserve` for many runs of one runner at once, in one statement.

    Waits for nobody: one run whose row a stopped process has locked must not hold up the others.
    Gives in the same order what became of each.
    """
    batches = [(n, batch) for n, one in enumerate(portions, 1) for batch in one.batches]
    rows = await _APPEND_ALL.rows(
        connection,
        runs=[one.run_id for one in portions],
        owners=[one.epoch for one in portions],
        uptos=[one.upto for one in portions],
        portions=[n for n, _ in batches],
        **columns([batch for _, batch in batches]),
    )
    found: dict[int, Found] = {row[0]: row[1] for row in rows}
    return [found.get(n, "lost") for n in range(1, len(portions) + 1)]


async def read(connection: Connection, run_id: str, after: int, limit: int) -> list[Batch]:
    """Up to `limit` batches with `last > after`, in order. Readers take each iff `takes(cursor)`.

    A first batch whose `after` is above the cursor means that older ones were dropped (410).
    """
    rows = await _READ.rows(connection, run=run_id, after=after, limit=limit)
    return [Batch(*row) for row in rows]


async def top(connection: Connection, run_id: str) -> int:
    """The last archived sequence; 0 for none."""
    return int(await _TOP.value(connection, run=run_id))


async def tops(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[int, bool]]:
    """(archive's top, has ended) of every run that exists, for a gateway's heartbeat."""
    rows = await _TOPS.rows(connection, runs=list(run_ids))
    return {row[0]: (row[1], row[2]) for row in rows}


def columns(batches: Sequence[Batch]) -> dict[str, list[Any]]:
    """Batches as the arrays that a statement unnests; the checkpointer archives by its own."""
    return {
        "afters": [batch.after for batch in batches],
        "firsts": [batch.first for batch in batches],
        "lasts": [batch.last for batch in batches],
        "epochs": [batch.epoch for batch in batches],
        "ends": [batch.ends for batch in batches],
        "frames": [batch.frames for batch in batches],
    }


_INSERT = """
INSERT INTO run_events
       (run_id, after_sequence, first_sequence, last_sequence, epoch, ends, frames)
"""
_ARRAYS = """:afters::bigint[], :firsts::bigint[], :lasts::bigint[], :epochs::int[],
                        :ends::text[], :frames::bytea[]"""

# The archive of a run is written by one at a time: of two that insert the same batch at once, the
# second would violate the unique index that `ON CONFLICT` does not name. A bare `ON CONFLICT DO
# NOTHING` would hide a second history (run_events_no_fork).
_APPENDING = f"""
WITH held AS (SELECT id FROM runs WHERE id = :run AND epoch = :epoch {{running}}
               FOR NO KEY UPDATE),
stored AS ({_INSERT}
    SELECT held.id, b.* FROM held, unnest({_ARRAYS}) AS b
    ON CONFLICT (run_id, last_sequence) DO NOTHING)
SELECT 1 FROM held
"""
_APPEND = Statement(_APPENDING.format(running="AND status = 'running'"))
_APPEND_UNHELD = Statement(_APPENDING.format(running="AND status <> 'running'"))

_APPEND_ALL = Statement(f"""
WITH portion AS MATERIALIZED (
    SELECT * FROM unnest(:runs::text[], :owners::int[], :uptos::bigint[])
                  WITH ORDINALITY AS p(run_id, epoch, upto, n)),
held AS MATERIALIZED (
    SELECT p.* FROM runs r JOIN portion p ON r.id = p.run_id AND r.epoch = p.epoch
     WHERE r.status = 'running' FOR NO KEY UPDATE OF r SKIP LOCKED),
reserved AS (
    UPDATE runs SET sequence_reserved = greatest(sequence_reserved, held.upto)
      FROM held WHERE runs.id = held.run_id),
stored AS ({_INSERT}
    SELECT held.run_id, b.after_sequence, b.first_sequence, b.last_sequence, b.epoch, b.ends,
           b.frames
      FROM unnest(:portions::bigint[], {_ARRAYS})
             AS b(n, after_sequence, first_sequence, last_sequence, epoch, ends, frames)
      JOIN held USING (n)
    ON CONFLICT (run_id, last_sequence) DO NOTHING)
SELECT n, 'archived' FROM held
UNION ALL
SELECT p.n, 'busy' FROM portion p JOIN runs r ON r.id = p.run_id AND r.epoch = p.epoch
 WHERE r.status = 'running' AND p.n NOT IN (SELECT n FROM held)
""")

_READ = Statement("""
SELECT after_sequence, first_sequence, last_sequence, epoch, ends, frames FROM run_events
 WHERE run_id = :run AND last_sequence > :after ORDER BY last_sequence LIMIT :limit
""")

_TOP = Statement("SELECT coalesce(max(last_sequence), 0) FROM run_events WHERE run_id = :run")

_TOPS = Statement("""
SELECT r.id, coalesce((SELECT max(e.last_sequence) FROM run_events e WHERE e.run_id = r.id), 0),
       r.finished_at IS NOT NULL
  FROM runs r WHERE r.id = ANY(:runs::text[])
""")
