"""Draws a run on a terminal, line after line: what was written is never erased, only declared void.

So the output can also go into a file or a pipe. Whatever comes from the server is stripped of
control characters: a tool's output must not steer the terminal.
"""

import json
import unicodedata
from collections.abc import Mapping
from typing import Any, TextIO

from deploy.client.transcript import Change, Event, Finished, Grew, Noted, Piece, Voided

_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_LINE_CHARACTERS = 120


class Paper:
    """`styled` writes tools and notes dim and questions bold; for terminals only."""

    def __init__(self, out: TextIO, *, styled: bool) -> None:
        self._out = out
        self._styled = styled
        self._open: Piece | None = None  # the piece whose line has not ended

    def draw(self, change: Change) -> None:
        match change:
            case Grew(piece, delta):
                self._grow(piece, delta)
            case Finished(piece):
                self.note(_finished(piece))
            case Voided(gone, kept):
                self._void(gone, kept)
            case Noted(event):
                self._note_run(event)

    def note(self, line: str) -> None:
        """A line beside the conversation."""
        self._line(f"  {line}", _DIM)

    def say(self, line: str) -> None:
        """A line to the person at the terminal."""
        self._line(line, _BOLD)

    def _grow(self, piece: Piece, delta: str) -> None:
        if piece.kind == "tool":
            return self.note(f"→ {_call(piece)}")
        if piece.kind == "custom":
            return self.note(f"· {brief(piece.fields['data'])}")
        if self._open is not piece:
            self._end_line()
            self._open = piece
        self._write(clean(delta), _DIM if piece.kind == "reasoning" else "")
        return None

    def _void(self, gone: list[Piece], kept: list[Piece]) -> None:
        """Name what no longer counts, then show again what stands and would seem to be void.

        A tool call that has told nothing yet just begins anew, as after every decision.
        """
        if all(piece.kind == "tool" and "status" not in piece.fields for piece in gone):
            return
        self.note(f"✗ void, it is done again: {', '.join(map(_name, gone))}")
        for piece in kept:
            self._grow(piece, piece.text)
            if piece.kind == "tool" and "status" in piece.fields:
                self.note(_finished(piece))

    def _note_run(self, event: Event) -> None:
        if line := _about_run(event):
            self.note(line)

    def _line(self, line: str, style: str) -> None:
        self._end_line()
        self._write(clean(line), style)
        self._write("\n")

    def _end_line(self) -> None:
        if self._open is not None:
            self._write("\n")
            self._open = None

    def _write(self, text: str, style: str = "") -> None:
        self._out.write(f"{style}{text}{_PLAIN}" if style and self._styled else text)
        self._out.flush()


def clean(text: str) -> str:
    """Without control and bidirectional formatting characters, but for line feed and tab."""
    return "".join(
        c for c in text if c in "\n\t\u200d" or unicodedata.category(c) not in ("Cc", "Cf")
    )


def brief(value: Any, characters: int = _LINE_CHARACTERS) -> str:
    """Any JSON value on one line of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"


def _call(piece: Piece) -> str:
    given = piece.fields.get("input")
    if not isinstance(given, Mapping):
        return f"{piece.fields['tool']} {brief(given or '')}".rstrip()
    return " ".join([piece.fields["tool"], *(f"{k}={brief(v)}" for k, v in given.items())])


def _finished(piece: Piece) -> str:
    tick = "✓" if piece.fields["status"] == "success" else "✗"
    return f"{tick} {piece.fields['tool']} {brief(piece.fields.get('summary', ''))}".rstrip()


def _name(piece: Piece) -> str:
    return piece.fields["tool"] if piece.kind == "tool" else f"“{brief(piece.text)[:40]}…”"


def _about_run(event: Event) -> str | None:
    match event["type"]:
        case "run_resumed" if event["reason"] in ("failover", "handover"):
            return f"↻ another runner goes on ({event['reason']})"
        case "step_retried":
            return f"↻ a step failed and is tried again (attempt {event['attempt']})"
        case "interrupt_resolved":
            return f"● decided: {brief(event.get('decision') or event['status'])}"
        case "run_paused":
            return f"‖ paused before {', '.join(event['next']) or 'its end'}"
        case "cancelled":
            return f"■ cancelled ({event['reason']})"
        case "error":
            return f"✗ failed: {event['message']} ({event['code']})"
        case _:
            return None
