"""uvicorn, taught four things: to abort a response, to drain streams, to bound a request's head,
and to wait no longer for the rest of a request than so long.

A response that is not ended but whose connection closes is seen by every client and proxy as a cut
(no last chunk), which is what a drain or a slow client needs. uvicorn offers no way for it, so the
protocol hands the app its connection as an ASGI extension.

A client owes a whole head from its first byte on (from connecting on, the first time), and of a
body the next bytes. Whoever owes for too long gets 408, and the connection is closed. Nothing is
owed while we do not read, nor while a response is on its way or being made: streams and calls that
wait may last.
"""

import asyncio
import socket
from types import FrameType
from typing import Any

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.problems import timed_out
from gateway.sse import ABORT_EXTENSION, Drain

HEAD_BYTES_MAX = 64 << 10
_SEND_BUFFER_BYTES = 256 << 10  # kernel memory that one client which reads nothing can hold
_BACKLOG = 2048
_FLUSH_S = 1.0  # an abort lets written frames out for so long
AFTER_WINDOW_S = 5.0  # for requests other than streams, once all streams are gone


class AbortableProtocol(HttpToolsProtocol):
    """One connection. Its app finds `abort(now)` under `steadyrun.abort` in `extensions`."""

    receive_timeout_s = 30.0

    # of the class until they are needed: there may be tens of thousands of connections
    _lost: asyncio.Future[None] | None = None
    _head_bytes: int | None = 0  # None: not reading a head
    _running: RequestResponseCycle | None = None
    _owed_since: float | None = None
    _reminder: asyncio.TimerHandle | None = None

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._owe()

    def on_message_begin(self) -> None:
        self._owe()
        super().on_message_begin()
        self.scope["extensions"] = {ABORT_EXTENSION: self.abort}  # type: ignore[dict-item]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the request that was parsed last, which may wait behind this one."""
        super().connection_lost(exc)
        self._owe_nothing()
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
        if self._head_bytes is None or self._owed_since is None:
            self._owe()
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response("Request head too large.")

    def on_headers_complete(self) -> None:
        self._owe()
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._owe_nothing()
        self._head_bytes = 0
        super().on_message_complete()

    def _owe(self) -> None:
        """From now on."""
        self._owed_since = self.loop.time()
        if self._reminder is None:
            self._remind(self.receive_timeout_s)

    def _owe_nothing(self) -> None:
        self._owed_since = None
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder = None

    def _remind(self, after_s: float) -> None:
        self._reminder = self.loop.call_later(after_s, self._look)

    def _look(self) -> None:
        self._reminder = None
        if self._owed_since is None or self.transport.is_closing():
            return
        if self._waits_for_us:
            self._owe()
        elif (left_s := self._owed_since + self.receive_timeout_s - self.loop.time()) > 0:
            self._remind(left_s)
        else:
            self._give_up()

    @property
    def _waits_for_us(self) -> bool:
        """What is owed may be a further request, behind the one that is being answered."""
        if self.flow.read_paused:
            return True
        running = self._running
        if running is None or running.response_complete:
            return False
        return running.response_started or not running.more_body

    def _give_up(self) -> None:
        """408, unless there was no byte of a request, or it was answered without its body."""
        running = self._running
        unanswered = running is not None and not running.response_complete
        if unanswered or self._head_bytes:
            self.transport.write(timed_out(self.receive_timeout_s))
        if unanswered and running is not None:
            running.disconnected = True
            running.message_event.set()
        self.transport.close()


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


def server(
    app: Any, drain: Drain, window_s: float, *, receive_timeout_s: float = 30.0
) -> DrainingServer:
    class Protocol(AbortableProtocol):
        pass

    Protocol.receive_timeout_s = receive_timeout_s
    config = Config(
        app,
        http=Protocol,
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
