"""Steps and attempts, pinned: this stands on private parts of LangGraph."""

from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import UnknownInterruptError
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, interrupt

from runner.steps import Stepped, SteppedRuntime, Steps, finished, run_config, unfinished
from tests.support.record_chunks import MODES, record


class State(TypedDict, total=False):
    log: Annotated[list[str], lambda a, b: a + b]


def graph(**nodes: Any) -> Any:
    """The nodes beside each other."""
    builder: Any = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0))
        builder.add_edge(START, name)
    return builder


def compiled(**nodes: Any) -> Any:
    return graph(**nodes).compile(checkpointer=InMemorySaver())


def started(chunks: list[dict[str, Any]]) -> dict[str, str]:
    """Step ids by node."""
    parts = [c["data"] for c in chunks if c["type"] == "tasks" and "triggers" in c["data"]]
    return {part["name"]: part["id"] for part in parts}


def custom(chunks: list[dict[str, Any]]) -> list[Any]:
    return [chunk["data"] for chunk in chunks if chunk["type"] == "custom"]


async def test_a_stream_writer_tells_step_and_attempt_and_keeps_what_it_writes() -> None:
    async def write(state: State, runtime: Runtime[None]) -> State:
        runtime.stream_writer({"n": 1})
        return {}

    made = await record(compiled(write=write), {"log": []})
    assert custom(made.chunks) == [Stepped(started(made.chunks)["write"], 1, {"n": 1})]


async def test_nested_graphs_and_sync_nodes_are_told_apart() -> None:
    def inner(state: State, runtime: Runtime[None]) -> State:
        runtime.stream_writer("inner")
        return {}

    async def outer(state: State, runtime: Runtime[None]) -> State:
        runtime.stream_writer("outer")
        return {}

    made = await record(compiled(child=graph(inner=inner).compile(), outer=outer), {"log": []})
    ids = started(made.chunks)
    assert {(c.step_id, c.value) for c in custom(made.chunks)} == {
        (ids["inner"], "inner"),
        (ids["outer"], "outer"),
    }


async def test_tasks_of_the_functional_api_are_steps() -> None:
    @task
    async def part(n: int) -> int:
        return n

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: Any) -> list[int]:
        return [await part(1), await part(2)]

    made = await record(flow, {"x": 1})
    ids = [c["data"]["id"] for c in made.chunks if c["type"] == "tasks"]
    assert made.steps.starts == Counter(set(ids))
    assert len(set(ids)) == 3


async def test_each_attempt_is_counted() -> None:
    async def fail_twice(state: State, runtime: Runtime[None]) -> State:
        runtime.stream_writer("try")
        if len(tries := [*tried, 1]) < 3:
            tried[:] = tries
            raise ConnectionError
        return {}

    tried: list[int] = []
    made = await record(compiled(fail_twice=fail_twice), {"log": []})
    assert [c.start for c in custom(made.chunks)] == [1, 2, 3]


async def test_a_branch_called_like_its_node_is_no_further_attempt() -> None:
    def choose(state: State) -> str:
        return "end"

    builder = graph(choose=lambda state: {}, end=lambda state: {})
    builder.add_conditional_edges("choose", choose)
    made = await record(builder.compile(checkpointer=InMemorySaver()), {"log": []})
    assert made.steps.starts[started(made.chunks)["choose"]] == 1


async def test_a_tool_call_tells_its_step() -> None:
    @tool
    async def look(name: str) -> str:
        """Looks."""
        return name

    async def use(state: State) -> State:
        call: Any = {"type": "tool_call", "name": "look", "args": {"name": "x"}, "id": "c1"}
        await look.ainvoke(call)
        return {}

    made = await record(compiled(use=use), {"log": []})
    assert made.steps.calls == {"c1": [(started(made.chunks)["use"], 1)]}


async def test_the_context_reaches_nodes_and_is_given_anew_each_time() -> None:
    class Context(TypedDict):
        user: str

    async def read(state: State, runtime: Runtime[Context]) -> State:
        return {"log": [runtime.context["user"]]}

    builder: Any = StateGraph(State, context_schema=Context)
    builder.add_node("read", read)
    builder.add_edge(START, "read")
    config = run_config(thread_id="t", run_id="r", steps=Steps())
    made = builder.compile(checkpointer=InMemorySaver())
    result = await made.ainvoke({"log": []}, config, context={"user": "ann"}, durability="sync")
    assert result == {"log": ["ann"]}


async def test_answers_to_questions_that_are_not_pending_are_refused() -> None:
    async def ask(state: State) -> State:
        return {"log": [interrupt("?")]}

    made = compiled(ask=ask)
    config = run_config(thread_id="t", run_id="r", steps=Steps())
    await made.ainvoke({"log": []}, config, durability="sync")
    with pytest.raises(UnknownInterruptError):
        await made.ainvoke(Command(resume={"0" * 32: "x"}), config, durability="sync")
    assert (await made.aget_state(config)).interrupts


async def test_a_second_invocation_of_a_run_continues_instead_of_applying_its_input_twice() -> None:
    async def fail_once(state: State) -> State:
        if not failed:
            failed.append(1)
            raise ValueError("once")
        return {"log": ["done"]}

    failed: list[int] = []
    made = compiled(fail_once=fail_once)
    config = run_config(thread_id="t", run_id="r", steps=Steps())
    with pytest.raises(ValueError, match="once"):
        await made.ainvoke({"log": ["in"]}, config, durability="sync")
    assert await made.ainvoke({"log": ["in"]}, config, durability="sync") == {"log": ["in", "done"]}


async def test_unfinished_and_finished_steps_are_read_from_the_durable_state() -> None:
    async def ask(state: State) -> State:
        return {"log": [interrupt("?")]}

    async def quick(state: State) -> State:
        return {"log": ["quick"]}

    nothing = graph(silent=lambda state: {}, ask=ask).compile()
    made = compiled(child=nothing, quick=quick)
    told = await record(made, {"log": []})
    config: Any = {"configurable": {"thread_id": "conv_1"}}
    snapshot = await made.aget_state(config, subgraphs=True)
    ids = started(told.chunks)
    assert set(unfinished(snapshot)) == {ids["child"], ids["ask"]}
    assert set(finished(snapshot)) == {ids["quick"], ids["silent"]}


async def test_our_runtime_is_what_langgraph_merges() -> None:
    """Pins `__pregel_runtime`: without it custom chunks would lose their step."""
    made = compiled(n=lambda state: {})
    merges = []

    class Seen(SteppedRuntime):
        def merge(self, other: Any) -> Any:
            merges.append(other)
            return SteppedRuntime.merge(self, other)

    steps = Steps()
    config = run_config(thread_id="t", run_id="r", steps=steps)
    config["configurable"]["__pregel_runtime"] = Seen(steps=steps)
    stream = made.astream({"log": []}, config, stream_mode=MODES, subgraphs=True, version="v2")
    assert [chunk async for chunk in stream]
    assert merges
