"""Says to Redis what is so here: at once what has changed, at every beat all of it again.

What is said counts for a time only (common/bus), so a gateway that dies stops counting by itself, a
server that has forgotten knows all again with the next beat, and what was said of names that have
gone expires. While Redis is away it is said again and again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Set
from itertools import islice
from typing import Final

import structlog

from common.errors import Unavailable

logger = structlog.get_logger(__name__)

GONE_MAX: Final = 10_000
_RETRY_S = 0.5


class Beat:
    """`here()`: the names of which something is so now. `say(names)` tells of these what is so at
    that moment, of some that it is no more; it may raise Unavailable. `what` names it in the log.

    Of names that have gone while Redis is away only `gone_max` are remembered.
    """

    def __init__(
        self,
        what: str,
        here: Callable[[], Set[str]],
        say: Callable[[set[str]], Awaitable[None]],
        *,
        interval_s: float,
        gone_max: int = GONE_MAX,
    ) -> None:
        self._what, self._here, self._say = what, here, say
        self._interval_s, self._gone_max = interval_s, gone_max
        self._unsaid: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def unsaid(self) -> Set[str]:
        return self._unsaid

    def changed(self, name: str) -> None:
        self._unsaid.add(name)
        self._changed.set()

    async def run(self) -> None:
        """Ends by cancellation only."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._until_changed(due - loop.time())
            if loop.time() >= due:
                self._unsaid |= self._here()
                due = loop.time() + self._interval_s * random.uniform(0.8, 1.0)
            await self._tell()

    async def _until_changed(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _tell(self) -> None:
        self._changed.clear()
        unsaid, self._unsaid = self._unsaid, set()
        try:
            await self._say(unsaid)
        except Unavailable as error:
            logger.warning("redis cannot be told", what=self._what, cause=str(error))
            self._keep(unsaid)
            await asyncio.sleep(_RETRY_S)
            self._changed.set()

    def _keep(self, unsaid: set[str]) -> None:
        later = self._unsaid | unsaid
        here = later & self._here()
        self._unsaid = here | set(islice(later - here, self._gone_max))
