"""What users take of the whole installation, counted over all gateways.

`Rate` counts what happens, `Places` what is held. Both are for limits: a server that has forgotten
lets a user have more for a while; whoever asks while it is away (Unavailable) decides by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.bus.client import Bus
from common.bus.names import places_key, rate_key
from common.bus.script import Script

_TRIP = 200  # users in one pipelined trip: others use the connection, too


class Rate:
    """At most `per_minute` of something a user, all of them at once if need be."""

    def __init__(self, bus: Bus, per_minute: int) -> None:
        self._bus, self.per_minute = bus, per_minute
        self._script = Script("rate")

    async def take(self, user: str) -> float:
        """0, and one more is counted; else the seconds after which there is room again."""
        key = rate_key(self._bus.prefix, user)
        return (
            int(await self._bus.call("EVAL", self._script.source, 1, key, self.per_minute)) / 1000
        )


class Places:
    """Each member says how many places a user has with it, which counts for `ttl_s`."""

    def __init__(self, bus: Bus, member: str, *, ttl_s: float) -> None:
        self._bus, self._member, self._ttl_s = bus, member, ttl_s
        self._script = Script("places")

    async def take(self, user: str, count: int, most: int) -> bool:
        """Says `count` here; False, and nothing is said, where that makes more than `most`."""
        return bool(await self._bus.call(*self._call(user, count, most)))

    async def say(self, counts: Mapping[str, int]) -> None:
        """`count` by user; to be repeated well within `ttl_s` while it is not 0."""
        users = sorted(counts)
        for start in range(0, len(users), _TRIP):
            part = users[start : start + _TRIP]
            await self._bus.batch(*[self._call(user, counts[user], 0) for user in part])

    def _call(self, user: str, count: int, most: int) -> tuple[bytes | str | int | float, ...]:
        key = places_key(self._bus.prefix, user)
        return "EVAL", self._script.source, 1, key, self._member, count, self._ttl_s, most
