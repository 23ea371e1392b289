"""One scenario: clients at work, strikes by the plan, then what they saw is checked.

A part of a long plan has clients and a record of its own, so that memory stays bounded and a
violation is found soon after it happened; the system lives on from part to part.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from deploy.drill import evidence
from deploy.drill.checker import Verdict, check, summed
from deploy.drill.faults import Strike, strike
from deploy.drill.gaps import Gap, gaps
from deploy.drill.record import FaultNote, Record
from deploy.drill.scenarios import Round, Scenario
from deploy.drill.topology import LOOK_S, Site
from deploy.drill.truth import read_truth
from deploy.drill.workload import Plan, Stuck, Workload

ROUNDS_A_PART = 10
STREAMING_LIMIT_S = 20.0  # for half of the runs to stream before a strike
HEAL_LIMIT_S = 90.0
AIM_S = 0.4  # a strike falls somewhere within it after the runs stream

Say = Callable[[str], object]


@dataclass(slots=True)
class Outcome:
    """What came of a scenario, as far as it got. `missed`: rounds that found nothing to hit."""

    scenario: str
    rounds: int = 0
    seconds: float = 0.0
    verdicts: list[Verdict] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    missed: int = 0

    @property
    def checks(self) -> int:
        return sum(verdict.checks for verdict in self.verdicts)

    @property
    def violations(self) -> list[str]:
        return [f"{v.invariant}: {text}" for v in self.verdicts for text in v.violations]


async def perform(
    site: Site, scenario: Scenario, seed: int, outcome: Outcome, say: Say, seconds: float | None
) -> None:
    """Once, or again and again within `seconds`; fills `outcome` after each part."""
    began_at = time.monotonic()
    deadline = began_at + seconds if seconds is not None else None
    for number in count():
        rng = random.Random(f"{seed}/{scenario.name}/{number}")
        for part in _parts(scenario.plan(rng, site.targets)):
            await _Part(site, scenario, rng, outcome, say, deadline).run(part)
            outcome.seconds = time.monotonic() - began_at
            if outcome.violations or (deadline is not None and time.monotonic() >= deadline):
                return
        if deadline is None:
            return


def _parts(plan: list[Round]) -> Iterator[list[Round]]:
    left = iter(plan)
    while part := list(islice(left, ROUNDS_A_PART)):
        yield part


class _Part:
    """Some rounds under one set of clients."""

    def __init__(
        self,
        site: Site,
        scenario: Scenario,
        rng: random.Random,
        outcome: Outcome,
        say: Say,
        deadline: float | None,
    ) -> None:
        self._site = site
        self._scenario = scenario
        self._rng = rng
        self._outcome = outcome
        self._say = say
        self._deadline = deadline
        self._record = Record()
        self._stuck = Verdict("I6", "Nothing is stuck")
        plan = Plan(runs=scenario.runs, watchers=scenario.watchers)
        clients = random.Random(rng.random())
        self._workload = Workload(site.topology, clients, self._record, plan)

    async def run(self, rounds: list[Round]) -> None:
        """Raises DrillFailed when nothing can be said about the invariants."""
        await self._whole()
        if self._scenario.calm:
            await self._site.calm()
        await self._under_work(rounds)
        truth = await read_truth(self._site.topology(), self._record, self._site.effects)
        verdicts = summed([check(self._record, truth), [self._stuck]])
        self._outcome.gaps += gaps(self._record)
        self._outcome.verdicts = summed([self._outcome.verdicts, verdicts])
        if any(verdict.violations for verdict in verdicts):
            name = f"{self._scenario.name}-{self._outcome.rounds}"
            file = evidence.write(self._site.system.folder, name, verdicts, self._record, truth)
            self._outcome.evidence.append(str(file))

    async def _under_work(self, rounds: list[Round]) -> None:
        """The clients go on through all rounds, then come to their end."""
        stop = asyncio.Event()
        working = asyncio.create_task(self._workload.run(stop))
        try:
            await self._storm(rounds, working)
            stop.set()
            await working
        except Stuck as error:
            self._stuck.violations.append(str(error))
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _storm(self, rounds: list[Round], working: "asyncio.Task[None]") -> None:
        for number, planned in enumerate(rounds):
            is_late = self._deadline is not None and time.monotonic() >= self._deadline
            if working.done() or self._stuck.violations or (number and is_late):
                return
            await self._until_streaming(working)
            await self._round(planned)

    async def _until_streaming(self, working: "asyncio.Task[None]") -> None:
        """Until there is something to hit; what never streams is found stuck at the end."""
        deadline = time.monotonic() + STREAMING_LIMIT_S
        wanted = max(1, self._scenario.runs // 2)
        while self._workload.streaming < wanted and time.monotonic() < deadline:
            if working.done():
                return
            await asyncio.sleep(LOOK_S / 2)
        await asyncio.sleep(self._rng.uniform(0.0, AIM_S))

    async def _round(self, planned: Round) -> None:
        """All strikes, each at its time, then until the system is whole again."""
        streaming = self._workload.streaming
        done = await asyncio.gather(*map(self._strike, planned), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error
        has_hit = any(done)
        self._outcome.rounds += has_hit
        self._outcome.missed += not has_hit
        healed_s = await self._whole()
        what = ", ".join(map(str, planned)) + ("" if has_hit else " (nothing there to hit)")
        self._say(
            f"  {self._outcome.rounds:>3}  {streaming} streaming | {what}"
            f" | whole again after {healed_s:.1f} s"
        )

    async def _strike(self, planned: Strike) -> bool:
        """Whether it was really done; noted only then: a dead child cannot be killed again."""
        await asyncio.sleep(planned.after_s)
        note = FaultNote(planned.fault, planned.target, time.monotonic())
        self._record.faults.append(note)
        is_done = await strike(self._site, planned)
        if is_done:
            note.ended_at = time.monotonic()
        else:
            self._record.faults.remove(note)
        return is_done

    async def _whole(self) -> float:
        """How long it took; a child that does not come back is a violation of I6."""
        began_at = time.monotonic()
        ailing = await self._site.healed(HEAL_LIMIT_S)
        self._stuck.checks += 1
        if ailing:
            self._stuck.violations.append(
                f"not whole again within {HEAL_LIMIT_S:.0f} s: {', '.join(ailing)}"
            )
        return time.monotonic() - began_at
