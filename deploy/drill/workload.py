"""The clients of a drill: they start runs, watch, decide and cancel, whatever happens meanwhile."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import SteadyrunError
from deploy.drill.record import Record
from deploy.topology import Topology


class Stuck(SteadyrunError):
    """A run or a client did not come to its end within the patience: names them (I6)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much goes on at once, and how large it is. Times in seconds."""

    runs: int = 5
    """Runs that go on at any moment, until the stop."""
    watchers: int = 4
    """Clients of each, besides whoever started it."""
    words: tuple[int, int] = (4, 12)
    """Length of each text of a run: fewest and most words."""
    pace_ms: tuple[int, int] = (15, 60)
    """Pause before each word."""
    patience_s: float = 60.0
    """How long after the stop the last run may take, and how long a client tries in vain."""


class Workload:
    """Use once. All that is random comes from `rng`, so that a seed repeats the plan."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        rng: random.Random,
        record: Record,
        plan: Plan = Plan(),
    ) -> None:
        """`topology` is read anew at each use: ports stay, processes change."""
        self._topology, self._rng, self._record, self._plan = topology, rng, record, plan
        self.streaming = 0
        """Runs that stream right now, by what clients have seen."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` and then till everything begun has ended. Raises Stuck."""
        raise NotImplementedError
