"""A hub over real servers whose live messages can be dropped, and readers of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from common.bus.client import Bus
from common.bus.fanout import Subscriptions
from common.bus.log import LogConnection, LogReader
from common.db.engine import Database
from gateway.metrics import Metrics
from gateway.services.follow import Channels, Hub
from gateway.services.follower import Follower
from gateway.services.history import History
from tests.support import rows
from tests.support.counted import counted
from tests.support.fake_runner import FakeRun, FakeRunner
from tests.support.until import until

NEVER_S = 3600.0


class House:
    """A hub over real servers, whose live messages can be dropped."""

    def __init__(self, database: Database, redis_url: str, prefix: str) -> None:
        self.db, self.redis_url, self.prefix = database, redis_url, prefix
        self.metrics = Metrics()
        self.drops: Callable[[int], bool] = lambda number: False
        self.heard = 0

    @asynccontextmanager
    async def hub(
        self, *, live_url: str | None = None, probe_interval_s: float = 0.2, **options: Any
    ) -> AsyncIterator[Hub]:
        bus = Bus(self.redis_url, prefix=self.prefix, timeout_s=0.5)
        self.live_url = live_url or self.redis_url
        given = {"ring_bytes_max": 1 << 16, "linger_s": 0.01}
        given |= {"check_interval_s": NEVER_S, "watch_interval_s": NEVER_S}
        self._bus, self._probe_interval_s = bus, probe_interval_s
        hub = Hub(
            History(self.db, LogReader(bus), self.metrics),
            self._connect,
            self.metrics,
            prefix=self.prefix,
            **{**given, **options},
        )
        running = asyncio.create_task(hub.run())
        await until(lambda: hub.healthy)
        try:
            yield hub
        finally:
            running.cancel()
            await asyncio.wait({running})
            await bus.aclose()

    def _connect(
        self, on_message: Callable[[str, bytes], None], on_confirmed: Callable[[str], None]
    ) -> Channels:
        def lossy(channel: str, message: bytes) -> None:
            self.heard += 1
            if not self.drops(self.heard):
                on_message(channel, message)

        return Subscriptions(
            self.live_url,
            self._bus,
            prefix=self.prefix,
            on_message=lossy,
            on_confirmed=on_confirmed,
            probe_interval_s=self._probe_interval_s,
            timeout_s=0.5,
        )

    def count(self, name: str, **labels: str) -> float:
        return counted(self.metrics, name, **labels)


async def a_run(database: Database, log: LogConnection) -> FakeRun:
    async with database.connect() as connection:
        queued = await rows.queued_run(connection)
    return await FakeRunner(database, log).take(queued.id)


async def drained(follower: Follower, within_s: float = 20) -> bytes:
    """All that a reader gets up to its end."""
    frames = b""
    async with asyncio.timeout(within_s):
        while True:
            portion = await follower.next()
            frames += portion.frames
            if portion.ends:
                follower.close()
                return frames


def written(run: FakeRun, after: int = 0) -> bytes:
    return b"".join(batch.cut(after) for batch in run.told if batch.last > after)


async def joined(hub: Hub, run_id: str, after: int = 0) -> bytes:
    return await drained(await hub.follow(run_id, after, "end"))
