"""What a shape of load works with: the clients, the processes, how much, and whom to tell."""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from deploy.load.client import LoadClient
from deploy.load.machine import Machine
from deploy.topology import Role, Topology

Figures = dict[str, float]
SETTLE_S = 2.0
KINDS = ("tokens", "custom")  # of events that the load graph makes


@dataclass(frozen=True, slots=True)
class Amount:
    """How much load. `rate` is events a second of a run, `seconds` how long idle streams stay
    and streams are cut."""

    runs: int = 20
    subscribers: int = 200
    events: int = 200
    rate: float = 50.0
    kind: str = "tokens"
    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Stage:
    """`say` gets lines of progress. `topology` tells what runs now; processes may be replaced."""

    client: LoadClient
    machine: Machine
    amount: Amount
    topology: Callable[[], Topology]
    say: Callable[[str], object]

    async def settle(self) -> None:
        """What has just ended may still be tidied up."""
        await asyncio.sleep(SETTLE_S)


def percentiles_ms(seconds: Iterable[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds; nan without two values."""
    values = list(seconds)
    if len(values) < 2:
        return (math.nan, math.nan)
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[98] * 1000


def share(part: float, whole: float) -> float:
    """In percent."""
    return 100 * part / whole if whole else math.nan


def total(spent: dict[Role, float], roles: Sequence[Role] = ()) -> float:
    """CPU seconds of the named roles, of all without names."""
    return sum(seconds for role, seconds in spent.items() if not roles or role in roles)
