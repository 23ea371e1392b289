"""Facts are written with the step that found them, once, or not at all (design §6)."""

import json
from typing import Any

import pytest

from common.db import conversations, runs
from common.db.conversations import Conversation
from common.db.runs import ClaimedRun, Run
from common.errors import LeaseLost
from runner.checkpointer import FencedSaver
from runner.facts import Change
from runner.sessions import Sessions
from tests.integration.test_runner import Serving, World, runner, world
from tests.support.rows import USER, new_run, running_run

__all__ = ["runner", "world"]  # fixtures


def call(how: str, sync: Any = False, **facts: Any) -> dict[str, Any]:
    return {"facts": facts, "how": how, "sync": sync}


async def found(world: World, run: Run) -> Conversation:
    async with world.db.connect() as connection:
        conversation = await conversations.find(connection, run.conversation_id, USER)
    assert conversation is not None
    return conversation


async def ended(world: World, graph: str, **content: Any) -> tuple[Run, Conversation]:
    run_id = await world.start(graph, json.dumps(content))
    run = await world.until_status(run_id, "completed", "failed", "cancelled")
    return run, await found(world, run)


@pytest.mark.parametrize("sync", [False, True])
async def test_what_a_tool_has_found_is_known_to_the_next_step(
    world: World, runner: Serving, sync: bool
) -> None:
    run_id = await world.start("remembers", json.dumps({"calls": [call("well", sync=sync, a=1)]}))
    run = await world.until_status(run_id, "completed")
    conversation = await found(world, run)
    assert (conversation.facts, conversation.facts_version) == ({"a": 1}, 2)
    said = [e["delta"] for e in await world.events(run_id) if e["type"] == "text_delta"]
    assert json.loads("".join(said)) == {"a": 1}


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("how", ["raises", "refuses"])
async def test_a_tool_that_failed_writes_nothing_beside_one_that_did_not(
    world: World, runner: Serving, how: str, sync: bool
) -> None:
    calls = [call(how, sync=sync, bad=1), call("well", sync=sync, good=1)]
    run, conversation = await ended(world, "remembers", calls=calls)
    assert run.status == "completed"
    assert conversation.facts == {"good": 1}


async def test_a_tool_that_asks_writes_once_and_only_after_the_answer(
    world: World, runner: Serving
) -> None:
    run_id = await world.start("remembers", json.dumps({"calls": [call("asks", a=1)]}))
    run = await world.until_status(run_id, "interrupted")
    assert (await found(world, run)).facts == {}
    [question] = await world.interrupts(run_id)
    assert question.facts_version == 1
    await world.decide(run_id, question, {"type": "approve"})
    run = await world.until_status(run_id, "completed")
    conversation = await found(world, run)
    assert (conversation.facts, conversation.facts_version) == ({"a": 1}, 2)


async def test_a_tool_that_was_rejected_writes_nothing(world: World, runner: Serving) -> None:
    run_id = await world.start("remembers", json.dumps({"calls": [call("asks", a=1)]}))
    await world.until_status(run_id, "interrupted")
    async with world.db.begin() as connection:
        await runs.request_cancel(connection, run_id, "rejected")
    run = await world.until_status(run_id, "cancelled")
    assert (await found(world, run)).facts == {}


async def test_of_a_node_that_is_tried_again_only_the_last_execution_counts(
    world: World, runner: Serving
) -> None:
    _, conversation = await ended(world, "remembers_in_nodes", facts={"a": 1}, fails=2)
    assert conversation.facts == {"a": 1, "try-3": True, "inner": True}


async def test_a_node_that_fails_writes_nothing(world: World, runner: Serving) -> None:
    run, conversation = await ended(world, "remembers_in_nodes", facts={"a": 1}, fails=3)
    assert run.status == "failed"
    assert (conversation.facts, conversation.facts_version) == ({}, 1)


async def test_the_version_stays_when_nothing_new_was_found(world: World, runner: Serving) -> None:
    calls = [call("well", a=1)]
    first, conversation = await ended(world, "remembers", calls=calls)
    assert conversation.facts_version == 2
    content = json.dumps({"calls": calls})
    async with world.db.begin() as connection:
        again = await runs.create(
            connection,
            new_run(
                first.conversation_id,
                graph="remembers",
                content=content,
                input={"content": content},
            ),
        )
        assert again is not None
    run = await world.until_status(again.id, "completed")
    assert (await found(world, run)).facts_version == 2


@pytest.mark.parametrize("facts", [{"1a": 1}, {"__proto__": 1}, {"a": "x" * 20_000}])
async def test_what_is_no_fact_fails_the_tool_and_not_the_run(
    world: World, runner: Serving, facts: Any
) -> None:
    run, conversation = await ended(world, "remembers", calls=[{"facts": facts, "how": "well"}])
    assert (run.status, conversation.facts) == ("completed", {})


async def test_facts_that_grow_without_end_fail_the_run_and_say_so(
    world: World, runner: Serving
) -> None:
    calls = [call("well", **{f"a{n}": "x" * 15_000}) for n in range(5)]
    run, conversation = await ended(world, "remembers", calls=calls)
    assert run.error == {"code": "GRAPH_ERROR", "message": "The agent failed (FactsFull)."}
    assert conversation.facts == {}


async def test_secrets_do_not_become_facts(world: World, runner: Serving) -> None:
    secret = "postgresql://someone:hunter2@db/orders"
    _, conversation = await ended(
        world, "remembers", calls=[call("well", database=secret, password="hunter2")]
    )
    assert "hunter2" not in str(conversation.facts)
    assert set(conversation.facts) == {"database", "password"}


class Found:
    """Facts that each step has found."""

    def of_step(self, step_id: str) -> Change:
        return Change({"env": "prod"}, ["old"])

    def drop(self, step_id: str) -> None:
        """They are found again with each execution."""


async def store_result(world: World, run: ClaimedRun, epoch: int) -> None:
    found: Any = Found()
    url = world.settings.database_url.get_secret_value()
    async with Sessions(url, application_name="test", size=1) as sessions:
        saver = FencedSaver(sessions, run.id, epoch, facts=found)
        place = {"thread_id": run.conversation_id, "checkpoint_ns": "", "checkpoint_id": "1"}
        await saver.aput_writes({"configurable": place}, [("said", 1)], "step")


async def test_a_result_that_is_stored_twice_brings_its_facts_once(world: World) -> None:
    """The connection broke behind the first statement; meanwhile the user has changed the facts."""
    async with world.db.connect() as connection:
        run = await running_run(connection)
        key = (connection, run.conversation_id, USER)
        await conversations.set_facts(*key, {"old": 1}, [], 1)
        await store_result(world, run, 1)
        stored = await found(world, run)
        assert (stored.facts, stored.facts_version) == ({"env": "prod"}, 3)
        await conversations.set_facts(*key, {"env": "test"}, [], 3)
        await store_result(world, run, 1)
    assert (await found(world, run)).facts == {"env": "test"}


async def test_a_runner_that_lost_the_run_writes_no_facts(world: World) -> None:
    async with world.db.connect() as connection:
        run = await running_run(connection)
    with pytest.raises(LeaseLost):
        await store_result(world, run, run.epoch - 1)
    stored = await found(world, run)
    assert (stored.facts, stored.facts_version) == ({}, 1)
