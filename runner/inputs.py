"""What a graph is invoked with for a user's message (contract §8)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, get_type_hints

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from common.graphfile import GraphSpec, load_object
from common.ids import stable_id
from runner.thread import read_thread

CLOSED = "This call was not executed: the run that made it was stopped."


class RunInput(Protocol):
    """The parts of a run that its input is made from."""

    @property
    def id(self) -> str: ...
    @property
    def conversation_id(self) -> str: ...
    @property
    def user_message_id(self) -> str: ...
    @property
    def graph(self) -> str: ...
    @property
    def input(self) -> Mapping[str, Any]: ...
    @property
    def metadata(self) -> Any: ...


async def graph_input(
    spec: GraphSpec,
    graph: Pregel[Any, Any, Any, Any],
    run: RunInput,
    values: Any,
    left: Sequence[ToolMessage] = (),
) -> Any:
    """The input of the run's first invocation. `values`: the thread's state as it is before it,
    `left`: what `leave` gave.

    A graph's own `input` hook is called as `input(message, run)`, sync or async, and its errors go
    to the caller. Calls that an earlier run left open are closed first in any case.
    """
    closed = [*left, *closed_calls(values)]
    if spec.input is None:
        return _in_front(graph, run, values, _after(closed, _default(graph, run)))
    made = load_object(spec.input)(_message(run), described(run))
    return _after(closed, await made if inspect.isawaitable(made) else made)


async def leave(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> list[ToolMessage]:
    """Makes a thread that an earlier run left in the middle of a step ready for a new input.

    LangGraph drops the results of that step's finished parts with the new input, though reading the
    state shows them: those that answer a call are given back, to be put in again. Subgraphs that
    keep a memory of their own get the ends of their open calls here.
    """
    live = await read_thread(graph, config)
    for task in live.tasks:
        inner = task.state
        if isinstance(inner, StateSnapshot) and ":" not in _namespace(inner):
            await _close_inside(graph, config, inner)
    return await _dropped(graph, live)


async def _close_inside(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, inner: StateSnapshot
) -> None:
    ends = [*await _dropped(graph, inner), *closed_calls(inner.values)]
    if ends and inner.next:
        where = {**config["configurable"], "checkpoint_ns": _namespace(inner)}
        there: RunnableConfig = {**config, "configurable": where}
        await graph.aupdate_state(there, {"messages": ends}, as_node=inner.next[0])


async def _dropped(graph: Pregel[Any, Any, Any, Any], live: StateSnapshot) -> list[ToolMessage]:
    """Results that reading shows and that are not in the checkpoint itself."""
    if not any(task.result for task in live.tasks):
        return []
    saved = await graph.aget_state(live.config)
    known = {m.id for m in _messages(saved.values)}
    return [m for m in _messages(live.values) if isinstance(m, ToolMessage) and m.id not in known]


def _namespace(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"].get("checkpoint_ns", ""))


def _messages(values: Any) -> list[BaseMessage]:
    found = values.get("messages") if isinstance(values, Mapping) else None
    return [m for m in found if isinstance(m, BaseMessage)] if isinstance(found, list) else []


def closed_calls(values: Any) -> list[ToolMessage]:
    """Error results for tool calls without one, since the last message of a person.

    A run that was cancelled or failed between a call and its result leaves it open, and providers
    refuse such a history.
    """
    messages = values.get("messages") if isinstance(values, Mapping) else None
    recent = _since_human(messages if isinstance(messages, Sequence) else [])
    answered = {m.tool_call_id for m in recent if isinstance(m, ToolMessage)}
    calls = [c for m in recent if isinstance(m, AIMessage) for c in m.tool_calls]
    return [
        ToolMessage(CLOSED, tool_call_id=call["id"], name=call["name"], status="error")
        for call in calls
        if call["id"] and call["id"] not in answered
    ]


def _since_human(messages: Sequence[Any]) -> list[BaseMessage]:
    recent: list[BaseMessage] = []
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        if isinstance(message, BaseMessage):
            recent.append(message)
    return recent[::-1]


def _default(graph: Pregel[Any, Any, Any, Any], run: RunInput) -> dict[str, Any]:
    content = run.input["content"]
    if takes_messages(graph):
        return {"messages": [HumanMessage(content, id=run.user_message_id)]}
    parsed = _parsed(content) if run.input.get("inputFormat") == "json" else None
    return {"input": content} if parsed is None else parsed


def _in_front(graph: Pregel[Any, Any, Any, Any], run: RunInput, values: Any, made: Any) -> Any:
    """The session's system message (contract §6) stands at the front of the thread, and once, since
    providers refuse several or one in the middle: a later one takes the place of the first by its
    id; where there was none, the thread is given anew behind it."""
    text, history = run.input.get("systemMessage"), _messages(values)
    if text is None or "messages" not in made:
        return made
    system = SystemMessage(text, id=stable_id("msg", run.conversation_id, "system"))
    there = [m for m in history if m.id == system.id]
    if there:
        return made if there[-1].content == text else _with(made, [system])
    if history and _replaces(graph):
        return _with(made, [RemoveMessage(REMOVE_ALL_MESSAGES), system, *history])
    return _with(made, [system])


def _with(made: Mapping[str, Any], first: Sequence[BaseMessage]) -> dict[str, Any]:
    return {**made, "messages": [*first, *made["messages"]]}


def _replaces(graph: Pregel[Any, Any, Any, Any]) -> bool:
    """Whether the state's `messages` follow LangGraph's own reducer."""
    return getattr(graph.channels.get("messages"), "operator", None) is add_messages


def takes_messages(graph: Pregel[Any, Any, Any, Any]) -> bool:
    """Whether the graph's input has `messages`, as its state or a narrower input schema says."""
    schema = getattr(getattr(graph, "builder", None), "input_schema", None)
    names = get_type_hints(schema) if isinstance(schema, type) else {}
    return "messages" in (names or graph.channels)


def _parsed(content: str) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _after(closed: list[ToolMessage], made: Any) -> Any:
    """The results of open calls stand before what the person says now."""
    messages = made.get("messages") if isinstance(made, Mapping) else None
    if not closed or not isinstance(messages, list):
        return made
    return {**made, "messages": [*closed, *messages]}


def _message(run: RunInput) -> dict[str, Any]:
    given = run.input
    system = given.get("systemMessage")
    return {
        "id": run.user_message_id,
        "content": given["content"],
        "inputFormat": given.get("inputFormat", "text"),
    } | ({} if system is None else {"systemMessage": system})


def described(run: RunInput) -> dict[str, Any]:
    """What the hooks of a graph's author are told of a run."""
    return {
        "id": run.id,
        "conversationId": run.conversation_id,
        "graph": run.graph,
        "metadata": run.metadata,
    }
