"""Waiting at the start of a process for servers that are started beside it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from common.errors import Unavailable

PAUSE_S: Final = 0.05


async def when_available(check: Callable[[], Awaitable[None]], patience_s: float) -> None:
    """Until `check` passes; its Unavailable is raised once `patience_s` is over, others at once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            return await check()
        except Unavailable:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(PAUSE_S)
