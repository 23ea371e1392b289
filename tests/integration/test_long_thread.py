"""Rolling a run back in a thread with thousands of checkpoints."""

from common.db import checkpoints
from common.db.engine import Connection

_CHECKPOINTS = """
INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint, metadata)
SELECT 'long', '', n::text,
       jsonb_build_object('channel_versions', (
           SELECT jsonb_object_agg('channel' || c, (n - c)::text) FROM generate_series(1, 20) c)),
       jsonb_build_object('run_id', CASE WHEN n > 2990 THEN 'run_last' ELSE 'run_first' END)
  FROM generate_series(1, 3000) n
"""
_BLOBS = """
INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
SELECT 'long', '', 'channel' || c, (n - c)::text, 'bytes', '\\x00'
  FROM generate_series(1, 3000) n, generate_series(1, 2) c
"""


async def test_it_is_done_within_the_limit_of_one_statement(connection: Connection) -> None:
    """Otherwise the transaction that ends the run would be tried for ever."""
    await connection.rows(_CHECKPOINTS)
    await connection.rows(_BLOBS)
    await checkpoints.roll_back(connection, "long", "run_last")
    left = await connection.value("SELECT count(*) FROM checkpoint_blobs WHERE thread_id = 'long'")
    assert left == 2 * 2990
