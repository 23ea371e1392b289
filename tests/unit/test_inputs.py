"""What graphs are invoked with (contract §8)."""

import asyncio
import operator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import MessagesState, add_messages

from common.graphfile import GraphSpec, Reference
from runner.inputs import CLOSED, closed_calls, graph_input, leave
from runner.steps import Steps, run_config
from tests.support.scripted import ScriptedModel

SPEC = GraphSpec("agent", Reference(Path("agent.py"), "graph"))


@dataclass
class Run:
    input: dict[str, Any]
    id: str = "run_1"
    conversation_id: str = "conv_1"
    user_message_id: str = "msg_1"
    graph: str = "agent"
    metadata: dict[str, Any] = field(default_factory=dict)


class Plain(TypedDict, total=False):
    input: str


class Both(MessagesState):
    topic: str


class OnlyTopic(TypedDict):
    topic: str


def compiled(state: Any, **schemas: Any) -> Any:
    builder = StateGraph(state, **schemas).add_node("n", lambda s: {}).add_edge(START, "n")
    return builder.compile()


async def made(graph: Any, content: str, values: Any = None, **given: Any) -> Any:
    return await graph_input(SPEC, graph, Run({"content": content, **given}), values or {})


async def test_a_graph_with_messages_gets_the_persons_message_under_our_id() -> None:
    given = await made(compiled(MessagesState), "hello")
    assert given == {"messages": [HumanMessage("hello", id="msg_1")]}


async def test_another_graph_gets_the_text_as_input() -> None:
    assert await made(compiled(Plain), "hello") == {"input": "hello"}


async def test_the_input_schema_decides_not_the_whole_state() -> None:
    assert await made(compiled(Both, input_schema=OnlyTopic), "x") == {"input": "x"}


async def test_the_functional_api_gets_the_text_as_input() -> None:
    @entrypoint()
    async def flow(given: Any) -> Any:
        return given

    assert await made(flow, "x") == {"input": "x"}


@pytest.mark.parametrize(
    ("content", "format_", "given"),
    [
        ('{"a": 1}', "json", {"a": 1}),
        ('{"a": 1}', "text", {"input": '{"a": 1}'}),
        ("[1]", "json", {"input": "[1]"}),
        ("{", "json", {"input": "{"}),
    ],
)
async def test_json_is_parsed_only_when_asked_for_and_an_object(
    content: str, format_: str, given: Any
) -> None:
    assert await made(compiled(Plain), content, inputFormat=format_) == given


def called(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": i} for i in ids])


async def test_calls_that_a_stopped_run_left_open_are_closed_first() -> None:
    history = [HumanMessage("old"), called("a", "b"), ToolMessage("done", tool_call_id="a")]
    given = await made(compiled(MessagesState), "new", {"messages": history})
    closed, said = given["messages"]
    assert (closed.tool_call_id, closed.name, closed.status) == ("b", "t", "error")
    assert closed.content == CLOSED
    assert said == HumanMessage("new", id="msg_1")


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {"messages": "text"},
        {"messages": [called("a"), ToolMessage("x", tool_call_id="a")]},
        {"messages": [called("a"), HumanMessage("went on")]},
    ],
)
def test_nothing_is_closed_without_an_open_call_since_the_last_person(values: Any) -> None:
    assert closed_calls(values) == []


HOOKS = """
async def hook(message, run):
    return {"messages": [("user", message["content"].upper())], "run": run["id"]}
"""


async def test_the_input_hook_makes_the_input_and_open_calls_are_closed_all_the_same(
    tmp_path: Path,
) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    spec = replace(SPEC, input=Reference(tmp_path / "hooks.py", "hook"))
    run = Run({"content": "hello"})
    graph = compiled(MessagesState)
    assert await graph_input(spec, graph, run, {}) == {
        "messages": [("user", "HELLO")],
        "run": "run_1",
    }
    given = await graph_input(spec, graph, run, {"messages": [called("a")]})
    assert given["messages"][0].tool_call_id == "a"


def thread(history: list[Any], given: Any) -> list[tuple[str, str]]:
    """What the thread holds after this input."""
    merged = cast("list[Any]", add_messages(history, given["messages"]))
    return [(m.type, str(m.content)) for m in merged]


async def test_a_system_message_stands_at_the_front_of_the_thread_and_once() -> None:
    graph = compiled(MessagesState)
    first = await made(graph, "hello", systemMessage="Be brief.")
    assert thread([], first) == [("system", "Be brief."), ("human", "hello")]
    history = [first["messages"][0], HumanMessage("hello", id="1")]
    again = await made(graph, "more", {"messages": history}, systemMessage="Be brief.")
    assert [m.type for m in again["messages"]] == ["human"]
    changed = await made(graph, "more", {"messages": history}, systemMessage="Be kind.")
    assert thread(history, changed) == [
        ("system", "Be kind."),
        ("human", "hello"),
        ("human", "more"),
    ]


async def test_a_first_system_message_in_a_later_turn_goes_to_the_front_as_well() -> None:
    history = [HumanMessage("hello", id="1"), called("a")]
    values = {"messages": history}
    given = await made(compiled(MessagesState), "more", values, systemMessage="Be brief.")
    kinds = [kind for kind, _ in thread(history, given)]
    assert kinds == ["system", "human", "ai", "tool", "human"]


class Appended(TypedDict):
    messages: Annotated[list[Any], operator.add]


async def test_a_thread_with_a_reducer_of_its_own_is_only_added_to() -> None:
    values = {"messages": [HumanMessage("hello", id="1")]}
    given = await made(compiled(Appended), "more", values, systemMessage="Be brief.")
    assert [m.type for m in given["messages"]] == ["system", "human"]


async def test_an_input_hook_is_told_of_the_system_message(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("def hook(message, run):\n    return message\n")
    spec = replace(SPEC, input=Reference(tmp_path / "told.py", "hook"))
    run = Run({"content": "hello", "systemMessage": "Be brief."})
    given = await graph_input(spec, compiled(MessagesState), run, {})
    assert given["systemMessage"] == "Be brief."


# what a run leaves behind that was stopped between a call and its result


class Listener(ScriptedModel):
    """Keeps what it was given."""

    given: list[Any] = []  # noqa: RUF012  # pydantic copies it

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.given.append(messages)
        return super()._generate(messages, *args, **kwargs)


def agent(model: Any, reached: asyncio.Event, **options: Any) -> Any:
    @tool
    async def fast(name: str) -> str:
        """Answers."""
        return f"seen {name}"

    @tool
    async def never(name: str) -> str:
        """Does not answer."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    return create_agent(model, [fast, never], **options)


def inside(graph: Any) -> Any:
    builder: Any = StateGraph(MessagesState).add_node("child", graph).add_edge(START, "child")
    return builder.compile(checkpointer=InMemorySaver())


def open_calls(messages: list[Any]) -> list[str]:
    """Ids of calls that no result follows before anything else is said: providers refuse these."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
        elif waiting:
            return waiting
        elif isinstance(message, AIMessage):
            waiting = [call["id"] or "" for call in message.tool_calls]
    return waiting


async def invoke(graph: Any, given: Any, run_id: str) -> None:
    config = run_config(thread_id="t", run_id=run_id, steps=Steps())
    async for _ in graph.astream(given, config, subgraphs=True, durability="sync"):
        pass


@pytest.mark.parametrize("shape", ["agent", "subgraph", "subgraph with a memory"])
@pytest.mark.parametrize("names", [["never"], ["fast", "never"], ["never", "fast", "never"]])
async def test_a_conversation_goes_on_after_a_run_that_was_stopped_at_its_tools(
    shape: str, names: list[str]
) -> None:
    calls: Any = [{"name": n, "args": {"name": "x"}, "id": f"c{i}"} for i, n in enumerate(names)]
    model = Listener(turns=[AIMessage("", tool_calls=calls), AIMessage("fine")])
    reached = asyncio.Event()
    if shape == "agent":
        graph = agent(model, reached, checkpointer=InMemorySaver())
    else:
        memory = True if shape == "subgraph with a memory" else None
        graph = inside(agent(model, reached, checkpointer=memory))
    first = asyncio.create_task(invoke(graph, await made(graph, "go"), "run_0"))
    await reached.wait()
    for _ in range(50):  # let the fast ones end
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    config = run_config(thread_id="t", run_id="run_1", steps=Steps())
    left = await leave(graph, config)
    values = (await graph.aget_state(config)).values
    run = Run({"content": "new"}, user_message_id="msg_2")
    await invoke(graph, await graph_input(SPEC, graph, run, values, left), "run_1")
    seen = model.given[-1]
    assert open_calls(seen) == []
    assert seen[-1] == HumanMessage("new", id="msg_2")
    if shape != "subgraph":
        results = {m.tool_call_id: m.content for m in seen if isinstance(m, ToolMessage)}
        expected = {f"c{i}": "seen x" if n == "fast" else CLOSED for i, n in enumerate(names)}
        assert results == expected
