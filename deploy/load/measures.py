"""What is measured, and what a figure means.

CPU is compared, not time: it does not depend on what else the machine is doing at the moment. Ours
and the bare graph run in turns, so that what changes over the minutes changes for both; of all
rounds the median counts.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles

from deploy.load.client import Counter, LoadClient, Order
from deploy.load.machine import Machine, spent
from deploy.topology import Role

_ROUNDS = 5
_IDLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU of one run in milliseconds: by process with us, and as a bare graph; `bare_postgres_ms`
    is what Postgres spent on the bare graph's checkpoints."""

    kind: str
    events: int
    ours_ms: dict[Role, float]
    bare_ms: float
    bare_postgres_ms: float
    first_event_p50_ms: float
    first_event_p99_ms: float

    @property
    def ratio(self) -> float:
        """Our processes beside the one that runs the graph itself."""
        return (self.ours_ms.get("gateway", 0.0) + self.ours_ms.get("runner", 0.0)) / self.bare_ms

    @property
    def ratio_of_all(self) -> float:
        """The same with the servers on both sides."""
        return sum(self.ours_ms.values()) / (self.bare_ms + self.bare_postgres_ms)


@dataclass(frozen=True, slots=True)
class FanOut:
    """Many streams on one run."""

    subscribers: int
    delivered: int
    expected: int
    gateway_cpu_s: float
    idle_bytes_per_stream: float

    @property
    def events_per_cpu_s(self) -> float:
        return self.delivered / self.gateway_cpu_s if self.gateway_cpu_s else float("nan")


class Bare:
    """The same graph in a process of its own, without Steadyrun."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child

    @classmethod
    @contextmanager
    def opened(cls, database_url: str) -> Iterator["Bare"]:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.graphs.load.bare"],
            env=os.environ | {"DATABASE_URL": database_url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            yield cls(child)
            child.communicate()

    def run(self, runs: int, order: Order) -> float:
        """CPU seconds of the process for `runs` runs."""
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("opened without pipes")
        self._child.stdin.write(f"{runs} {order.kind} {order.events}\n")
        self._child.stdin.flush()
        return float(json.loads(self._child.stdout.readline())["cpuS"])


async def overhead(
    client: LoadClient, machine: Machine, bare: Bare, order: Order, runs: int
) -> Overhead:
    """Rounds in turns, after one of each that does not count."""
    ours: list[dict[Role, float]] = []
    alone: list[tuple[float, float]] = []
    counters: list[Counter] = []
    for number in range(_ROUNDS + 1):
        cost, counted = await _ours(client, machine, order, runs)
        cost_alone = await asyncio.to_thread(_bare, machine, bare, order, runs)
        if number:
            ours.append(cost)
            alone.append(cost_alone)
            counters += counted
    p50, p99 = _percentiles([c.first_s for c in counters if c.first_s is not None])
    roles = {role: median(cost[role] for cost in ours) / runs * 1000 for role in ours[0]}
    own, postgres = (median(costs) / runs * 1000 for costs in zip(*alone, strict=True))
    return Overhead(order.kind, order.events, roles, own, postgres, p50, p99)


async def fan_out(client: LoadClient, machine: Machine, order: Order, subscribers: int) -> FanOut:
    """Attach all streams to a run that waits, weigh them, let it run, count what arrives."""
    run = await client.hold(order)
    before = machine.resident_bytes("gateway")
    attached = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        streams = [
            group.create_task(client.follow(run["id"], attached)) for _ in range(subscribers)
        ]
        for _ in range(subscribers):
            await attached.acquire()
        await asyncio.sleep(_IDLE_S)
        weight = machine.resident_bytes("gateway") - before
        start = machine.cpu_s()
        await client.release(run)
    cpu_s = spent(start, machine.cpu_s()).get("gateway", 0.0)
    delivered = sum(stream.result().events - run["lastSequence"] for stream in streams)
    said = (await client.find(run["id"]))["lastSequence"] - run["lastSequence"]
    return FanOut(subscribers, delivered, said * subscribers, cpu_s, weight / subscribers)


async def _ours(
    client: LoadClient, machine: Machine, order: Order, runs: int
) -> tuple[dict[Role, float], list[Counter]]:
    start = machine.cpu_s()
    counters = await client.runs(order, runs)
    return spent(start, machine.cpu_s()), counters


def _bare(machine: Machine, bare: Bare, order: Order, runs: int) -> tuple[float, float]:
    """Its own CPU seconds and those of Postgres meanwhile."""
    start = machine.cpu_s()
    own = bare.run(runs, order)
    return own, spent(start, machine.cpu_s()).get("postgres", 0.0)


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds."""
    if len(seconds) < 2:
        return (float("nan"), float("nan"))
    cuts = quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[98] * 1000
