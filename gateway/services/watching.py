"""Says which runs are watched here, for those that end when nobody watches (contract §4).

This process is one member of each such run while it has a stream of it. That is said when the first
stream comes, at every beat, and unsaid when the last one goes. While Redis is away it is said again
and again; whoever looks takes not knowing for no absence (runner/absence).
"""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice

import structlog

from common.bus.presence import Presence
from common.errors import Unavailable

logger = structlog.get_logger(__name__)

_RETRY_S = 0.5
GONE_MAX = 10_000  # runs left while Redis is away, whose leaving is still to be said


class Watching:
    """`run` ends by cancellation only; what it says counts until it expires."""

    def __init__(
        self, presence: Presence, *, beat_interval_s: float, gone_max: int = GONE_MAX
    ) -> None:
        self._presence, self._beat_interval_s = presence, beat_interval_s
        self._gone_max = gone_max
        self._member = uuid.uuid4().hex
        self._streams: Counter[str] = Counter()
        self._unsaid: set[str] = set()
        self._changed = asyncio.Event()

    def enter(self, run_id: str) -> Callable[[], None]:
        """A stream of the run has come; to be called once when it has gone."""
        self._streams[run_id] += 1
        if self._streams[run_id] == 1:
            self._say_soon(run_id)
        return partial(self._leave, run_id)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._until_changed(due - loop.time())
            if loop.time() >= due:
                self._unsaid |= self._streams.keys()
                due = loop.time() + self._beat_interval_s * random.uniform(0.8, 1.0)
            await self._say()

    def _leave(self, run_id: str) -> None:
        self._streams[run_id] -= 1
        if not self._streams[run_id]:
            del self._streams[run_id]
            self._say_soon(run_id)

    def _say_soon(self, run_id: str) -> None:
        self._unsaid.add(run_id)
        self._changed.set()

    async def _until_changed(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _say(self) -> None:
        """What is said is what is so at this moment; what cannot be said is said later."""
        self._changed.clear()
        unsaid, self._unsaid = self._unsaid, set()
        here = unsaid & self._streams.keys()
        try:
            await self._presence.say(self._member, here, unsaid - here)
        except Unavailable as error:
            logger.warning("presence cannot be said", error=str(error))
            self._say_later(unsaid)
            await asyncio.sleep(_RETRY_S)
            self._changed.set()

    def _say_later(self, unsaid: set[str]) -> None:
        """However long Redis is away: of runs that were left only so many are remembered. What was
        said of the others expires by itself."""
        later = self._unsaid | unsaid
        here = later & self._streams.keys()
        self._unsaid = here | set(islice(later - here, self._gone_max))
