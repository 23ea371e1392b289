"""Tool calls of one run: one finish for each start (contract §3).

Pure. Starts and ends come from the `tools` stream; the calls that never began (rejected, answered
by a person, unknown tools) have no part in it, only a ToolMessage: their finish is derived from
that. A call id need not be unique: parallel child graphs may use the same, and so may later turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from common.events import Event
from common.masking import Masker
from common.page import Standing

Place = tuple[tuple[str, ...], str]
"""Where a call is made: its graph's namespace and its id."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    call_id: str
    tool: str
    step_id: str | None


class ToolCalls:
    def __init__(self, mask: Masker, bytes_max: int, standing: Standing) -> None:
        self._mask = mask
        self._standing = standing
        self._bytes_max = bytes_max
        self._open: dict[Place, list[OpenCall]] = {}
        self._ended: set[tuple[str | None, str]] = set()

    def started(self, place: Place, data: Mapping[str, Any], step_id: str | None) -> Event:
        call = OpenCall(place[1], str(data.get("tool_name", "")), step_id)
        self._open.setdefault(place, []).append(call)
        fields: dict[str, Any] = {"callId": call.call_id, "tool": call.tool}
        if data.get("input") is not None:
            fields["input"] = self._mask.value(data["input"], self._bytes_max)
        return Event("tool_started", fields, step_id)

    def finished(self, place: Place, output: Any) -> Iterator[Event]:
        message = _message_of(output, place[1])
        failed = message is not None and message.status == "error"
        content = message.content if message is not None else output
        for call in self._take(place):
            yield self._finish(call, "error" if failed else "success", self.summary(content))

    def failed(self, place: Place) -> Iterator[Event]:
        """The tool raised. What it raised may hold anything and is not shown (I9)."""
        for call in self._take(place):
            yield self._finish(call, "error", None)

    def answered(self, message: ToolMessage, step_id: str | None, place: Place) -> Iterator[Event]:
        """A ToolMessage without a run of the tool before it, or the end of one still open; not
        one that an earlier take-up has shown (see `Speech.whole`)."""
        call_id = message.tool_call_id
        if (step_id, call_id) in self._ended or self._standing.calls.get(call_id):
            return
        status = "error" if message.status == "error" else "success"
        for call in self._take(place) or [OpenCall(call_id, message.name or "", step_id)]:
            yield self._finish(call, status, self.summary(message.content))

    def fail_step(self, step_id: str | None) -> Iterator[Event]:
        """The step failed: what it had begun has ended."""
        for call in self._drop(step_id):
            yield self._finish(call, "error", None)

    def fail_all(self) -> Iterator[Event]:
        for step_id in {call.step_id for calls in self._open.values() for call in calls}:
            yield from self.fail_step(step_id)

    def forget(self, step_id: str | None) -> None:
        """The step is executed again, now or later: its starts are discarded by the clients."""
        self._drop(step_id)
        self._ended = {end for end in self._ended if end[0] != step_id}

    def summary(self, content: Any) -> str:
        """A bounded text of a result, for display."""
        return self._mask.text(_text_of(content), self._bytes_max)

    def _take(self, place: Place) -> list[OpenCall]:
        calls = self._open.get(place, [])
        taken = [calls.pop(0)] if calls else []
        if not calls:
            self._open.pop(place, None)
        return taken

    def _drop(self, step_id: str | None) -> list[OpenCall]:
        dropped = [c for calls in self._open.values() for c in calls if c.step_id == step_id]
        for calls in self._open.values():
            calls[:] = [call for call in calls if call.step_id != step_id]
        return dropped

    def _finish(self, call: OpenCall, status: str, summary: str | None) -> Event:
        self._ended.add((call.step_id, call.call_id))
        fields = {"callId": call.call_id, "tool": call.tool, "status": status}
        return Event("tool_finished", fields | _given("summary", summary), call.step_id)


def _given(name: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {name: value}


def _message_of(output: Any, call_id: str) -> ToolMessage | None:
    """The call's ToolMessage in what a tool returned: itself, or inside Commands or lists."""
    if isinstance(output, ToolMessage):
        return output if output.tool_call_id == call_id else None
    found = (_message_of(part, call_id) for part in _parts(output))
    return next((message for message in found if message is not None), None)


def _parts(output: Any) -> Iterable[Any]:
    if isinstance(output, Command):
        output = output.update
    if isinstance(output, Mapping):
        return [part for value in output.values() for part in _parts(value)]
    return output if isinstance(output, list | tuple) else ([output] if _is_message(output) else [])


def _is_message(value: Any) -> bool:
    return isinstance(value, ToolMessage)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Command):
        return ""
    if isinstance(content, list) and all(isinstance(part, str | dict) for part in content):
        return "".join(part if isinstance(part, str) else _text_in(part) for part in content)
    try:
        return json.dumps(content, ensure_ascii=False, default=lambda o: f"<{type(o).__name__}>")
    except (TypeError, ValueError):
        return f"<{type(content).__name__}>"


def _text_in(block: Mapping[Any, Any]) -> str:
    text = block.get("text")
    return text if isinstance(text, str) else json.dumps(block, ensure_ascii=False, default=str)
