"""Conversations, messages, the archive and keys: pages, versions, and what is removed with what."""

import asyncio
import base64
from typing import Any

import asyncpg
import pytest

from common.batch import Batch
from common.db import archive, conversations, idempotency, interrupts, messages, retention, runs
from common.db.archive import Portion
from common.db.engine import Connection, Database
from common.db.idempotency import Mismatch, Reserved, Stored
from common.db.messages import NewMessage
from common.errors import Refused
from common.ids import new_id
from tests.support.rows import (
    GRAPH,
    USER,
    batch,
    conversation,
    new_run,
    question,
    queued_run,
    running_run,
)
from tests.support.until import until

# conversations


async def test_conversations_are_listed_by_last_use(connection: Connection) -> None:
    made = [await conversation(connection) for _ in range(5)]
    await conversation(connection, "eve")
    await runs.create(connection, new_run(made[1]))
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await conversations.list_page(connection, USER, cursor, 2)
        seen += [item.id for item in page]
        if cursor is None:
            break
    assert seen == [made[1], made[4], made[3], made[2], made[0]]


async def test_a_last_page_that_is_full_has_no_cursor(connection: Connection) -> None:
    await conversation(connection)
    page, cursor = await conversations.list_page(connection, USER, None, 1)
    assert (len(page), cursor) == (1, None)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "€",
        "[1]",
        base64.urlsafe_b64encode(b"[1]").decode(),
        base64.urlsafe_b64encode(b'["1","a"]').decode(),
        base64.urlsafe_b64encode(b'[-1,"a"]').decode(),
        base64.urlsafe_b64encode(b'[true,"a"]').decode(),
        base64.urlsafe_b64encode(b'[99999999999999999999,"a"]').decode(),
        base64.urlsafe_b64encode(b'[9223372036854775807,"a"]').decode(),
        base64.urlsafe_b64encode(b"{}").decode(),
    ],
)
async def test_cursors_that_no_list_gave_out_are_refused(
    connection: Connection, cursor: str
) -> None:
    with pytest.raises(Refused) as refused:
        await conversations.list_page(connection, USER, cursor, 2)
    assert refused.value.code == "BAD_REQUEST"


async def test_a_cursor_with_nul_is_no_failure(connection: Connection) -> None:
    cursor = base64.urlsafe_b64encode(b'[1,"a\\u0000"]').decode()
    assert await conversations.list_page(connection, USER, cursor, 2) == ([], None)


async def test_facts_change_only_under_their_version(connection: Connection) -> None:
    conversation_id = await conversation(connection)

    async def change(version: int, set: dict[str, Any], *unset: str) -> Any:
        return await conversations.set_facts(connection, conversation_id, USER, set, unset, version)

    first = await change(1, {"a": 1, "b": 2})
    assert (first.facts, first.facts_version) == ({"a": 1, "b": 2}, 2)
    assert await change(1, {"a": 9}) is None
    second = await change(2, {"a": 3}, "b", "unknown")
    assert (second.facts, second.facts_version) == ({"a": 3}, 3)
    with pytest.raises(Refused):
        await change(3, {"a": "\x00"})


async def test_of_simultaneous_changes_of_facts_one_wins(database: Database) -> None:
    async with database.connect() as connection:
        conversation_id = await conversation(connection)

    async def change(n: int) -> Any:
        async with database.connect() as connection:
            return await conversations.set_facts(connection, conversation_id, USER, {"n": n}, [], 1)

    changed = await asyncio.gather(*map(change, range(6)))
    assert sum(one is not None for one in changed) == 1


async def test_a_summary_takes_the_place_of_the_one_it_was_made_from(
    connection: Connection,
) -> None:
    run = await running_run(connection)
    key = (connection, run.id, 1)
    assert await conversations.set_summary(*key, "so\x00 far", "msg_1", None)
    assert not await conversations.set_summary(*key, "another branch's", "msg_1", None)
    found = await conversations.find(connection, run.conversation_id, USER)
    assert found is not None
    assert (found.summary, found.summary_covers) == ("so\ufffd far", "msg_1")
    assert await conversations.set_summary(*key, "further", "msg_2", "msg_1")
    await conversations.drop_summary(connection, run.conversation_id, "another run")
    found = await conversations.find(connection, run.conversation_id, USER)
    assert found is not None
    assert found.summary == "further"
    await conversations.drop_summary(connection, run.conversation_id, run.id)
    found = await conversations.find(connection, run.conversation_id, USER)
    assert found is not None
    assert (found.summary, found.summary_covers) == (None, None)


async def test_facts_that_the_table_does_not_take_are_refused(connection: Connection) -> None:
    conversation_id = await conversation(connection)
    with pytest.raises(Refused, match="they take too much room"):
        await conversations.set_facts(connection, conversation_id, USER, {"a": "x" * 70_000}, [], 1)


async def test_deleting_a_conversation_leaves_nothing(connection: Connection) -> None:
    run = await running_run(connection)
    await archive.append(connection, run.id, 1, [batch(1, 3)])
    await interrupts.insert(connection, run.id, 1, [question()])
    for table, columns, values in (
        ("checkpoints", "checkpoint_id, checkpoint", "'1', '{}'"),
        ("checkpoint_blobs", "channel, version, type", "'c', '1', 'null'"),
        ("checkpoint_writes", "checkpoint_id, task_id, idx, channel, blob", "'1', 't', 0, 'c', ''"),
    ):
        for thread in (run.conversation_id, "another"):
            await connection.rows(
                f"INSERT INTO {table} (thread_id, {columns}) VALUES ($1, {values})", thread
            )
    assert not await conversations.delete(connection, run.conversation_id, "eve")
    assert await conversations.delete(connection, run.conversation_id, USER)
    for table in ("conversations", "messages", "runs", "interrupts", "run_events"):
        assert await connection.value(f"SELECT count(*) FROM {table}") == 0
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert await connection.value(f"SELECT thread_id FROM {table}") == "another"
    assert not await archive.append(connection, run.id, 1, [batch(4, 5)])


async def test_a_user_has_one_session_however_many_begin_it(database: Database) -> None:
    async def begin() -> str:
        async with database.connect() as connection:
            found = await conversations.begin_session(
                connection, id=new_id("conv"), user_id=USER, title="", graph=GRAPH
            )
        return found.id

    begun = await asyncio.gather(*(begin() for _ in range(6)))
    assert len(set(begun)) == 1
    async with database.connect() as connection:
        ended = await conversations.end_session(connection, USER)
        assert ended is not None
        assert ended.id == begun[0]
        assert await conversations.find_session(connection, USER) is None
        assert await conversations.end_session(connection, USER) is None
    assert await begin() != begun[0]


# messages


async def test_messages_are_stored_in_order_and_once(connection: Connection) -> None:
    run = await running_run(connection)
    new = [
        NewMessage(new_id("msg"), "assistant", "I shall look"),
        NewMessage(new_id("msg"), "tool", "on", tool_call_id="call_1", tool_name="status"),
        NewMessage(new_id("msg"), "assistant", "It is \x00on\ud800"),
    ]
    assert await messages.replace(connection, run.id, 1, new[:2])
    assert await messages.replace(connection, run.id, 1, new)
    page, _ = await messages.list_page(connection, run.conversation_id, None, 10)
    assert [item.id for item in page] == [run.user_message_id, *(item.id for item in new)]
    assert page[3].content == "It is \ufffdon\ufffd"
    assert (page[2].tool_call_id, page[2].tool_name) == ("call_1", "status")
    latest = await messages.latest(connection, run.conversation_id, "assistant", run.id)
    assert latest == page[3]


async def test_a_run_does_not_overwrite_another_runs_message(connection: Connection) -> None:
    first, second = await running_run(connection), await running_run(connection)
    message = NewMessage(new_id("msg"), "assistant", "mine")
    await messages.replace(connection, first.id, 1, [message])
    await messages.replace(
        connection, second.id, 1, [NewMessage(message.id, "assistant", "stolen")]
    )
    found = await messages.find(connection, message.id)
    assert found is not None
    assert found.content == "mine"


async def test_messages_are_paged_oldest_first(connection: Connection) -> None:
    run = await running_run(connection)
    new = [NewMessage(new_id("msg"), "assistant", str(n)) for n in range(4)]
    await messages.replace(connection, run.id, 1, new)
    first, cursor = await messages.list_page(connection, run.conversation_id, None, 3)
    second, end = await messages.list_page(connection, run.conversation_id, cursor, 3)
    assert [m.content for m in (*first, *second)][1:] == ["0", "1", "2", "3"]
    assert end is None


async def test_what_a_run_has_said_is_bounded_and_its_answer_is_whole(
    connection: Connection,
) -> None:
    run = await running_run(connection)
    answer = NewMessage(new_id("msg"), "assistant", "a" * 500)
    tools = [
        NewMessage(new_id("msg"), "tool", "t" * 100, tool_call_id=f"c{n}", tool_name="t")
        for n in range(6)
    ]
    await messages.replace(connection, run.id, 1, [*tools[:3], answer, *tools[3:]])
    await runs.finish(
        connection, run.id, 1, status="completed", last_sequence=0, message_id=answer.id
    )

    async def said(limit: int, bytes_max: int) -> list[str]:
        return [m.id for m in await messages.of_run(connection, run.id, limit, bytes_max)]

    after = [tool.id for tool in tools[3:]]
    assert await said(100, 100_000) == [
        run.user_message_id,
        *(tool.id for tool in tools[:3]),
        answer.id,
        *after,
    ]
    assert await said(2, 100_000) == [answer.id, *after[1:]]
    assert await said(100, 150) == [answer.id, *after[1:]]
    assert await said(100, 301) == [answer.id, *after]


# the archive


async def test_the_archive_gives_back_what_follows_the_cursor(connection: Connection) -> None:
    run = await running_run(connection)
    batches = [batch(1, 3), batch(4, 4), batch(9, 12, after=4, epoch=2)]
    assert await archive.append(connection, run.id, 1, batches[:2])
    assert await archive.append(connection, run.id, 1, batches)
    assert await archive.read(connection, run.id, 0, 10) == batches
    assert await archive.read(connection, run.id, 2, 2) == batches[:2]
    assert await archive.read(connection, run.id, 4, 10) == batches[2:]
    assert await archive.read(connection, run.id, 12, 10) == []
    assert await archive.top(connection, run.id) == 12
    assert await archive.tops(connection, [run.id, "run_unknown"]) == {run.id: (12, False)}


async def test_two_histories_of_one_run_cannot_be_archived(connection: Connection) -> None:
    run = await running_run(connection)
    await archive.append(connection, run.id, 1, [batch(1, 3)])
    with pytest.raises(asyncpg.UniqueViolationError):
        await archive.append(connection, run.id, 1, [batch(1, 4)])


@pytest.mark.parametrize("wrong", [batch(2, 3, after=2), batch(3, 3, after=-1)])
async def test_batches_that_must_not_be(connection: Connection, wrong: Batch) -> None:
    run = await running_run(connection)
    with pytest.raises(asyncpg.CheckViolationError):
        await archive.append(connection, run.id, 1, [wrong])


async def test_many_runs_are_archived_at_once_each_under_its_epoch(connection: Connection) -> None:
    held, lost = await running_run(connection), await running_run(connection)
    portions = [
        Portion(held.id, 1, 2000, [batch(1, 2), batch(3, 3)]),
        Portion(lost.id, 7, 2000, [batch(1, 1)]),
        Portion(held.id, 7, 3000, [batch(4, 4)]),
    ]
    assert await archive.append_all(connection, portions) == ["archived", "lost", "lost"]
    found = await runs.find(connection, held.id)
    assert found is not None
    assert found.sequence_reserved == 2000
    assert await archive.tops(connection, [held.id, lost.id]) == {
        held.id: (3, False),
        lost.id: (0, False),
    }


async def test_a_run_whose_row_is_locked_does_not_hold_up_the_others(database: Database) -> None:
    async with database.begin() as stopped, database.connect() as connection:
        locked, free = await running_run(connection), await running_run(connection)
        await runs.lock(stopped, locked.id)
        portions = [Portion(run.id, 1, 50, [batch(1, 1)]) for run in (locked, free)]
        assert await archive.append_all(connection, portions) == ["busy", "archived"]
        assert await archive.top(connection, locked.id) == 0


async def test_old_events_are_dropped_of_ended_runs_only(connection: Connection) -> None:
    ended, held = await running_run(connection), await running_run(connection)
    for run in (ended, held):
        await archive.append(connection, run.id, 1, [batch(1, 2)])
    await runs.finish(connection, ended.id, 1, status="completed", last_sequence=2)
    assert await retention.drop_events(connection, 3600) == 0
    assert await retention.drop_events(connection, 0) == 1
    assert await retention.drop_events(connection, 0) == 0
    assert await archive.tops(connection, [ended.id, held.id]) == {
        ended.id: (0, True),
        held.id: (2, False),
    }


async def test_one_batch_archived_by_several_at_once_is_there_once(database: Database) -> None:
    """The archive has two unique indexes, and `ON CONFLICT` looks at one of them only."""
    async with database.connect() as connection:
        run = await running_run(connection)

    async def append(one: Batch, *, alone: bool) -> bool:
        async with database.connect() as connection:
            if alone:
                return await archive.append(connection, run.id, 1, [one])
            while await archive.append_all(connection, [Portion(run.id, 1, 0, [one])]) == ["busy"]:
                pass
            return True

    for number in range(1, 300):
        one = batch(number, number)
        assert all(await asyncio.gather(*(append(one, alone=n % 2 == 0) for n in range(4))))
    async with database.connect() as connection:
        assert await connection.value("SELECT count(*) FROM run_events") == 299


# keys


async def test_the_second_request_waits_and_gets_the_first_ones_answer(
    database: Database,
) -> None:
    async def second() -> Any:
        async with database.begin() as connection:
            return await idempotency.reserve(connection, USER, "k", b"same")

    async with database.begin() as connection:
        assert await idempotency.reserve(connection, USER, "k", b"same") == Reserved()
        waiting = asyncio.create_task(second())
        await blocked(database)
        assert not waiting.done()
        await idempotency.store(connection, USER, "k", {"run": {"id": "run_1"}})
    assert await waiting == Stored({"run": {"id": "run_1"}})


async def test_a_refusal_frees_the_key_for_the_one_who_waits(database: Database) -> None:
    waiting: asyncio.Task[Any] | None = None

    async def second() -> Any:
        async with database.begin() as connection:
            return await idempotency.reserve(connection, USER, "k", b"another")

    async def first() -> None:
        nonlocal waiting
        async with database.begin() as connection:
            await idempotency.reserve(connection, USER, "k", b"same")
            waiting = asyncio.create_task(second())
            await blocked(database)
            raise Refused("CONVERSATION_BUSY", "busy")

    with pytest.raises(Refused):
        await first()
    assert waiting is not None
    assert await waiting == Reserved()


async def blocked(database: Database) -> None:
    """Until some session waits for another's transaction."""
    async with database.connect() as connection:
        await until(lambda: somebody_waits(connection))


async def somebody_waits(connection: Connection) -> bool:
    waiting: int = await connection.value(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return waiting > 0


async def test_a_key_is_one_users_and_one_requests(connection: Connection) -> None:
    assert await idempotency.reserve(connection, USER, "k", b"one") == Reserved()
    await idempotency.store(connection, USER, "k", None)
    assert await idempotency.reserve(connection, USER, "k", b"two") == Mismatch()
    assert await idempotency.reserve(connection, USER, "k", b"one") == Stored(None)
    assert await idempotency.reserve(connection, "eve", "k", b"two") == Reserved()


async def test_old_keys_are_forgotten(connection: Connection) -> None:
    await idempotency.reserve(connection, USER, "k", b"one")
    assert await idempotency.purge(connection, 3600) == 0
    assert await idempotency.purge(connection, 0) == 1
    assert await idempotency.reserve(connection, USER, "k", b"two") == Reserved()


async def test_a_conversation_is_deleted_while_runs_are_created(database: Database) -> None:
    """No deadlock, and nothing is left behind, whoever comes first."""
    for _ in range(10):
        async with database.connect() as connection:
            run = await queued_run(connection)

        async def delete(conversation_id: str = run.conversation_id) -> None:
            async with database.begin() as connection:
                assert await conversations.delete(connection, conversation_id, USER)

        async def create(conversation_id: str = run.conversation_id) -> Any:
            async with database.connect() as connection:
                new = new_run(conversation_id, on_conflict="enqueue")
                return await runs.create(connection, new)

        made = await asyncio.gather(create(), delete(), create(), return_exceptions=True)
        assert all(not isinstance(one, BaseException) or is_gone(one) for one in made), made
        async with database.connect() as connection:
            assert await connection.value("SELECT count(*) FROM runs") == 0
            assert await connection.value("SELECT count(*) FROM messages") == 0


def is_gone(error: BaseException) -> bool:
    return isinstance(error, Refused) and error.code == "NOT_FOUND"
