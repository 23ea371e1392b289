"""The stream response: plain ASGI, one task a client and one that watches it leave.

Order of a response: slot taken by the route, head and a comment line at once (proxies pass the
response on), frames as they are ready, a comment line every heartbeat interval, then either a clean
end after the event that `until` names or an abort. There is no third way: LangGraph's clients take
a clean end for "finished" (contract §3).

A client that takes nothing for `send_timeout_s` is aborted by the same timer that beats; that costs
the fast ones nothing.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from common.errors import Refused, SteadyrunError
from gateway.metrics import Metrics
from gateway.services.ring import Portion

ABORT_EXTENSION = "steadyrun.abort"
HEARTBEAT = b": keep-alive\n"  # one newline: some decoders dispatch an event on a blank line
DRAINING = b": drain\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_RETRY_MS = (1000, 3000)

Reason = Literal["finished", "left", "stalled", "drained", "expired", "failed"]
Abort = Callable[[bool], Awaitable[None]]


class StreamAborted(SteadyrunError):
    """Cuts the connection where the server offers no way to abort; it logs this as an error."""


class Source(Protocol):
    """Where the frames come from (gateway.services.follower.Follower)."""

    async def next(self) -> Portion: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class Leaving(Protocol):
    """What a drain cuts short: a stream, a call that waits."""

    def drain(self) -> None: ...


class Slots:
    """Open streams of this process and of each user; a full house is refused before it opens."""

    def __init__(self, streams_max: int, per_user_max: int, metrics: Metrics) -> None:
        self._max, self._per_user_max, self._metrics = streams_max, per_user_max, metrics
        self._open: Counter[str] = Counter()

    def take(self, user: str) -> "Slot":
        """A place; refuses with RATE_LIMITED (429)."""
        reason = self._full(user)
        if reason is not None:
            self._metrics.rejected.labels(reason).inc()
            raise Refused("RATE_LIMITED", f"too many open streams ({reason})", limit="streams")
        self._open[user] += 1
        self._metrics.streams_open.inc()
        return Slot(self, user)

    def free(self, user: str) -> None:
        self._open[user] -= 1
        if not self._open[user]:
            del self._open[user]
        self._metrics.streams_open.dec()

    @property
    def open(self) -> int:
        return self._open.total()

    @property
    def users(self) -> set[str]:
        """Those who have a place here."""
        return set(self._open)

    def open_of(self, user: str) -> int:
        return self._open[user]

    def _full(self, user: str) -> str | None:
        if self.open >= self._max:
            return "gateway"
        return "user" if self._open[user] >= self._per_user_max else None


class Slot:
    """A taken place. Giving it back twice does nothing the second time."""

    def __init__(self, slots: Slots, user: str) -> None:
        self._slots: Slots | None = slots
        self._user = user
        self._left: list[Callable[[], None]] = []

    def on_free(self, left: Callable[[], None]) -> None:
        """Called once, when the place is given back."""
        self._left.append(left)

    def free(self) -> None:
        if self._slots is not None:
            self._slots.free(self._user)
            self._slots = None
            for left in self._left:
                left()


class Drain:
    """The end of this process: it turns unready, then its streams are aborted over a window.

    Between the two lies `delay_s`, for load balancers that have to ask first: until it is over all
    is served as ever, but connections are not kept. `hurry` skips what is left of either.
    """

    def __init__(self, window_s: float, delay_s: float = 0.0) -> None:
        self._window_s, self._delay_s = window_s, delay_s
        self._streams: set[Leaving] = set()
        self._hurried = asyncio.Event()
        self.leaving = False
        self.draining = False

    def enter(self, stream: Leaving) -> None:
        self._streams.add(stream)

    def leave(self, stream: Leaving) -> None:
        self._streams.discard(stream)

    def refuse_new(self) -> None:
        if self.draining:
            raise Refused("UNAVAILABLE", "this gateway is going away; try again")

    async def announce(self) -> None:
        """Unready from now on; returns when the listener may close."""
        self.leaving = True
        await self._pause(self._delay_s)

    async def run(self) -> None:
        self.leaving = self.draining = True
        streams = list(self._streams)
        random.shuffle(streams)
        for stream in streams:
            stream.drain()
            await self._pause(self._window_s / len(streams))

    def hurry(self) -> None:
        self._hurried.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), seconds)


@dataclass(frozen=True, slots=True)
class Pace:
    heartbeat_interval_s: float
    send_timeout_s: float


class EventStream(Response):
    """Sends what `source` gives, to the end that `source` names. Owns source and slot."""

    def __init__(
        self,
        source: Source,
        slot: Slot,
        *,
        pace: Pace,
        drain: Drain,
        metrics: Metrics,
        began_at: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self.raw_headers = _RAW_HEADERS
        if headers:
            self.init_headers({**HEADERS, **headers})
        self._source, self._slot, self._pace = source, slot, pace
        self._drain, self._metrics, self._began_at = drain, metrics, began_at
        self._retry: bytes | None = b"retry: %d\n" % random.randint(*_RETRY_MS)
        self._beat_due, self._draining, self._left, self._stalled = True, False, False, False
        self._sending_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        abort: Abort | None = scope.get("extensions", {}).get(ABORT_EXTENSION)
        loop = asyncio.get_running_loop()
        started = loop.time()
        reason: Reason = "failed"
        watcher = loop.create_task(self._watch(receive))
        timer = _Timer(self._tick, self._pace.heartbeat_interval_s)
        self._drain.enter(self)
        self._abort = abort
        try:
            reason = await self._run(send)
        finally:
            timer.stop()
            watcher.cancel()
            self._drain.leave(self)
            self._source.close()
            self._slot.free()
            self._metrics.ends.labels(reason).inc()
            self._metrics.stream_s.observe(loop.time() - started)
        if reason not in ("finished", "left"):
            await _cut(abort, reason)

    def drain(self) -> None:
        self._draining = True
        self._source.interrupt()

    async def _run(self, send: Send) -> Reason:
        if self._drain.draining:
            self._draining = True
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await self._send(send, head)
        await self._write(send, b"")
        while True:
            if (over := self._over()) is not None:
                if over == "drained":
                    self._metrics.drained.inc()
                    await self._body(send, DRAINING)
                return over
            try:
                portion = await self._source.next()
            except Refused:  # the history went away under the reader
                return "expired"
            self._metrics.events_sent.inc(portion.events)
            if await self._write(send, portion.frames, last=bool(portion.ends)):
                return "left" if self._left else "finished"

    def _over(self) -> Reason | None:
        if self._left:
            return "stalled" if self._stalled else "left"
        return "drained" if self._draining else None

    async def _write(self, send: Send, frames: bytes, *, last: bool = False) -> bool:
        """One write of all there is: a due comment, the `retry` line once, the frames."""
        parts = []
        if self._beat_due and not last:
            parts.append(HEARTBEAT)
            self._beat_due = False
        if frames:
            parts += self._first_block()
            parts.append(frames)
            self._metrics.writes.inc()
            self._metrics.bytes_sent.inc(len(frames))
        if parts or last:
            await self._body(send, b"".join(parts), more=not last)
        return last

    def _first_block(self) -> list[bytes]:
        retry, self._retry = self._retry, None
        if retry is None:
            return []
        self._metrics.join_s.observe(asyncio.get_running_loop().time() - self._began_at)
        return [retry]

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        await self._send(send, {"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, send: Send, message: Mapping[str, Any]) -> None:
        self._sending_since = asyncio.get_running_loop().time()
        await send(dict(message))
        self._sending_since = None

    async def _watch(self, receive: Receive) -> None:
        """`receive` first tells of the request's body, only later of the client's leaving."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._source.interrupt()

    def _tick(self, now: float) -> None:
        self._beat_due = True
        self._source.interrupt()
        since = self._sending_since
        if since is not None and now - since > self._pace.send_timeout_s and not self._stalled:
            self._stalled = True
            self._metrics.slow.inc()
            self._drop_now()

    def _drop_now(self) -> None:
        if self._abort is not None:
            self._dropping = asyncio.ensure_future(self._abort(True))


class _Timer:
    """Calls `act(now)` every `interval_s`, until stopped."""

    def __init__(self, act: Callable[[float], None], interval_s: float) -> None:
        self._act, self._interval_s = act, interval_s
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(interval_s, self._fire)

    def stop(self) -> None:
        self._handle.cancel()

    def _fire(self) -> None:
        self._handle = self._loop.call_later(self._interval_s, self._fire)
        self._act(self._loop.time())


async def _cut(abort: Abort | None, reason: Reason) -> None:
    if abort is None:
        raise StreamAborted(f"stream {reason}")
    await abort(reason == "stalled")
