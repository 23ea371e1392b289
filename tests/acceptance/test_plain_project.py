"""A plain LangGraph project runs unchanged: agents, tools, branches, subgraphs, questions."""

import asyncio
from typing import Any

import pytest

from common.events import EVENT_FIELDS
from tests.support.api import Api, History, Json


def types(history: History) -> list[str]:
    return [event["type"] for event in history.events]


def text(history: History) -> str:
    return "".join(e["delta"] for e in history.events if e["type"] == "text_delta")


async def ended(api: Api, graph: str, content: str = "{}", **fields: Any) -> tuple[History, Json]:
    run = await api.start(content, graph=graph, **fields)
    history = await api.read(run["id"])
    return history, await api.run(run["id"])


async def interrupted(api: Api, graph: str, **fields: Any) -> tuple[History, Json]:
    run = await api.start("go", graph=graph, **fields)
    history = await api.read(run["id"], until="interrupt")
    state = await api.run(run["id"])
    assert state["status"] == "interrupted", state
    return history, state


def check(history: History, run: Json) -> None:
    """What holds for every log: numbers, envelope, exactly one terminal event, finished tools."""
    assert history.order == list(range(1, len(history.order) + 1))
    for event in history.events:
        required, optional = EVENT_FIELDS[event["type"]]
        given = event.keys() - {"type", "runId", "sequence", "epoch", "at", "stepId"}
        assert required <= given <= required | optional, event
        assert event["runId"] == run["id"]
    terminal = [e for e in history.events if e["type"] in ("done", "cancelled", "error")]
    assert terminal == history.events[-1:]
    assert run["lastSequence"] == history.order[-1]
    started = [e["callId"] for e in history.events if e["type"] == "tool_started"]
    finished = [e["callId"] for e in history.events if e["type"] == "tool_finished"]
    assert sorted(started) == sorted(finished)


async def test_an_agent_with_parallel_tools_streams_and_stores_its_answer(api: Api) -> None:
    history, run = await ended(api, "agent", "weather?")
    check(history, run)
    assert run["status"] == "completed", run
    assert types(history)[0] == "run_started"
    assert types(history).count("tool_started") == 2
    assert "I learned: Bremen: rain; 上海: rain" in text(history)
    messages = (await api.http.get(f"/api/conversations/{run['conversationId']}/messages")).json()
    roles = [m["role"] for m in messages["items"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    streamed: dict[str, str] = {}
    for event in history.events:
        if event["type"] == "text_delta":
            key = event["messageId"]
            streamed[key] = streamed.get(key, "") + event["delta"]
    stored = {m["id"]: m["content"] for m in messages["items"] if m["role"] == "assistant"}
    assert streamed == stored
    assert history.events[-1]["messageId"] == messages["items"][-1]["id"]


async def test_a_second_turn_continues_the_conversation(api: Api) -> None:
    history, run = await ended(api, "agent", "weather?")
    second = await api.start("again", conversation=run["conversationId"])
    history = await api.read(second["id"])
    check(history, await api.run(second["id"]))
    assert text(history).count("Let me see.") == 1


async def test_parallel_branches_and_a_state_graph_run(api: Api) -> None:
    history, run = await ended(api, "parallel")
    check(history, run)
    assert run["status"] == "completed"
    assert sorted(run["output"]["said"]) == ["join", "left", "right"]
    nodes = {e["node"] for e in history.events if e["type"] == "step_finished"}
    assert nodes == {"left", "right", "join"}


async def test_an_async_factory_with_a_subgraph_runs(api: Api) -> None:
    history, run = await ended(api, "nested", '{"events": 3}')
    check(history, run)
    assert [e["data"]["n"] for e in history.events if e["type"] == "custom"] == [0, 1, 2]
    assert {e["node"] for e in history.events if e["type"] == "step_started"} == {
        "child",
        "inside",
        "after",
    }


async def test_a_graph_that_raises_fails_without_telling_secrets(api: Api) -> None:
    history, run = await ended(api, "raises")
    check(history, run)
    assert run["status"] == "failed"
    assert run["error"]["code"] == "GRAPH_ERROR"
    assert history.events[-1]["type"] == "error"
    everything = str(history.frames) + str(run)
    assert "hunter2" not in everything
    assert "Traceback" not in everything
    assert await ended(api, "events")  # the runner lives on


async def test_an_answer_continues_the_same_run_from_its_breakpoint(api: Api) -> None:
    history, run = await interrupted(api, "ask")
    [interrupt] = run["pendingInterrupts"]
    answer = await api.resume(run["id"], interruptId=interrupt["id"], decision={"fill": {"a": 1}})
    assert answer.status_code == 202, answer.text
    await api.read(run["id"], history=history)
    run = await api.run(run["id"])
    check(history, run)
    assert run["status"] == "completed"
    assert run["output"]["said"] == [{"one": {"type": "fill", "values": {"a": 1}}}]
    order = types(history)
    position = order.index("interrupt")
    assert order[position + 1 : position + 3] == ["interrupt_resolved", "run_resumed"]
    assert history.events[position + 2]["reason"] == "decision"
    assert history.events[position + 2]["discard"]


async def test_of_two_questions_each_is_answered_once_in_any_order(api: Api) -> None:
    history, run = await interrupted(api, "ask_both")
    assert types(history)[-2:] == ["interrupt", "interrupt"]
    for interrupt in reversed(run["pendingInterrupts"]):
        name = interrupt["payload"]["question"]
        answer = await api.resume(run["id"], resume={interrupt["id"]: f"answer {name}"})
        assert answer.status_code == 202, answer.text
    await api.read(run["id"], history=history)
    run = await api.run(run["id"])
    check(history, run)
    assert run["status"] == "completed", run
    said = {name: value for entry in run["output"]["said"] for name, value in entry.items()}
    assert said == {"one": "answer one", "two": "answer two"}
    resolved = [e["interruptId"] for e in history.events if e["type"] == "interrupt_resolved"]
    assert len(resolved) == len(set(resolved)) == 2


async def test_langchains_hitl_middleware_runs_unchanged(api: Api) -> None:
    history, run = await interrupted(api, "approving")
    [interrupt] = run["pendingInterrupts"]
    assert interrupt["type"] == "confirm_action"
    answer = await api.resume(run["id"], interruptId=interrupt["id"], decision="approve")
    assert answer.status_code == 202, answer.text
    await api.read(run["id"], history=history)
    check(history, await api.run(run["id"]))
    assert "sent to a@example.org" in text(history)


async def test_a_static_breakpoint_pauses_and_continues(api: Api) -> None:
    run = await api.start("go", graph="breakpoints", interruptBefore=["second"])
    history = await api.read(run["id"], until="interrupt")
    paused = history.events[-1]
    assert (paused["type"], paused["reason"], paused["next"]) == (
        "run_paused",
        "breakpoint",
        ["second"],
    )
    answer = await api.resume(run["id"], **{"continue": True})
    assert answer.status_code == 202, answer.text
    await api.read(run["id"], history=history)
    run = await api.run(run["id"])
    check(history, run)
    assert run["status"] == "completed", run
    assert "second" in text(history)


async def test_cancel_ends_a_running_and_a_waiting_run(api: Api) -> None:
    slow = await api.start('{"events": 500, "pause_s": 0.05}', graph="events")
    history = History()
    await api.connect(slow["id"], history, events_max=5)
    _, waiting = await interrupted(api, "ask")
    for run in (slow, waiting):
        assert (await api.http.post(f"/api/runs/{run['id']}/cancel")).status_code == 202
        history = await api.read(run["id"])
        state = await api.run(run["id"])
        check(history, state)
        assert state["status"] == "cancelled"
        assert history.events[-1] == history.events[-1] | {"type": "cancelled", "reason": "user"}
        assert (await api.http.post(f"/api/runs/{run['id']}/cancel")).status_code == 202


@pytest.mark.timeout(90)
async def test_a_node_that_blocks_the_loop_does_not_stop_the_other_runs(api: Api) -> None:
    """Two runners: while one is blocked, its lease holds and other runs end."""
    blocked = await api.start('{"block_s": 3}', graph="blocks")
    others = await asyncio.gather(*(ended(api, "events") for _ in range(4)))
    assert {run["status"] for _, run in others} == {"completed"}
    history = await api.read(blocked["id"])
    assert (await api.run(blocked["id"]))["status"] == "completed"
    assert all(event["epoch"] == 1 for event in history.events)
