"""A TCP proxy that delays, stalls and cuts: the network between a process and its server.

Delay is latency, not a lower rate: bytes that enter together leave together, `delay_s` later, each
way. A stalled proxy keeps connections open and passes nothing on, as a lost route does.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_PIECE = 1 << 16
_PIECES = 64  # under way in one direction, before the sender has to wait


class Proxy:
    """`async with Proxy(url) as proxy`: use `proxy.url` instead of `url`."""

    def __init__(self, url: str, *, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.refusing = False  # new connections are closed at once
        self.accepted = 0
        self.loses: Callable[[bytes], bool] = lambda data: False
        """What the server says that never arrives: the connection is reset instead."""
        self._target = urlsplit(url)
        self._moving = asyncio.Event()
        self._moving.set()
        self._links: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        credentials, at, _ = self._target.netloc.rpartition("@")
        self.url = urlunsplit(self._target._replace(netloc=f"{credentials}{at}127.0.0.1:{port}"))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        return len(self._links)

    def stall(self) -> None:
        self._moving.clear()

    def resume(self) -> None:
        self._moving.set()

    async def cut(self) -> None:
        """Resets every connection; what is under way is lost. New ones are accepted."""
        links = list(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        link = asyncio.create_task(self._link(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: until either side ends it, or it is cut."""
        outward: asyncio.StreamWriter | None = None
        try:
            inward, outward = await asyncio.open_connection(
                self._target.hostname, self._target.port
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, outward, lambda data: False))
                group.create_task(self._pump(inward, writer, lambda data: self.loses(data)))
        except* OSError:
            writer.close()  # what was passed on still arrives
        finally:
            for end in (writer, outward):
                if end is not None and not end.is_closing():
                    end.transport.abort()
            await asyncio.sleep(0)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        loses: Callable[[bytes], bool],
    ) -> None:
        """Ends by an error, also when the reader has nothing more: both directions end together."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(reader, under_way, loses))
            group.create_task(self._give(under_way, writer))

    async def _take(
        self,
        reader: asyncio.StreamReader,
        under_way: asyncio.Queue[tuple[float, bytes]],
        loses: Callable[[bytes], bool],
    ) -> None:
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            data = await reader.read(_PIECE)
            if loses(data):
                raise ConnectionError("lost on the way")
            await under_way.put((loop.time() + self.delay_s, data))

    async def _give(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await self._moving.wait()
            if not data:
                raise ConnectionError("the other side has ended")
            writer.write(data)
            await writer.drain()
