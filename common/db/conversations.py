"""Conversations: the chat list, confirmed facts and summaries. Each belongs to one user."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from common.db import checkpoints
from common.db.engine import Connection
from common.db.paging import at_moment, microseconds, page
from common.db.statement import Statement
from common.db.values import refuse_unstorable, repair_text
from common.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Conversation:
    """`session`: the user's current one for the session facade (contract §6). `summary_covers`: the
    last message of the thread that the summary stands for (`runner/authoring/layers`)."""

    id: str
    user_id: str
    title: str
    graph: str
    facts: dict[str, Any]
    facts_version: int
    summary: str | None
    session: bool
    created_at: datetime
    updated_at: datetime
    summary_covers: str | None


_COLUMNS = ", ".join(Conversation.__dataclass_fields__)
_TRIES = 10


async def create(
    connection: Connection,
    *,
    id: str,
    user_id: str,
    title: str,
    graph: str,
    facts: dict[str, Any] | None = None,
) -> Conversation:
    refuse_unstorable(title=title, facts=facts)
    row = await _CREATE.row(
        connection, id=id, user=user_id, title=title, graph=graph, facts=facts or {}, session=False
    )
    return Conversation(*_present(row))


async def find(connection: Connection, conversation_id: str, user_id: str) -> Conversation | None:
    """Another user's conversation is None, as if it were not there (contract §4)."""
    row = await _FIND.row(connection, id=conversation_id, user=user_id)
    return None if row is None else Conversation(*row)


async def list_page(
    connection: Connection, user_id: str, cursor: str | None, limit: int
) -> tuple[list[Conversation], str | None]:
    """Last used first. One that is used while a client pages comes to the front again."""
    moment, last_id = at_moment(cursor) or (None, "")
    rows = await _LIST.rows(connection, user=user_id, moment=moment, id=last_id, limit=limit + 1)
    items = [Conversation(*row) for row in rows]
    return page(items, limit, lambda item: (microseconds(item.updated_at), item.id))


async def delete(connection: Connection, conversation_id: str, user_id: str) -> bool:
    """With its messages, runs, events, interrupts, effects and checkpoints. In a transaction.

    Whether a run may be active is the caller's question; its runner loses its lease by this.
    """
    await _LOCK_RUNS.rows(connection, id=conversation_id, user=user_id)
    if not await _DELETE.found(connection, id=conversation_id, user=user_id):
        return False
    await checkpoints.delete(connection, conversation_id)
    return True


async def set_facts(
    connection: Connection,
    conversation_id: str,
    user_id: str,
    set: dict[str, Any],
    unset: Sequence[str],
    version: int,
) -> Conversation | None:
    """None: there is none, or `version` is stale (the caller tells which by `find`)."""
    refuse_unstorable(set=set, unset=unset)
    row = await _SET_FACTS.row(
        connection,
        id=conversation_id,
        user=user_id,
        set=set,
        unset=list(unset),
        version=version,
    )
    return None if row is None else Conversation(*row)


async def set_summary(
    connection: Connection,
    run_id: str,
    epoch: int,
    summary: str,
    covers: str | None,
    before: str | None,
) -> bool:
    """The summary of earlier turns up to the message `covers`, in place of the one that covers
    `before`. False: another one was stored meanwhile, or fenced."""
    return await _SET_SUMMARY.found(
        connection,
        run=run_id,
        epoch=epoch,
        summary=repair_text(summary),
        covers=covers,
        before=before,
    )


async def lock_session(connection: Connection, user_id: str) -> None:
    """Beginning, using and ending a user's session go one after the other, over all processes,
    until the transaction ends. Taken before any row's lock: runs come before their conversation."""
    await _LOCK_SESSION.rows(connection, user=user_id)


async def drop_summary(connection: Connection, conversation_id: str, run_id: str) -> None:
    """The run that made it is rolled back: it may tell of messages that are gone."""
    await _DROP_SUMMARY.rows(connection, id=conversation_id, run=run_id)


async def find_session(connection: Connection, user_id: str) -> Conversation | None:
    """The user's current session, at most one (contract §6)."""
    row = await _FIND_SESSION.row(connection, user=user_id)
    return None if row is None else Conversation(*row)


async def begin_session(
    connection: Connection, *, id: str, user_id: str, title: str, graph: str
) -> Conversation:
    """The user's current session, a new one if there is none; one for any number of callers."""
    refuse_unstorable(title=title)
    new = {"id": id, "user": user_id, "title": title, "graph": graph, "facts": {}, "session": True}
    for _ in range(_TRIES):
        row = await _CREATE.row(connection, **new)
        row = row or await _FIND_SESSION.row(connection, user=user_id)
        if row is not None:  # None: it was ended or deleted in between
            return Conversation(*row)
    raise Unavailable("Postgres")


async def end_session(connection: Connection, user_id: str) -> Conversation | None:
    """The conversation stays in the list; the next `begin_session` makes a new one."""
    row = await _END_SESSION.row(connection, user=user_id)
    return None if row is None else Conversation(*row)


def _present(row: Any | None) -> Any:
    if row is None:
        raise LookupError("a statement that always gives a row gave none")
    return row


_CREATE = Statement(f"""
INSERT INTO conversations (id, user_id, title, graph, facts, session)
VALUES (:id, :user, :title, :graph, :facts, :session)
ON CONFLICT (user_id) WHERE session DO NOTHING RETURNING {_COLUMNS}
""")

_FIND = Statement(f"SELECT {_COLUMNS} FROM conversations WHERE id = :id AND user_id = :user")

_LIST = Statement(f"""
SELECT {_COLUMNS} FROM conversations
 WHERE user_id = :user
   AND (:moment::timestamptz IS NULL OR (updated_at, id) < (:moment::timestamptz, :id::text))
 ORDER BY updated_at DESC, id DESC LIMIT :limit
""")

# runs before their conversation and in their order, as all that changes a run: no deadlock
_LOCK_RUNS = Statement("""
SELECT 1 FROM runs WHERE conversation_id = :id AND user_id = :user ORDER BY position FOR UPDATE
""")

_DELETE = Statement("DELETE FROM conversations WHERE id = :id AND user_id = :user RETURNING 1")

_SET_FACTS = Statement(f"""
UPDATE conversations SET facts = (facts || :set::jsonb) - :unset::text[],
       facts_version = facts_version + 1, updated_at = clock_timestamp()
 WHERE id = :id AND user_id = :user AND facts_version = :version RETURNING {_COLUMNS}
""")

_HELD_RUN = """
WITH held AS (SELECT conversation_id FROM runs
               WHERE id = :run AND epoch = :epoch AND status = 'running' FOR SHARE)
"""

_SET_SUMMARY = Statement(f"""{_HELD_RUN}
UPDATE conversations
   SET summary = :summary, summary_covers = :covers::text, summary_run_id = :run
 WHERE id = (SELECT conversation_id FROM held)
   AND summary_covers IS NOT DISTINCT FROM :before::text RETURNING 1
""")

_DROP_SUMMARY = Statement("""
UPDATE conversations SET summary = NULL, summary_covers = NULL, summary_run_id = NULL
 WHERE id = :id AND summary_run_id = :run
""")

_LOCK_SESSION = Statement("""
SELECT pg_advisory_xact_lock(hashtextextended('steadyrun session ' || :user::text, 0)) IS NULL
""")

_FIND_SESSION = Statement(f"SELECT {_COLUMNS} FROM conversations WHERE user_id = :user AND session")

_END_SESSION = Statement(f"""
UPDATE conversations SET session = false WHERE user_id = :user AND session RETURNING {_COLUMNS}
""")
