"""LangGraph's chunks in, events of contract §3 out. Pure: no I/O, no clock.

`Translator.feed` takes the parts of `astream(version="v2", subgraphs=True, stream_mode=["messages",
"tasks", "tools", "custom"])` in their order, with the config of `steps.run_config`. Make one
translator for each stream. Interrupts, breakpoints and the end of a run are not read
from chunks but from the durable state, by whoever owns the run.

**Attempts.** Every chunk belongs to the n-th start of its step (steps.py). A chunk of a later start
than the last one seen tells that the step is tried again: `step_retried`, and all that was shown
under it is dropped, here as at the client. A straggler of an earlier start is ignored.

**Take-up.** LangGraph announces finished siblings again and does not execute them; the START of
those in `finished` (steps.finished) is dropped. What stands on the page (`shown`) of other steps
was not discarded: calls of `@task`s that have a result are announced again, too. Should such a step
be executed all the same, then that is told as a retry.

**Order.** Text that is held back (masking) comes before any later event of its step; `custom`
events of a step wait for it, other events end the text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from common.events import Event
from common.masking import Masker
from common.page import Standing
from runner.speech import Speech
from runner.steps import START_KEY, Stepped, Steps, step_of
from runner.toolcalls import Place, ToolCalls


@dataclass(slots=True)
class _Step:
    node: str
    attempt: int = 1
    announced: bool = False
    end: Literal["", "success", "error", "interrupted"] = ""
    waiting: list[Event] = field(default_factory=list)
    """Custom events behind a text that is held back."""


class Translator:
    """`mask` hides secrets; `steps` says whether step events are wanted; `seen` are the native ids
    of messages that the conversation already has; `standing` is what an earlier stream of this run
    has shown and was not discarded; `callback` is the one in the run's config.
    """

    def __init__(
        self,
        *,
        run_id: str,
        mask: Masker,
        finished: Collection[str] = (),
        shown: Collection[str] = (),
        steps: bool = True,
        seen: Iterable[str] = (),
        standing: Standing | None = None,
        callback: Steps | None = None,
        tool_bytes_max: int = 4_096,
        custom_bytes_max: int = 32_768,
    ) -> None:
        self._run_id = run_id
        self._mask = mask
        self._finished = frozenset(finished)
        self._shown = set(shown).difference(finished)
        self._wants_steps = steps
        self._callback = callback or Steps()
        self._custom_bytes_max = custom_bytes_max
        self._seen = set(seen)
        self._standing = standing or Standing()
        self._speech = Speech(run_id, mask, self._seen, self._standing)
        self._tools = ToolCalls(mask, tool_bytes_max, self._standing)
        self._steps: dict[str, _Step] = {}
        self._begun: dict[str, int] = {}

    def feed(self, chunk: Mapping[str, Any]) -> list[Event]:
        """The events of one chunk, in order; mostly one or none."""
        kind, ns, data = chunk["type"], tuple(chunk.get("ns") or ()), chunk["data"]
        if kind == "tasks":
            return list(self._task(data))
        if kind == "messages":
            return list(self._message(ns, *data))
        if kind == "tools":
            return list(self._tool(ns, data))
        return list(self._custom(data)) if kind == "custom" else []

    def close(self, *, waits: bool = False) -> list[Event]:
        """The stream has ended: what was held back, and the end of what a failure left open.

        Steps that wait for a person have ended by their RESULT, so after a normal end or an
        interrupt nothing is left but text of nodes that LangGraph hides. `waits`: what is left
        open waits for a person as well.
        """
        events = [*self._speech.finish_all(), *([] if waits else self._tools.fail_all())]
        for step_id, step in self._steps.items():
            events += self._release(step)
            if self._is_open(step):
                events += self._end(step_id, "interrupted" if waits else self._cut(step_id))
        return events

    # steps

    def _is_open(self, step: _Step) -> bool:
        return step.announced and not step.end

    def _cut(self, step_id: str) -> Literal["interrupted", "error"]:
        """LangGraph announces a step that waits for an answer of its own and does not execute it
        when another one's question was answered."""
        return "error" if self._callback.starts[step_id] else "interrupted"

    def _task(self, data: Mapping[str, Any]) -> Iterator[Event]:
        if "triggers" in data:
            if data["id"] in self._shown:
                self._steps.setdefault(data["id"], _Step(data["name"]))
            elif not self._is_done(data["id"]):
                yield from self._start(data["id"], data["name"])
        else:
            yield from self._result(data)

    def _is_done(self, step_id: str) -> bool:
        """Whether a START only announces again what is already done."""
        step = self._steps.get(step_id)
        return step_id in self._finished or (step is not None and step.end == "success")

    def _start(self, step_id: str, node: str) -> Iterator[Event]:
        step = self._steps.setdefault(step_id, _Step(node))
        if step.announced:  # executed once more in the same stream
            yield from self._retry(step_id, max(step.attempt + 1, self._count(step_id)))
        step.node, step.announced = node, True
        if self._wants_steps:
            yield Event("step_started", {"node": node}, step_id)

    def _result(self, data: Mapping[str, Any]) -> Iterator[Event]:
        step_id = data["id"]
        if step_id not in self._steps or self._only_told(step_id):
            return
        yield from self._enter(step_id, self._count(step_id))
        yield from self._settle(step_id)
        if data.get("interrupts"):
            self._tools.forget(step_id)
            yield from self._end(step_id, "interrupted")
        elif data.get("error") is not None:
            yield from self._tools.fail_step(step_id)
            yield from self._end(step_id, "error")
        else:
            yield from self._tools.fail_step(step_id)
            yield from self._end(step_id, "success")

    def _end(self, step_id: str, status: Literal["success", "error", "interrupted"]) -> list[Event]:
        step = self._steps[step_id]
        step.end = status
        if not (step.announced and self._wants_steps):
            return []
        return [Event("step_finished", {"node": step.node, "status": status}, step_id)]

    def _enter(self, step_id: str | None, start: int) -> Iterator[Event]:
        """Note which attempt the next events belong to."""
        if step_id is None:
            return
        step = self._steps.setdefault(step_id, _Step(""))
        if step_id in self._shown:
            yield from self._again(step_id, start)
        elif start > step.attempt:
            yield from self._retry(step_id, start)

    def _only_told(self, step_id: str) -> bool:
        """Whether the end is that of an earlier take-up: the step is not executed in this one."""
        return step_id in self._shown and not self._callback.starts[step_id]

    def _again(self, step_id: str, start: int) -> Iterator[Event]:
        """An earlier take-up has shown this step, and it was not discarded."""
        self._shown.discard(step_id)
        yield from self._retry(step_id, start + 1)
        step = self._steps[step_id]
        step.attempt = start
        if step.node:
            yield from self._start(step_id, step.node)

    def _retry(self, step_id: str, attempt: int) -> Iterator[Event]:
        step = self._steps[step_id]
        step.attempt, step.end, step.waiting = attempt, "", []
        self._forget(step_id)
        yield Event("step_retried", {"attempt": attempt}, step_id)

    def _forget(self, step_id: str) -> None:
        self._standing.forget(step_id)
        self._speech.forget(step_id)
        self._tools.forget(step_id)

    def _is_stale(self, step_id: str | None, start: int) -> bool:
        step = self._steps.get(step_id or "")
        return step is not None and 0 < start < step.attempt

    def _count(self, step_id: str | None) -> int:
        return self._callback.starts.get(step_id or "", 1)

    def _settle(self, step_id: str | None) -> Iterator[Event]:
        """What the step has said is complete; then what waited behind it."""
        yield from self._speech.finish(step_id)
        if step_id in self._steps:
            yield from self._release(self._steps[step_id])

    def _release(self, step: _Step) -> list[Event]:
        waiting, step.waiting = step.waiting, []
        return waiting

    # what happens inside steps

    def _message(
        self, ns: tuple[str, ...], message: Any, metadata: Mapping[str, Any]
    ) -> Iterator[Event]:
        if not isinstance(message, BaseMessage):
            return
        step_id = step_of(metadata)
        start = metadata.get(START_KEY) or self._count(step_id)
        if self._is_stale(step_id, start):
            return
        yield from self._enter(step_id, start)
        if isinstance(message, ToolMessage):
            yield from self._tool_message(ns, message, step_id)
        elif isinstance(message, AIMessageChunk):
            yield from self._speech.chunk(message, step_id)
        elif isinstance(message, AIMessage):
            yield from self._speech.whole(message, step_id)
        step = self._steps.get(step_id or "")
        if step and step.waiting and not self._speech.holds(step_id):
            yield from self._release(step)

    def _tool_message(
        self, ns: tuple[str, ...], message: ToolMessage, step_id: str | None
    ) -> Iterator[Event]:
        if message.id in self._seen or message.tool_call_id in self._callback.hidden:
            return
        yield from self._settle(step_id)
        yield from self._tools.answered(message, step_id, (ns, message.tool_call_id))

    def _tool(self, ns: tuple[str, ...], data: Mapping[str, Any]) -> Iterator[Event]:
        place: Place = (ns, data["tool_call_id"])
        if data["event"] == "tool-started":
            step_id, start = self._begins(data["tool_call_id"])
            if not self._is_stale(step_id, start):
                yield from self._enter(step_id, start)
                yield from self._settle(step_id)
                yield self._tools.started(place, data, step_id)
        elif data["event"] == "tool-finished":
            yield from self._tools.finished(place, data.get("output"))
        elif data["event"] == "tool-error":
            yield from self._tools.failed(place)

    def _begins(self, call_id: str) -> tuple[str | None, int]:
        """Step and start of the k-th beginning of a call, from the callback's k-th entry."""
        k = self._begun.get(call_id, 0)
        self._begun[call_id] = k + 1
        entries = self._callback.calls.get(call_id, [])
        return entries[k] if k < len(entries) else (None, 1)

    def _custom(self, data: Any) -> Iterator[Event]:
        stepped = data if isinstance(data, Stepped) else Stepped("", 1, data)
        step_id = stepped.step_id or None
        if self._is_stale(step_id, stepped.start):
            return
        yield from self._enter(step_id, stepped.start)
        shown = self._mask.value(stepped.value, self._custom_bytes_max)
        event = Event("custom", {"data": shown}, step_id)
        if step_id and self._speech.holds(step_id):
            self._steps[step_id].waiting.append(event)
        else:
            yield event
