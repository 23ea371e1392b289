"""One Redis connection owned by one process: pipelined exchanges, no pool, no hidden reconnect.

redis-py makes the connection (URL, TLS, AUTH, SELECT); what travels on it is packed and parsed by
hiredis here, a sixth of what redis-py's own pipelines cost a command. Any number of callers may be
under way at once: replies come in the order of the commands, so a server far away costs each of
them one round trip and not one after the other.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import Connection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    RedisError,
    ResponseError,
)

from common.bus.connection import owned_connection, translated
from common.errors import Unavailable


class Wire:
    """`exchange` may be called by many at once; `connect` by one, as its owner sees to.

    A failure on the way (an error, the time limit) leaves replies that nobody can tell apart: the
    connection is given up, all who wait on it fail, and `connected` turns False. A caller that is
    cancelled harms nobody: its commands still run, and its replies are dropped.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._line: _Line | None = None

    @property
    def connected(self) -> bool:
        """Until an exchange fails, or the server has closed the connection."""
        return self._line is not None and not self._line.closed

    async def connect(self) -> None:
        """A new connection in place of the present one. Raises Unavailable."""
        await self.aclose()
        connection = owned_connection(self._url, self._timeout_s)
        with translated():
            try:
                async with asyncio.timeout(self._timeout_s):
                    await connection.connect()  # type: ignore[no-untyped-call]
                self._line = _Line(connection)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """The reply to each packed command; an error reply is a ResponseError in its place, except
        that a server which is loading or lets nobody in is as good as none. Raises Unavailable."""
        line = self._line
        if line is None or line.closed:
            raise Unavailable("Redis")
        with translated():
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await line.ask(commands)
            except Exception as error:
                line.close(error)
                raise

    def give_up(self) -> None:
        """Closes without waiting for anything."""
        if self._line is not None:
            self._line.close(ConnectionError("given up"))

    async def aclose(self) -> None:
        self.give_up()
        if self._line is not None:
            await self._line.ended()


class _Waiter:
    """An exchange under way: as many replies as it has commands."""

    def __init__(self, count: int) -> None:
        self.replies: list[Any] = []
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._count = count

    def take(self, reply: Any) -> bool:
        """Whether that was the last one."""
        self.replies.append(reply)
        if len(self.replies) < self._count:
            return False
        if not self.done.done():  # else its caller has gone
            self.done.set_result(self.replies)
        return True


class _Line:
    """A connection while it is good, and who waits for replies on it, in order."""

    def __init__(self, connection: Connection) -> None:
        reader, writer = connection._reader, connection._writer
        assert reader is not None
        assert writer is not None
        self.closed = False
        self._connection, self._writer = connection, writer
        self._waiting: deque[_Waiter] = deque()
        self._reading = asyncio.create_task(self._read(reader))

    async def ask(self, commands: Sequence[bytes]) -> list[Any]:
        if not commands:
            return []
        if self._writer.is_closing():  # not read to its end yet; uvloop refuses to write then
            raise ConnectionError("closed")
        waiter = _Waiter(len(commands))
        self._waiting.append(waiter)
        self._writer.write(b"".join(commands))
        return await waiter.done

    def close(self, error: Exception) -> None:
        """All who wait fail with it; nothing, if it is closed."""
        if self.closed:
            return
        self.closed = True
        self._writer.transport.abort()
        for waiter in self._waiting:
            if not waiter.done.done():
                waiter.done.set_exception(ConnectionError(str(error)))
                waiter.done.exception()  # seen, also where its caller has gone
        self._waiting.clear()

    async def ended(self) -> None:
        """After `close`: the transport says goodbye in the next turns of the loop."""
        await asyncio.wait({self._reading})
        await asyncio.sleep(0)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        parser = hiredis.Reader(replyError=_error)
        try:
            while data := await reader.read(1 << 18):
                parser.feed(data)
                while (reply := parser.gets()) is not False:
                    self._take(reply)
            raise ConnectionError("closed by the server")
        except Exception as error:
            self.close(error)
        finally:
            await self._connection.disconnect(nowait=True)

    def _take(self, reply: Any) -> None:
        if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            raise reply
        if not self._waiting:
            raise ConnectionError("a reply that nobody asked for")
        if self._waiting[0].take(reply):
            self._waiting.popleft()


def packed(*words: bytes | str | int | float) -> bytes:
    """A command, ready for an exchange."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return command


def identity_of(section: bytes) -> str:
    """`run_id` in the reply to INFO server: another one at each start of a server."""
    fields = dict(line.split(b":", 1) for line in section.split(b"\r\n") if b":" in line)
    return fields[b"run_id"].decode()


def _error(text: str) -> Exception:
    """As redis-py names error replies: some of them are connection errors there, and so here."""
    code = text.partition(" ")[0]
    return _KINDS.get(code, ResponseError)(text)


_KINDS: dict[str, type[RedisError]] = {
    "LOADING": BusyLoadingError,
    "NOAUTH": AuthenticationError,
    "WRONGPASS": AuthenticationError,
    "NOSCRIPT": NoScriptError,
}
