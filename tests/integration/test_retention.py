"""Clean-up removes what is too old and ended, and nothing that an active run needs (I8)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from structlog.testing import capture_logs

from common.db import archive, conversations, interrupts, messages, retention, runs
from common.db.engine import Connection, Database
from common.db.idempotency import purge, reserve
from common.db.runs import Run
from runner.checkpointer import FencedSaver
from runner.cleaner import Cleaner, Retention
from runner.session_saver import SessionSaver
from runner.sessions import Sessions
from tests.support.rows import USER, batch, conversation, new_run, question, runner, running_run
from tests.support.rows import claim as claim_all
from tests.support.until import until

EVERYTHING = Retention(events_s=0.0, runs_s=0.0, conversations_s=0.0, checkpoints_s=0.0)
_COUNT = "SELECT count(*) FROM {}"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Sessions]:
    opened = Sessions(database_url, application_name="steadyrun:test", size=2)
    yield opened
    await opened.close()


def cleaner(database: Database, pool: Sessions, keep: Retention) -> Cleaner:
    return Cleaner(database, pool, keep, interval_s=60.0)


async def ended_run(connection: Connection) -> Run:
    run = await running_run(connection)
    await archive.append(connection, run.id, 1, [batch(1, 2)])
    await runs.finish(connection, run.id, 1, status="completed", last_sequence=2)
    found = await runs.find(connection, run.id)
    assert found is not None
    return found


async def count(connection: Connection, table: str) -> int:
    return int(await connection.value(_COUNT.format(table)))


async def test_an_old_run_goes_with_its_events_and_its_messages_stay(
    connection: Connection,
) -> None:
    run = await ended_run(connection)
    assert await retention.drop_runs(connection, 3600) == 0
    assert await retention.drop_runs(connection, 0) == 1
    assert await runs.find(connection, run.id) is None
    assert await count(connection, "run_events") == 0
    (message,), _ = await messages.list_page(connection, run.conversation_id, None, 10)
    assert (message.role, message.run_id) == ("user", None)


async def test_dropped_events_are_looked_for_once(connection: Connection) -> None:
    run = await ended_run(connection)
    assert (await retention.drop_events(connection, 0), run.replayable) == (1, True)
    assert await retention.drop_events(connection, 0) == 0
    after = await runs.find(connection, run.id)
    assert after is not None
    assert (after.replayable, after.updated_at) == (False, run.updated_at)


async def test_nothing_of_an_active_run_is_ever_too_old(
    connection: Connection, database: Database, pool: Sessions
) -> None:
    """Queued, waiting, running and interrupted ones; the last has a question that is pending."""
    held = await running_run(connection)
    asking = await running_run(connection)
    await archive.append(connection, asking.id, 1, [batch(1, 2)])
    await interrupts.insert(connection, asking.id, 1, [question()])
    async with database.begin() as pausing:
        assert await runs.hold(pausing, asking.id, 1)
        assert await runs.pause(pausing, asking.id, 1, last_sequence=2, next_nodes=["ask"])
    behind = await runs.create(connection, new_run(held.conversation_id, on_conflict="enqueue"))
    assert behind is not None
    for run in (held, asking):
        await checkpoints_of(pool, run.conversation_id, turns=3)
    before = [await count(connection, table) for table in _TABLES]
    await cleaner(database, pool, EVERYTHING).clean()
    assert [await count(connection, table) for table in _TABLES] == before


_TABLES = (
    *("conversations", "messages", "runs", "interrupts", "run_events"),
    *("checkpoints", "checkpoint_blobs", "checkpoint_writes"),
)


async def test_an_unused_conversation_goes_with_all_it_has(
    connection: Connection, database: Database, pool: Sessions
) -> None:
    run = await ended_run(connection)
    await checkpoints_of(pool, run.conversation_id, turns=2)
    await cleaner(database, pool, Retention(conversations_s=3600.0)).clean()
    assert await conversations.find(connection, run.conversation_id, USER) is not None
    await cleaner(database, pool, Retention(conversations_s=0.0)).clean()
    assert [await count(connection, table) for table in _TABLES] == [0] * len(_TABLES)


async def test_a_run_created_while_its_conversation_is_looked_at_keeps_it(
    database: Database,
) -> None:
    """It began before the look and commits after: the look passes the conversation over."""
    async with database.connect() as connection:
        conversation_id = await conversation(connection)
    async with database.begin() as creating:
        assert await runs.create(creating, new_run(conversation_id)) is not None
        async with database.begin() as looking:
            assert not await retention.drop_conversation(looking, 0)
            assert await retention.lock_to_prune(looking, 0) is None
    async with database.begin() as looking:
        assert not await retention.drop_conversation(looking, 0)
        assert await conversations.find(looking, conversation_id, USER) is not None


# checkpoints


class State(TypedDict):
    said: Annotated[list[str], lambda old, new: [*old, *new]]


class Growing(TypedDict):
    said: Annotated[list[str], DeltaChannel(lambda old, new: [*(old or []), *new])]


def talk(schema: Any, saver: Any) -> Any:
    inner = StateGraph(schema)
    inner.add_node("inside", lambda state: {"said": ["inside"]})
    inner.add_edge(START, "inside")
    graph = StateGraph(schema)
    graph.add_node("child", inner.compile())
    graph.add_edge(START, "child")
    graph.add_edge("child", END)
    return graph.compile(checkpointer=saver)


async def checkpoints_of(pool: Sessions, thread_id: str, *, turns: int, schema: Any = State) -> Any:
    """A thread with some turns behind it; its graph."""
    graph = talk(schema, SessionSaver(pool))
    config = {"configurable": {"thread_id": thread_id}}
    for turn in range(turns):
        await graph.ainvoke({"said": [f"turn {turn}"]}, config, durability="sync")
    return graph


async def test_a_thread_keeps_its_state_and_loses_its_past(
    connection: Connection, database: Database, pool: Sessions
) -> None:
    conversation_id = await conversation(connection)
    graph = await checkpoints_of(pool, conversation_id, turns=3)
    config = {"configurable": {"thread_id": conversation_id}}
    state = await graph.aget_state(config)
    await cleaner(database, pool, Retention(checkpoints_s=3600.0)).clean()
    assert await count(connection, "checkpoints") > 10
    await cleaner(database, pool, Retention(checkpoints_s=0.0)).clean()
    assert (await graph.aget_state(config)).values == state.values
    assert await count(connection, "checkpoints") <= 2
    assert await count(connection, "checkpoint_blobs") <= 4
    after = await graph.ainvoke({"said": ["on"]}, config, durability="sync")
    earlier = state.values["said"]
    assert after["said"][: len(earlier) + 1] == [*earlier, "on"]


async def test_a_pruned_thread_is_not_looked_at_before_it_is_used_again(
    connection: Connection, database: Database, pool: Sessions
) -> None:
    conversation_id = await conversation(connection)
    await cleaner(database, pool, Retention(checkpoints_s=0.0)).clean()
    async with database.begin() as looking:
        assert await retention.lock_to_prune(looking, 0) is None
    await runs.create(connection, new_run(conversation_id))
    (claimed,) = await claim_all(connection, await runner(connection))
    await runs.finish(connection, claimed.id, 1, status="completed", last_sequence=0)
    async with database.begin() as looking:
        assert await retention.lock_to_prune(looking, 0) == conversation_id


async def test_a_thread_whose_values_are_built_from_its_past_keeps_it(
    connection: Connection, database: Database, pool: Sessions
) -> None:
    conversation_id = await conversation(connection)
    graph = await checkpoints_of(pool, conversation_id, turns=3, schema=Growing)
    config = {"configurable": {"thread_id": conversation_id}}
    before = await count(connection, "checkpoints"), (await graph.aget_state(config)).values
    await cleaner(database, pool, Retention(checkpoints_s=0.0)).clean()
    after = await count(connection, "checkpoints"), (await graph.aget_state(config)).values
    assert after == before


async def test_a_run_that_is_created_while_its_thread_is_pruned_waits_for_that(
    database: Database, pool: Sessions
) -> None:
    async with database.connect() as connection:
        conversation_id = await conversation(connection)
        async with database.begin() as looking:
            assert await retention.lock_to_prune(looking, 0) == conversation_id
            creating = asyncio.create_task(runs.create(connection, new_run(conversation_id)))
            await until_somebody_waits(database)
            assert not creating.done()
        assert await creating is not None


async def until_somebody_waits(database: Database) -> None:
    async with asyncio.timeout(10), database.connect() as connection:
        while not await connection.value(_WAITING):
            await asyncio.sleep(0.01)


_WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def test_rolling_back_still_works_on_a_pruned_thread(
    connection: Connection, database: Database, pool: Sessions
) -> None:
    conversation_id = await conversation(connection)
    graph = await checkpoints_of(pool, conversation_id, turns=2)
    config: Any = {"configurable": {"thread_id": conversation_id}}
    before = (await graph.aget_state(config)).values
    await cleaner(database, pool, Retention(checkpoints_s=0.0)).clean()
    run = await runs.create(connection, new_run(conversation_id))
    assert run is not None
    (claimed,) = await claim_all(connection, await runner(connection))
    turn = talk(State, FencedSaver(pool, claimed.id, claimed.epoch))
    await turn.ainvoke(
        {"said": ["undone"]}, {**config, "metadata": {"run_id": run.id}}, durability="sync"
    )
    await runs.create(connection, new_run(conversation_id, on_conflict="rollback"))
    ended = await runs.finish(
        connection, run.id, 1, status="cancelled", last_sequence=0, cancel_reason="superseded"
    )
    assert ended is not None
    assert (await graph.aget_state(config)).values == before


async def test_a_clean_up_that_fails_is_told_and_tried_again(
    connection: Connection, database: Database, pool: Sessions
) -> None:
    run = await ended_run(connection)
    await connection.rows("ALTER TABLE run_events RENAME TO elsewhere")
    cleaning = asyncio.create_task(Cleaner(database, pool, Retention(events_s=0.0), 0.01).run())
    with capture_logs() as lines:
        await until(lambda: any(line["log_level"] == "error" for line in lines))
        await connection.rows("ALTER TABLE elsewhere RENAME TO run_events")

        async def is_dropped() -> bool:
            found = await runs.find(connection, run.id)
            return found is not None and not found.replayable

        await until(is_dropped)
    cleaning.cancel()
    await asyncio.wait({cleaning})
    assert cleaning.cancelled()


async def test_keys_are_kept_as_long_as_the_setting_says(connection: Connection) -> None:
    await reserve(connection, USER, "k", b"same")
    assert await purge(connection, 3600) == 0
    assert await purge(connection, 0) == 1
