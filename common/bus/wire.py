"""One Redis connection owned by one process: pipelined exchanges, no pool, no hidden reconnect.

redis-py makes the connection; commands are packed by hiredis and all of an exchange travel at
once: a sixth of what redis-py's own pipelines cost a command.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import Connection
from redis.exceptions import ResponseError

from common.bus.client import owned_connection, translated
from common.errors import Unavailable


class Wire:
    """Not for several callers at once: its owner holds a lock around every method.

    Whatever goes wrong in the middle of an exchange (an error, the time limit, a cancelled caller)
    leaves replies that nobody waits for: the connection is given up and `connected` turns False.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    @property
    def connected(self) -> bool:
        """Until an exchange fails. redis-py would silently reconnect where this is False."""
        return self._connection is not None and self._connection.is_connected

    async def connect(self) -> None:
        """A new connection in place of the present one."""
        await self.aclose()
        self._connection = owned_connection(self._url, self._timeout_s)
        with translated():
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._connection.connect()  # type: ignore[no-untyped-call]
            except BaseException:
                await self.give_up()
                raise

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """The reply to each packed command; an error reply is a ResponseError in its place."""
        if self._connection is None or not self._connection.is_connected:
            raise Unavailable("Redis")
        with translated():
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await _exchange(self._connection, commands)
            except BaseException:
                await self.give_up()
                raise

    async def give_up(self) -> None:
        """Closes without waiting for anything."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        await self.give_up()
        await asyncio.sleep(0)  # the transport says goodbye in the next turn of the loop


async def _exchange(connection: Connection, commands: Sequence[bytes]) -> list[Any]:
    await connection.send_packed_command(commands)
    return [await _reply(connection) for _ in commands]


async def _reply(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def packed(*words: bytes | str | int) -> bytes:
    """A command, ready for an exchange."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return command
