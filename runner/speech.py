"""What models say: chunks and messages of one run become text, reasoning and usage (contract §3).

Pure. One native message id is one message of ours, named by `stable_id("msg", run, native id)`, the
id it will be stored under. Text is masked while it streams; what is held back comes out in order
before anything later of the same message, and at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from langchain_core.messages import AIMessage, AIMessageChunk

from common.events import Event
from common.ids import stable_id
from common.masking import Masker, TextMask
from common.page import Standing

Kind = Literal["text_delta", "reasoning_delta"]
Usage = tuple[int, int, int]
TOKENS_MAX = 10**12
"""Of one chunk: so their sum stays within what JSON can hold exactly."""


@dataclass(slots=True)
class Utterance:
    """One message while it is said."""

    native_id: str
    id: str
    step_id: str | None
    text: TextMask
    reasoning: TextMask
    usages: list[Usage] = field(default_factory=list)


class Speech:
    """All that the models of a run say in one take-up."""

    def __init__(self, run_id: str, mask: Masker, seen: Iterable[str], standing: Standing) -> None:
        self._run_id = run_id
        self._mask = mask
        self._seen = set(seen)
        self._standing = standing
        self._said: dict[str, Utterance] = {}
        self._open: dict[str, Utterance] = {}

    def chunk(self, message: AIMessageChunk, step_id: str | None) -> Iterator[Event]:
        """A piece of a streamed message."""
        if message.id not in self._said and self._stands(message):
            return
        pieces, usage = list(_pieces(message)), _usage(message)
        if pieces or usage:
            said = self._utterance(message, step_id, bool(pieces))
            for kind, delta in pieces:
                yield from self._say(said, kind, delta)
            said.usages += [usage] if usage else []
        if message.chunk_position == "last":
            yield from self._end_of(message, step_id)

    def whole(self, message: AIMessage, step_id: str | None) -> Iterator[Event]:
        """A message that was not streamed: from a model that cannot, or made by a node. One that
        an earlier take-up has shown comes once more from a node that hands on what a child graph
        said, which had finished then."""
        if message.id in self._seen or message.id in self._said or self._stands(message):
            return
        pieces, usage = list(_pieces(message)), _usage(message)
        if not pieces and not usage:
            return
        said = self._utterance(message, step_id, True)
        said.usages = [usage] if usage else []
        for kind, delta in pieces:
            yield from self._say(said, kind, delta)
        yield from self._finish(said)

    def holds(self, step_id: str | None) -> bool:
        """Whether some text of the step is held back, so that later events have to wait."""
        return any(s.text.holds or s.reasoning.holds for s in self._of(step_id))

    def finish(self, step_id: str | None) -> Iterator[Event]:
        """The step goes on to something else: what it said is complete."""
        for said in self._of(step_id):
            yield from self._finish(said)

    def finish_all(self) -> Iterator[Event]:
        for said in list(self._open.values()):
            yield from self._finish(said)

    def forget(self, step_id: str) -> None:
        """The step is executed again: what it said has not been said."""
        self._said = {i: said for i, said in self._said.items() if said.step_id != step_id}
        self._open = {i: said for i, said in self._open.items() if said.step_id != step_id}

    def _of(self, step_id: str | None) -> list[Utterance]:
        return [said for said in self._open.values() if said.step_id == step_id]

    def _utterance(self, message: AIMessage, step_id: str | None, speaks: bool) -> Utterance:
        native = message.id or ""
        if native not in self._said:
            open_ones = self._of(step_id)
            if not speaks and len(open_ones) == 1:  # usage that came under another id
                return open_ones[0]
            id_ = self._id_of(native)
            said = Utterance(native, id_, step_id, self._mask.stream(), self._mask.stream())
            self._said[native] = self._open[native] = said
        return self._said[native]

    def _stands(self, message: AIMessage) -> bool:
        shown = self._standing.messages
        return bool(shown) and bool(shown.get(self._id_of(message.id or "")))

    def _id_of(self, native: str) -> str:
        return stable_id("msg", self._run_id, native)

    def _say(self, said: Utterance, kind: Kind, delta: str) -> Iterator[Event]:
        mask, other = said.text, said.reasoning
        if kind == "reasoning_delta":
            mask, other = other, mask
        if other.holds:
            yield from _flushed(said)
        yield from _shown(said, kind, mask.feed(delta))

    def _end_of(self, message: AIMessageChunk, step_id: str | None) -> Iterator[Event]:
        """Providers' ids: the empty last chunk has another id than the message it ends."""
        own = self._open.get(message.id or "")
        ends = [own] if own is not None else self._of(step_id)
        if len(ends) == 1:
            yield from self._finish(ends[0])

    def _finish(self, said: Utterance) -> Iterator[Event]:
        if self._open.pop(said.native_id, None) is None:
            return
        yield from _flushed(said)
        if said.usages:
            numbers = zip(_USAGE, _total(said.usages), strict=True)
            yield Event("usage", {"messageId": said.id, **dict(numbers)}, said.step_id)


_USAGE = ("inputTokens", "outputTokens", "totalTokens")


def _flushed(said: Utterance) -> Iterator[Event]:
    yield from _shown(said, "reasoning_delta", said.reasoning.flush())
    yield from _shown(said, "text_delta", said.text.flush())


def _shown(said: Utterance, kind: Kind, delta: str) -> Iterator[Event]:
    if delta:
        yield Event(kind, {"messageId": said.id, "delta": delta}, said.step_id)


def _pieces(message: AIMessage) -> Iterator[tuple[Kind, str]]:
    """Text and reasoning in the order in which the provider gives them."""
    extra = message.additional_kwargs.get("reasoning_content")
    if isinstance(extra, str) and extra:
        yield "reasoning_delta", extra
    content = message.content
    for block in [content] if isinstance(content, str) else content:
        kind, text = _block(block)
        if text:
            yield kind, text


def _block(block: str | dict[Any, Any]) -> tuple[Kind, str]:
    if isinstance(block, str):
        return "text_delta", block
    if block.get("type") in ("reasoning", "thinking"):
        return "reasoning_delta", _reasoning(block)
    text = block.get("text") if block.get("type", "text") in ("text", "output_text") else ""
    return "text_delta", text if isinstance(text, str) else ""


def _reasoning(block: Mapping[Any, Any]) -> str:
    """Providers name it differently; OpenAI sends a list of summaries."""
    for key in ("reasoning", "thinking", "text"):
        if isinstance(block.get(key), str):
            return str(block[key])
    summary = block.get("summary")
    parts = summary if isinstance(summary, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _usage(message: AIMessage) -> Usage | None:
    told = message.usage_metadata
    if not told:
        return None
    numbers = (
        _count(told, "input_tokens"),
        _count(told, "output_tokens"),
        _count(told, "total_tokens"),
    )
    return numbers if any(numbers) else None


def _count(told: Mapping[str, Any], key: str) -> int:
    """What is no number of tokens, as a provider may tell it, is none."""
    number = told.get(key)
    return number if isinstance(number, int) and 0 <= number <= TOKENS_MAX else 0


def _total(usages: list[Usage]) -> Usage:
    """The sum of what the chunks tell, as LangChain adds it up.

    Some providers repeat the whole in every chunk: the input again, the output never falling. Then
    the last one counts.
    """
    repeated = all(
        later[0] == earlier[0] > 0 and later[1] >= earlier[1] for earlier, later in pairwise(usages)
    )
    if repeated:
        return usages[-1]
    return (sum(u[0] for u in usages), sum(u[1] for u in usages), sum(u[2] for u in usages))
