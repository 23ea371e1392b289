"""The statements with which checkpoints are written, fenced by (run, epoch) in themselves.

Placeholders are psycopg's. `%(…)b`: bytes as they are; psycopg writes arrays as text otherwise,
which makes bytes twice as many and holds the loop up for seconds with a state of some megabytes.
"""

from collections.abc import Sequence
from typing import Any

_FENCE = """WITH f AS (
  SELECT 1 FROM runs WHERE id = %(run)s AND epoch = %(epoch)s AND status = 'running' FOR SHARE)"""

_ALONE = _FENCE.replace("FOR SHARE", "FOR NO KEY UPDATE")
"""With events: a run's archive is written by one at a time (common/db/archive)."""

_ARCHIVE = """, e AS (
  INSERT INTO run_events
    (run_id, after_sequence, first_sequence, last_sequence, epoch, ends, frames)
  SELECT %(run)s, u.* FROM f, unnest(
    %(afters)s::bigint[], %(firsts)s::bigint[], %(lasts)s::bigint[], %(epochs)s::int[],
    %(ends)s::text[], %(frames)b::bytea[]) u
  ON CONFLICT (run_id, last_sequence) DO NOTHING)"""

PUT = (
    _FENCE
    + """, b AS (
  INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
  SELECT %(thread)s, %(ns)s, u.* FROM f, unnest(
    %(channel)s::text[], %(version)s::text[], %(type)s::text[], %(blob)b::bytea[]) u
  ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING)
INSERT INTO checkpoints
  (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)
SELECT %(thread)s, %(ns)s, %(id)s, %(parent)s, %(checkpoint)s, %(metadata)s FROM f
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)
DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata
RETURNING 1 AS held"""
)

_WRITES = (
    _FENCE
    + """, w AS (
  INSERT INTO checkpoint_writes
    (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
  SELECT %(thread)s, %(ns)s, %(id)s, %(task)s, %(path)s, u.* FROM f, unnest(
    %(idx)s::int[], %(channel)s::text[], %(type)s::text[], %(blob)b::bytea[]) u
  ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO """
)
INSERT_WRITES = _WRITES + "NOTHING) SELECT 1 AS held FROM f"
# facts go with the result and only with it: a result that was there already has brought its facts
_FACTS = "(facts || %(facts)s::jsonb) - %(forget)s::text[]"
INSERT_WRITES_WITH_FACTS = (
    _WRITES
    + f"""NOTHING RETURNING 1), m AS (
  UPDATE conversations SET facts = {_FACTS}, facts_version = facts_version + 1 FROM f
   WHERE id = %(thread)s AND EXISTS (SELECT 1 FROM w) AND facts <> {_FACTS})
SELECT 1 AS held FROM f"""
)
UPSERT_WRITES = (
    _WRITES
    + "UPDATE SET channel = EXCLUDED.channel, type = EXCLUDED.type, blob = EXCLUDED.blob)"
    + " SELECT 1 AS held FROM f"
)


def with_events(statement: str) -> str:
    """The same, which also archives batches (`common.db.archive.columns`)."""
    return statement.replace(_FENCE, _ALONE + _ARCHIVE)


def columns(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, list[Any]]:
    """The last `len(names)` columns of the rows, each as an array for `unnest`."""
    return {name: [row[i - len(names)] for row in rows] for i, name in enumerate(names)}
