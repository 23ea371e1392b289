"""The clients of a drill: they start runs, watch, decide and cancel, whatever happens meanwhile."""

import asyncio
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import SteadyrunError
from deploy.drill.doors import Doors
from deploy.drill.person import Postbox
from deploy.drill.record import Record, Weight
from deploy.drill.story import Sizes, Story, first, plot
from deploy.topology import Process, Topology

_WEIGH_S = 0.5
_LINGERING_MAX = 1  # stories of a slot whose run has ended and whose clients have not


class Stuck(SteadyrunError):
    """A run or a client did not come to its end within the patience: names them (I6)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much goes on at once, and how large it is. Times in seconds."""

    runs: int = 5
    """Runs that go on at any moment, until the stop."""
    watchers: int = 4
    """Clients of each, besides whoever started it: fewer where that would be too many at once."""
    connections: int = 60
    """About so many at once: httpx costs processor time that the system under test needs."""
    words: tuple[int, int] = (4, 12)
    """Length of each text of a run: fewest and most words."""
    pace_ms: tuple[int, int] = (15, 60)
    """Pause before each word."""
    patience_s: float = 60.0
    """How long after the stop the last run and its last client may take."""


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
        watchers = max(1, min(plan.watchers, plan.connections // plan.runs - 1))
        self._sizes = Sizes(watchers, plan.words, plan.pace_ms)
        self._stories: set[Story] = set()

    @property
    def streaming(self) -> int:
        """Runs that stream right now, by what clients have seen."""
        cases = [story.case for story in self._stories]
        return sum(1 for case in cases if case is not None and case.phase == "streaming")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and then till everything begun has ended. Raises Stuck."""
        async with Doors.opened(self._topology) as doors:
            tasks = [asyncio.create_task(self._slot(doors, stop)) for _ in range(self._plan.runs)]
            scales = asyncio.create_task(self._weigh())
            try:
                await self._until(stop, tasks)
            finally:
                await _end([*tasks, scales])

    async def _until(self, stop: asyncio.Event, slots: list["asyncio.Task[None]"]) -> None:
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopping, *slots], return_when=asyncio.FIRST_COMPLETED)
            done, pending = await asyncio.wait(
                slots, timeout=self._plan.patience_s, return_when=asyncio.FIRST_EXCEPTION
            )
        finally:
            stopping.cancel()
        for slot in done:
            slot.result()
        if pending:
            stuck = "; ".join(sorted(map(str, self._stories)))
            raise Stuck(f"not ended {self._plan.patience_s:g} s after the stop: {stuck}")

    async def _slot(self, doors: Doors, stop: asyncio.Event) -> None:
        """One run after the other; clients that are behind go on beside the next one."""
        postbox = Postbox(doors, self._record)
        telling: set[asyncio.Task[None]] = set()
        try:
            while not stop.is_set():
                story = Story(doors, postbox, self._record, plot(self._rng, self._sizes))
                task = asyncio.create_task(self._tell(story))
                telling.add(task)
                await first(task, story.ended())
                telling = await _at_most(_LINGERING_MAX, telling)
            await _at_most(0, telling)
        finally:
            await _end(telling)

    async def _tell(self, story: Story) -> None:
        self._stories.add(story)
        await story.run()
        self._stories.discard(story)

    async def _weigh(self) -> None:
        while True:
            topology = self._topology()
            for process in (*topology.of("gateway"), *topology.of("runner")):
                if (weight := _weight(process)) is not None:
                    self._record.weights.append(weight)
            await asyncio.sleep(_WEIGH_S)


def _weight(process: Process) -> Weight | None:
    """None where the system does not tell, or the process has just ended."""
    # imported late: only a system with /proc has what is read there
    from deploy.load.machine import Stat

    with suppress(OSError):
        stat = Stat.parse((Path("/proc") / str(process.pid) / "stat").read_text())
        return Weight(
            process.name, process.role, process.pid, time.monotonic(), stat.resident_bytes
        )
    return None


async def _at_most(count: int, tasks: "set[asyncio.Task[None]]") -> "set[asyncio.Task[None]]":
    """Those that are left when only so many are; raises what a finished one has raised."""
    while tasks:
        done = {task for task in tasks if task.done()}
        for task in done:
            task.result()
        tasks = tasks - done
        if len(tasks) <= count:
            break
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return tasks


async def _end(tasks: "Collection[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
