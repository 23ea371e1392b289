"""One node that emits an ordered number of events: tokens of a model, or custom events.

The order is the user's message as JSON, e.g. `{"kind": "tokens", "events": 100, "rate": 20}`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


@dataclass(frozen=True, slots=True)
class Order:
    """`rate` is events a second, 0 as fast as it goes; `hold` waits for a person first."""

    kind: Literal["tokens", "custom"] = "tokens"
    events: int = 10
    rate: float = 0.0
    hold: bool = False


class TokenModel(BaseChatModel):
    """Streams the ordered number of tokens, as a provider would."""

    @property
    def _llm_type(self) -> str:
        return "load"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        text = "".join(_token(n) for n in range(order_in(messages).events))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for number in _paced(order_in(messages)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=_token(number)))


def order_in(messages: Sequence[BaseMessage]) -> Order:
    """The last order that a user gave."""
    said = next(m for m in reversed(messages) if isinstance(m, HumanMessage))
    return Order(**json.loads(str(said.text)))


async def emit(state: MessagesState) -> dict[str, Any]:
    order = order_in(state["messages"])
    if order.hold:
        interrupt("go on?")
    if order.kind == "tokens":
        return {"messages": [await TokenModel().ainvoke(state["messages"])]}
    write = get_stream_writer()
    async for number in _paced(order):
        write({"number": number, "text": _token(number)})
    return {"messages": [AIMessage(f"{order.events} events")]}


async def _paced(order: Order) -> AsyncIterator[int]:
    """The numbers of the events, each when its time has come."""
    start = time.monotonic()
    for number in range(order.events):
        due = start + number / order.rate if order.rate else 0.0
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield number


def _token(number: int) -> str:
    return f"word{number:05d} "


graph: StateGraph[MessagesState, None, MessagesState, MessagesState] = StateGraph(MessagesState)
graph.add_node("emit", emit)
graph.add_edge(START, "emit")
graph.add_edge("emit", END)
