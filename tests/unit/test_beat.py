"""Saying what is so, to a server that may be away (gateway/services/beat)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.errors import Unavailable
from gateway.services.beat import Beat
from tests.support.until import until


class Server:
    """Notes what it was told; `away`: it cannot be told."""

    def __init__(self, *here: str) -> None:
        self.here, self.away = set(here), False
        self.told: list[set[str]] = []

    async def say(self, names: set[str]) -> None:
        if self.away:
            raise Unavailable("Redis")
        self.told.append(names)


@asynccontextmanager
async def beating(server: Server, interval_s: float = 3600) -> AsyncIterator[Beat]:
    beat = Beat("it", lambda: server.here, server.say, interval_s=interval_s, gone_max=2)
    running = asyncio.create_task(beat.run())
    await until(lambda: bool(server.told))
    yield beat
    running.cancel()
    await asyncio.wait({running})


async def test_all_of_it_is_said_first_and_then_what_changes() -> None:
    server = Server("a", "b")
    async with beating(server) as beat:
        beat.changed("c")
        beat.changed("d")
        await until(lambda: len(server.told) == 2)
    assert server.told == [{"a", "b"}, {"c", "d"}]


async def test_all_of_it_is_said_again_at_every_beat() -> None:
    server = Server("a", "b")
    async with beating(server, interval_s=0.01):
        await until(lambda: len(server.told) >= 3)
    assert server.told[:3] == [{"a", "b"}] * 3


async def test_what_could_not_be_said_is_said_later_and_of_what_has_gone_only_so_much() -> None:
    server = Server("a")
    async with beating(server) as beat:
        server.away = True
        server.here |= {"b"}
        for name in ("b", "x", "y", "z"):
            beat.changed(name)
        await until(lambda: len(beat.unsaid) == 3)
        server.away = False
        await until(lambda: len(server.told) == 2)
    assert "b" in server.told[1]
    assert len(server.told[1] & {"x", "y", "z"}) == 2
