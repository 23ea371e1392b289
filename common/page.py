"""What stands on the page of a run: the reading rules of contract §3, for those who own the run.

Pure. An owner folds the run's events as every client does (`deploy/client/transcript`), so that
what it stores as messages is what clients have: text and tools of steps that are executed again
are dropped with `run_resumed.discard` and `step_retried`, everything else stands, also under a step
that was cut off, failed or waits for a person. What is kept is bounded by what stands, not by the
log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from common.db.messages import NewMessage
from common.events import Event
from common.ids import stable_id

_DATA = b"\ndata: "
_CONTENT_BYTES_MAX = 256 << 10


def bounded(text: str) -> str:
    """NUL cannot be stored by Postgres; the bound keeps a tool's flood out of the history."""
    data = text.replace("\0", "\ufffd").encode()
    if len(data) <= _CONTENT_BYTES_MAX:
        return data.decode()
    return data[:_CONTENT_BYTES_MAX].decode(errors="ignore") + " …"


def tool_message_id(run_id: str, call_id: str) -> str:
    return stable_id("msg", run_id, "tool", call_id)


@dataclass(slots=True)
class Said:
    """Text of one message that one step has streamed."""

    message_id: str
    step_id: str | None
    parts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Called:
    """A tool call. `summary` is None where it failed without saying anything."""

    call_id: str
    tool: str
    step_id: str | None
    ended: bool = False
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands on a page: by id of a message or an ended tool call, the steps that showed it."""

    messages: dict[str, set[str | None]] = field(default_factory=dict)
    calls: dict[str, set[str | None]] = field(default_factory=dict)

    def forget(self, step_id: str | None) -> None:
        """The step is executed again: what it showed does not stand any more."""
        for steps in (*self.messages.values(), *self.calls.values()):
            steps.discard(step_id)


class Page:
    """The page of one run. Events are applied in order, each once."""

    def __init__(self) -> None:
        self.pieces: list[Said | Called] = []
        self._open: list[Called] = []
        self._said: dict[tuple[str, str | None], Said] = {}
        self._spoken: set[tuple[str, str | None]] = set()
        self._status: dict[str, str] = {}

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            self._apply(event.type, event.fields, event.step_id)

    def apply_frames(self, frames: bytes) -> None:
        """Events as they are archived (`common.events.encode_frame`)."""
        for frame in frames.split(b"\n\n"):
            if frame:
                event = orjson.loads(frame[frame.index(_DATA) + len(_DATA) :])
                self._apply(event["type"], event, event.get("stepId"))

    @property
    def texts(self) -> dict[str, str]:
        """What stands of each message, in the order in which they began."""
        parts: dict[str, list[str]] = {}
        for piece in self.pieces:
            if isinstance(piece, Said):
                parts.setdefault(piece.message_id, []).extend(piece.parts)
        return {message_id: "".join(said) for message_id, said in parts.items()}

    def messages(self, run_id: str) -> dict[str, NewMessage]:
        """What is to be stored of it, by message id and in order."""
        texts, found = self.texts, dict[str, NewMessage]()
        for piece in self.pieces:
            if isinstance(piece, Said):
                text = bounded(texts[piece.message_id])
                found[piece.message_id] = NewMessage(piece.message_id, "assistant", text)
            elif piece.summary is not None:
                message = _result(run_id, piece, piece.summary)
                found[message.id] = message
        return found

    @property
    def standing(self) -> Standing:
        standing = Standing()
        for message_id, step_id in self._spoken:
            standing.messages.setdefault(message_id, set()).add(step_id)
        for piece in self.pieces:
            if isinstance(piece, Called) and piece.ended:
                standing.calls.setdefault(piece.call_id, set()).add(piece.step_id)
        return standing

    @property
    def steps(self) -> list[str]:
        """Every step that has left a trace and was not voided since."""
        return list(self._status)

    @property
    def running(self) -> list[str]:
        """Steps that have begun and not ended, as far as the graph shows its steps."""
        return [step for step, status in self._status.items() if status == "running"]

    def closing(self) -> list[Event]:
        """The ends of the tool calls that stand open, for whoever ends the run (contract §3)."""
        return [_closed(call) for call in self._open]

    def _apply(self, kind: str, fields: Mapping[str, Any], step_id: str | None) -> None:
        if kind == "run_resumed":
            self._void(set(fields["discard"]))
        elif step_id is not None and kind == "step_retried":
            self._void({step_id})
            self._status[step_id] = "running"
        else:
            self._show(kind, fields, step_id)

    def _show(self, kind: str, fields: Mapping[str, Any], step_id: str | None) -> None:
        if step_id is not None:
            self._note(kind, fields, step_id)
        if "messageId" in fields and kind != "done":
            self._spoken.add((fields["messageId"], step_id))
        if kind == "text_delta":
            self._say(fields["messageId"], step_id, fields["delta"])
        elif kind == "tool_started":
            self._begin_call(fields, step_id)
        elif kind == "tool_finished":
            self._end_call(fields, step_id)

    def _note(self, kind: str, fields: Mapping[str, Any], step_id: str) -> None:
        if kind == "step_finished":
            self._status[step_id] = fields["status"]
        elif kind == "step_started":
            self._status[step_id] = "running"
        else:
            self._status.setdefault(step_id, "")

    def _say(self, message_id: str, step_id: str | None, delta: str) -> None:
        said = self._said.get((message_id, step_id))
        if said is None:
            said = self._said[message_id, step_id] = Said(message_id, step_id)
            self.pieces.append(said)
        said.parts.append(delta)

    def _begin_call(self, fields: Mapping[str, Any], step_id: str | None) -> Called:
        call = Called(fields["callId"], fields["tool"], step_id)
        self.pieces.append(call)
        self._open.append(call)
        return call

    def _end_call(self, fields: Mapping[str, Any], step_id: str | None) -> None:
        """One whose beginning was not told (a call that a person answered) ends at once."""
        same = (c for c in self._open if (c.call_id, c.step_id) == (fields["callId"], step_id))
        call = next(same, None) or self._begin_call(fields, step_id)
        self._open = [other for other in self._open if other is not call]
        call.ended, call.summary = True, fields.get("summary")

    def _void(self, steps: set[str]) -> None:
        self.pieces = [piece for piece in self.pieces if piece.step_id not in steps]
        self._open = [call for call in self._open if call.step_id not in steps]
        self._said = {key: said for key, said in self._said.items() if key[1] not in steps}
        self._spoken = {key for key in self._spoken if key[1] not in steps}
        self._status = {step: s for step, s in self._status.items() if step not in steps}


def _result(run_id: str, call: Called, summary: str) -> NewMessage:
    message_id = tool_message_id(run_id, call.call_id)
    return NewMessage(message_id, "tool", bounded(summary), call.call_id, call.tool)


def _closed(call: Called) -> Event:
    fields = {"callId": call.call_id, "tool": call.tool, "status": "error"}
    return Event("tool_finished", fields, call.step_id)
