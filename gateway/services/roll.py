"""Says that this gateway is there, and what it is at, for the console.

While Redis is away nothing is said, and nobody waits for it.
"""

import asyncio
import os
import random
import socket
import time
import uuid
from typing import Any

import structlog

from common.bus.roster import Roster
from common.errors import Unavailable
from gateway.metrics import Metrics
from gateway.services.follow import Hub

logger = structlog.get_logger(__name__)

INTERVAL_S = 2.0


class Roll:
    """`run` ends by cancellation only, and takes the name off the roster then if it can."""

    def __init__(self, roster: Roster, hub: Hub, metrics: Metrics) -> None:
        self._roster, self._hub, self._metrics = roster, hub, metrics
        self._id = f"gw_{uuid.uuid4().hex}"
        self._began_at = time.monotonic()

    def facts(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "ageS": time.monotonic() - self._began_at,
            "streams": int(_value(self._metrics.streams_open)),
            "runs": int(_value(self._metrics.topics)),
            "eventsSent": int(_value(self._metrics.events_sent)),
            "healthy": self._hub.healthy,
            "lagS": self._hub.trip_s,
        }

    async def run(self) -> None:
        try:
            while True:
                await self._say()
                await asyncio.sleep(INTERVAL_S * random.uniform(0.9, 1.1))
        finally:
            await self._leave()

    async def _say(self) -> None:
        try:
            await self._roster.say(self._id, self.facts())
        except Unavailable as error:
            logger.debug("the roster cannot be reached", error=str(error))

    async def _leave(self) -> None:
        try:
            await asyncio.shield(self._roster.leave(self._id))
        except Unavailable:
            return  # it expires


def _value(metric: Any) -> float:
    """What a metric without labels stands at; its own collection is the public way to ask."""
    [family] = metric.collect()
    return float(family.samples[0].value)
