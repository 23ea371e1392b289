"""Runs in Postgres: one active a conversation, one owner a run, nothing left waiting."""

import asyncio
from typing import Any

import asyncpg
import pytest

from common.db import archive, conversations, interrupts, messages, runs
from common.db.archive import Portion
from common.db.engine import Connection, Database
from common.db.messages import NewMessage
from common.db.runs import Ended, Run
from common.errors import Refused
from common.ids import new_id
from common.runs import STATUSES, TERMINAL_STATUSES, TRANSITIONS
from tests.support.rows import (
    BLOCK,
    GRAPH,
    USER,
    batch,
    claim,
    conversation,
    new_run,
    question,
    queued_run,
    runner,
    running_run,
)

RACES = 25


# what a row may be: the CHECK constraints against the table of common.runs


def columns_of(status: str) -> dict[str, Any]:
    """What a row of this status has beside its defaults (contract §2)."""
    return {
        "status": f"'{status}'",
        "epoch": "1",
        "runner_id": "'rnr_1'" if status == "running" else "NULL",
        "finished_at": "now()" if status in TERMINAL_STATUSES else "NULL",
        "error": "'{}'" if status == "failed" else "NULL",
        "cancel_reason": "'user'" if status == "cancelled" else "NULL",
    }


async def put(connection: Connection, run_id: str, columns: dict[str, Any]) -> bool:
    """Whether the constraints let the row be so."""
    values = ", ".join(f"{name} = {value}" for name, value in columns.items())
    try:
        await connection.rows(f"UPDATE runs SET {values} WHERE id = $1", run_id)
    except asyncpg.CheckViolationError:
        return False
    return True


@pytest.mark.parametrize("status", STATUSES)
async def test_every_status_has_exactly_its_columns(connection: Connection, status: str) -> None:
    run = await queued_run(connection)
    assert await put(connection, run.id, columns_of(status))
    for name in ("runner_id", "finished_at", "error", "cancel_reason"):
        wrong = columns_of(status)
        other = {"runner_id": "'rnr_1'", "finished_at": "now()", "error": "'{}'"}
        wrong[name] = other.get(name, "'user'") if wrong[name] == "NULL" else "NULL"
        assert not await put(connection, run.id, wrong), name


@pytest.mark.parametrize("status", STATUSES)
async def test_only_a_terminal_row_can_go_nowhere(connection: Connection, status: str) -> None:
    """What has `finished_at` is what TRANSITIONS gives no way out of."""
    run = await queued_run(connection)
    assert await put(connection, run.id, columns_of(status))
    finished = await connection.value("SELECT finished_at IS NOT NULL FROM runs")
    assert finished == (not TRANSITIONS[status])  # type: ignore[index]


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "'done'"},
        {"epoch": "-1"},
        {"attempts": "-1"},
        {"waiting": "true", "epoch": "1"},
        {"waiting": "true", **columns_of("interrupted")},
        {"last_sequence": "5", "sequence_reserved": "4"},
        {"last_sequence": "-1"},
        {"resume_reason": "'because'"},
        {"on_disconnect": "'ask'"},
        {"cancel_requested": "'boredom'"},
        {"output": "'{}'"},
        {**columns_of("running"), "epoch": "0"},
        {**columns_of("cancelled"), "cancel_reason": "'boredom'"},
    ],
)
async def test_rows_that_must_not_be(connection: Connection, columns: dict[str, Any]) -> None:
    run = await queued_run(connection)
    assert not await put(connection, run.id, columns)


# creating


async def test_a_run_is_created_with_its_message(connection: Connection) -> None:
    conversation_id = await conversation(connection)
    new = new_run(conversation_id, metadata={"a": 1})
    run = await runs.create(connection, new)
    assert run is not None
    assert (run.status, run.waiting, run.epoch, run.metadata) == ("queued", False, 0, {"a": 1})
    assert run.input == new.input
    assert run.principal == new.principal
    assert await runs.find(connection, run.id) == run
    [message], cursor = await messages.list_page(connection, conversation_id, None, 10)
    assert (message.id, message.content) == (new.user_message_id, new.content)
    assert (message.role, message.run_id, cursor) == ("user", run.id, None)


async def test_another_users_run_is_not_there(connection: Connection) -> None:
    run = await queued_run(connection)
    assert await runs.find_for_user(connection, run.id, USER) == run
    assert await runs.find_for_user(connection, run.id, "eve") is None


async def test_a_busy_conversation_refuses_and_stores_no_message(connection: Connection) -> None:
    run = await queued_run(connection)
    assert await runs.create(connection, new_run(run.conversation_id)) is None
    items, _ = await messages.list_page(connection, run.conversation_id, None, 10)
    assert [item.id for item in items] == [run.user_message_id]


async def test_of_simultaneous_creations_one_wins(database: Database) -> None:
    for _ in range(RACES):
        async with database.connect() as connection:
            conversation_id = await conversation(connection)
        made = await asyncio.gather(*(create(database, conversation_id) for _ in range(4)))
        assert sum(run is not None for run in made) == 1


async def create(database: Database, conversation_id: str, **values: Any) -> Run | None:
    async with database.begin() as connection:
        return await runs.create(connection, new_run(conversation_id, **values))


async def test_a_run_in_a_conversation_that_was_deleted_is_not_found(
    connection: Connection,
) -> None:
    with pytest.raises(Refused) as refused:
        await runs.create(connection, new_run(new_id("conv")))
    assert refused.value.code == "NOT_FOUND"


@pytest.mark.parametrize("values", [{"content": "a\x00"}, {"metadata": {"a": ["\ud800"]}}])
async def test_what_a_person_sent_and_cannot_be_stored_is_refused(
    connection: Connection, values: dict[str, Any]
) -> None:
    conversation_id = await conversation(connection)
    with pytest.raises(Refused) as refused:
        await runs.create(connection, new_run(conversation_id, **values))
    assert refused.value.code == "VALIDATION"


# waiting behind an active run


async def enqueue(connection: Connection, conversation_id: str, how: Any = "enqueue") -> Run:
    run = await runs.create(connection, new_run(conversation_id, on_conflict=how))
    assert run is not None
    return run


async def end(connection: Connection, run: Run) -> Ended:
    ended = await runs.finish(connection, run.id, run.epoch, status="completed", last_sequence=3)
    assert ended is not None
    return ended


async def test_enqueued_runs_go_in_order(connection: Connection) -> None:
    active = await running_run(connection)
    waiting = [await enqueue(connection, active.conversation_id) for _ in range(3)]
    assert all(run.waiting for run in waiting)
    holder = await runner(connection)
    assert await claim(connection, holder) == []
    current: Run = active
    for expected in waiting:
        assert (await end(connection, current)).promoted == expected.id
        [current] = await claim(connection, holder)
        assert current.id == expected.id
    assert (await end(connection, current)).promoted is None


async def test_nothing_waits_where_nothing_is_active(connection: Connection) -> None:
    assert not (await enqueue(connection, await conversation(connection))).waiting


@pytest.mark.parametrize(
    ("how", "requested", "rollback"),
    [
        ("enqueue", None, False),
        ("interrupt", "superseded", False),
        ("rollback", "superseded", True),
    ],
)
async def test_what_the_active_run_is_asked(
    connection: Connection, how: str, requested: str | None, rollback: bool
) -> None:
    active = await running_run(connection)
    assert (await enqueue(connection, active.conversation_id, how)).waiting
    found = await runs.active(connection, active.conversation_id)
    assert found is not None
    assert (found.id, found.cancel_requested) == (active.id, requested)
    assert found.rollback == rollback


async def test_an_earlier_reason_to_cancel_stays(connection: Connection) -> None:
    active = await running_run(connection)
    await runs.request_cancel(connection, active.id, "user")
    await enqueue(connection, active.conversation_id, "interrupt")
    assert await runs.owned(connection, active.runner_id or "") == {
        active.id: (active.epoch, "user")
    }


async def test_a_waiting_run_that_was_cancelled_is_passed_over(connection: Connection) -> None:
    active = await running_run(connection)
    first, second = [await enqueue(connection, active.conversation_id) for _ in range(2)]
    cancelled = await runs.cancel_unheld(connection, first.id, 0, "user", 1)
    assert cancelled is not None
    assert (cancelled[0].status, cancelled[0].waiting) == ("cancelled", False)
    assert cancelled[1].promoted is None
    assert (await end(connection, active)).promoted == second.id


async def test_cancelling_an_unheld_active_run_promotes(connection: Connection) -> None:
    active = await queued_run(connection)
    waiting = await enqueue(connection, active.conversation_id)
    cancelled = await runs.cancel_unheld(connection, active.id, 0, "user", 1)
    assert cancelled is not None
    assert cancelled[1].promoted == waiting.id


async def test_a_race_of_enqueuing_and_ending_leaves_nothing_waiting_alone(
    database: Database,
) -> None:
    """Whoever comes first on the active run's row: never a waiting run and nothing active."""
    async with database.connect() as connection:
        holder = await runner(connection)
        for n in range(RACES):
            active = (await make_running(connection, holder))[0]
            await asyncio.gather(
                delayed(n % 3, finish(database, active)),
                *(
                    create(database, active.conversation_id, on_conflict="enqueue")
                    for _ in range(3)
                ),
            )
            order = await drain(connection, holder, active.conversation_id)
            assert len(order) == 3


async def make_running(connection: Connection, holder: str) -> list[runs.ClaimedRun]:
    await queued_run(connection)
    return await claim(connection, holder)


async def delayed(turns: int, act: Any) -> Any:
    for _ in range(turns):
        await asyncio.sleep(0)
    return await act


async def finish(database: Database, run: Run) -> None:
    async with database.begin() as connection:
        await end(connection, run)


async def drain(connection: Connection, holder: str, conversation_id: str) -> list[str]:
    """Executes what the conversation still has, one after the other."""
    order: list[str] = []
    while claimed := await claim(connection, holder):
        assert [run.conversation_id for run in claimed] == [conversation_id]
        order.append(claimed[0].id)
        await end(connection, claimed[0])
    assert await connection.value("SELECT count(*) FROM runs WHERE finished_at IS NULL") == 0
    return order


async def test_rollback_removes_messages_and_checkpoints_of_that_run_only(
    connection: Connection,
) -> None:
    first = await running_run(connection)
    await checkpointed(connection, first, "1", {"messages": "1"})
    await end(connection, first)
    second_new = new_run(first.conversation_id)
    assert await runs.create(connection, second_new)
    [second] = await claim(connection, await runner(connection))
    await checkpointed(connection, second, "2", {"messages": "2", "kept": "1"})
    await enqueue(connection, first.conversation_id, "rollback")
    stored = [NewMessage(new_id("msg"), "assistant", "half an answer")]
    assert await messages.replace(connection, second.id, second.epoch, stored)
    ended = await runs.finish(
        connection,
        second.id,
        second.epoch,
        status="cancelled",
        last_sequence=4,
        cancel_reason="superseded",
    )
    assert ended is not None
    assert ended.promoted is not None
    items, _ = await messages.list_page(connection, first.conversation_id, None, 10)
    assert second.id not in {item.run_id for item in items}
    assert len(items) == 2
    assert await left(connection, "checkpoints", "checkpoint_id") == ["1"]
    assert await left(connection, "checkpoint_writes", "checkpoint_id") == ["1"]
    assert await left(connection, "checkpoint_blobs", "version") == ["1", "1"]


async def checkpointed(
    connection: Connection, run: Run, checkpoint_id: str, versions: dict[str, str]
) -> None:
    """As the runner's saver writes it."""
    await connection.rows(
        "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint, metadata)"
        " VALUES ($1, '', $2, $3, $4)",
        run.conversation_id,
        checkpoint_id,
        {"channel_versions": {**versions, "kept": "1"}},
        {"run_id": run.id},
    )
    await connection.rows(
        "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx,"
        " channel, blob) VALUES ($1, '', $2, 't', 0, 'c', ''::bytea)",
        run.conversation_id,
        checkpoint_id,
    )
    for channel, version in {**versions, "kept": "1"}.items():
        await connection.rows(
            "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)"
            " VALUES ($1, '', $2, $3, 'null', NULL) ON CONFLICT DO NOTHING",
            run.conversation_id,
            channel,
            version,
        )


async def left(connection: Connection, table: str, column: str) -> list[str]:
    rows = await connection.rows(f"SELECT {column} FROM {table} ORDER BY 1")
    return [row[0] for row in rows]


# claiming


async def test_of_many_claimers_each_run_goes_to_one(database: Database) -> None:
    async with database.connect() as connection:
        made = {(await queued_run(connection)).id for _ in range(60)}
        holders = [await runner(connection) for _ in range(6)]

    async def claim_all(holder: str) -> list[str]:
        found: list[str] = []
        async with database.connect() as connection:
            while claimed := await claim(connection, holder, limit=3):
                assert all(run.runner_id == holder for run in claimed)
                found += [run.id for run in claimed]
        return found

    claimed = [run for found in await asyncio.gather(*map(claim_all, holders)) for run in found]
    assert len(claimed) == len(set(claimed))
    # a claimer may see nothing while others hold the last rows: they have them, then
    assert set(claimed) == made


async def test_a_first_claim_reserves_numbers_and_notes_redis(connection: Connection) -> None:
    await queued_run(connection)
    [run] = await claim(connection, await runner(connection))
    assert (run.status, run.epoch, run.attempts) == ("running", 1, 0)
    assert (run.sequence_reserved, run.redis_identity) == (BLOCK, "redis-1")
    assert (run.archived, run.previous_reserved, run.previous_identity) == (0, 0, None)
    assert run.started_at is not None


async def test_a_later_claim_shows_what_the_last_owner_left(connection: Connection) -> None:
    run = await running_run(connection)
    assert await archive.append(connection, run.id, 1, [batch(1, 7)])
    assert await runs.give_back(connection, run.id, 1)
    holder = await runner(connection)
    [again] = await runs.claim(connection, holder, [GRAPH], 5, 99, "redis-2")
    assert (again.epoch, again.archived, again.resume_reason) == (2, 7, "failover")
    assert (again.previous_reserved, again.previous_identity) == (BLOCK, "redis-1")
    assert (again.sequence_reserved, again.redis_identity) == (BLOCK, "redis-1")
    assert again.started_at == run.started_at


async def test_claims_take_the_longest_waiting_first_and_only_known_graphs(
    connection: Connection,
) -> None:
    first, second = await queued_run(connection), await queued_run(connection)
    await queued_run(connection, graph="other")
    holder = await runner(connection)
    assert [run.id for run in await claim(connection, holder, 1)] == [first.id]
    assert [run.id for run in await claim(connection, holder, 9)] == [second.id]


@pytest.mark.parametrize("over", ["dead_at = now()", "lease_until = now() - interval '1 second'"])
async def test_a_runner_whose_lease_is_over_claims_nothing(
    connection: Connection, over: str
) -> None:
    await queued_run(connection)
    holder = await runner(connection)
    await connection.rows(f"UPDATE runners SET {over}")
    assert await claim(connection, holder) == []


# fences: each function under an epoch that is not the newest


async def test_a_stale_epoch_changes_nothing(connection: Connection) -> None:
    stale = await running_run(connection)
    assert await runs.give_back(connection, stale.id, stale.epoch)
    [fresh] = await claim(connection, await runner(connection))
    assert fresh.epoch == stale.epoch + 1
    await assert_fenced(connection, stale)


async def test_a_run_that_has_ended_is_changed_by_nobody(connection: Connection) -> None:
    run = await running_run(connection)
    await end(connection, run)
    await assert_fenced(connection, run)


async def test_a_run_that_was_queued_again_is_changed_by_nobody(connection: Connection) -> None:
    run = await running_run(connection)
    assert await runs.requeue(connection, run.id, 1, last_sequence=2, reason="handover")
    await assert_fenced(connection, run)


async def assert_fenced(connection: Connection, run: Run) -> None:
    key = run.id, run.epoch
    before = await everything(connection)
    message = NewMessage(new_id("msg"), "assistant", "late")
    assert not await runs.reserve(connection, *key, 10**6)
    assert not await runs.note_identity(connection, *key, "other", 10**6)
    assert not await runs.hold(connection, *key)
    assert not await runs.pause(connection, *key, last_sequence=9, next_nodes=[])
    assert not await runs.requeue(connection, *key, last_sequence=9, reason="handover")
    assert not await runs.give_back(connection, *key)
    assert await runs.finish(connection, *key, status="completed", last_sequence=9) is None
    assert not await archive.append(connection, *key, [batch(1, 2)])
    assert await archive.append_all(connection, [Portion(*key, 9, [batch(1, 2)])]) == ["lost"]
    assert not await messages.replace(connection, *key, [message])
    assert await interrupts.insert(connection, *key, [question()]) is None
    assert not await interrupts.mark_taken(connection, *key, ["int_1"])
    assert not await interrupts.mark_told(connection, *key, ["int_1"])
    assert not await conversations.set_summary(connection, *key, "late", "msg_1", None)
    assert await everything(connection) == before


async def everything(connection: Connection) -> list[Any]:
    tables = ("conversations", "messages", "runs", "interrupts", "run_events")
    return [await connection.rows(f"SELECT * FROM {name} ORDER BY 1") for name in tables]


async def test_a_late_write_waits_for_the_claim_and_then_finds_itself_fenced(
    database: Database,
) -> None:
    async with database.connect() as connection:
        run = await running_run(connection)
        assert await runs.give_back(connection, run.id, 1)
        holder = await runner(connection)

    async def late() -> bool:
        async with database.connect() as connection:
            return await archive.append(connection, run.id, 1, [batch(1, 1)])

    async with database.begin() as claiming:
        assert len(await claim(claiming, holder)) == 1
        writing = asyncio.create_task(late())
    assert not await writing


# what the owner does


async def test_finishing_stores_the_result(connection: Connection) -> None:
    run = await running_run(connection)
    await runs.finish(
        connection,
        run.id,
        1,
        status="completed",
        last_sequence=12,
        message_id="msg_1",
        output={"pump": "on"},
    )
    found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.status, found.runner_id, found.message_id) == ("completed", None, "msg_1")
    assert (found.output, found.last_sequence, found.sequence_reserved) == ({"pump": "on"}, 12, 12)
    assert found.finished_at is not None


async def test_finishing_closes_what_still_waited_for_a_person(connection: Connection) -> None:
    run = await running_run(connection)
    await interrupts.insert(connection, run.id, 1, [question()])
    await runs.finish(
        connection,
        run.id,
        1,
        status="failed",
        last_sequence=1,
        error={"code": "GRAPH_ERROR", "message": "no"},
    )
    [left_over] = await interrupts.of_run(connection, run.id)
    assert left_over.status == "cancelled"


async def test_a_pause_is_clean_and_frees_the_runner(connection: Connection) -> None:
    run = await running_run(connection)
    assert await runs.pause(connection, run.id, 1, last_sequence=5, next_nodes=["tools"])
    found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.status, found.runner_id, found.next) == ("interrupted", None, ["tools"])
    assert (found.last_sequence, found.sequence_reserved) == (5, 5)
    assert await runs.owned(connection, run.runner_id or "") == {}


async def test_a_run_does_not_pause_over_a_decision_that_came_meanwhile(
    connection: Connection,
) -> None:
    run = await running_run(connection)
    [asked] = await interrupts.insert(connection, run.id, 1, [question()]) or []
    assert await interrupts.decide(
        connection, asked.id, decision="approve", answer={"value": True}, by=USER
    )
    assert await runs.hold(connection, run.id, 1)
    assert not await runs.pause(connection, run.id, 1, last_sequence=5, next_nodes=[])
    assert await interrupts.mark_taken(connection, run.id, 1, [asked.id])
    assert await runs.pause(connection, run.id, 1, last_sequence=5, next_nodes=[])


async def test_a_run_does_not_pause_over_a_request_to_cancel(connection: Connection) -> None:
    run = await running_run(connection)
    await runs.request_cancel(connection, run.id, "user")
    assert not await runs.pause(connection, run.id, 1, last_sequence=5, next_nodes=[])


async def test_reserving_never_lowers(connection: Connection) -> None:
    run = await running_run(connection)
    assert await runs.reserve(connection, run.id, 1, 5000)
    assert await runs.reserve(connection, run.id, 1, 10)
    found = await runs.find(connection, run.id)
    assert found is not None
    assert found.sequence_reserved == 5000


async def test_owned_shows_epochs_and_requests_to_cancel(connection: Connection) -> None:
    first, second = await running_run(connection), await running_run(connection)
    await runs.request_cancel(connection, first.id, "disconnected")
    assert await runs.owned(connection, first.runner_id or "") == {first.id: (1, "disconnected")}
    assert await runs.owned(connection, second.runner_id or "") == {second.id: (1, None)}


async def test_a_cancel_request_that_nobody_acted_on_is_found(connection: Connection) -> None:
    run = await running_run(connection)
    assert await runs.pause(connection, run.id, 1, last_sequence=5, next_nodes=[])
    await runs.request_cancel(connection, run.id, "user")
    assert [found.id for found in await runs.to_cancel(connection, 0)] == [run.id]
    assert await runs.to_cancel(connection, 60) == []


async def test_nothing_that_has_ended_can_be_cancelled(connection: Connection) -> None:
    run = await running_run(connection)
    await end(connection, run)
    assert await runs.request_cancel(connection, run.id, "user") is None


async def test_runs_are_counted_by_status(connection: Connection) -> None:
    await queued_run(connection)
    await running_run(connection)
    counted = await runs.count_by_status(connection)
    assert sum(counted.values()) == 2
