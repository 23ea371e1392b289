"""One graph with everything that a takeover has to get right; tests kill its runners.

Branches beside each other: one that ends at once, one that streams, one that is retried, a subgraph
with `Send`, a node that calls `@task`s and an agent with tools; then two questions of one node, and
a node to stop before. Each execution of a step is counted in the file that STEADYRUN_COUNTS names,
and what each is to show is in `CUSTOM` and `SAYS`.
"""

import asyncio
import operator
import os
from collections import Counter
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.config import get_config, get_stream_writer
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy, Send, interrupt
from pydantic import Field

from tests.support.graphs.agents import Script, weather

WORD_S = 0.01
_failed: Counter[str] = Counter()


class State(MessagesState):
    said: Annotated[list[str], operator.add]


class Part(MessagesState):
    part: int


def step() -> str:
    return str(get_config()["metadata"]["langgraph_checkpoint_ns"]).rpartition(":")[2]


def begin(name: str) -> None:
    with open(os.environ["STEADYRUN_COUNTS"], "a") as counts:
        counts.write(f"{step()} {name}\n")


async def say(name: str, words: int) -> AIMessage:
    """A model that speaks; its words name who says them."""
    text = " ".join(f"{name}{n}" for n in range(words))
    return await Talker(text=text).ainvoke("go")


class Talker(Script):
    calls: list[dict[str, Any]] = Field(default_factory=list)
    text: str

    def _answer(self, messages: Any) -> AIMessage:
        return AIMessage(content=self.text)


async def show(name: str, count: int) -> None:
    write = get_stream_writer()
    for n in range(count):
        write({"who": name, "n": n})
        await asyncio.sleep(WORD_S)


async def quick(state: State) -> dict[str, Any]:
    begin("quick")
    get_stream_writer()({"who": "quick", "n": 0})
    return {"said": ["quick"], "messages": [AIMessage("quick words")]}


async def slow(state: State) -> dict[str, Any]:
    begin("slow")
    await show("slow", 20)
    return {"said": ["slow"], "messages": [await say("slow", 60)]}


async def flaky(state: State) -> dict[str, Any]:
    begin("flaky")
    await show("flaky", 5)
    await say("flaky", 5)
    _failed[step()] += 1
    if _failed[step()] < 3:
        raise ConnectionError
    return {"said": ["flaky"]}


async def plan(state: Part) -> dict[str, Any]:
    begin("plan")
    await say("plan", 10)
    return {}


async def work(state: Part) -> dict[str, Any]:
    name = f"work{state['part']}"
    begin(name)
    await show(name, 4 * state["part"])
    await say(name, 5 + 10 * state["part"])
    return {}


async def review(state: Part) -> dict[str, Any]:
    begin("review")
    await say("review", 20)
    return {}


def team() -> Any:
    made = StateGraph(Part)
    made.add_node("plan", plan).add_node("work", work).add_node("review", review)
    made.add_edge(START, "plan").add_edge("work", "review")
    made.add_conditional_edges("plan", lambda s: [Send("work", {"part": n}) for n in (1, 2, 3)])
    return made.compile()


@task
async def call(n: int) -> int:
    begin(f"call{n}")
    await show(f"call{n}", 3)
    await say(f"call{n}", 15)
    return n


async def calls(state: State) -> dict[str, Any]:
    begin("calls")
    first = await call(1)
    others = await asyncio.gather(call(2), call(3))
    return {"said": [f"calls{first + sum(others)}"]}


async def ask(state: State) -> dict[str, Any]:
    begin("ask")
    await say("ask", 5)
    one = interrupt({"question": "one"})
    await say("asked", 5)
    two = interrupt({"question": "two"})
    return {"said": [f"ask {one} {two}"]}


async def last(state: State) -> dict[str, Any]:
    begin("last")
    return {"said": ["last"], "messages": [await say("last", 20)]}


def build() -> Any:
    made = StateGraph(State)
    branches: dict[str, Any] = {"quick": quick, "slow": slow, "team": team(), "calls": calls}
    cities = [{"name": "weather", "args": {"city": city}} for city in ("Bremen", "Oslo")]
    branches["agent"] = create_agent(Script(calls=cities), [weather])
    retry = RetryPolicy(max_attempts=3, initial_interval=0.05, jitter=False)
    made.add_node("flaky", flaky, retry_policy=retry).add_edge(START, "flaky")
    for name, node in branches.items():
        made.add_node(name, node).add_edge(START, name)
    made.add_node("ask", ask).add_node("last", last)
    made.add_edge(["flaky", *branches], "ask").add_edge("ask", "last")
    return made.compile(interrupt_before=["last"], interrupt_after=["ask"])


everything = build()

CUSTOM = {
    **{"quick": 1, "slow": 20, "flaky": 5, "work1": 4, "work2": 8, "work3": 12},
    **{f"call{n}": 3 for n in (1, 2, 3)},
}
SAYS = {
    **{"slow": 60, "flaky": 5, "plan": 10, "review": 20, "work1": 15, "work2": 25, "work3": 35},
    **{"call1": 15, "call2": 15, "call3": 15, "ask": 5, "asked": 5, "last": 20},
}
TASKS = {f"call{n}" for n in (1, 2, 3)}
SAID = {"quick", "slow", "flaky", "calls6", "ask 1 2", "last"}
