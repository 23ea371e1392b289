"""I5 across the whole system: kill -9 of a runner, a gateway or Valkey between a decision and the
end of the effect that it permits.

The effect is never performed more often than people have said, every run ends or asks, and what it
asks about the effect can be answered and is obeyed. STEADYRUN_FAULT_ROUNDS rounds, by
STEADYRUN_FAULT_SEED; an effect leaves a line each time (runner/graphs/drill/effect).
"""

import asyncio
import os
import random
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runner.graphs.drill.order import Effect, Order
from tests.support.cluster import Cluster
from tests.support.watching import Crowd

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "3"))
SEED = int(os.environ.get("STEADYRUN_FAULT_SEED", "1"))
RUNS = 3
TARGETS = ("runner-1", "runner-2", "runner-1", "runner-2", "gateway-1", "gateway-2", "redis")
ENDED = ("completed", "failed", "cancelled")
AGAIN, DONE = {"select": "again"}, {"select": "done"}
PATIENCE_S = 90.0  # of a machine that is shared

Json = dict[str, Any]


@dataclass
class Case:
    """One run, and what people have said to it. `effect`: with a `verify`, or bare."""

    run_id: str
    order: Order
    folder: Path
    said: list[Any] = field(default_factory=list)

    @property
    def times(self) -> int:
        file = self.folder / self.order.key
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wrong(self, run: Json) -> str | None:
        """What must not be, in words."""
        if self.times > 1 + self.said.count(AGAIN):
            return f"performed {self.times} times, and people said {self.said}"
        if run["status"] == "cancelled" and "reject" in self.said:
            return None
        if run["status"] != "completed":
            return f"is {run['status']}, {run['error']}, and people said {self.said}"
        if not self.times and DONE not in self.said:
            return "says that it is done, and it is not"
        return None


class Scene:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.dice = random.Random(SEED)
        self.crowd = Crowd.of(cluster.topology, self.dice)
        self.folder = cluster.state.parent / "effects"

    async def waiting(self) -> Case:
        """A run whose person has been asked whether the effect may be done."""
        effect: Effect = self.dice.choice(["bare", "bare", "verified"])
        order = Order(uuid.uuid4().hex[:12], words=1, pace_ms=1, question=True, effect=effect)
        case = Case(await self.crowd.start(order.content(), "drill"), order, self.folder)
        await self.settled(case)
        return case

    async def settled(self, case: Case) -> Json:
        """The run when it has ended or waits with something to decide."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                run = await self.crowd.get(f"/api/runs/{case.run_id}")
                asks = run["status"] == "interrupted" and run["pendingInterrupts"]
                if run["status"] in ENDED or asks:
                    return run
                await asyncio.sleep(0.05)

    async def decide(self, case: Case, run: Json) -> None:
        for card in run["pendingInterrupts"]:
            decision = self._word() if card["type"] == "select_option" else "approve"
            case.said.append(decision)
            body = {"interruptId": card["id"], "decision": decision}
            await self.crowd.post(f"/api/runs/{case.run_id}/resume", body)

    def _word(self) -> Any:
        return self.dice.choice([AGAIN, AGAIN, DONE, "reject"])

    async def strike(self) -> None:
        await asyncio.sleep(self.dice.uniform(0, 0.3))
        name = self.dice.choice(TARGETS)
        if self.cluster.named(name) is not None:  # else it has not come back from the last one
            self.cluster.kill(name, signal.SIGKILL)

    async def play(self, case: Case) -> str | None:
        """Decide, and strike about then, until the run has ended."""
        while (run := await self.settled(case))["status"] not in ENDED:
            await self.decide(case, run)
        return case.wrong(run)


@pytest.fixture
async def scene(cluster: Cluster) -> AsyncIterator[Scene]:
    scene = Scene(cluster)
    yield scene
    await scene.crowd.aclose()


@pytest.mark.timeout(120 + 60 * ROUNDS)
async def test_an_approved_effect_happens_once_or_as_often_as_people_say_whatever_is_killed(
    scene: Scene,
) -> None:
    asked = 0
    for number in range(ROUNDS):
        cases = [await scene.waiting() for _ in range(RUNS)]
        playing = [asyncio.create_task(scene.play(case)) for case in cases]
        await scene.strike()
        if scene.dice.random() < 0.5:
            await scene.strike()
        wrong = [told for told in await asyncio.gather(*playing) if told is not None]
        assert not wrong, f"seed {SEED}, round {number}: {wrong}"
        asked += sum(len(case.said) > 1 for case in cases)
    assert asked or ROUNDS < 20, "nobody was ever asked about an effect: nothing was hit"
