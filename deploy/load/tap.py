"""Streams as cheap as a client can have them: thousands from one process, so that what is measured
is the system and not the load.

A tap counts frames and never parses them; of every few pieces that arrive it reads the moment at
which the oldest event in it was made (`at`, contract §3), which gives the latency on one clock.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import httptools

SAMPLED_EVERY: Final = 4
_AT: Final = b'"at":"'
_FAILOVER: Final = b"event: run_resumed"


_ID: Final = re.compile(rb"^id: (\d+)$", re.MULTILINE)


@dataclass(slots=True)
class Numbers:
    """The numbers that one stream has had over all its connections. Without a failover they have no
    jump, so that each that is left out was lost; a count alone takes a lost one and a doubled one
    for two good ones."""

    last: int = 0
    lost: int = 0
    doubled: int = 0
    _rest: bytes = b""

    def take(self, piece: bytes) -> None:
        whole, _, self._rest = (self._rest + piece).rpartition(b"\n\n")
        for number in map(int, _ID.findall(whole)):
            self.doubled += number <= self.last
            self.lost += max(0, number - self.last - 1)
            self.last = max(number, self.last)

    def cut(self) -> None:
        """What has come of a frame is sent again."""
        self._rest = b""


@dataclass(slots=True)
class Counter:
    """Events of one stream. A frame ends with a blank line and comments do not (contract §3)."""

    events: int = 0
    first_s: float | None = None  # from the request to the first event
    latencies_s: list[float] = field(default_factory=list)
    arrivals: list[float] | None = None  # monotonic moments of pieces with events, where wanted
    taken_up_again: bool = False  # another runner went on; looked for where arrivals are wanted
    began: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: Numbers | None = None  # where they are wanted
    _last: bytes = b""
    _pieces: int = 0

    def take(self, piece: bytes, since_start_s: float) -> None:
        if self.numbers is not None:
            self.numbers.take(piece)
        joined = self._last + piece
        found = joined.count(b"\n\n")
        self._last = joined[-1:] if not joined.endswith(b"\n\n") else b""
        if not found:
            return
        self.events += found
        self.began.set()
        if self.first_s is None:
            self.first_s = since_start_s
        if self.arrivals is not None:
            self.arrivals.append(time.monotonic())
            self.taken_up_again |= _FAILOVER in piece
        self._pieces += 1
        if self._pieces % SAMPLED_EVERY == 0:
            self._sample(piece)

    def _sample(self, piece: bytes) -> None:
        start = piece.find(_AT) + len(_AT)
        end = piece.find(b'"', start)
        if start >= len(_AT) and end > start:
            made = datetime.fromisoformat(piece[start:end].decode()).timestamp()
            self.latencies_s.append(max(0.0, time.time() - made))


class Tap(asyncio.Protocol):
    """One connection, one request. `ended` is done with the end of the answer: True where it ended
    as HTTP says, False where the connection broke."""

    def __init__(self, request: bytes, counter: Counter) -> None:
        self.counter = counter
        self.status = 0
        self.run_id = ""
        self.ended_at = 0.0  # monotonic
        loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self.ended: asyncio.Future[bool] = loop.create_future()
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._began = time.perf_counter()
        self._transport: asyncio.Transport | None = None

    async def has_begun(self) -> None:
        """The first byte of a good answer, or the end of another one."""
        await self._begun.wait()

    def cut(self) -> None:
        """Hang up without a word."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-location":  # the run that a streaming POST has started
            self.run_id = value.decode().rpartition("/")[2]

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.status == 200:
            self.counter.take(body, time.perf_counter() - self._began)
            self._begun.set()

    def on_message_complete(self) -> None:
        self._end(True)
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(False)

    def _end(self, whole: bool) -> None:
        if not self.ended.done():
            self.ended_at = time.monotonic()
            self.ended.set_result(whole)
        self._begun.set()


async def open_tap(
    address: str,
    path: str,
    headers: Mapping[str, str],
    *,
    body: bytes | None = None,
    counter: Counter | None = None,
) -> Tap:
    """A stream of `GET path`, or of a POST where there is a body. Raises OSError."""
    parts = urlsplit(address)
    secure = parts.scheme == "https"
    request = _request(parts.netloc, path, headers, body)
    _, tap = await asyncio.get_running_loop().create_connection(
        lambda: Tap(request, counter or Counter()),
        parts.hostname or "",
        parts.port or (443 if secure else 80),
        ssl=ssl.create_default_context() if secure else None,
    )
    return tap


def _request(host: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    method = "GET" if body is None else "POST"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Accept: text/event-stream"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")
