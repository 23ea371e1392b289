"""Who watches a run: counted over all gateways, for runs that end when nobody does.

A gateway says for itself and all its streams of a run that it is there, again and again, and once
when its last stream has gone. What is said counts for a time: a gateway that dies stops counting.
Runs whose watchers went and came back within the grace period were never abandoned (contract §4).
"""

from common.bus.client import Bus
from common.bus.names import present_key
from common.bus.script import Script


class Presence:
    """`ttl_s`: how long one `here` counts; `grace_s`: how long one counts after it has left;
    `keep_s`: how long it is remembered that somebody has been there at all."""

    def __init__(
        self, bus: Bus, *, ttl_s: float = 30, grace_s: float = 10, keep_s: float = 86_400
    ) -> None:
        self._bus = bus
        self._ttl_s, self._grace_s, self._keep_s = ttl_s, grace_s, max(1, int(keep_s))
        self._script = Script("presence")

    async def here(self, run_id: str, member: str) -> None:
        """To be repeated well within `ttl_s`. Raises Unavailable, as all do."""
        await self._say(run_id, member, self._ttl_s)

    async def left(self, run_id: str, member: str) -> None:
        """The last stream of this member has gone."""
        await self._say(run_id, member, self._grace_s)

    async def abandoned(self, run_id: str) -> bool:
        """Whether somebody has watched the run and nobody does any more."""
        return await self._say(run_id, "", 0) == 0

    async def _say(self, run_id: str, member: str, ttl_s: float) -> int:
        key = present_key(self._bus.prefix, run_id)
        source = self._script.source
        return int(await self._bus.call("EVAL", source, 1, key, member, ttl_s, self._keep_s))
