"""Opening streams: a place first, then the follower with its first page, then the response.

Everything that can be refused is refused here, before the response begins (contract §3): a full
house, a draining gateway, history that is gone.
"""

import asyncio
from collections.abc import Mapping

from common.db.runs import Run
from common.errors import Refused
from common.runs import TERMINAL_STATUSES
from gateway.metrics import Metrics
from gateway.services.follow import Hub
from gateway.services.follower import Follower
from gateway.services.limits import StreamPlaces
from gateway.services.ring import Until
from gateway.services.watching import Watching
from gateway.sse import Drain, EventStream, Pace, Slot


class Streams:
    def __init__(
        self,
        hub: Hub,
        places: StreamPlaces,
        drain: Drain,
        pace: Pace,
        metrics: Metrics,
        watching: Watching,
    ) -> None:
        self._hub, self._places, self._drain = hub, places, drain
        self._pace, self._metrics, self._watching = pace, metrics, watching

    async def reserve(self, user: str) -> Slot:
        """A place for one stream; whoever does not hand it to `open` frees it."""
        self._drain.refuse_new()
        return await self._places.take(user)

    async def open(
        self,
        slot: Slot,
        run: Run,
        position: int,
        until: Until,
        headers: Mapping[str, str] | None = None,
    ) -> EventStream:
        """The response that streams the run after `position`. It owns the slot from here on."""
        began_at = asyncio.get_running_loop().time()
        if run.on_disconnect == "cancel" and run.status not in TERMINAL_STATUSES:
            slot.on_free(self._watching.enter(run.id))
        try:
            follower = await self._join(run, position, until)
        except BaseException:
            slot.free()
            raise
        return EventStream(
            follower,
            slot,
            pace=self._pace,
            drain=self._drain,
            metrics=self._metrics,
            began_at=began_at,
            headers=headers,
        )

    async def _join(self, run: Run, position: int, until: Until) -> Follower:
        follower = await self._hub.follow(run.id, position, until, archived=run.last_sequence)
        try:
            if not await follower.prime() and position < run.last_sequence:
                raise Refused("HISTORY_EXPIRED", "events after this sequence are not kept")
        except BaseException as error:
            follower.close()
            outcome = "gone" if isinstance(error, Refused) else "failed"
            self._metrics.resumes.labels(outcome).inc()
            raise
        self._metrics.resumes.labels("resumed" if position else "whole").inc()
        return follower
