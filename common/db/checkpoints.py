"""LangGraph's checkpoint tables, as far as we touch them: set up, removal, rolling a run back.

The runner's fenced saver writes them; a conversation's id is LangGraph's `thread_id`, and every
checkpoint's metadata holds the `run_id` that wrote it.
"""

from common.db.engine import Connection
from common.db.statement import Statement


def set_up(url: str) -> None:
    """LangGraph's own migrations. The caller holds the migration lock: four at once fail
    (langgraph-facts §8). Autocommit, as they create indexes concurrently.
    """
    # only a migration needs these here, LangGraph for its DDL: gateways start without them
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import DictRow, dict_row

    with psycopg.Connection[DictRow].connect(
        url, autocommit=True, prepare_threshold=0, row_factory=dict_row, options=_LIMITS
    ) as connection:
        PostgresSaver(connection).setup()


async def delete(connection: Connection, conversation_id: str) -> None:
    """All of a conversation's. After its runs are gone, so that no fenced write follows."""
    for statement in _DELETE:
        await statement.rows(connection, conversation=conversation_id)


async def roll_back(connection: Connection, conversation_id: str, run_id: str) -> None:
    """Removes what one run wrote, as if it had never been (contract §4, `rollback`).

    After the run's status has left `running`, so that no fenced write follows. Blobs are shared
    between checkpoints: those that no remaining one names go last.
    """
    for statement in (_DELETE_WRITES_OF_RUN, _DELETE_CHECKPOINTS_OF_RUN):
        await statement.rows(connection, conversation=conversation_id, run=run_id)
    await _DELETE_UNNAMED_BLOBS.rows(connection, conversation=conversation_id)


# a concurrent index build on a big table takes long and blocks nobody: no limit on statements
_LIMITS = "-c lock_timeout=4s"

_DELETE = tuple(
    Statement(f"DELETE FROM {table} WHERE thread_id = :conversation")
    for table in ("checkpoint_writes", "checkpoint_blobs", "checkpoints")
)

_DELETE_WRITES_OF_RUN = Statement("""
DELETE FROM checkpoint_writes w USING checkpoints c
 WHERE c.thread_id = :conversation AND c.metadata ->> 'run_id' = :run
   AND w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
   AND w.checkpoint_id = c.checkpoint_id
""")

_DELETE_CHECKPOINTS_OF_RUN = Statement("""
DELETE FROM checkpoints WHERE thread_id = :conversation AND metadata ->> 'run_id' = :run
""")

# each checkpoint is read once: looked up blob by blob, a long thread would take longer than a
# statement may, and the transaction that ends the run with it would be tried for ever
_DELETE_UNNAMED_BLOBS = Statement("""
WITH named AS MATERIALIZED (
    SELECT DISTINCT c.checkpoint_ns, v.key AS channel, v.value AS version
      FROM checkpoints c, jsonb_each_text(c.checkpoint -> 'channel_versions') v
     WHERE c.thread_id = :conversation)
DELETE FROM checkpoint_blobs b
 WHERE b.thread_id = :conversation AND NOT EXISTS (
       SELECT FROM named n
        WHERE (n.checkpoint_ns, n.channel, n.version) = (b.checkpoint_ns, b.channel, b.version))
""")
