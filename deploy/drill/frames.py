"""Cuts the bytes of a stream into frames, and makes frames of a page's events; no I/O."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

UNREADABLE = -1


class Cut(NamedTuple):
    """One frame without comments and `retry:`. `sequence` UNREADABLE: it is no event of ours."""

    sequence: int
    type: str
    raw: bytes


class Splitter:
    """One for each connection: what is unfinished at its end was never received."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Cut]:
        whole, border, self._rest = (self._rest + chunk).rpartition(b"\n\n")
        if border:
            for block in whole.split(b"\n\n"):
                yield cut(block)


def cut(block: bytes) -> Cut:
    """A block without its blank line, as it stood on the wire."""
    lines = [line for line in block.split(b"\n") if not line.startswith((b":", b"retry:"))]
    raw = b"".join(line + b"\n" for line in lines) + b"\n"
    return Cut(_sequence(lines), _field(lines, 1, b"event: ").decode("utf-8", "replace"), raw)


def framed(event: dict[str, Any]) -> Cut:
    """The frame of an event that came on a page: its JSON was the frame's own."""
    sequence, type_ = event.get("sequence", UNREADABLE), str(event.get("type"))
    line = orjson.dumps(event)
    raw = b"id: %d\nevent: %s\ndata: %s\n\n" % (sequence, type_.encode(), line)
    return Cut(sequence, type_, raw)


def body(raw: bytes) -> dict[str, Any]:
    """The event in a frame; empty for what is none."""
    try:
        parsed = orjson.loads(raw.partition(b"\ndata: ")[2])
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _sequence(lines: list[bytes]) -> int:
    digits = _field(lines, 0, b"id: ")
    return int(digits) if digits.isdigit() else UNREADABLE


def _field(lines: list[bytes], at: int, name: bytes) -> bytes:
    found = lines[at] if at < len(lines) else b""
    return found.removeprefix(name) if found.startswith(name) else b""
