"""Graphs that put a secret, each a known one, into everything that Steadyrun shows or writes."""

import logging
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from typing_extensions import TypedDict

logger = logging.getLogger("leaky")
SAID = "连接是 postgresql://app:sEed-model-7Qx@db:5432/x\uff0c"
SAID += "Authorization: Bearer sEed-bearer-7Qx1 好"
CALLS = [
    {"name": "connect", "args": {"dsn": "redis://:sEed-input-7Qx@h", "ok": True}, "id": "c1"},
    {"name": "breaks", "args": {"command": "mysql -u root --password sEed-flag-7Qx"}, "id": "c2"},
]


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    settings: dict[str, Any]
    note: str


@tool
def connect(dsn: str, ok: bool) -> str:
    """Connects."""
    password = os.environ["LEAKY_PASSWORD"]
    return f"connected; Set-Cookie: sid=sEed-output-7Qx; Path=/\npassword={password}"


@tool
def breaks(command: str) -> str:
    """Fails."""
    raise ConnectionError("cannot reach amqp://svc:sEed-tool-error-7Qx@mq")


class Talks(BaseChatModel):
    """Says the secret three letters at a time, then calls the tools."""

    @property
    def _llm_type(self) -> str:
        return "talks"

    def _generate(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> ChatResult:
        message = AIMessage(content=SAID, tool_calls=CALLS)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for at in range(0, len(SAID), 3):
            yield ChatGenerationChunk(message=AIMessageChunk(content=SAID[at : at + 3]))
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=CALLS))


async def _speak(state: State) -> State:
    logger.warning("uses %s", "token=sEed-log-7Qx1")
    get_stream_writer()({"api_key": "sEed-custom-7Qx", "text": "secret: sEed-custom-text-7Qx"})
    return {"messages": [await Talks().ainvoke(state["messages"])]}


def _ask(state: State) -> State:
    answer = interrupt(
        {
            "question": "use password=sEed-question-7Qx?",
            "headers": {"Authorization": "Basic sEed-header-7Qx"},
            "resource": {"id": "a-1", "version": 1},
        }
    )
    logger.warning("was told %s", answer)
    return {"note": "Bearer sEed-note-7Qx1", "settings": {"clientSecret": "sEed-state-7Qx"}}


async def _raise(state: State) -> State:
    error = RuntimeError("postgresql://app:sEed-exception-7Qx@db/x refused the connection")
    logger.error("fails", exc_info=error)
    raise error


_leaks = StateGraph(State).add_node("speak", _speak).add_node("ask", _ask)
_leaks.add_node("tools", ToolNode([connect, breaks], handle_tool_errors=True))
_leaks.add_edge(START, "speak").add_edge("speak", "tools").add_edge("tools", "ask")
leaks = _leaks.add_edge("ask", END).compile()
fails = StateGraph(State).add_node("raise", _raise).add_edge(START, "raise").compile()
