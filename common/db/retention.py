"""Clean-up: what is older than the deployment wants to keep (I8), a bounded portion at a time.

Every function may be called by any number of processes at any time: rows that somebody else works
on are passed over. Only what has ended goes. What an active run, and so a pending interrupt, needs
is never touched: its row, its events, its thread's checkpoints.
"""

from common.db import conversations
from common.db.engine import Connection
from common.db.rules import IS_ACTIVE
from common.db.statement import Statement


async def drop_events(connection: Connection, retention_s: float, limit: int = 100) -> int:
    """Of runs that ended `retention_s` ago: their replay is 410 from then on (contract §3).

    Gives the number of runs, as does `drop_runs`; `limit` means that there may be more.
    """
    return int(await _DROP_EVENTS.value(connection, retention=retention_s, limit=limit))


async def drop_runs(connection: Connection, retention_s: float, limit: int = 100) -> int:
    """Runs that ended `retention_s` ago, with their events, interrupts and effects. The messages
    stay with their conversation."""
    return int(await _DROP_RUNS.value(connection, retention=retention_s, limit=limit))


async def drop_conversation(connection: Connection, retention_s: float) -> bool:
    """One conversation that nobody has used for `retention_s`, with all that belongs to it.

    In a transaction. False: there is none. A run that is being created there waits for us, and
    then finds no conversation.
    """
    row = await _IDLE.row(connection, retention=retention_s)
    return row is not None and await conversations.delete(connection, row[0], row[1])


async def lock_to_prune(connection: Connection, retention_s: float) -> str | None:
    """A conversation without an active run, idle for `retention_s`, whose old checkpoints are still
    there. In a transaction: as long as it lasts no run begins there. Then `note_pruned`.
    """
    found: str | None = await _TO_PRUNE.value(connection, retention=retention_s)
    return found


async def note_pruned(connection: Connection, conversation_id: str) -> None:
    """It is not looked at again before it has been used again."""
    await _NOTE_PRUNED.rows(connection, id=conversation_id)


def _older(column: str) -> str:
    return f"{column} < clock_timestamp() - make_interval(secs => :retention::double precision)"


_DROP_EVENTS = Statement(f"""
WITH old AS (
    UPDATE runs SET replayable = false
     WHERE id IN (SELECT id FROM runs WHERE replayable AND {_older("finished_at")}
                   ORDER BY finished_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id),
dropped AS (DELETE FROM run_events e USING old WHERE e.run_id = old.id)
SELECT count(*) FROM old
""")

_DROP_RUNS = Statement(f"""
WITH old AS (
    DELETE FROM runs
     WHERE id IN (SELECT id FROM runs WHERE {_older("finished_at")}
                   ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id),
freed AS (UPDATE messages SET run_id = NULL FROM old WHERE messages.run_id = old.id)
SELECT count(*) FROM old
""")

# whoever creates a run touches the conversation's row: it is either seen or waits for our lock
_IDLE = Statement(f"""
SELECT c.id, c.user_id FROM conversations c
 WHERE {_older("c.updated_at")}
   AND NOT EXISTS (SELECT FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)
 ORDER BY c.updated_at LIMIT 1 FOR UPDATE SKIP LOCKED
""")

_TO_PRUNE = Statement(f"""
SELECT c.id FROM conversations c
 WHERE (c.pruned_at IS NULL OR c.pruned_at < c.updated_at) AND {_older("c.updated_at")}
   AND NOT EXISTS (SELECT FROM runs WHERE conversation_id = c.id AND {IS_ACTIVE})
 ORDER BY c.updated_at LIMIT 1 FOR UPDATE SKIP LOCKED
""")

_NOTE_PRUNED = Statement("UPDATE conversations SET pruned_at = clock_timestamp() WHERE id = :id")
