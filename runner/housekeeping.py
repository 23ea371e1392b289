"""What every runner does now and again beside executing: clean, sweep, expire, look who watches.

None of it may end a process that executes: what fails is logged, and the next look goes on.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

from common.errors import Unavailable

log = structlog.get_logger(__name__)


async def keep_house(
    task: str, act: Callable[[], Awaitable[object]], interval_s: float, *, spread: float = 0.2
) -> NoReturn:
    """Ends by cancellation; waits out a server that is away. `spread`: the part of the interval by
    which pauses differ, so that runners do not look in step."""
    while True:
        await asyncio.sleep(interval_s * random.uniform(1 - spread, 1 + spread))
        try:
            await act()
        except Unavailable as error:
            log.warning("housekeeping_failed", act=task, what=error.what)
        except Exception:
            log.exception("housekeeping_failed", act=task)
