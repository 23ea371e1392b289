"""Graphs with effects of which nobody may know whether they happened. What the message asks for:

file     the folder; an effect of key K appends to K, a node that ends appends to "ended"
pause_s  how long the node beside works
"""

import asyncio
import json
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_config
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt

from runner.authoring import guarded, guarded_sync


class Text(TypedDict, total=False):
    input: Any
    said: Annotated[list[Any], operator.add]


def _asked(state: Any) -> dict[str, Any]:
    return json.loads(state["input"])  # type: ignore[no-any-return]


def _note(state: Any, name: str) -> str:
    with (Path(_asked(state)["file"]) / name).open("a") as file:
        file.write("x\n")
    return f"did {name}"


async def _perform(state: Any, key: str) -> Any:
    return await guarded(key, lambda: _note(state, key))


async def _between(state: Text) -> Text:
    """A question of its own before and after."""
    before = interrupt("before")
    done = await _perform(state, "a")
    return {"said": [before, done, interrupt("after")]}


async def _slow_between(state: Text) -> Text:
    """Slow only when it is executed for the first time after the answer."""
    first = interrupt("first")
    if not (Path(_asked(state)["file"]) / "answered").exists():
        _note(state, "answered")
        await asyncio.sleep(60)
    return {"said": [first, interrupt("second")]}


async def _two(state: Text) -> Text:
    return {"said": [await _perform(state, "a"), await _perform(state, "b")]}


async def _both_at_once(state: Text) -> Text:
    said = await asyncio.gather(_perform(state, "a"), _perform(state, "b"))
    return {"said": list(said)}


async def _impatient(state: Text) -> Text:
    try:
        await asyncio.wait_for(_perform(state, "a"), 0.1)
    except TimeoutError:
        return {"said": [_note(state, "went on")]}
    return {"said": ["in time"]}


async def _catches(state: Text) -> Text:
    try:
        return {"said": [await _perform(state, "a")]}
    except Exception:
        return {"said": ["caught"]}


def _catches_in_a_thread(state: Text) -> Text:
    try:
        return {"said": [guarded_sync("a", lambda: _note(state, "a"))]}
    except Exception:
        _note(state, "went on")
        return {"said": ["caught"]}


async def _beside(state: Text) -> Text:
    await asyncio.sleep(_asked(state).get("pause_s", 0))
    _note(state, "beside")
    return {"said": ["beside"]}


async def _effect_beside(state: Text) -> Text:
    async def slowly() -> str:
        await asyncio.sleep(_asked(state).get("pause_s", 0))
        return _note(state, "b")

    return {"said": [await guarded("b", slowly)]}


async def _asks_beside(state: Text) -> Text:
    return {"said": [interrupt("beside")]}


async def _act(state: Text) -> Text:
    return {"said": [await _perform(state, "a")]}


async def _act_b(state: Text) -> Text:
    return {"said": [await _perform(state, "b")]}


@task
async def _as_a_task(state: Text) -> Any:
    return await _perform(state, "a")


async def _calls_a_task(state: Text) -> Text:
    return {"said": [await _as_a_task(state)]}


def _single(node: Any) -> Any:
    return StateGraph(Text).add_node("node", node).add_edge(START, "node").compile()


def _parallel(**nodes: Any) -> Any:
    graph = StateGraph(Text)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
    return graph.compile()


between = _single(_between)
slow_between = _single(_slow_between)
two = _single(_two)
both_at_once = _single(_both_at_once)
impatient = _single(_impatient)
catches = _single(_catches)
catches_in_a_thread = _single(_catches_in_a_thread)
calls_a_task = _single(_calls_a_task)
nested = _parallel(inner=_single(_act), beside=_beside)
beside = _parallel(act=_act, beside=_beside)
impatient_beside = _parallel(act=_impatient, beside=_beside)
effect_beside = _parallel(act=_act, beside=_effect_beside)
asks_beside = _parallel(act=_act, beside=_asks_beside)
two_nodes = _parallel(act=_act, act_b=_act_b)

sends = (
    StateGraph(Text)
    .add_node("node", _act)
    .add_conditional_edges(START, lambda state: [Send("node", state)])
    .compile()
)


@tool
async def act(folder: str) -> str:
    """Acts."""
    assert get_config()
    return str(await _perform({"input": json.dumps({"file": folder})}, "a"))


class Chat(MessagesState, total=False):
    input: Any


def _model(state: Chat) -> Any:
    args = {"folder": json.loads(str(state["messages"][-1].text))["file"]}
    return {"messages": [AIMessage("", tool_calls=[{"name": "act", "args": args, "id": "call_1"}])]}


in_a_tool = (
    StateGraph(Chat)
    .add_node("model", _model)
    .add_node("tools", ToolNode([act]))
    .add_edge(START, "model")
    .add_edge("model", "tools")
    .compile()
)
