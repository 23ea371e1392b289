"""The sample agent on a real Postgres, executed by plain LangGraph as any user would."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from common import hitl
from common.graphfile import GraphSpec
from common.loading import Reference
from common.masking import Masker
from runner.authoring import rehearsal
from runner.graphs.opspilot.fleet import Fleet
from runner.graphs.opspilot.graph import Agent, build
from runner.graphs.opspilot.model import ScriptedModel
from runner.graphs.opspilot.phrases import CJK

SERVICE = "payment-api"
SICK = "payment-api-2"
SPEC = GraphSpec("opspilot", Reference(Path("graph.py"), "graph"))


@pytest.fixture
def fleet(database_url: str) -> Fleet:
    return Fleet(database_url)


@pytest.fixture
def agent(fleet: Fleet) -> Agent:
    graph = build(fleet, ScriptedModel(delay_s=0))
    graph.checkpointer = InMemorySaver()
    return graph


async def say(agent: Agent, text: str, thread: str = "t1") -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": text}]}
    return await run(agent, said, thread)


async def answer(agent: Agent, value: dict[str, Any], thread: str = "t1") -> dict[str, Any]:
    (asked,) = (await agent.aget_state(config(thread))).interrupts
    return await run(agent, Command(resume={asked.id: value}), thread)


async def run(agent: Agent, given: Any, thread: str) -> dict[str, Any]:
    with rehearsal():
        state: dict[str, Any] = await agent.ainvoke(given, config(thread))
    return state


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def tools_called(state: dict[str, Any]) -> list[str]:
    calls = [m.tool_calls for m in state["messages"] if isinstance(m, AIMessage)]
    return [call["name"] for each in calls for call in each]


def last_text(state: dict[str, Any]) -> str:
    return str(state["messages"][-1].text)


async def versions(fleet: Fleet) -> dict[str, int]:
    return {instance.id: instance.version for instance in await fleet.instances(SERVICE)}


async def test_nothing_is_restarted_before_a_person_has_confirmed(
    agent: Agent, fleet: Fleet
) -> None:
    before = await versions(fleet)
    state = await say(agent, "Restart the abnormal instance of payment-api")
    (asked,) = state["__interrupt__"]
    assert tools_called(state) == ["list_instances", "read_errors", "restart_instance"]
    assert await versions(fleet) == before
    question = hitl.question(asked.value, SPEC, Masker())
    (action,) = question.actions
    assert (question.type, action["args"]) == ("confirm_action", {"instance": SICK, "version": 1})
    assert question.resource == {"type": "instance", "id": SICK, "version": 1}
    assert question.on_reject == "cancel"
    assert question.required_permission == "ops.restart"


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("Restart the abnormal instance of payment-api", "Keep investigating it"),
        ("重启 payment-api 的异常实例", "继续排查它"),
    ],
)
async def test_the_story_is_told_to_its_end_in_the_language_of_the_user(
    agent: Agent, fleet: Fleet, text: str, again: str
) -> None:
    await say(agent, text)
    state = await answer(agent, {"type": "approve"})
    assert SICK in last_text(state)
    healed = await fleet.find_instance(SICK)
    assert healed is not None
    assert (healed.state, healed.version, healed.restarts) == ("running", 2, 1)
    state = await say(agent, again)
    assert tools_called(state)[-1] == "read_errors"
    assert SICK in last_text(state)
    chinese = CJK.search(text) is not None
    said = [m.text for m in state["messages"] if isinstance(m, AIMessage)]
    assert all((CJK.search(str(text)) is not None) == chinese for text in said)


async def test_a_rejected_restart_changes_nothing_and_is_told_so(
    agent: Agent, fleet: Fleet
) -> None:
    before = await versions(fleet)
    await say(agent, "Restart the abnormal instance of payment-api")
    state = await answer(agent, {"type": "reject"})
    assert "not restarted" in last_text(state)
    assert await versions(fleet) == before


async def test_the_recent_errors_of_a_service_are_read_and_told(agent: Agent) -> None:
    state = await say(agent, "Look at the recent errors of payment-api")
    assert tools_called(state) == ["read_errors"]
    assert "connection pool exhausted" in last_text(state) or "timed out" in last_text(state)


async def test_an_instance_that_changed_while_the_person_thought_is_not_restarted(
    agent: Agent, fleet: Fleet
) -> None:
    await say(agent, "Restart the abnormal instance of payment-api")
    await fleet.restart("somebody else", SICK, version=1)
    state = await answer(agent, {"type": "approve"})
    assert "changed" in last_text(state)
    healed = await fleet.find_instance(SICK)
    assert healed is not None
    assert (healed.version, healed.restarts) == (2, 1)


async def test_one_approval_restarts_once_although_the_tool_is_executed_again(
    agent: Agent, fleet: Fleet
) -> None:
    """The process dies after the restart and before the tool's result is saved."""
    state = await say(agent, "Restart the abnormal instance of payment-api")
    paused = (await agent.aget_state(config("t1"))).config
    (asked,) = state["__interrupt__"]
    results = []
    for _ in range(2):
        with rehearsal():  # which remembers nothing of the first
            approved: Any = Command(resume={asked.id: {"type": "approve"}})
            results.append(await agent.ainvoke(approved, paused))
    told = [next(m for m in reversed(r["messages"]) if isinstance(m, ToolMessage)) for r in results]
    assert [json.loads(str(m.content))["outcome"] for m in told] == ["restarted", "restarted"]
    healed = await fleet.find_instance(SICK)
    assert healed is not None
    assert (healed.version, healed.restarts) == (2, 1)


async def test_the_fleet_tells_what_came_of_a_restart_by_its_key(fleet: Fleet) -> None:
    assert await fleet.find_restart("key", SICK) is None
    done = await fleet.restart("key", SICK, version=1)
    late = await fleet.restart("late key", SICK, version=1)
    assert await fleet.find_restart("key", SICK) == done
    assert await fleet.find_restart("late key", SICK) == late
    assert late is not None
    assert late.outcome == "changed"


async def test_of_simultaneous_restarts_with_one_key_one_is_performed(fleet: Fleet) -> None:
    done = await asyncio.gather(*(fleet.restart("key", SICK, version=1) for _ in range(6)))
    assert [each.outcome for each in done if each] == ["restarted"] * 6
    healed = await fleet.find_instance(SICK)
    assert healed is not None
    assert healed.restarts == 1


async def test_of_simultaneous_restarts_of_one_version_one_is_performed(fleet: Fleet) -> None:
    keys = [f"key {n}" for n in range(6)]
    done = await asyncio.gather(*(fleet.restart(key, SICK, version=1) for key in keys))
    assert sorted(each.outcome for each in done if each) == ["changed"] * 5 + ["restarted"]


async def test_the_fleet_is_set_up_once_by_many_processes_at_once(database_url: str) -> None:
    fleets = [Fleet(database_url) for _ in range(6)]
    listed = await asyncio.gather(*(fleet.services() for fleet in fleets))
    assert {(s.name, s.instances) for s in listed[0]} == {
        ("order-api", 2), ("payment-api", 3), ("search", 2),
    }  # fmt: skip
    assert all(each == listed[0] for each in listed)


async def test_the_demo_can_be_repeated_by_another_conversation(database_url: str) -> None:
    fleet = Fleet(database_url, relapse_s=0)
    await fleet.restart("key", SICK, version=1, visitor="ann")

    async def sick(visitor: str) -> list[str]:
        listed = await fleet.instances(SERVICE, visitor)
        return [instance.id for instance in listed if instance.state == "degraded"]

    assert await sick("ann") == []
    assert await sick("ben") == [SICK]
    assert await sick("ann") == [SICK]


async def test_the_demo_can_be_repeated_at_once_by_breaking_something(fleet: Fleet) -> None:
    await fleet.restart("key", SICK, version=1)
    broken = await fleet.break_instance(SERVICE)
    assert broken is not None
    assert (broken.id, broken.state, broken.version) == (SICK, "degraded", 3)


async def test_a_sandbox_is_made_at_its_first_mention_with_trouble_of_its_own(
    agent: Agent, fleet: Fleet
) -> None:
    for name in ("sandbox-ann", "sandbox-17"):
        await say(agent, f"Restart the abnormal instance of {name}", thread=name)
        state = await answer(agent, {"type": "approve"}, thread=name)
        assert f"{name}-2 was restarted" in last_text(state)
    assert [s.name for s in await fleet.services()] == ["order-api", "payment-api", "search"]


async def test_a_service_that_does_not_exist_is_told_with_those_that_do(agent: Agent) -> None:
    state = await say(agent, "Look at the recent errors of foo-api")
    assert "foo-api" in last_text(state)
    assert SERVICE in last_text(state)


async def test_reset_brings_the_first_day_back(fleet: Fleet) -> None:
    before = await versions(fleet)
    await fleet.restart("key", SICK, version=1)
    await fleet.reset()
    assert await versions(fleet) == before


async def test_text_tools_and_the_question_stream_as_they_happen(agent: Agent) -> None:
    said = {
        "messages": [{"role": "user", "content": "Restart the abnormal instance of payment-api"}]
    }
    modes: Any = ["messages", "tasks", "tools", "custom"]
    stream: Any = agent.astream(said, config("t1"), stream_mode=modes, version="v2", subgraphs=True)
    parts = [(part["type"], part["data"]) async for part in stream]
    words = [data[0].text for kind, data in parts if kind == "messages" and data[0].text]
    events = [data for kind, data in parts if kind == "tools"]
    assert len(words) > 30
    assert [e["tool_name"] for e in events if e["event"] == "tool-started"] == [
        "list_instances", "read_errors", "restart_instance",
    ]  # fmt: skip
