"""Says which runs are watched here, for those that end when nobody watches (contract §4).

This process is one member of each such run while it has a stream of it. That is said when the first
stream comes, at every beat, and unsaid when the last one goes; whoever looks takes not knowing for
no absence (runner/absence).
"""

import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial

from common.bus.presence import Presence
from gateway.services.beat import GONE_MAX, Beat


class Watching:
    """`beat` is to be run; what it says counts until it expires."""

    def __init__(
        self, presence: Presence, *, beat_interval_s: float, gone_max: int = GONE_MAX
    ) -> None:
        self._presence, self._member = presence, uuid.uuid4().hex
        self._streams: Counter[str] = Counter()
        self.beat = Beat(
            "who watches",
            self._streams.keys,
            self._say,
            interval_s=beat_interval_s,
            gone_max=gone_max,
        )

    def enter(self, run_id: str) -> Callable[[], None]:
        """A stream of the run has come; to be called once when it has gone."""
        self._streams[run_id] += 1
        if self._streams[run_id] == 1:
            self.beat.changed(run_id)
        return partial(self._leave, run_id)

    def _leave(self, run_id: str) -> None:
        self._streams[run_id] -= 1
        if not self._streams[run_id]:
            del self._streams[run_id]
            self.beat.changed(run_id)

    async def _say(self, run_ids: set[str]) -> None:
        here = run_ids & self._streams.keys()
        await self._presence.say(self._member, here, run_ids - here)
