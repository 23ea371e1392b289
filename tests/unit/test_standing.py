"""What an earlier take-up has shown and still stands is not shown once more (contract §3)."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from common.events import Event
from common.masking import Masker
from common.page import Page
from runner import durable
from runner.breakpoints import Breakpoints
from runner.steps import START_KEY, Steps, run_config
from runner.translate import Translator
from tests.support.scripted import ScriptedModel
from tests.unit.test_durable import Died, Mortal

RUN = "run_1"
TURN = [AIMessageChunk(content="So it ", id="a"), AIMessageChunk(content="is.", id="a")]


def build(saver: Mortal, model: ScriptedModel) -> Any:
    """A child graph that calls a tool, by hand, and speaks; its parent hands on what it said."""

    async def look(state: MessagesState) -> Any:
        return {"messages": [ToolMessage("seen", tool_call_id="c1", name="look", id="t")]}

    async def speak(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    child = StateGraph(MessagesState).add_node("look", look).add_node("speak", speak)
    child.add_edge(START, "look").add_edge("look", "speak")
    inner = child.compile()

    async def nested(state: MessagesState) -> Any:
        return await inner.ainvoke({"messages": state["messages"]})

    graph = StateGraph(MessagesState).add_node("nested", nested).add_node("last", _last)
    return graph.add_edge(START, "nested").add_edge("nested", "last").compile(checkpointer=saver)


def _last(state: MessagesState) -> Any:
    return {"messages": [AIMessage("done", id="z")]}


async def take_up(graph: Any, page: Page) -> bool:
    """One life of a runner: what it showed is told before it dies. Whether the run is finished."""
    steps = Steps()
    config = run_config(thread_id="t", run_id=RUN, steps=steps)
    snapshot = await graph.aget_state(config, subgraphs=True)
    state = durable.read(snapshot, RUN, Breakpoints.of_run(graph, {}))
    page.apply([Event("run_resumed", {"reason": "failover", "discard": state.discard(page)})])
    if state.finished:
        return True
    translator = Translator(
        run_id=RUN,
        mask=Masker(),
        finished=state.finished_steps,
        shown=page.steps,
        standing=page.standing,
        seen=state.message_ids,
        callback=steps,
    )
    given = None if state.input_applied else {"messages": [HumanMessage("?", id="h")]}
    modes = ["messages", "tasks", "tools", "custom"]
    stream = graph.astream(
        given, config, stream_mode=modes, subgraphs=True, durability="sync", version="v2"
    )
    try:
        async for chunk in stream:
            page.apply(translator.feed(chunk))
    except Died:
        pass
    page.apply(translator.close())
    return False


@pytest.mark.parametrize("lives", range(1, 13))
async def test_whatever_write_is_the_last_each_text_and_tool_stands_once(lives: int) -> None:
    model, page, saver = ScriptedModel(turns=[TURN] * 3), Page(), Mortal(lives)
    graph = build(saver, model)
    finished = [await take_up(graph, page) for _ in range(3)]
    assert finished[-1]
    stored = {m.id: (m.role, m.content) for m in page.messages(RUN).values()}
    assert sorted(stored.values()) == [
        ("assistant", "So it is."),
        ("assistant", "done"),
        ("tool", "seen"),
    ]
    assert len([p for p in page.pieces if hasattr(p, "call_id")]) == 1


def message(text: str, step: str, native: str = "a", start: int = 1) -> dict[str, Any]:
    meta = {"langgraph_checkpoint_ns": f"node:{step}", START_KEY: start}
    return {"type": "messages", "ns": (), "data": (AIMessage(text, id=native), meta)}


def shown(translator: Translator, page: Page, chunk: dict[str, Any]) -> list[str]:
    events = translator.feed(chunk)
    page.apply(events)
    return [event.type for event in events]


def test_what_a_step_said_that_is_executed_again_is_said_again() -> None:
    page = Page()
    first = Translator(run_id=RUN, mask=Masker())
    assert shown(first, page, message("So.", "A")) == ["text_delta"]
    second = Translator(run_id=RUN, mask=Masker(), standing=page.standing)
    assert shown(second, page, message("So.", "B")) == []
    assert shown(second, page, message("So.", "A", start=2)) == ["step_retried", "text_delta"]
    page.apply([Event("run_resumed", {"reason": "failover", "discard": ["A"]})])
    third = Translator(run_id=RUN, mask=Masker(), standing=page.standing)
    assert shown(third, page, message("So.", "A")) == ["text_delta"]
