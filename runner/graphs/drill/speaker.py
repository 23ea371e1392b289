"""A model that says given words at a given pace, as a provider streams them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult


class Speaker(BaseChatModel):
    """`message_id` None: a new one for each execution, as most models do; else always this one."""

    words: list[str]
    pace_s: float
    message_id: str | None = None

    @property
    def _llm_type(self) -> str:
        return "drill"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = AIMessage("".join(self.words), id=self.message_id)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in self.words:
            await asyncio.sleep(self.pace_s)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word, id=self.message_id))


async def say(
    words: Sequence[str], pace_ms: int, message_id: str | None = None
) -> dict[str, list[BaseMessage]]:
    """The update of a node that says these words."""
    speaker = Speaker(words=list(words), pace_s=pace_ms / 1000, message_id=message_id)
    return {"messages": [await speaker.ainvoke("go")]}
