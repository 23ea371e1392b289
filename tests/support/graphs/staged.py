"""A graph whose stages a test opens one after the other: it speaks, asks, works and speaks again.

The message is JSON, `{"gates": folder}`; where it waits, it waits for a file of that name there:
`first` in the middle of the first text, `second` in the middle of the second.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from runner.authoring import confirm_action
from tests.support.graphs.agents import Script

TEXTS = {"first": ["Let ", "me ", "看", "看", ". "], "second": ["All ", "is ", "well", "。"]}
WAITS_BEFORE = 3


async def opened(gates: str, name: str) -> None:
    while not (Path(gates) / name).exists():
        await asyncio.sleep(0.01)


class Staged(Script):
    """Speaks one text, with a gate in its middle."""

    calls: list[dict[str, Any]] = []  # noqa: RUF012
    gates: str
    name_of_text: str

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for n, word in enumerate(TEXTS[self.name_of_text]):
            if n == WAITS_BEFORE:
                await opened(self.gates, self.name_of_text)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))

    def _answer(self, messages: Any) -> AIMessage:
        return AIMessage("".join(TEXTS[self.name_of_text]))


@tool
async def restart(instance: str) -> str:
    """Restart an instance, if a person agrees."""
    confirm_action("restart", {"instance": instance}, risk="requests in flight fail")
    return f"{instance} was restarted"


def gates_of(state: MessagesState) -> str:
    humans = [m for m in state["messages"] if isinstance(m, HumanMessage)]
    return str(json.loads(str(humans[-1].content))["gates"])


async def speak(state: MessagesState) -> Any:
    said = await Staged(gates=gates_of(state), name_of_text="first").ainvoke("go")
    call = {"name": "restart", "args": {"instance": "a-1"}, "id": f"call_{len(state['messages'])}"}
    return {"messages": [said, AIMessage("", tool_calls=[call])]}


async def tell(state: MessagesState) -> Any:
    assert isinstance(state["messages"][-1], ToolMessage)
    said = await Staged(gates=gates_of(state), name_of_text="second").ainvoke("go")
    return {"messages": [said]}


_builder = StateGraph(MessagesState).add_node("speak", speak).add_node("tell", tell)
_builder.add_node("tools", ToolNode([restart]))
_builder.add_edge(START, "speak").add_edge("speak", "tools").add_edge("tools", "tell")
staged = _builder.compile()
