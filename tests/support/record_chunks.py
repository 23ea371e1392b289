"""Records what LangGraph's stream really says, for small graphs that cover what we translate.

    python -m tests.support.record_chunks        writes tests/unit/recordings/<name>.jsonl anew

Tests translate both the stored recordings and fresh ones: a LangGraph that says something else is
seen by the difference. Renew the stored ones only after looking at what changed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import MessagesState
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, Send, interrupt

from runner.steps import Stepped, Steps, run_config
from tests.support.scripted import ScriptedModel, call, say, usage

FOLDER = Path(__file__).parent.parent / "unit" / "recordings"
MODES: Any = ["messages", "tasks", "tools", "custom"]
THREAD: Any = {"configurable": {"thread_id": "conv_1"}}


@dataclass
class Recording:
    """One stream: its chunks, what the callback counted, and the error that ended it."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)
    error: str = ""


async def record(graph: Any, given: Any) -> Recording:
    made = Recording()
    config = run_config(thread_id="conv_1", run_id="run_1", steps=made.steps)
    stream: AsyncIterator[Any] = graph.astream(
        given, config, stream_mode=MODES, subgraphs=True, durability="sync", version="v2"
    )
    try:
        async for chunk in stream:
            made.chunks.append(dict(chunk))
    except Exception as error:  # what a graph raises is part of the recording
        made.error = type(error).__name__
    return made


# graphs


@tool
async def look(name: str) -> str:
    """Looks at something."""
    return f"seen {name}"


@tool
async def burn(name: str) -> str:
    """Fails."""
    raise ValueError("postgresql://u:secret@db/x is down")


@tool
async def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Changes the state."""
    return Command(update={"messages": [ToolMessage(f"noted {text}", tool_call_id=tool_call_id)]})


@tool
async def refuse(name: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Answers with an error."""
    return ToolMessage("not allowed", tool_call_id=tool_call_id, status="error")


@tool
async def quiet(name: str) -> str:
    """Is kept out of the stream."""
    return "unseen"


quiet.tags = ["nostream"]
TOOLS = [look, burn, note, refuse, quiet]


def agent(*turns: Any, **options: Any) -> Any:
    model = ScriptedModel(turns=list(turns))
    return create_agent(model, TOOLS, checkpointer=InMemorySaver(), **options)


def asked(text: str = "hi") -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id="msg_user")]}


def flow(state: Any = MessagesState, **nodes: Any) -> Any:
    builder: Any = StateGraph(state)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder


def compiled(builder: Any) -> Any:
    return builder.compile(checkpointer=InMemorySaver())


def speaking(*turns: Any, **tags: Any) -> Callable[[Any], Awaitable[Any]]:
    model = ScriptedModel(turns=list(turns)).with_config(**tags)

    async def speak(state: Any) -> Any:
        return {"messages": [await model.ainvoke("x")]}

    return speak


# recordings


async def text() -> Recording:
    return await record(agent(say("Hel", "lo", " there")), asked())


async def provider_ids() -> Recording:
    turn = say("Hel", "lo", id="provider-1")
    return await record(agent([*turn, *usage(3, 4)]), asked())


async def second_turn() -> Recording:
    """The history of the first turn is not told again."""
    graph = agent(say("first"), say("second"))
    await graph.ainvoke(asked("one"), THREAD)
    return await record(graph, {"messages": [HumanMessage("two", id="msg_user_2")]})


async def parallel_tools() -> Recording:
    turn = [
        *say("Let me look"),
        *call("look", "c1", '{"name": "a"}', 0),
        *call("look", "c2", '{"name": "b"}', 1),
        *call("unheard", "c3", "{}", 2),
        *usage(5, 6),
    ]
    return await record(agent(turn, say("Done")), asked())


async def failing_tool() -> Recording:
    return await record(agent(call("burn", "c1", '{"name": "a"}')), asked())


async def refusing_tool() -> Recording:
    return await record(agent(call("refuse", "c1", '{"name": "a"}'), say("Hm")), asked())


async def wrong_arguments() -> Recording:
    return await record(agent(call("look", "c1", '{"nome": "a"}'), say("Hm")), asked())


async def command_tool() -> Recording:
    return await record(agent(call("note", "c1", '{"text": "x"}'), say("Ok")), asked())


async def hidden() -> Recording:
    turns = [call("quiet", "c1", '{"name": "a"}'), say("Shown")]
    whisper = speaking(say("whispered"), tags=["nostream"])

    async def before(state: Any) -> Any:
        await whisper(state)
        return {}

    child = create_agent(ScriptedModel(turns=turns), TOOLS)
    builder: Any = flow(before=before)
    builder.add_node("agent", child)
    builder.add_edge("before", "agent")
    return await record(compiled(builder), asked())


async def subgraph() -> Recording:
    """The child's messages reach the parent's state and are told once."""
    child = create_agent(
        ScriptedModel(turns=[call("look", "c1", '{"name": "a"}'), say("In", "side")]), TOOLS
    )
    builder: Any = flow(child=child, beside=speaking(say("Beside")))
    builder.add_node("after", speaking(say("After")))
    builder.add_edge(["child", "beside"], "after")
    return await record(compiled(builder), asked())


class Fan(TypedDict, total=False):
    messages: Annotated[list[Any], add]
    item: str


async def fan_out() -> Recording:
    """The same node three times at once, with the same call id in each."""

    async def work(state: Fan, runtime: Runtime[None]) -> Any:
        runtime.stream_writer({"item": state["item"]})
        child = create_agent(
            ScriptedModel(
                turns=[
                    call("look", "c1", json.dumps({"name": state["item"]})),
                    say(f"did {state['item']}"),
                ]
            ),
            TOOLS,
        )
        result = await child.ainvoke({"messages": [HumanMessage("go")]})
        return {"messages": result["messages"][-1:]}

    def split(state: Fan) -> Any:
        return [Send("work", {"item": item}) for item in "xyz"]

    builder: Any = StateGraph(Fan)
    builder.add_node("split", lambda state: {})
    builder.add_node("work", work)
    builder.add_edge(START, "split")
    builder.add_conditional_edges("split", split, ["work"])
    return await record(compiled(builder), {"messages": []})


async def retry() -> Recording:
    """The first attempt says something and fails."""
    turns = [[*say("Half a"), *[ConnectionError("gone")]], say("Whole")]

    async def speak(state: Any, runtime: Runtime[None]) -> Any:
        runtime.stream_writer("begins")
        return {"messages": [await model.ainvoke("x")]}

    model = ScriptedModel(turns=turns)
    builder: Any = StateGraph(MessagesState)
    policy = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)
    builder.add_node("speak", speak, retry_policy=policy)
    builder.add_edge(START, "speak")
    return await record(compiled(builder), asked())


async def silent_retry() -> Recording:
    """The first attempt shows something, the second nothing: told at the step's end."""
    count = 0

    async def work(state: Any, runtime: Runtime[None]) -> Any:
        nonlocal count
        count += 1
        if count == 1:
            runtime.stream_writer("shown")
            raise ConnectionError("gone")
        return {}

    builder: Any = StateGraph(MessagesState)
    policy = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)
    builder.add_node("work", work, retry_policy=policy)
    builder.add_edge(START, "work")
    return await record(compiled(builder), asked())


async def not_streamed() -> Recording:
    """A model that cannot stream, then a node that makes a message itself, then that one again."""
    kept: list[AIMessage] = []

    async def made(state: Any) -> Any:
        kept.append(AIMessage("Made by a node", id="made-1"))
        return {"messages": kept}

    async def again(state: Any) -> Any:
        return {"messages": state["messages"]}

    spoken = AIMessage(
        "All at once",
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    )
    builder: Any = StateGraph(MessagesState)
    builder.add_sequence([("model", speaking(spoken)), ("made", made), ("again", again)])
    builder.add_edge(START, "model")
    return await record(compiled(builder), asked())


async def reasoning() -> Recording:
    thought = [{"type": "thinking", "thinking": "Hmm", "index": 0}]
    answer = [{"type": "text", "text": "So", "index": 1}]
    return await record(agent(say(thought, answer, answer)), asked())


async def failing_node() -> Recording:
    async def fail(state: Any) -> Any:
        raise ValueError("secret text")

    builder = flow(fail=fail, speak=speaking(say("Said")))
    return await record(compiled(builder), asked())


GATED = HumanInTheLoopMiddleware({"look": True})


def gated(**options: Any) -> Any:
    turn = [*call("look", "c1", '{"name": "a"}', 0), *call("look", "c2", '{"name": "b"}', 1)]
    return agent([*say("May I?"), *turn], say("Done"), middleware=[GATED], **options)


async def approval_asked() -> Recording:
    return await record(gated(), asked())


async def answered(*decisions: Any) -> Recording:
    graph = gated()
    await graph.ainvoke(asked(), THREAD)
    [pending] = (await graph.aget_state(THREAD)).interrupts
    return await record(graph, Command(resume={pending.id: {"decisions": list(decisions)}}))


async def approved() -> Recording:
    return await answered({"type": "approve"}, {"type": "approve"})


async def rejected_and_edited() -> Recording:
    edited = {"name": "look", "args": {"name": "z"}}
    return await answered(
        {"type": "reject", "message": "no"}, {"type": "edit", "edited_action": edited}
    )


async def responded() -> Recording:
    return await answered({"type": "respond", "message": "by hand"}, {"type": "approve"})


async def asking_tool() -> Recording:
    """A tool that asks has begun and has not ended."""

    @tool
    async def ask(name: str) -> str:
        """Asks."""
        return str(interrupt("sure?"))

    model = ScriptedModel(turns=[call("ask", "c1", '{"name": "a"}')])
    return await record(create_agent(model, [ask], checkpointer=InMemorySaver()), asked())


class Log(TypedDict, total=False):
    log: Annotated[list[str], add]


def two_questions() -> Any:
    def asks(name: str) -> Any:
        async def node(state: Log, runtime: Runtime[None]) -> Any:
            runtime.stream_writer(f"{name} begins")
            return {"log": [interrupt(name)]}

        return node

    return compiled(flow(Log, a=asks("a"), b=asks("b")))


async def one_of_two_answered() -> Recording:
    """The other is executed again up to its question."""
    graph = two_questions()
    await graph.ainvoke({"log": []}, THREAD)
    pending = {i.value: i.id for i in (await graph.aget_state(THREAD)).interrupts}
    return await record(graph, Command(resume={pending["a"]: 1}))


async def the_other_answered() -> Recording:
    """The first is finished, is announced again and not executed."""
    graph = two_questions()
    await graph.ainvoke({"log": []}, THREAD)
    pending = {i.value: i.id for i in (await graph.aget_state(THREAD)).interrupts}
    await graph.ainvoke(Command(resume={pending["a"]: 1}), THREAD)
    return await record(graph, Command(resume={pending["b"]: 2}))


RECORDINGS: Mapping[str, Callable[[], Awaitable[Recording]]] = {
    made.__name__: made
    for made in (
        text,
        provider_ids,
        second_turn,
        parallel_tools,
        failing_tool,
        refusing_tool,
        wrong_arguments,
        command_tool,
        hidden,
        subgraph,
        fan_out,
        retry,
        silent_retry,
        not_streamed,
        reasoning,
        failing_node,
        approval_asked,
        approved,
        rejected_and_edited,
        responded,
        asking_tool,
        one_of_two_answered,
        the_other_answered,
    )
}


# as JSON

_MESSAGES: Mapping[str, Any] = {
    kind.__name__: kind for kind in (AIMessage, AIMessageChunk, HumanMessage, ToolMessage)
}
_FIELDS = (
    *("id", "content", "name", "status", "tool_call_id", "tool_calls", "tool_call_chunks"),
    *("usage_metadata", "chunk_position", "additional_kwargs"),
)


def encode(value: Any) -> Any:
    if type(value).__name__ in _MESSAGES:
        fields = {
            k: getattr(value, k) for k in _FIELDS if k == "content" or getattr(value, k, None)
        }
        return {"$": type(value).__name__, "fields": encode(fields)}
    if isinstance(value, Stepped):
        return {"$": "Stepped", "fields": [value.step_id, value.start, encode(value.value)]}
    if isinstance(value, Command):
        return {"$": "Command", "fields": encode(value.update)}
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, fields = value.get("$"), decode(value.get("fields"))
    if kind == "Stepped":
        return Stepped(*fields)
    if kind == "Command":
        return Command(update=fields)
    return _MESSAGES[kind](**fields) if kind else {k: decode(v) for k, v in value.items()}


_UNREAD = ("ls_", "lc_", "thread_id", "run_id", "checkpoint_ns", "langgraph_triggers")


def _shortened(chunk: dict[str, Any]) -> dict[str, Any]:
    """Without what nobody reads: states, and metadata of other tools."""
    data = chunk["data"]
    if chunk["type"] == "tasks":
        data = {**data, **{k: None for k in ("input", "result") if k in data}}
    if chunk["type"] == "messages":
        meta = {k: v for k, v in data[1].items() if not k.startswith(_UNREAD)}
        data = (data[0], meta)
    return {"type": chunk["type"], "ns": chunk["ns"], "data": data}


def dump(recording: Recording) -> str:
    """One chunk a line, so that a difference can be read."""
    steps = recording.steps
    counts = {"starts": steps.starts, "calls": steps.calls, "hidden": sorted(steps.hidden)}
    head = json.dumps({"error": recording.error, **counts})
    lines = [json.dumps(encode(_shortened(chunk))) for chunk in recording.chunks]
    return "\n".join([head, *lines]) + "\n"


def load(name: str) -> Recording:
    head, *lines = (FOLDER / f"{name}.jsonl").read_text().splitlines()
    told, made = json.loads(head), Recording()
    made.error = told["error"]
    made.steps.starts.update(told["starts"])
    made.steps.hidden.update(told["hidden"])
    for call_id, entries in told["calls"].items():
        made.steps.calls[call_id] = [(step, start) for step, start in entries]
    made.chunks = [decode(json.loads(line)) for line in lines]
    return made


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, made in RECORDINGS.items():
        (FOLDER / f"{name}.jsonl").write_text(dump(await made()))


if __name__ == "__main__":
    asyncio.run(main())
