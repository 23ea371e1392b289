"""uvicorn, taught three things: to abort a response, to drain streams, to bound a request's head.

A response that is not ended but whose connection closes is seen by every client and proxy as a cut
(no last chunk), which is what a drain or a slow client needs. uvicorn offers no way for it, so the
protocol hands the app its connection as an ASGI extension.
"""

import asyncio
import socket
from types import FrameType
from typing import Any

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.sse import ABORT_EXTENSION, Drain

HEAD_BYTES_MAX = 64 << 10
_SEND_BUFFER_BYTES = 256 << 10  # kernel memory that one client which reads nothing can hold
_BACKLOG = 2048
_FLUSH_S = 1.0  # an abort lets written frames out for so long
AFTER_WINDOW_S = 5.0  # for requests other than streams, once all streams are gone


class AbortableProtocol(HttpToolsProtocol):
    """One connection. Its app finds `abort(now)` under `steadyrun.abort` in `extensions`."""

    # of the class until they are needed: there may be tens of thousands of connections
    _lost: asyncio.Future[None] | None = None
    _head_bytes: int | None = 0  # None: not reading a head
    _running: RequestResponseCycle | None = None

    async def abort(self, now: bool) -> None:
        """Close without ending the response. Returns once the connection is gone.

        Frames already written go out first; `now`, or a client that does not take them, drops them.
        """
        if self._lost is None:
            self._lost = self.loop.create_future()
        if not now:
            self.transport.close()
            await asyncio.wait({self._lost}, timeout=_FLUSH_S)
        self.transport.abort()
        await asyncio.wait({self._lost}, timeout=_FLUSH_S)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT_EXTENSION: self.abort}  # type: ignore[dict-item]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the request that was parsed last, which may wait behind this one."""
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        if self._lost is None:
            self._lost = self.loop.create_future()
        if not self._lost.done():
            self._lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """The parser collects a head of any size; the connection with such a one is closed."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response("Request head too large.")

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()


class DrainingServer(Server):
    """On SIGTERM or SIGINT: unready, no new connections, streams aborted over the window, the end.

    The second signal skips what there is to wait for, the third leaves requests unanswered. uvicorn
    raises the signal again when it is done, so that the status would be 143; contract §7 wants 0,
    so signals are not recorded.
    """

    def __init__(self, config: Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.should_exit = True
        self.force_exit = self._signals > 2
        if self._signals > 1 and self._loop is not None:
            self._loop.call_soon_threadsafe(self._drain.hurry)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if self._signals > 1:  # before there was anything to hurry
            self._drain.hurry()
        await self._drain.announce()
        draining = asyncio.create_task(self._drain.run())
        await super().shutdown(sockets)
        draining.cancel()


def server(app: Any, drain: Drain, window_s: float) -> DrainingServer:
    config = Config(
        app,
        http=AbortableProtocol,
        ws="none",
        interface="asgi3",
        lifespan="on",
        log_config=None,
        access_log=False,  # its lines hold query strings, and so tickets
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # longer than nginx keeps an idle upstream connection
        timeout_graceful_shutdown=int(window_s + AFTER_WINDOW_S) + 1,
    )
    return DrainingServer(config, drain)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return listener
