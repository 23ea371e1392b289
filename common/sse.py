"""Decodes an event stream from bytes, exactly as the WHATWG standard says, without I/O.

Our clients must not lose or double an event when a proxy cuts the bytes anywhere: inside a
character, between CR and LF, in the middle of the byte order mark. The decoder therefore works on
bytes and decodes whole lines only: neither CR nor LF is ever part of another UTF-8 character, so
the result is the same as that of decoding the whole stream first.

Source of every rule: HTML Living Standard, "Server-sent events", sections 9.2.5 and 9.2.6.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One dispatched event. `id` is the last one seen: it outlives the event that set it."""

    type: str
    data: str
    id: str


class Decoder:
    """Feed it what arrived, in order; take what is complete. One decoder a connection.

    An event is complete with its blank line: what is unfinished when the connection ends was never
    received. `last_event_id` is what a reconnect sends as `Last-Event-ID`; `retry_ms` is None until
    the server has named a time.
    """

    def __init__(self, last_event_id: str = "") -> None:
        self.last_event_id = last_event_id
        self.retry_ms: int | None = None
        self._id = last_event_id
        self._type = ""
        self._data: list[str] = []
        self._head: bytes | None = b""  # the first bytes, until it is known whether they are a BOM
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._after_cr = False  # the last byte ended a line as CR: a LF now belongs to it

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that `chunk` completes; never raises, whatever the bytes are."""
        chunk = self._without_bom(chunk)
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        return [event for line in self._lines(chunk) if (event := self._take(line))]

    def _without_bom(self, chunk: bytes) -> bytes:
        """Strip exactly one byte order mark, at the very start."""
        if self._head is None:
            return chunk
        head = self._head + chunk
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BOM)

    def _lines(self, chunk: bytes) -> Iterator[str]:
        *ended, rest = _LINE_END.split(chunk)
        for piece in ended:
            line = b"".join((*self._line, piece)) if self._line else piece
            self._line.clear()
            yield line.decode("utf-8", "replace")
        if rest:
            self._line.append(rest)

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")  # a comment has the empty name, which nobody knows
        self._field(name, value.removeprefix(" "))
        return None

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value[:9])

    def _dispatch(self) -> ServerEvent | None:
        """A blank line: the id counts even where there is no data and so no event."""
        self.last_event_id = self._id
        type_, self._type = self._type or "message", ""
        if not self._data:
            return None
        data, self._data = "\n".join(self._data), []
        return ServerEvent(type_, data, self._id)
