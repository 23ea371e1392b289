"""Reading and writing that outlasts a Postgres that is away for a while."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from common.db.engine import Connection, Database
from common.errors import Unavailable

AGAIN_S: Final = 0.2

T = TypeVar("T")

Act = Callable[[Connection], Awaitable[T]]
Pause = Callable[[float], Awaitable[None]]
"""Lets some seconds pass, or raises: there is no reason to wait any longer."""


async def patiently(db: Database, act: Act[T], pause: Pause = asyncio.sleep) -> T:
    """`act` on a connection, again and again until Postgres has answered; it may be done twice."""
    while True:
        try:
            async with db.connect() as connection:
                return await act(connection)
        except Unavailable:
            await pause(AGAIN_S)
