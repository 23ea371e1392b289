"""The events of a run (contract §3) and their frames on the wire.

A frame is encoded once, by whoever gives the event its number; every gateway forwards these bytes.
`EVENT_FIELDS` is the table of what each type carries besides `type`, `runId`, `sequence`, `epoch`,
`at` and, inside a step, `stepId`; tests hold the producers and the Python client against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from common.batch import Ends

EventType = Literal[
    "run_started",
    "step_started",
    "step_finished",
    "text_delta",
    "reasoning_delta",
    "usage",
    "tool_started",
    "tool_finished",
    "custom",
    "interrupt",
    "interrupt_resolved",
    "run_paused",
    "run_resumed",
    "step_retried",
    "done",
    "cancelled",
    "error",
]

# type -> (required fields, optional fields)
EVENT_FIELDS: Mapping[EventType, tuple[frozenset[str], frozenset[str]]] = {
    "run_started": (frozenset({"conversationId", "graph"}), frozenset()),
    "step_started": (frozenset({"node"}), frozenset()),
    "step_finished": (frozenset({"node", "status"}), frozenset()),
    "text_delta": (frozenset({"messageId", "delta"}), frozenset()),
    "reasoning_delta": (frozenset({"messageId", "delta"}), frozenset()),
    "usage": (
        frozenset({"messageId", "inputTokens", "outputTokens", "totalTokens"}),
        frozenset(),
    ),
    "tool_started": (frozenset({"callId", "tool"}), frozenset({"input"})),
    "tool_finished": (frozenset({"callId", "tool", "status"}), frozenset({"summary"})),
    "custom": (frozenset({"data"}), frozenset()),
    "interrupt": (
        frozenset({"interruptId", "interruptType", "payload"}),
        frozenset({"expiresAt", "requiredPermission"}),
    ),
    "interrupt_resolved": (
        frozenset({"interruptId", "status"}),
        frozenset({"decision", "resolvedBy"}),
    ),
    "run_paused": (frozenset({"reason", "next"}), frozenset()),
    "run_resumed": (frozenset({"reason", "discard"}), frozenset()),
    "step_retried": (frozenset({"attempt"}), frozenset()),
    "done": (frozenset(), frozenset({"messageId", "output"})),
    "cancelled": (frozenset({"reason"}), frozenset()),
    "error": (frozenset({"code", "message", "retryable"}), frozenset()),
}

TERMINAL: frozenset[EventType] = frozenset({"done", "cancelled", "error"})


@dataclass(frozen=True, slots=True)
class Event:
    """An event that has no number yet. `fields` are the wire's, in camelCase."""

    type: EventType
    fields: dict[str, Any] = field(default_factory=dict)
    step_id: str | None = None


def encode_frame(event: Event, *, run_id: str, sequence: int, epoch: int, at: str) -> bytes:
    """One SSE frame: digits as id, the type, one line of JSON, a blank line (contract §3)."""
    body: dict[str, Any] = {
        "type": event.type,
        "runId": run_id,
        "sequence": sequence,
        "epoch": epoch,
        "at": at,
    }
    if event.step_id is not None:
        body["stepId"] = event.step_id
    line = _line(body | event.fields)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (sequence, event.type.encode(), line)


def _line(body: dict[str, Any]) -> bytes:
    """Never fails: whoever encodes tells the events of all runs of a process."""
    try:
        return orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a character, an integer of more than 64 bits, an object
        return orjson.dumps(_plain(body))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value if value is None or isinstance(value, int | float) else type(value).__name__


def ends_of(events: list[Event]) -> Ends:
    """What a batch of these events ends. `interrupt`s and `run_paused` end a pause together."""
    last = events[-1].type
    if last in TERMINAL:
        return "run"
    return "pause" if last in ("interrupt", "run_paused") else ""


def utc_text(moment: datetime | None = None) -> str:
    """RFC 3339 in UTC with milliseconds, now by default."""
    moment = datetime.now(UTC) if moment is None else moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
