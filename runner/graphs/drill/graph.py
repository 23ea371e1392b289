"""Every kind of step that a takeover has to get right, at a pace that faults can hit.

    opening → left, right → nested (a graph of its own, with a tool) → shaky → ask → act → closing

Left and right stream at the same time; shaky fails at its first attempt after it has said
something; ask waits for a person; act performs a guarded effect. What is said follows from the
order alone (`runner/graphs/drill/order`).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import RetryPolicy

from runner.authoring import NOT_PERFORMED, Performed, confirm_action, guarded
from runner.graphs.drill.effect import perform, was_performed
from runner.graphs.drill.order import Order, outcome_text
from runner.graphs.drill.speaker import say

_AFTER_EFFECT_S = 0.05  # done, and nobody knows yet: here faults hurt most

Update = dict[str, Any]


class Shaken(Exception):
    """What the shaky step fails with, once."""


class State(MessagesState):
    approved: bool


def order_in(messages: Sequence[BaseMessage]) -> Order:
    """The last order that a user gave."""
    said = next(m for m in reversed(messages) if isinstance(m, HumanMessage))
    return Order.of(str(said.text))


async def opening(state: State) -> Update:
    order = order_in(state["messages"])
    return {"approved": False, **await say(order.text("opening"), order.pace_ms)}


async def left(state: State) -> Update:
    """Says it under the same id at each execution."""
    order = order_in(state["messages"])
    return await say(order.text("left"), order.pace_ms, f"left-{order.tag}")


async def right(state: State) -> Update:
    await _count(order_in(state["messages"]), "right")
    return {}


@tool
async def look_up(query: str) -> str:
    """Looks something up."""
    await asyncio.sleep(0.01)
    return f"found {len(query)} characters"


async def inner(state: State) -> Update:
    """A tool call and its result, as an agent leaves them, between custom events."""
    order = order_in(state["messages"])
    call: Any = {"name": "look_up", "args": {"query": order.secret or order.tag}, "id": order.tag}
    result = await look_up.ainvoke({**call, "type": "tool_call"})
    await _count(order, "inner")
    return {"messages": [AIMessage("", tool_calls=[call]), result]}


async def speak(state: State) -> Update:
    order = order_in(state["messages"])
    return await say(order.text("nested"), order.pace_ms)


async def shaky(state: State, runtime: Runtime[None]) -> Update:
    order = order_in(state["messages"])
    words = order.text("shaky")
    if runtime.execution_info is None or runtime.execution_info.node_attempt > 1:
        return await say(words, order.pace_ms)
    await say(words[:2], order.pace_ms)
    raise Shaken


def ask(state: State) -> Update:
    order = order_in(state["messages"])
    if not order.question:
        return {"approved": True}
    args = {"key": order.key, "apiKey": order.secret}
    return {"approved": confirm_action("effect", args, on_reject=order.on_reject).approved}


async def act(state: State) -> Update:
    order = order_in(state["messages"])
    performed = state["approved"] and order.effect != "none"
    if performed:
        await _perform(order)
    return {"messages": [AIMessage(outcome_text(order, performed=performed))]}


async def closing(state: State) -> Update:
    order = order_in(state["messages"])
    return await say(order.closing(), order.pace_ms)


async def _perform(order: Order) -> None:
    async def slowly() -> str:
        outcome = perform(order.key)
        await asyncio.sleep(_AFTER_EFFECT_S)
        return outcome

    def verify() -> object:
        return Performed("done") if was_performed(order.key) else NOT_PERFORMED

    await guarded(order.key, slowly, verify if order.effect == "verified" else None)


async def _count(order: Order, name: str) -> None:
    write = get_stream_writer()
    for number in range(order.words):
        await asyncio.sleep(order.pace_ms / 1000)
        write({"stream": name, "number": number})


def _nested() -> Any:
    graph: StateGraph[State, None, State, State] = StateGraph(State)
    graph.add_sequence([inner, speak])
    graph.add_edge(START, "inner")
    return graph.compile()


graph: StateGraph[State, None, State, State] = StateGraph(State)
for _node in (opening, left, right, ask, act, closing):
    graph.add_node(_node.__name__, _node)
graph.add_node("nested", _nested())
graph.add_node(
    "shaky", shaky, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False, retry_on=Shaken)
)
graph.add_edge(START, "opening")
graph.add_edge("opening", "left")
graph.add_edge("opening", "right")
graph.add_edge(["left", "right"], "nested")
graph.add_edge("nested", "shaky")
graph.add_edge("shaky", "ask")
graph.add_edge("ask", "act")
graph.add_edge("act", "closing")
graph.add_edge("closing", END)
