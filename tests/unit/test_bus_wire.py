"""Connections to Redis that end at awkward moments, against a server that is played here.

On uvloop, on which the product runs: there a write to a connection that has just gone raises
RuntimeError, where asyncio's own loop says nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from common.bus.client import Bus
from common.bus.fanout import Subscriptions
from common.bus.log import LogConnection
from common.bus.wire import Wire, packed
from common.errors import Unavailable

TIMEOUT_S = 5.0
INFO = b"run_id:abc\r\n"
GREETING = b"$%d\r\n%b\r\n$1\r\na\r\n$1\r\na\r\n" % (len(INFO), INFO)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def on_uvloop(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.close()

    listening = await asyncio.start_server(served, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    try:
        yield f"redis://{host}:{port}"
    finally:
        listening.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_a_command_on_a_connection_that_has_just_gone_is_unavailable() -> None:
    async def test() -> None:
        async with server(silent) as url:
            wire = Wire(url, TIMEOUT_S)
            await wire.connect()
            assert wire._line is not None
            wire._line._writer.transport.abort()  # as when the server resets it
            await asyncio.sleep(0)  # lost, and nobody has been told yet
            with pytest.raises(Unavailable):
                await wire.exchange([packed("PING")])
            await wire.aclose()

    on_uvloop(test())


def test_a_channel_can_be_followed_and_left_when_the_connection_has_just_gone() -> None:
    async def test() -> None:
        async with server(silent) as url:
            bus = Bus(url)
            heard = Subscriptions(
                url, bus, prefix="", on_message=lambda *_: None, on_confirmed=lambda _: None
            )
            running = asyncio.create_task(heard.run())
            while heard._writer is None:
                await asyncio.sleep(0)
            heard._writer.transport.abort()
            await asyncio.sleep(0)
            assert heard._writer is not None
            confirmed = heard.subscribe("a")
            assert not confirmed.done()
            heard.unsubscribe("a")
            running.cancel()
            await asyncio.wait({running})
            await bus.aclose()

    on_uvloop(test())


def test_whoever_gives_up_while_the_log_is_greeted_leaves_it_usable() -> None:
    async def test() -> None:
        asked = asyncio.Event()
        answers = iter([b"", GREETING])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answer = next(answers)
            await reader.readuntil(b"INFO")
            asked.set()
            writer.write(answer)
            await reader.read()

        async with server(serve) as url:
            log = LogConnection(url, timeout_s=TIMEOUT_S)
            first = asyncio.create_task(log.connect())
            await asked.wait()
            first.cancel()
            await asyncio.wait({first})
            await log.connect()
            assert (log.identity, log.generation) == ("abc", 1)
            await log.aclose()

    on_uvloop(test())
