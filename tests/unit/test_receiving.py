"""How long a client may owe the rest of a request (gateway/server), by a clock of the test."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from gateway.server import AbortableProtocol

LIMIT_S = AbortableProtocol.receive_timeout_s
HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


class Handle:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """What the protocol uses of a loop. Tasks are never started."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handles: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_later(self, after_s: float, call: Callable[[], None]) -> Handle:
        self.handles.append(Handle(self.now + after_s, call))
        return self.handles[-1]

    def create_task(self, task: Coroutine[Any, Any, None], **_: Any) -> "Clock":
        task.close()
        return self

    def add_done_callback(self, _: Any) -> None: ...

    def create_future(self) -> "asyncio.Future[None]":
        return asyncio.Future(loop=asyncio.get_running_loop())

    def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [h for h in self.handles if not h.cancelled and h.at <= until]:
            first = min(due, key=lambda handle: handle.at)
            self.handles.remove(first)
            self.now = first.at
            first.call()
        self.now = until

    @property
    def armed(self) -> int:
        return sum(not handle.cancelled for handle in self.handles)


class Wire:
    """What the protocol uses of a transport."""

    def __init__(self) -> None:
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, _: str) -> None:
        return None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    def __init__(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        self.clock, self.wire = Clock(), Wire()
        config = Config(app, lifespan="off", ws="none", log_config=None, timeout_keep_alive=75)
        loop, transport = (any_(self.clock), any_(self.wire))
        self.protocol = AbortableProtocol(config, ServerState(), {}, loop)
        self.protocol.connection_made(transport)

    def send(self, data: bytes, then_s: float = 0.0) -> "Connection":
        self.protocol.data_received(data)
        self.clock.pass_by(then_s)
        return self

    def answer(self) -> "Connection":
        """The request that is under way has its whole answer."""
        running = self.protocol._running
        assert running is not None
        running.response_started = running.response_complete = True
        self.protocol.on_response_complete()
        return self

    def begin_answer(self) -> "Connection":
        assert self.protocol._running is not None
        self.protocol._running.response_started = True
        return self


def any_(value: Any) -> Any:
    return value


def test_a_connection_without_a_request_is_closed_without_an_answer() -> None:
    made = Connection()
    made.clock.pass_by(LIMIT_S - 1)
    assert not made.wire.is_closing()
    made.clock.pass_by(1)
    assert (made.wire.is_closing(), made.wire.written) == (True, b"")


def test_a_head_has_its_time_as_a_whole() -> None:
    made = Connection()
    made.clock.pass_by(LIMIT_S - 1)
    made.send(GET[:17], LIMIT_S - 1)  # from its first byte on
    assert not made.wire.is_closing()
    made.send(b"x: y\r\n", 0.5)
    assert not made.wire.is_closing()
    made.send(b"x: y\r\n", 0.5)
    assert made.wire.is_closing()
    assert made.wire.written.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b'"code":"BAD_REQUEST"' in made.wire.written


def test_a_body_has_its_time_between_two_parts() -> None:
    made = Connection().send(HEAD, LIMIT_S - 1)
    for _ in range(3):
        made.send(b"x", LIMIT_S - 1)
    assert not made.wire.is_closing()
    made.clock.pass_by(1)
    assert made.wire.is_closing()
    assert b" 408 " in made.wire.written
    running = made.protocol._running
    assert running is not None
    assert running.disconnected


def test_a_body_that_was_refused_and_never_comes_gets_no_second_answer() -> None:
    made = Connection().send(HEAD).answer()
    made.clock.pass_by(LIMIT_S)
    assert (made.wire.is_closing(), made.wire.written) == (True, b"")


def test_a_whole_request_may_be_worked_on_for_ever() -> None:
    made = Connection().send(GET)
    assert made.clock.armed == 0
    made.clock.pass_by(100 * LIMIT_S)
    assert not made.wire.is_closing()


def test_what_comes_behind_a_stream_does_not_cut_it() -> None:
    for behind in (GET[:10], HEAD + b"x", b"\r\n"):
        made = Connection().send(GET).begin_answer().send(behind)
        made.clock.pass_by(100 * LIMIT_S)
        assert not made.wire.is_closing()


def test_a_stream_whose_request_has_a_body_that_never_comes_is_not_cut() -> None:
    made = Connection().send(HEAD).begin_answer()
    made.clock.pass_by(100 * LIMIT_S)
    assert not made.wire.is_closing()


def test_while_we_do_not_read_nothing_is_owed() -> None:
    made = Connection().send(HEAD)
    made.protocol.flow.pause_reading()
    made.clock.pass_by(100 * LIMIT_S)
    assert not made.wire.is_closing()
    made.protocol.flow.resume_reading()
    made.clock.pass_by(2 * LIMIT_S)
    assert made.wire.is_closing()


def test_a_connection_that_is_kept_may_be_idle_as_long_as_that_is_allowed() -> None:
    made = Connection().send(GET).answer()
    made.clock.pass_by(LIMIT_S + 1)
    assert not made.wire.is_closing()
    for begun in (GET[:10], b"\r\n"):
        made = Connection().send(GET).answer().send(begun, LIMIT_S)
        assert made.wire.is_closing()
        assert b" 408 " in made.wire.written


async def test_a_connection_that_is_gone_leaves_no_timer() -> None:
    made = Connection().send(HEAD)
    made.protocol.connection_lost(None)
    assert made.clock.armed == 0
