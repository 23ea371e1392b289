"""A model's context in three layers, and the facts of a conversation (contract, last paragraph).

    async def speak(state):
        messages = await assemble(state["messages"], instructions=PROMPT, budget=6000)
        return {"messages": [await model.ainvoke(messages)]}

    @tool
    async def find_service(name: str) -> str:
        found = await registry.find(name)
        if found is None:
            raise ToolException("there is no such service")   # nothing is remembered
        remember({"service": found.name, "env": found.env})
        return found.description

`assemble` gives one system message (instructions, known facts, summary of earlier turns) and then
the recent turns, within a budget of tokens. The summary is made when the budget asks for it, stored
on the conversation with what it covers, and used until it is too short again. It is meant for the
conversation's own messages, in one place of the graph: two lists of messages would take turns at
one summary.

`remember` writes facts together with the result of the step that called it, in one statement under
the run's epoch: a step that fails, is interrupted, is tried again or belongs to a runner that lost
the run has written nothing, and one that is executed again after a crash writes once. In a tool it
counts only if the tool ends well: no exception, no result of status "error". A tool that finds that
something is not so should say that and not remember it.

Outside of Steadyrun `assemble` works without facts and with a summary made each time, and
`remember` writes nothing; within `rehearsal()` both use a memory of the block.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.constants import TAG_NOSTREAM

from common import facts as rules
from common.masking import Masker
from runner.authoring.layers import (
    Choice,
    Count,
    Known,
    choose,
    estimate,
    extract,
    fit,
    summary_prompt,
    system_message,
    text_of,
)

T = TypeVar("T")

Summarize = BaseChatModel | Callable[[str | None, Sequence[BaseMessage]], Any]
"""A chat model, or a function of the summary so far and the messages to add to it that gives the
new summary, or (not for `assemble_sync`) an awaitable of it."""

_ARGS_BYTES_MAX = 1 << 20


class FactsFull(Exception):
    """The conversation has too many facts already; the step that would add to them is not saved."""


class Memory(Protocol):
    """What a conversation knows, for one execution: the runner's, or a rehearsal's."""

    @property
    def masker(self) -> Masker: ...

    def remember(self, facts: Mapping[str, Any], forget: Sequence[str]) -> None: ...

    async def recall(self) -> Known:
        """Without the facts that the caller may not see."""
        ...

    async def keep(self, before: Known, summary: str, covers: str | None) -> None:
        """In place of the summary `before`; nothing if another one has been stored meanwhile."""
        ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """For sync code in a thread."""
        ...


current: ContextVar[Memory] = ContextVar("memory")
"""Set by the runner for each execution; LangGraph copies it into nodes' tasks and threads."""


async def assemble(
    messages: Sequence[BaseMessage],
    *,
    budget: int = 8000,
    instructions: str = "",
    summarize: Summarize | None = None,
    count: Count = estimate,
    mask: bool = True,
) -> list[BaseMessage]:
    """What to give to a model: `[system message, *recent turns]`; no system message where there is
    nothing to say in one.

    budget        tokens of it all. What must be in (instructions, facts, the current message of the
                  user, the newest call with its results) is in even where it takes more
    summarize     without one, a summary is an extract: a line for each message. Errors are raised
    count         tokens of a message; the default is an estimate that is rather too high
    mask          secrets are hidden in facts, summary and messages (`common/masking`)
    """
    request = _Request(budget, instructions, count, mask, _memory())
    known = await request.memory.recall()
    choice = request.choose(messages, known)
    if choice.earlier:
        made = _asked(summarize, known.summary, request.shown(choice.earlier), sync=False)
        known = request.summed(known, choice, await made if isawaitable(made) else made)
        await request.memory.keep(request.before, known.summary or "", choice.covers)
    return request.messages(known, choice)


def assemble_sync(
    messages: Sequence[BaseMessage],
    *,
    budget: int = 8000,
    instructions: str = "",
    summarize: Summarize | None = None,
    count: Count = estimate,
    mask: bool = True,
) -> list[BaseMessage]:
    """`assemble` for sync nodes, which LangGraph runs in threads; blocks the thread."""
    request = _Request(budget, instructions, count, mask, _memory())
    memory = request.memory
    known = memory.wait(memory.recall())
    choice = request.choose(messages, known)
    if choice.earlier:
        made = _asked(summarize, known.summary, request.shown(choice.earlier), sync=True)
        known = request.summed(known, choice, made)
        memory.wait(memory.keep(request.before, known.summary or "", choice.covers))
    return request.messages(known, choice)


def remember(facts: Mapping[str, Any], forget: Iterable[str] = ()) -> None:
    """Confirm facts of the conversation, by what a tool or node has found out; `forget` names those
    that no longer hold. They are written with the step's result.

    Raises ValueError: a key or value that cannot be a fact, or too much (`common/facts`).
    """
    given, gone = dict(facts), list(forget)
    rules.check(given)
    rules.check_keys(gone)
    if both := given.keys() & {*gone}:
        raise ValueError(f"{min(both)} cannot be remembered and forgotten at once")
    _memory().remember(given, gone)


async def recall() -> Known:
    """The conversation's facts as they are stored now, without those that the caller may not see;
    what this step remembers is not among them yet."""
    return await _memory().recall()


@dataclass(slots=True)
class _Request:
    """One call of `assemble`."""

    budget: int
    instructions: str
    count: Count
    mask: bool
    memory: Memory
    before: Known = field(default_factory=Known)

    def choose(self, messages: Sequence[BaseMessage], known: Known) -> Choice:
        """System messages of the thread come first, with ours: providers want one."""
        self.before = known
        given = [m for m in messages if isinstance(m, SystemMessage)]
        self.instructions = "\n\n".join([self.instructions, *map(text_of, given)])
        messages = [m for m in messages if not isinstance(m, SystemMessage)]
        said = system_message(self.instructions, replace(self._shown(known), summary=None))
        fixed = self.count(said) if said else 0
        return choose(messages, known, self.budget, self.count, fixed)

    def summed(self, known: Known, choice: Choice, summary: str) -> Known:
        """Masked in any case: it is stored and shown."""
        text = self.memory.masker.text(summary)
        text = fit(text, self.budget, self.count)
        return replace(known, summary=text, covers=choice.covers)

    def messages(self, known: Known, choice: Choice) -> list[BaseMessage]:
        said = system_message(self.instructions, self._shown(known))
        return [*([said] if said else []), *self.shown(choice.recent)]

    def shown(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        if not self.mask:
            return list(messages)
        return [masked(message, self.memory.masker) for message in messages]

    def _shown(self, known: Known) -> Known:
        if not self.mask:
            return known
        masker = self.memory.masker
        facts = masker.value(dict(known.facts), rules.STORED_BYTES_MAX * 2)
        return replace(known, facts=facts, summary=known.summary and masker.text(known.summary))


def masked(message: BaseMessage, masker: Masker) -> BaseMessage:
    """The same message without secrets in its text and in the arguments of its calls."""
    update: dict[str, Any] = {"content": _masked_content(message.content, masker)}
    if isinstance(message, AIMessage) and message.tool_calls:
        update["tool_calls"] = [
            {**call, "args": masker.value(call["args"], _ARGS_BYTES_MAX)}
            for call in message.tool_calls
        ]
    return message.model_copy(update=update)


def _masked_content(content: Any, masker: Masker) -> Any:
    if isinstance(content, str):
        return masker.text(content)
    return [_masked_block(block, masker) for block in content]


def _masked_block(block: Any, masker: Masker) -> Any:
    if isinstance(block, str):
        return masker.text(block)
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        return {**block, "text": masker.text(block["text"])}
    return block


def _asked(
    summarize: Summarize | None,
    previous: str | None,
    earlier: Sequence[BaseMessage],
    *,
    sync: bool,
) -> Any:
    """What a model says to itself is not streamed to the user."""
    if summarize is None:
        return extract(previous, earlier)
    if not isinstance(summarize, BaseChatModel):
        return summarize(previous, earlier)
    silent = summarize.with_config(tags=[TAG_NOSTREAM])
    prompt = summary_prompt(previous, earlier)
    return str(silent.invoke(prompt).text) if sync else _said(silent.ainvoke(prompt))


async def _said(answer: Any) -> str:
    return str((await answer).text)


def _memory() -> Memory:
    return current.get(None) or Nowhere()


class Nowhere:
    """Outside of a run: nothing is known and nothing is kept."""

    def __init__(self) -> None:
        self.masker = Masker()

    def remember(self, facts: Mapping[str, Any], forget: Sequence[str]) -> None:
        """There is no conversation."""

    async def recall(self) -> Known:
        return Known()

    async def keep(self, before: Known, summary: str, covers: str | None) -> None:
        """There is no conversation."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)


class Rehearsed(Nowhere):
    """Of a rehearsal: facts hold at once, whatever becomes of the step."""

    def __init__(self) -> None:
        super().__init__()
        self._known = Known()

    def remember(self, facts: Mapping[str, Any], forget: Sequence[str]) -> None:
        now = rules.changed(self._known.facts, facts, forget)
        if now != self._known.facts:
            self._known = replace(self._known, facts=now, version=self._known.version + 1)

    async def recall(self) -> Known:
        return self._known

    async def keep(self, before: Known, summary: str, covers: str | None) -> None:
        self._known = replace(self._known, summary=summary, covers=covers)
