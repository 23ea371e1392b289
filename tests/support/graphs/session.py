"""The agent of the facade's tests: looks something up, asks a person, does it, tells.

Its question is a bare `interrupt()`, whose answer is read as such graphs do: {"type", "args"?}. It
is slow for as long as a test wants: before the question and before the answer it waits for a file.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

GATES = "STEADYRUN_TEST_GATES"


class State(MessagesState):
    answered: Any


async def passed(gate: str, query: str) -> None:
    path = Path(os.environ[GATES]) / f"{query}.{gate}"
    while not path.exists():
        await asyncio.sleep(0.01)


def query_of(state: State) -> str:
    return next(str(m.text) for m in reversed(state["messages"]) if isinstance(m, HumanMessage))


async def search(state: State) -> dict[str, Any]:
    await passed("found", query_of(state))
    return {}


async def ask(state: State) -> dict[str, Any]:
    question = {"tool": "search", "args": {"query": query_of(state)}, "question": "May I search?"}
    return {"answered": interrupt(question)}


async def tell(state: State) -> dict[str, Any]:
    await passed("done", query_of(state))
    kinds = [message.type for message in state["messages"]]
    text = f"{query_of(state)}: answered with {state['answered']}; history {kinds}."
    return {"messages": [AIMessage(text)]}


builder = StateGraph(State)
builder.add_node("search", search)
builder.add_node("ask", ask)
builder.add_node("tell", tell)
builder.add_edge(START, "search")
builder.add_edge("search", "ask")
builder.add_edge("ask", "tell")
builder.add_edge("tell", END)
graph = builder.compile()
