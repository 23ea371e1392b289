"""What a run costs beside the bare graph, and what that figure means.

CPU is compared, not time: it does not depend on what else the machine is doing at the moment. Ours
and the bare graph run in turns, so that what changes over the minutes changes for both; of all
rounds the median counts.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from common.errors import Misconfigured
from deploy.load.client import Order
from deploy.load.machine import Machine, spent
from deploy.load.stage import Figures, Stage, total
from deploy.topology import Role

_ROUNDS = 5
_RUN_EVENTS = (10, 100)


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


async def overhead(stage: Stage) -> Figures:
    """Runs of ten and of a hundred events. Raises Misconfigured for a system elsewhere."""
    database_url = stage.topology().database_url
    if not database_url:
        raise Misconfigured("`overhead` is measured on this machine only: leave --url out")
    figures: Figures = {}
    with Bare.opened(database_url) as bare:
        for events in _RUN_EVENTS:
            figures |= await _beside(stage, bare, Order(stage.amount.kind, events))
    return figures


async def _beside(stage: Stage, bare: Bare, order: Order) -> Figures:
    """Rounds in turns, after one of each that does not count."""
    ours: list[dict[Role, float]] = []
    alone: list[tuple[float, float]] = []
    for number in range(_ROUNDS + 1):
        cost = await _ours(stage, order)
        cost_alone = await asyncio.to_thread(_bare, stage.machine, bare, order, stage.amount.runs)
        if number:
            ours.append(cost)
            alone.append(cost_alone)
    roles = {role: median(cost[role] for cost in ours) for role in ours[0]}
    own_s, postgres_s = (median(costs) for costs in zip(*alone, strict=True))
    per_run_ms = 1000 / stage.amount.runs
    return {
        f"ratio_{order.events}": total(roles, ["gateway", "runner"]) / own_s,
        f"ratio_all_{order.events}": total(roles) / (own_s + postgres_s),
        f"gateway_ms_{order.events}": roles.get("gateway", 0.0) * per_run_ms,
        f"runner_ms_{order.events}": roles.get("runner", 0.0) * per_run_ms,
        f"bare_ms_{order.events}": own_s * per_run_ms,
    }


async def _ours(stage: Stage, order: Order) -> dict[Role, float]:
    start = stage.machine.cpu_s()
    await stage.client.runs(order, stage.amount.runs)
    return spent(start, stage.machine.cpu_s())


def _bare(machine: Machine, bare: Bare, order: Order, runs: int) -> tuple[float, float]:
    """Its own CPU seconds and those of Postgres meanwhile."""
    start = machine.cpu_s()
    own = bare.run(runs, order)
    return own, spent(start, machine.cpu_s()).get("postgres", 0.0)
