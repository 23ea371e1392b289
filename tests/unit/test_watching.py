"""Saying who watches, to a Redis that is away."""

import asyncio

from common.bus.client import Bus
from common.bus.presence import Presence
from gateway.services.watching import Watching
from tests.support.until import until


async def test_what_cannot_be_said_of_runs_that_were_left_does_not_pile_up() -> None:
    bus = Bus("redis://127.0.0.1:1", timeout_s=0.5)
    watching = Watching(Presence(bus, ttl_s=5), beat_interval_s=60, gone_max=10)
    running = asyncio.create_task(watching.beat.run())
    for number in range(20):
        watching.enter(f"run_here_{number}")
    for number in range(100):
        watching.enter(f"run_left_{number}")()
    await until(lambda: len(watching.beat.unsaid) == 20 + 10)
    assert {f"run_here_{number}" for number in range(20)} <= watching.beat.unsaid
    running.cancel()
    await asyncio.wait({running})
    await bus.aclose()
