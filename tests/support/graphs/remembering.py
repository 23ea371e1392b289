"""Graphs that remember facts. The message is JSON:

calls       for `remembers`: a list of {"facts", "how", "sync"}, one call of a tool each; `how`:
            "well", "raises", "refuses" (a result of status error), "asks" (a person, afterwards)
facts       for `remembers_in_nodes`: what the node remembers; `fails`: how often it raises then
words       for `assembles`: how many words to answer with; `budget`, `mask`, `model`: of `assemble`
"""

import json
from collections import Counter
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

from runner.authoring import assemble, assemble_sync, confirm_action, recall, remember
from tests.support.graphs.agents import Script

_tried: Counter[str] = Counter()
assembled: list[list[Any]] = []
summaries: list[Any] = []


class Again(Exception):
    """The node is tried again."""


def asked(state: MessagesState) -> Any:
    humans = [m for m in state["messages"] if isinstance(m, HumanMessage)]
    return json.loads(str(humans[-1].content))


@tool
async def learn(facts: dict[str, Any], how: str, call: Annotated[str, InjectedToolCallId]) -> Any:
    """Remember facts."""
    return end(facts, how, call)


@tool
def learn_in_a_thread(
    facts: dict[str, Any], how: str, call: Annotated[str, InjectedToolCallId]
) -> Any:
    """Remember facts."""
    return end(facts, how, call)


def end(facts: dict[str, Any], how: str, call: str) -> Any:
    remember(facts)
    if how == "raises":
        raise ValueError("nobody answers")
    if how == "asks":
        confirm_action("learn", facts)
    if how == "refuses":
        return ToolMessage("not so", tool_call_id=call, status="error")
    return "ok"


def plan(state: MessagesState) -> Any:
    calls = [
        {
            "name": "learn_in_a_thread" if call.get("sync") else "learn",
            "args": {"facts": call["facts"], "how": call["how"]},
            "id": f"call_{n}",
        }
        for n, call in enumerate(asked(state)["calls"])
    ]
    return {"messages": [AIMessage("", tool_calls=calls)]}


async def tell(state: MessagesState) -> Any:
    known = await recall()
    return {"messages": [AIMessage(json.dumps(dict(known.facts)))]}


_builder = StateGraph(MessagesState).add_node("plan", plan).add_node("tell", tell)
_builder.add_node("tools", ToolNode([learn, learn_in_a_thread], handle_tool_errors=True))
_builder.add_edge(START, "plan").add_edge("plan", "tools").add_edge("tools", "tell")
remembers = _builder.compile()


async def node(state: MessagesState) -> Any:
    wanted, run = asked(state), str(state["messages"][-1].id)
    _tried[run] += 1
    remember({**wanted["facts"], f"try-{_tried[run]}": True})
    if _tried[run] <= wanted.get("fails", 0):
        raise Again
    return {"messages": [AIMessage("done")]}


def _inside(fact: str) -> StateGraph[Any, Any, Any, Any]:
    def inside(state: MessagesState) -> Any:
        remember({fact: True})
        return {}

    return StateGraph(MessagesState).add_node("inside", inside).add_edge(START, "inside")


_nodes = StateGraph(MessagesState)
_nodes.add_node("node", node, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.01))
_nodes.add_node("child", _inside("inner").compile())
_nodes.add_edge(START, "node").add_edge("node", "child")
remembers_in_nodes = _nodes.compile()


class Summing(Script):
    """A model that sums up; what it is asked is kept."""

    calls: list[dict[str, Any]] = []  # noqa: RUF012

    def _answer(self, messages: Any) -> AIMessage:
        summaries.append(messages)
        return AIMessage("the model's summary")


async def speak(state: MessagesState) -> Any:
    wanted = asked(state)
    model = Summing() if wanted.get("model") else None
    options = {k: wanted[k] for k in ("budget", "mask") if k in wanted}
    messages = await assemble(
        state["messages"], instructions="Be brief.", summarize=model, **options
    )
    assembled.append(messages)
    return {"messages": [AIMessage(" ".join(["word"] * wanted.get("words", 1)))]}


def speak_in_a_thread(state: MessagesState) -> Any:
    wanted = asked(state)
    assembled.append(assemble_sync(state["messages"], budget=wanted.get("budget", 8000)))
    return {"messages": [AIMessage(" ".join(["word"] * wanted.get("words", 1)))]}


assembles = StateGraph(MessagesState).add_node("speak", speak).add_edge(START, "speak").compile()
assembles_in_a_thread = (
    StateGraph(MessagesState)
    .add_node("speak", speak_in_a_thread)
    .add_edge(START, "speak")
    .compile()
)
