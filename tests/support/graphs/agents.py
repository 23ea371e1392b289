"""Agents made with `create_agent` over a model that follows a script: no key, no network."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool


@tool
async def weather(city: str) -> str:
    """The weather in a city."""
    await asyncio.sleep(0.01)
    return f"{city}: rain"


@tool
async def broken(city: str) -> str:
    """Always fails."""
    raise ValueError("no such sensor")


@tool
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


class Script(BaseChatModel):
    """Calls `calls` once, then says what the tools answered, a word at a time."""

    calls: list[dict[str, Any]]

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        answer = self._answer(messages)
        for word in str(answer.content).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
            await asyncio.sleep(0.002)
        if answer.tool_calls:
            chunk = AIMessageChunk(content="", tool_calls=answer.tool_calls)
            yield ChatGenerationChunk(message=chunk)

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            told = [str(m.content) for m in messages if isinstance(m, ToolMessage)]
            return AIMessage(content="I learned: " + "; ".join(told))
        calls = [{**call, "id": f"call_{len(messages)}_{n}"} for n, call in enumerate(self.calls)]
        return AIMessage(content="Let me see.", tool_calls=calls)


agent = create_agent(
    Script(
        calls=[
            {"name": "weather", "args": {"city": "Bremen"}},
            {"name": "weather", "args": {"city": "上海"}},
        ]
    ),
    [weather, broken],
)

approving_agent = create_agent(
    Script(calls=[{"name": "send_mail", "args": {"to": "a@example.org", "text": "hi"}}]),
    [send_mail],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"send_mail": True})],
)
