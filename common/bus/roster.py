"""Which gateways are there: each says so again and again, and counts for a time (contract §4).

For people only: nothing is decided by it. The times are the server's, so that clocks of hosts do
not matter. One that died is forgotten by whoever reads next.
"""

from typing import Any

import orjson

from common.bus.client import Bus
from common.bus.names import roster_key

_KEPT_S = 3600  # the whole roster, when nobody says anything any more


class Roster:
    """`ttl_s`: how long one word counts. All methods raise Unavailable."""

    def __init__(self, bus: Bus, *, ttl_s: float) -> None:
        self._bus, self._ttl_s = bus, ttl_s
        self._key = roster_key(bus.prefix)

    async def say(self, member: str, facts: dict[str, Any]) -> None:
        """To be repeated well within `ttl_s`."""
        now = _seconds(await self._bus.call("TIME"))
        word = orjson.dumps({"at": now, "facts": facts})
        await self._bus.batch(("HSET", self._key, member, word), ("EXPIRE", self._key, _KEPT_S))

    async def leave(self, member: str) -> None:
        await self._bus.call("HDEL", self._key, member)

    async def present(self) -> list[dict[str, Any]]:
        """What each that is there said last."""
        time, flat = await self._bus.batch(("TIME",), ("HGETALL", self._key))
        now = _seconds(time)
        words = {flat[n]: orjson.loads(flat[n + 1]) for n in range(0, len(flat), 2)}
        gone = [member for member, word in words.items() if word["at"] < now - self._ttl_s]
        if gone:
            await self._bus.call("HDEL", self._key, *gone)
        return [word["facts"] for member, word in words.items() if member not in gone]


def _seconds(time: list[bytes]) -> float:
    return int(time[0]) + int(time[1]) / 1e6
