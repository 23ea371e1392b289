"""Interrupts in Postgres: asked once, decided once, shown to whoever may decide."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from common.db import interrupts, runs
from common.db.engine import Connection, Database
from common.db.interrupts import Interrupt
from common.errors import Refused
from common.runs import INTERRUPT_STATUSES
from tests.support.rows import USER, question, running_run


async def asked(connection: Connection, **values: Any) -> Interrupt:
    run = await running_run(connection)
    [row] = await interrupts.insert(connection, run.id, 1, [question(**values)]) or []
    return row


async def decide(connection: Connection, row: Interrupt, **values: Any) -> Interrupt | None:
    given: dict[str, Any] = {"decision": "approve", "answer": {"value": True}, "by": USER}
    return await interrupts.decide(connection, row.id, **{**given, **values})


async def overdue(connection: Connection, row: Interrupt) -> None:
    await connection.rows(
        "UPDATE interrupts SET expires_at = now() - interval '1 second' WHERE id = $1", row.id
    )


async def test_a_question_comes_back_as_it_was_asked(connection: Connection) -> None:
    moment = await interrupts.now(connection) + timedelta(minutes=5)
    new = question(
        payload=["anything", None],
        actions=[{"name": "restart", "args": {"pump": 7}}],
        required_permission="pumps.restart",
        resource={"pump": 7},
        answer_schema={"type": "object"},
        expires_at=moment,
    )
    run = await running_run(connection)
    [row] = await interrupts.insert(connection, run.id, 1, [new]) or []
    for name in new.__dataclass_fields__:
        assert getattr(row, name) == getattr(new, name), name
    assert (row.run_id, row.conversation_id, row.user_id) == (run.id, run.conversation_id, USER)
    assert (row.status, row.facts_version, row.told, row.taken) == ("pending", 1, False, False)
    assert await interrupts.find(connection, row.id) == row


async def test_absent_values_are_absent_and_not_null_in_json(connection: Connection) -> None:
    row = await asked(connection)
    assert await connection.value(
        "SELECT resource IS NULL AND answer_schema IS NULL FROM interrupts"
    )
    assert (row.resource, row.answer_schema, row.expires_at) == (None, None, None)


async def test_asking_again_gives_the_row_that_is_there(connection: Connection) -> None:
    row = await asked(connection)
    assert await decide(connection, row)
    again = [question("native-2"), question("native-1"), question("native-1", asked=1)]
    rows = await interrupts.insert(connection, row.run_id, 1, again)
    assert rows is not None
    assert [(found.native_id, found.asked) for found in rows] == [
        ("native-2", 0),
        ("native-1", 0),
        ("native-1", 1),
    ]
    assert [found.status for found in rows] == ["pending", "resolved", "pending"]
    assert rows[1].id == row.id
    in_order = [found.id for found in await interrupts.of_run(connection, row.run_id)]
    assert in_order == [row.id, rows[0].id, rows[2].id]


async def test_no_question_is_no_row(connection: Connection) -> None:
    run = await running_run(connection)
    assert await interrupts.insert(connection, run.id, 1, []) == []


async def test_of_simultaneous_decisions_one_wins(database: Database) -> None:
    async with database.connect() as connection:
        rows = [await asked(connection) for _ in range(10)]

    async def one(row: Interrupt, by: str) -> Interrupt | None:
        async with database.connect() as connection:
            return await decide(connection, row, by=by)

    for row in rows:
        answers = await asyncio.gather(*(one(row, f"user-{n}") for n in range(6)))
        [winner] = [answer for answer in answers if answer is not None]
        async with database.connect() as connection:
            stored = await interrupts.find(connection, row.id)
        assert stored is not None
        assert stored.resolved_by == winner.resolved_by


@pytest.mark.parametrize("status", INTERRUPT_STATUSES)
async def test_only_a_pending_one_can_be_decided(connection: Connection, status: str) -> None:
    row = await asked(connection)
    if status != "pending":
        await connection.rows("UPDATE interrupts SET status = $1, resolved_at = now()", status)
    assert (await decide(connection, row) is not None) == (status == "pending")


async def test_a_decision_that_comes_too_late_loses(connection: Connection) -> None:
    row = await asked(connection)
    await overdue(connection, row)
    assert await decide(connection, row) is None
    rejected = await decide(connection, row, status="expired", decision="reject", by=None)
    assert rejected is not None
    assert (rejected.status, rejected.answer_value) == ("expired", True)


async def test_answers_are_sent_until_they_are_taken(connection: Connection) -> None:
    row = await asked(connection)
    assert await interrupts.untaken(connection, row.run_id) == []
    await decide(connection, row, answer={"value": None})
    [untaken] = await interrupts.untaken(connection, row.run_id)
    assert (untaken.id, untaken.answer_value) == (row.id, None)
    assert await interrupts.mark_taken(connection, row.run_id, 1, [row.id])
    assert await interrupts.untaken(connection, row.run_id) == []


async def test_a_reject_that_cancels_gives_the_graph_nothing(connection: Connection) -> None:
    row = await asked(connection)
    assert await decide(connection, row, decision="reject", answer=None)
    assert await interrupts.untaken(connection, row.run_id) == []


async def test_decisions_are_untold_until_they_are_told(connection: Connection) -> None:
    row = await asked(connection)
    assert await interrupts.mark_told(connection, row.run_id, 1, [row.id])  # still pending
    await decide(connection, row)
    assert [found.id for found in await interrupts.untold(connection, row.run_id)] == [row.id]
    assert await interrupts.mark_told(connection, row.run_id, 1, [row.id])
    assert await interrupts.untold(connection, row.run_id) == []


async def test_what_is_overdue_is_found_and_expired(connection: Connection) -> None:
    row, other = await asked(connection), await asked(connection)
    await overdue(connection, row)
    assert await interrupts.overdue_runs(connection, 9) == [row.run_id]
    assert [found.id for found in await interrupts.overdue_of(connection, row.run_id)] == [row.id]
    expired = await interrupts.expire_overdue(connection, row.run_id)
    assert [(found.id, found.status) for found in expired] == [(row.id, "expired")]
    assert await interrupts.overdue_runs(connection, 9) == []
    assert await interrupts.overdue_of(connection, row.run_id) == []
    assert await interrupts.expire_overdue(connection, other.run_id) == []


async def test_the_inbox_shows_what_the_caller_may_decide(connection: Connection) -> None:
    """By permission, or as the owner where none is required (contract §5)."""
    free = await asked(connection)
    guarded = await asked(connection, required_permission="pumps.restart")
    await asked(connection, required_permission="pumps.sell")

    async def shown(user: str, *permissions: str) -> list[str]:
        rows, _ = await interrupts.inbox(connection, user, permissions, "pending", None, 10)
        return [row.id for row in rows]

    assert await shown(USER) == [free.id]
    assert await shown(USER, "pumps.restart") == [guarded.id, free.id]
    assert await shown("eve", "pumps.restart") == [guarded.id]
    assert await shown("eve") == []
    await decide(connection, free)
    assert await shown(USER) == []


async def test_the_inbox_is_paged_newest_first(connection: Connection) -> None:
    rows = [await asked(connection) for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await interrupts.inbox(connection, USER, [], "pending", cursor, 2)
        seen += [row.id for row in page]
        if cursor is None:
            break
    assert seen == [row.id for row in reversed(rows)]


async def test_pending_ones_are_grouped_by_run(connection: Connection) -> None:
    row = await asked(connection)
    found = await interrupts.pending_of(connection, [row.run_id, "run_other"])
    assert {run: [one.id for one in rows] for run, rows in found.items()} == {
        row.run_id: [row.id],
        "run_other": [],
    }


async def test_a_bad_cursor_is_refused(connection: Connection) -> None:
    with pytest.raises(Refused) as refused:
        await interrupts.inbox(connection, USER, [], "pending", "nonsense", 2)
    assert refused.value.code == "BAD_REQUEST"


@pytest.mark.parametrize(
    "change",
    [
        "status = 'ignored', resolved_at = now()",
        "status = 'resolved'",
        "resolved_at = now()",
        "answer = '{}'",
        "told = true",
        "status = 'resolved', resolved_at = now(), taken = true",
        "status = 'cancelled', resolved_at = now(), answer = '{}'",
        "type = 'ask'",
        "on_reject = 'reject'",
        "on_expire = 'continue'",
    ],
)
async def test_rows_that_must_not_be(connection: Connection, change: str) -> None:
    await asked(connection)
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.rows(f"UPDATE interrupts SET {change}")


async def test_a_decision_between_question_and_pause_makes_the_run_look_again(
    database: Database,
) -> None:
    """The decider locks the run first, as the runner does: one after the other, and the second
    sees what the first has done. Never interrupted with a decision that nobody will take."""
    async with database.connect() as connection:
        row = await asked(connection)
        pausing = asyncio.create_task(pause(database, row))
        async with database.begin() as deciding:
            locked = await runs.lock(deciding, row.run_id)
            await decide(deciding, row)
        paused = await pausing
        assert locked is not None
        untaken = await interrupts.untaken(connection, row.run_id)
        found = await runs.find(connection, row.run_id)
    assert found is not None
    assert len(untaken) == 1
    if paused:  # then the decider found it interrupted, and has to queue it
        assert locked.status == "interrupted"
    else:
        assert (locked.status, found.status) == ("running", "running")


async def pause(database: Database, row: Interrupt) -> bool:
    async with database.begin() as connection:
        assert await runs.hold(connection, row.run_id, 1)
        return await runs.pause(connection, row.run_id, 1, last_sequence=4, next_nodes=[])
