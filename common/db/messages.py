"""Messages of conversations. A user's message is stored with its run (runs.create)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from common.db.engine import Connection
from common.db.paging import at_position, page
from common.db.statement import Statement
from common.db.values import repair_text

Role = Literal["user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """A row of `messages`. `position` orders those of a conversation."""

    id: str
    conversation_id: str
    run_id: str | None
    role: Role
    content: str
    tool_call_id: str | None
    tool_name: str | None
    position: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What a run stores: an assistant's or a tool's message under its stable id."""

    id: str
    role: Role
    content: str
    tool_call_id: str | None = None
    tool_name: str | None = None


_COLUMNS = ", ".join(Message.__dataclass_fields__)


async def list_page(
    connection: Connection, conversation_id: str, cursor: str | None, limit: int
) -> tuple[list[Message], str | None]:
    """Oldest first."""
    rows = await _LIST.rows(
        connection,
        conversation=conversation_id,
        position=at_position(cursor) or 0,
        limit=limit + 1,
    )
    return page([Message(*row) for row in rows], limit, lambda item: (item.position,))


async def latest(
    connection: Connection, conversation_id: str, role: Role, run_id: str | None = None
) -> Message | None:
    """The newest one of a role, of one run if it is named."""
    row = await _LATEST.row(connection, conversation=conversation_id, role=role, run=run_id)
    return None if row is None else Message(*row)


async def of_run(connection: Connection, run_id: str, limit: int, bytes_max: int) -> list[Message]:
    """What a run has said, the person's message too, oldest first; of much only the newest, which
    together are not much larger than `bytes_max`. The run's answer is always whole among them."""
    rows = await _OF_RUN.rows(connection, run=run_id, limit=limit, bytes=bytes_max)
    return [Message(*row) for row in rows]


async def find(connection: Connection, message_id: str) -> Message | None:
    row = await _FIND.row(connection, id=message_id)
    return None if row is None else Message(*row)


async def replace(
    connection: Connection, run_id: str, epoch: int, messages: Sequence[NewMessage]
) -> bool:
    """Makes these, in this order, all that the run has said; the person's message stays. Fenced.

    One that is there already gets the new content, one that no longer stands (its step is executed
    again) goes. The texts come from a graph: what cannot be stored in them is repaired.
    """
    return await _REPLACE.found(connection, run=run_id, epoch=epoch, **_columns(messages))


async def add_unheld(
    connection: Connection, run_id: str, epoch: int, messages: Sequence[NewMessage]
) -> bool:
    """Adds what clients have of a run that no runner holds, for an owner's act on it, before that
    raises `epoch`. What a runner has stored is better and stays, unless it no longer stands.
    """
    return await _ADD_UNHELD.found(connection, run=run_id, epoch=epoch, **_columns(messages))


def _columns(messages: Sequence[NewMessage]) -> dict[str, list[Any]]:
    return {
        "ids": [message.id for message in messages],
        "roles": [message.role for message in messages],
        "contents": [repair_text(message.content) for message in messages],
        "call_ids": [_repaired(message.tool_call_id) for message in messages],
        "names": [_repaired(message.tool_name) for message in messages],
    }


def _repaired(text: str | None) -> str | None:
    return None if text is None else repair_text(text)


_FIND = Statement(f"SELECT {_COLUMNS} FROM messages WHERE id = :id")

_LIST = Statement(f"""
SELECT {_COLUMNS} FROM messages
 WHERE conversation_id = :conversation AND position > :position ORDER BY position LIMIT :limit
""")

_LATEST = Statement(f"""
SELECT {_COLUMNS} FROM messages
 WHERE conversation_id = :conversation AND role = :role
   AND (:run::text IS NULL OR run_id = :run::text)
 ORDER BY position DESC LIMIT 1
""")

_OF_RUN = Statement(f"""
WITH said AS (
    SELECT {_COLUMNS}, row_number() OVER newest AS nth,
           sum(octet_length(content)) OVER newest - octet_length(content) AS newer
      FROM messages WHERE run_id = :run WINDOW newest AS (ORDER BY position DESC))
SELECT {_COLUMNS} FROM said
 WHERE (nth <= :limit::bigint AND newer < :bytes::bigint)
    OR id = (SELECT message_id FROM runs WHERE id = :run)
 ORDER BY position
""")

_STORING = """
WITH held AS (
    SELECT conversation_id FROM runs
     WHERE id = :run AND epoch = :epoch AND status {status} 'running' FOR SHARE),
gone AS (
    DELETE FROM messages USING held
     WHERE run_id = :run AND {gone} AND NOT id = ANY(:ids::text[])),
stored AS (
    INSERT INTO messages (id, conversation_id, run_id, role, content, tool_call_id, tool_name)
    SELECT m.id, held.conversation_id, :run, m.role, m.content, m.call_id, m.name
      FROM held, unnest(:ids::text[], :roles::text[], :contents::text[], :call_ids::text[],
                        :names::text[]) WITH ORDINALITY AS m(id, role, content, call_id, name, n)
     ORDER BY m.n
    ON CONFLICT (id) DO {conflict})
SELECT 1 FROM held
"""
_REPLACE = Statement(
    _STORING.format(
        status="=",
        gone="role <> 'user'",
        conflict="UPDATE SET content = EXCLUDED.content WHERE messages.run_id = EXCLUDED.run_id",
    )
)
# assistants' messages are all on the page; a tool's may have been kept out of the stream
_ADD_UNHELD = Statement(_STORING.format(status="<>", gone="role = 'assistant'", conflict="NOTHING"))
