"""Waiting for what must come to pass, without guessing how long it takes."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], bool | Awaitable[bool]], *, within_s: float = 10.0) -> None:
    """Returns as soon as `holds()` is true; TimeoutError if that does not happen in time."""
    async with asyncio.timeout(within_s):
        while True:
            held = holds()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.002)
