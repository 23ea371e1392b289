"""A chat model that says what a test tells it to, in the chunks a test tells it to."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

Turn = AIMessage | Sequence[AIMessageChunk] | Exception


class ScriptedModel(BaseChatModel):
    """Each call takes the next turn: a list of chunks is streamed, an AIMessage is not."""

    turns: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        message = turn if isinstance(turn, AIMessage) else _joined(turn)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _should_stream(self, *args: Any, **kwargs: Any) -> bool:
        return not isinstance(self.turns[0], AIMessage)

    def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        for chunk in turn:
            if isinstance(chunk, Exception):
                raise chunk
            yield ChatGenerationChunk(message=chunk.model_copy())

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            if run_manager is not None:
                await run_manager.on_llm_new_token(str(chunk.message.content), chunk=chunk)
            yield chunk


def say(*pieces: Any, **fields: Any) -> list[AIMessageChunk]:
    return [AIMessageChunk(content=piece, **fields) for piece in pieces]


def call(name: str, call_id: str, args: str = "{}", index: int = 0) -> list[AIMessageChunk]:
    """A tool call in two fragments, as providers send them."""
    half = len(args) // 2
    first = tool_call_chunk(name=name, args=args[:half], id=call_id, index=index)
    second = tool_call_chunk(name=None, args=args[half:], id=None, index=index)
    return [AIMessageChunk(content="", tool_call_chunks=[part]) for part in (first, second)]


def usage(input_tokens: int, output_tokens: int) -> list[AIMessageChunk]:
    return [
        AIMessageChunk(
            content="",
            usage_metadata={
                "input_tokens": input_tokens,
                "output_tokens": output_tokens,
                "total_tokens": input_tokens + output_tokens,
            },
        )
    ]


def _joined(turn: Sequence[AIMessageChunk]) -> AIMessage:
    whole = turn[0]
    for chunk in turn[1:]:
        whole = whole + chunk
    return AIMessage(content=whole.content, tool_calls=whole.tool_calls)
