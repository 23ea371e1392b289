"""A chat model without a key: it follows the story and streams it as a real model would.

It is an ordinary LangChain chat model, so everything around it (tool calls in fragments, usage,
`messages` streaming, tracing) behaves as with a real one. The same conversation always gives the
same answer, with the same tool call ids.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolCall,
    UsageMetadata,
)
from langchain_core.messages.tool import tool_call_chunk as create_tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from runner.graphs.opspilot.story import Turn, next_turn

# a CJK character, else a word with the blanks behind it
_PIECE = re.compile(
    r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]|[^\s\u3000-\u9fff\uff00-\uffef]*\s*"
)
_ARGS_PIECE_CHARACTERS = 16


class ScriptedModel(BaseChatModel):
    """Streams one piece (a word, a Chinese character) every `delay_s`."""

    delay_s: float = 0.025

    @property
    def _llm_type(self) -> str:
        return "opspilot-script"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The story knows its tools already."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        turn = next_turn(messages)
        message = AIMessage(
            content=turn.text,
            tool_calls=_tool_calls(turn, messages),
            usage_metadata=_usage(turn, messages),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from _chunks(next_turn(messages), messages)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _chunks(next_turn(messages), messages):
            await asyncio.sleep(self.delay_s)
            yield chunk


def pieces(text: str) -> list[str]:
    """The text in the pieces in which it is streamed; joined they are the text again."""
    return [piece for piece in _PIECE.findall(text) if piece]


def _chunks(turn: Turn, messages: Sequence[BaseMessage]) -> Iterator[ChatGenerationChunk]:
    for piece in pieces(turn.text):
        yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
    for call in _tool_calls(turn, messages):
        yield from _call_chunks(call)
    end = AIMessageChunk(content="", usage_metadata=_usage(turn, messages), chunk_position="last")
    yield ChatGenerationChunk(message=end)


def _call_chunks(call: ToolCall) -> Iterator[ChatGenerationChunk]:
    """Name and id come once, the arguments in fragments of JSON, as providers stream them."""
    args = json.dumps(call["args"], ensure_ascii=False)
    for start in range(0, len(args), _ARGS_PIECE_CHARACTERS):
        part = create_tool_call_chunk(
            name=call["name"] if start == 0 else None,
            id=call["id"] if start == 0 else None,
            args=args[start : start + _ARGS_PIECE_CHARACTERS],
            index=0,
        )
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))


def _tool_calls(turn: Turn, messages: Sequence[BaseMessage]) -> list[ToolCall]:
    if turn.tool is None:
        return []
    return [ToolCall(name=turn.tool, args=turn.args or {}, id=_call_id(messages), type="tool_call")]


def _call_id(messages: Sequence[BaseMessage]) -> str:
    """The same for the same place in the same conversation: message ids are unique."""
    place = "\x1f".join(f"{message.type} {message.id}" for message in messages)
    return f"call_{blake2b(place.encode(), digest_size=12).hexdigest()}"


def _usage(turn: Turn, messages: Sequence[BaseMessage]) -> UsageMetadata:
    """Counted in pieces, which is near enough to tokens for a demonstration."""
    read = sum(len(pieces(str(message.text))) for message in messages)
    args = json.dumps(turn.args) if turn.args else ""
    written = len(pieces(turn.text)) + len(args) // 4
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
