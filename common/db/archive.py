"""The archive of every run's events: rows of batches, as they went through the log (design §3)."""

from collections.abc import Sequence
from typing import Any

from common.batch import Batch
from common.db.engine import Connection
from common.db.statement import Statement


async def append(connection: Connection, run_id: str, epoch: int, batches: Sequence[Batch]) -> bool:
    """Archives batches of a running run, in one statement. False: fenced, nothing was written.

    One that is there already is left alone, so sending again is safe. Each batch keeps its own
    epoch: a new owner archives the tail that the last one left in the log.
    """
    return await _APPEND.found(connection, run=run_id, epoch=epoch, **_columns(batches))


async def append_unheld(
    connection: Connection, run_id: str, epoch: int, batches: Sequence[Batch]
) -> bool:
    """The same for an owner's act on a run that no runner holds (common.ownership): in the
    transaction that raised the epoch to `epoch`.
    """
    return await _APPEND_UNHELD.found(connection, run=run_id, epoch=epoch, **_columns(batches))


async def append_all(
    connection: Connection, items: Sequence[tuple[str, int, Sequence[Batch]]]
) -> set[str]:
    """`append` for many runs of one runner at once: items of (run, epoch, batches).

    Gives the runs that are still held; of the others nothing was written.
    """
    rows = await _APPEND_ALL.rows(
        connection,
        held_ids=[run_id for run_id, _, _ in items],
        held_epochs=[epoch for _, epoch, _ in items],
        run_ids=[run_id for run_id, _, batches in items for _ in batches],
        **_columns([batch for _, _, batches in items for batch in batches]),
    )
    return {row[0] for row in rows}


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


def _columns(batches: Sequence[Batch]) -> dict[str, list[Any]]:
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
WITH held AS MATERIALIZED (
    SELECT r.id FROM runs r JOIN unnest(:held_ids::text[], :held_epochs::int[]) AS h(id, epoch)
                              ON r.id = h.id AND r.epoch = h.epoch
     WHERE r.status = 'running' ORDER BY r.id FOR NO KEY UPDATE OF r),
stored AS ({_INSERT}
    SELECT b.* FROM unnest(:run_ids::text[], {_ARRAYS})
                    AS b(run_id, after_sequence, first_sequence, last_sequence, epoch, ends, frames)
      JOIN held ON held.id = b.run_id
    ON CONFLICT (run_id, last_sequence) DO NOTHING)
SELECT id FROM held
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
