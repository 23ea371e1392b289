"""What the model is told of the conversation: facts, a summary, recent turns (`assemble`)."""

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage

from runner.authoring import assemble


class ThreeLayers(AgentMiddleware[Any, Any, Any]):
    """Before each call of the model; the thread itself keeps everything."""

    def __init__(self, budget: int, summarize: BaseChatModel | None = None) -> None:
        super().__init__()
        self._budget = budget
        self._summarize = summarize

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        prompt = request.system_message
        messages: list[Any] = await assemble(
            request.messages,
            budget=self._budget,
            instructions="" if prompt is None else str(prompt.text),
            summarize=self._summarize,
        )
        first = messages.pop(0) if isinstance(messages[0], SystemMessage) else None
        return await handler(request.override(system_message=first, messages=messages))
