"""What a client shows of a run, kept from its events: the reading rules of contract §3; no I/O.

`apply` takes every event of the run in order and says what changed on the page. An event that was
seen before changes nothing. What stands under a step that is executed again is taken off the page
(`run_resumed.discard`, `step_retried`), because its events come again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Event = dict[str, Any]
Kind = Literal["text", "reasoning", "tool", "custom"]


@dataclass(slots=True)
class Piece:
    """Something on the page: a stretch of one message, a tool call, a custom event."""

    kind: Kind
    key: str
    step_id: str | None
    text: str = ""
    fields: Event = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grew:
    """`delta` was appended to the piece, or the piece is new."""

    piece: Piece
    delta: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A tool call ended; its outcome is in the piece's fields."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Voided:
    """The pieces `gone` are void; `kept` stand after the first of them and are still good."""

    gone: list[Piece]
    kept: list[Piece]


@dataclass(frozen=True, slots=True)
class Noted:
    """An event about the run as a whole: taken up again, waiting, decided, ended."""

    event: Event


Change = Grew | Finished | Voided | Noted


class Transcript:
    """The page of one run."""

    def __init__(self) -> None:
        self.sequence = 0
        self.conversation_id: str | None = None
        self.pieces: list[Piece] = []
        self.end: Event | None = None
        self.waiting = False  # at an interrupt or a breakpoint
        self._reducers: dict[str, Callable[[Event], Iterable[Change]]] = {
            "run_started": self._started,
            "text_delta": self._grow,
            "reasoning_delta": self._grow,
            "tool_started": self._begin_tool,
            "tool_finished": self._finish_tool,
            "custom": self._show_custom,
            "interrupt": self._wait,
            "run_paused": self._wait,
            "interrupt_resolved": self._note,
            "run_resumed": self._resume,
            "step_retried": self._retry,
            "done": self._finish,
            "cancelled": self._finish,
            "error": self._finish,
        }

    def apply(self, event: Event) -> list[Change]:
        """Unknown types change nothing but the cursor (contract, introduction)."""
        if event["sequence"] <= self.sequence:
            return []
        self.sequence = event["sequence"]
        reducer = self._reducers.get(event["type"])
        return list(reducer(event)) if reducer else []

    @property
    def text(self) -> str:
        """All that the assistant has said and that still stands."""
        return "".join(piece.text for piece in self.pieces if piece.kind == "text")

    def _started(self, event: Event) -> Iterable[Change]:
        self.conversation_id = event["conversationId"]
        return ()

    def _grow(self, event: Event) -> Iterable[Change]:
        kind: Kind = "text" if event["type"] == "text_delta" else "reasoning"
        piece = Piece(kind, event["messageId"], event.get("stepId"))
        last = self.pieces[-1] if self.pieces else None
        if last and (last.kind, last.key, last.step_id) == (kind, piece.key, piece.step_id):
            piece = last
        else:
            self.pieces.append(piece)
        piece.text += event["delta"]
        yield Grew(piece, event["delta"])

    def _begin_tool(self, event: Event) -> Iterable[Change]:
        piece = Piece("tool", event["callId"], event.get("stepId"), fields=dict(event))
        self.pieces.append(piece)
        yield Grew(piece, "")

    def _finish_tool(self, event: Event) -> Iterable[Change]:
        """One whose beginning was not told (a call that a person answered) begins and ends here."""
        piece = next((one for one in reversed(self.pieces) if _is_under_way(one, event)), None)
        if piece is None:
            yield from self._begin_tool(event)
            yield Finished(self.pieces[-1])
            return
        piece.fields |= {n: event[n] for n in ("status", "summary") if n in event}
        yield Finished(piece)

    def _show_custom(self, event: Event) -> Iterable[Change]:
        piece = Piece("custom", str(event["sequence"]), event.get("stepId"), fields=dict(event))
        self.pieces.append(piece)
        yield Grew(piece, "")

    def _wait(self, event: Event) -> Iterable[Change]:
        self.waiting = True
        return self._note(event)

    def _note(self, event: Event) -> Iterable[Change]:
        yield Noted(event)

    def _resume(self, event: Event) -> Iterable[Change]:
        self.waiting = False
        yield Noted(event)
        yield from self._void(set(event["discard"]))

    def _retry(self, event: Event) -> Iterable[Change]:
        yield Noted(event)
        yield from self._void({event["stepId"]})

    def _void(self, steps: set[str]) -> Iterable[Change]:
        gone = [piece for piece in self.pieces if piece.step_id in steps]
        if not gone:
            return
        first = next(n for n, piece in enumerate(self.pieces) if piece.step_id in steps)
        kept = [piece for piece in self.pieces[first:] if piece.step_id not in steps]
        self.pieces[first:] = kept
        yield Voided(gone, kept)

    def _finish(self, event: Event) -> Iterable[Change]:
        self.end, self.waiting = event, False
        return self._note(event)


def _is_under_way(piece: Piece, finished: Event) -> bool:
    same = (piece.kind, piece.key, piece.step_id) == (
        "tool",
        finished["callId"],
        finished.get("stepId"),
    )
    return same and "status" not in piece.fields
