"""Short messages that make things quick; nothing depends on their arrival.

Everything a signal says stands in Postgres before it is sent, and whoever waits for one also looks
there from time to time. So a signal that cannot be sent is a line in the log, not an error.
"""

import logging
from typing import Literal, NamedTuple

from common.bus.client import Bus
from common.bus.names import run_channel, runner_channel, wake_channel
from common.errors import Unavailable

__all__ = ["Order", "Signals", "read_order", "run_channel", "runner_channel", "wake_channel"]

Act = Literal["cancel", "decided"]

_ACTS: dict[str, Act] = {"cancel": "cancel", "decided": "decided"}


class Order(NamedTuple):
    """What a runner is asked to look at: a request to cancel, or decisions of a person."""

    act: Act
    run_id: str


def read_order(payload: bytes) -> Order | None:
    """What came on a runner's channel; None for what a newer version may have sent."""
    act, _, run_id = payload.decode(errors="replace").partition(" ")
    return Order(_ACTS[act], run_id) if act in _ACTS and run_id else None


class Signals:
    """Best effort: no method raises Unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._log = logging.getLogger(__name__)

    async def wake(self, run_id: str) -> None:
        """To all runners: this run was queued."""
        await self._send(wake_channel(self._bus.prefix), run_id)

    async def cancel(self, runner_id: str, run_id: str) -> None:
        """To the runner that holds the run: it is to be cancelled."""
        await self._send(runner_channel(self._bus.prefix, runner_id), f"cancel {run_id}")

    async def decided(self, runner_id: str, run_id: str) -> None:
        """To the runner that holds the run: there are decisions that it has not told."""
        await self._send(runner_channel(self._bus.prefix, runner_id), f"decided {run_id}")

    async def _send(self, channel: str, payload: str) -> None:
        try:
            await self._bus.publish(channel, payload)
        except Unavailable:
            self._log.warning("signal not sent: %s on %s", payload, channel)
