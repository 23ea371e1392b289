"""What was done under runs, for whoever checks it afterwards; reads only.

Nothing that serves or executes runs needs this: it is for drills and for looking into a case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.db.engine import Connection
from common.db.messages import Message
from common.db.statement import Statement


@dataclass(frozen=True, slots=True)
class EffectBegun:
    """A guarded effect's row: begun under `epoch`; `finished`: its outcome is known. `decisions`:
    what people said of it while it was not, each with interruptId, decision, by, at."""

    key: str
    epoch: int
    finished: bool
    decisions: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint in the outermost graph of a conversation."""

    id: str
    parent: str | None
    run_id: str | None


async def messages_of(connection: Connection, run_id: str) -> list[Message]:
    """What a run has left in its conversation, oldest first."""
    return [Message(*row) for row in await _MESSAGES.rows(connection, run=run_id)]


async def effects_of(connection: Connection, run_id: str) -> list[EffectBegun]:
    return [EffectBegun(*row) for row in await _EFFECTS.rows(connection, run=run_id)]


async def checkpoints_of(connection: Connection, conversation_id: str) -> list[Saved]:
    """In the order of their ids, which is that of their making."""
    rows = await _CHECKPOINTS.rows(connection, conversation=conversation_id)
    return [Saved(*row) for row in rows]


_MESSAGES = Statement(f"""
SELECT {", ".join(Message.__dataclass_fields__)} FROM messages
 WHERE run_id = :run AND role <> 'user' ORDER BY position
""")

_EFFECTS = Statement("""
SELECT key, epoch, outcome IS NOT NULL, decisions FROM effects WHERE run_id = :run ORDER BY key
""")

_CHECKPOINTS = Statement("""
SELECT checkpoint_id, parent_checkpoint_id, metadata ->> 'run_id' FROM checkpoints
 WHERE thread_id = :conversation AND checkpoint_ns = '' ORDER BY checkpoint_id
""")
