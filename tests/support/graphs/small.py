"""Small graphs: events at a pace, branches, subgraphs, questions, failures."""

import asyncio
import json
import operator
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


class Text(TypedDict, total=False):
    input: Any
    said: Annotated[list[Any], operator.add]


def _asked(state: Text) -> dict[str, Any]:
    given = state.get("input") or {}
    return json.loads(given) if isinstance(given, str) else given


async def _emit(state: Text) -> Text:
    asked = _asked(state)
    write = get_stream_writer()
    for n in range(asked.get("events", 10)):
        write({"n": n, "text": "数" * asked.get("size", n % 3)})
        if pause_s := asked.get("pause_s", 0):
            await asyncio.sleep(pause_s)
    return {"said": [asked.get("events", 10)]}


events = StateGraph(Text).add_node("emit", _emit).add_edge(START, "emit").compile()


def _left(state: Text) -> Text:
    return {"said": ["left"]}


async def _right(state: Text) -> Text:
    await asyncio.sleep(0.05)
    return {"said": ["right"]}


parallel_builder = StateGraph(Text)
parallel_builder.add_node("left", _left)
parallel_builder.add_node("right", _right)
parallel_builder.add_node("join", lambda state: {"said": ["join"]})
parallel_builder.add_edge(START, "left")
parallel_builder.add_edge(START, "right")
parallel_builder.add_edge(["left", "right"], "join")


async def make_nested() -> Any:
    """An async factory of a graph with a subgraph in it."""
    inner = StateGraph(Text)
    inner.add_node("inside", _emit)
    inner.add_edge(START, "inside")
    outer = StateGraph(Text)
    outer.add_node("child", inner.compile())
    outer.add_node("after", lambda state: {"said": ["after"]})
    outer.add_edge(START, "child")
    outer.add_edge("child", "after")
    return outer


def _question(name: str) -> Any:
    def ask_one(state: Text) -> Text:
        get_stream_writer()({"asking": name})
        answer = interrupt({"question": name})
        return {"said": [{name: answer}]}

    return ask_one


ask = StateGraph(Text).add_node("ask", _question("one")).add_edge(START, "ask").compile()


async def _ask_and_work(state: Text) -> Text:
    """Works on what was answered, for as long as a file is not there."""
    answer = interrupt({"question": "one"})
    await _work(state, answer)
    return {"said": [answer]}


async def _work(state: Text, answer: Any = None) -> Text:
    get_stream_writer()({"working": answer})
    while not Path(_asked(state)["until"]).exists():  # noqa: ASYNC240
        await asyncio.sleep(0.02)
    return {"said": ["done"]}


async def _only_work(state: Text) -> Text:
    return await _work(state)


work = StateGraph(Text).add_node("work", _only_work).add_edge(START, "work").compile()
ask_and_work = StateGraph(Text).add_node("ask", _ask_and_work).add_edge(START, "ask").compile()

_both = StateGraph(Text)
for _name in ("one", "two"):
    _both.add_node(_name, _question(_name))
    _both.add_edge(START, _name)
ask_both = _both.compile()


def _raise(state: Text) -> Text:
    raise RuntimeError("postgresql://someone:hunter2@db/secret is not reachable")


raises = StateGraph(Text).add_node("raise", _raise).add_edge(START, "raise").compile()


def _block(state: Text) -> Text:
    time.sleep(_asked(state).get("block_s", 3))
    return {"said": ["blocked"]}


blocks = StateGraph(Text).add_node("block", _block).add_edge(START, "block").compile()

_steps = StateGraph(MessagesState)
_steps.add_node("first", lambda state: {"messages": [("ai", "first")]})
_steps.add_node("second", lambda state: {"messages": [("ai", "second")]})
_steps.add_edge(START, "first")
_steps.add_edge("first", "second")
_steps.add_edge("second", END)
breakpoints = _steps.compile()


def unbuildable(config: Any) -> Any:
    """A factory that fails whenever a run needs its graph."""
    raise RuntimeError("no model is configured")


async def _exit(state: Text) -> Text:
    raise SystemExit(3)


def _exit_in_a_thread(state: Text) -> Text:
    raise KeyboardInterrupt


async def _panic(state: Text) -> Text:
    raise BaseException("a library panics")


async def _panic_in_a_group(state: Text) -> Text:
    raise BaseExceptionGroup("of a task group", [KeyboardInterrupt(), ValueError()])


async def _ask_too_deeply(state: Text) -> Text:
    question: Any = "?"
    for _ in range(2000):
        question = {"deeper": question}
    return {"said": [interrupt(question)]}


class _Nameless(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


async def _raise_the_nameless(state: Text) -> Text:
    raise _Nameless


async def _say_impossible_numbers(state: MessagesState) -> Any:
    usage = {"input_tokens": 10**30, "output_tokens": -1, "total_tokens": 7}
    return {"messages": [AIMessage("said", usage_metadata=cast(Any, usage))]}


impossible_numbers = (
    StateGraph(MessagesState)
    .add_node("say", _say_impossible_numbers)
    .add_edge(START, "say")
    .compile()
)
panics = StateGraph(Text).add_node("panic", _panic).add_edge(START, "panic").compile()
panics_in_a_group = (
    StateGraph(Text).add_node("panic", _panic_in_a_group).add_edge(START, "panic").compile()
)
asks_too_deeply = StateGraph(Text).add_node("ask", _ask_too_deeply).add_edge(START, "ask").compile()
raises_the_nameless = (
    StateGraph(Text).add_node("raise", _raise_the_nameless).add_edge(START, "raise").compile()
)
exits = StateGraph(Text).add_node("exit", _exit).add_edge(START, "exit").compile()
exits_in_a_thread = (
    StateGraph(Text).add_node("exit", _exit_in_a_thread).add_edge(START, "exit").compile()
)


async def _leg(state: Text) -> Text:
    asked, leg = _asked(state), len(state.get("said", []))
    write = get_stream_writer()
    for n in range(asked.get("events", 10)):
        write({"leg": leg, "n": n})
        await asyncio.sleep(asked.get("pause_s", 0.01))
    return {"said": [leg]}


def _more(state: Text) -> str:
    return "leg" if len(state["said"]) < _asked(state).get("legs", 4) else END


legs = (
    StateGraph(Text)
    .add_node("leg", _leg)
    .add_edge(START, "leg")
    .add_conditional_edges("leg", _more, ["leg", END])
    .compile()
)
