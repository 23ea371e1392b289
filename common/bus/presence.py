"""Who watches a run: counted over all gateways, for runs that end when nobody does (contract §4).

A gateway says for itself and all its streams of a run that it is there, again and again, and once
when its last stream has gone. What is said counts for a time, so a gateway that dies stops counting
by itself. That somebody has watched at all is remembered for longer.

What this tells is no proof of absence: a Redis that restarted, was flushed or lost its tail has
forgotten who is there until every gateway has said it again. `Look.identity` and `Attended.since`
change with such a loss; whoever acts on absence waits it out (runner/attendance).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from common.bus.client import Bus
from common.bus.names import head_key, present_key
from common.bus.script import Script
from common.bus.wire import identity_of

_TRIP = 200  # runs in one pipelined trip: others use the connection, too

Act = Literal["here", "left", "look"]


class Attended(NamedTuple):
    """`present`: how many gateways have streams of the run; -1: nobody is known to have ever had.

    `since`: names the memory this comes from; another one means that knowledge was lost between.
    """

    present: int
    since: str


@dataclass(frozen=True, slots=True)
class Look:
    """`identity` is that of the server which answered."""

    identity: str
    runs: dict[str, Attended]


class Presence:
    """`ttl_s`: how long one `here` counts; `keep_s`: how long it is remembered that somebody has
    been there. All methods raise Unavailable, and then some of it may have been done.
    """

    def __init__(self, bus: Bus, *, ttl_s: float, keep_s: float = 86_400) -> None:
        self._bus = bus
        self._ttl_s, self._keep_s = ttl_s, max(1, int(keep_s))
        self._script = Script("presence")

    async def say(self, member: str, here: Iterable[str] = (), left: Iterable[str] = ()) -> None:
        """`here`: to be repeated well within `ttl_s`. `left`: the member's last stream has gone."""
        await self._each("here", sorted(here), member)
        await self._each("left", sorted(left), member)

    async def look(self, run_ids: Iterable[str]) -> Look:
        """A server that changes between two trips counts as another one."""
        identities, seen = await self._each("look", sorted(run_ids), "")
        return Look(" ".join(sorted(identities)), seen)

    async def _each(
        self, act: Act, run_ids: Sequence[str], member: str
    ) -> tuple[set[str], dict[str, Attended]]:
        identities: set[str] = set()
        seen: dict[str, Attended] = {}
        for start in range(0, len(run_ids), _TRIP):
            part = run_ids[start : start + _TRIP]
            calls = [self._call(act, run_id, member) for run_id in part]
            server, _, *answers = await self._bus.batch(_INFO, self._load, *calls)
            identities.add(identity_of(server))
            answered = zip(part, answers, strict=True)
            seen |= {run_id: Attended(int(n), since.decode()) for run_id, (n, since) in answered}
        return identities, seen

    @property
    def _load(self) -> tuple[bytes | str, ...]:
        """With every trip: a server forgets its scripts when it is restarted."""
        return "SCRIPT", "LOAD", self._script.source

    def _call(self, act: Act, run_id: str, member: str) -> tuple[bytes | str | int | float, ...]:
        prefix = self._bus.prefix
        keys = present_key(prefix, run_id), head_key(prefix, run_id)
        return "EVALSHA", self._script.sha, 2, *keys, act, member, self._ttl_s, self._keep_s


_INFO = ("INFO", "server")
