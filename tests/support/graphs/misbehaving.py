"""Graphs whose code does not return, keeps the event loop, or takes its process with it.

The order is JSON: `how` names the node, `free` a file whose coming ends it, `count` one that gets a
byte for each turn of it, so that a test knows what code does that nobody listens to any more.
"""

import asyncio
import json
import operator
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph


class State(TypedDict, total=False):
    input: Any
    done: Annotated[list[str], operator.add]


def _order(state: State) -> dict[str, Any]:
    given = state["input"]
    order: dict[str, Any] = json.loads(given) if isinstance(given, str) else given
    return order


def _turns(order: dict[str, Any]) -> Any:
    """Until the file comes that ends it."""
    turn = 0
    while "free" not in order or not Path(order["free"]).exists():
        turn += 1
        get_stream_writer()({"turn": turn})
        if "count" in order:
            with Path(order["count"]).open("a") as counting:
                counting.write("x")
        yield turn


async def _swallow(state: State) -> State:
    for _ in _turns(_order(state)):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            continue
    return {"done": ["swallow"]}


def _sit(state: State) -> State:
    for _ in _turns(_order(state)):
        time.sleep(0.02)
    return {"done": ["sit"]}


async def _block(state: State) -> State:
    order = _order(state)
    until = time.monotonic() + order.get("block_s", 1e9)
    for _ in _turns(order):
        if time.monotonic() > until:
            break
        time.sleep(0.02)  # noqa: ASYNC251
    return {"done": ["block"]}


def _kill(state: State) -> State:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _exit(state: State) -> State:
    os._exit(3)


def _well(state: State) -> State:
    return {"done": ["well"]}


async def _step(state: State) -> State:
    get_stream_writer()({"step": len(state.get("done", []))})
    await asyncio.sleep(0.02)
    return {"done": ["step"]}


_NODES = {
    "swallow": _swallow,
    "sit": _sit,
    "block": _block,
    "kill": _kill,
    "exit": _exit,
    "well": _well,
}
_misbehaving = StateGraph(State)
for _name, _node in _NODES.items():
    _misbehaving.add_node(_name, _node)
_misbehaving.add_conditional_edges(START, lambda state: _order(state)["how"], list(_NODES))
misbehaves = _misbehaving.compile()

_steps = StateGraph(State)
_steps.add_node("step", _step)
_steps.add_edge(START, "step")
_steps.add_conditional_edges(
    "step", lambda state: "step" if len(state["done"]) < _order(state)["steps"] else "__end__"
)
steps = _steps.compile().with_config(recursion_limit=100_000)


async def never_built(config: Any) -> Any:
    """A factory that waits for ever."""
    await asyncio.Event().wait()


def kills_when_built(config: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
