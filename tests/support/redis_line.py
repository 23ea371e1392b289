"""The way from processes to their Redis, which knows live connections from others.

Whatever sends SUBSCRIBE is live: it can be made deaf, or slow, while all else goes on; and the line
can be switched over to another server, as the address of a replicated Redis is.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from urllib.parse import urlsplit

from tests.support.proxy import _PIECE, Proxy


class _Link:
    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.live = False
        self.hears = asyncio.Event()
        self.hears.set()


_LINK: ContextVar[_Link] = ContextVar("link")


class RedisLine(Proxy):
    """`live_delay_s` is added to live connections, each way."""

    def __init__(self, url: str, *, delay_s: float = 0.0, live_delay_s: float = 0.0) -> None:
        super().__init__(url, delay_s=delay_s)
        self.live_delay_s = live_delay_s
        self._all: set[_Link] = set()

    def deafen(self) -> None:
        """Nothing that the server says on the present live connections arrives any more, and they
        stay open. New ones are well."""
        for link in self._all:
            if link.live:
                link.hears.clear()

    async def switch(self, url: str) -> None:
        """Every connection is cut; new ones lead to another server."""
        self._target = urlsplit(url)
        await self.cut()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        _LINK.set(link)
        self._all.add(link)
        try:
            await super()._link(reader, writer)
        finally:
            self._all.discard(link)

    async def _take(
        self,
        reader: asyncio.StreamReader,
        under_way: asyncio.Queue[tuple[float, bytes]],
        loses: Callable[[bytes], bool],
    ) -> None:
        loop, link = asyncio.get_running_loop(), _LINK.get()
        data = b"-"
        while data:
            data = await reader.read(_PIECE)
            if loses(data):
                raise ConnectionError("lost on the way")
            link.live = link.live or b"\r\nSUBSCRIBE\r\n" in data
            delay_s = self.delay_s + (self.live_delay_s if link.live else 0.0)
            await under_way.put((loop.time() + delay_s, data))

    async def _give(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop, link = asyncio.get_running_loop(), _LINK.get()
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(due - loop.time())
            await self._moving.wait()
            if writer is link.client:
                await link.hears.wait()
            if not data:
                raise ConnectionError("the other side has ended")
            writer.write(data)
            await writer.drain()
