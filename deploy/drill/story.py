"""One run of a drill from its start to its end, with everybody who watches and decides.

All choices are made when the story is made, in a fixed order, so that the same seed tells the same
stories whatever happens meanwhile.
"""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from deploy.drill.case import Case
from deploy.drill.doors import NO_ANSWER, Doors
from deploy.drill.person import Person, Postbox
from deploy.drill.record import Knock, Record, Seen
from deploy.drill.start import Start, TurnedAway
from deploy.drill.watcher import Habit, Watcher
from runner.graphs.drill.order import Effect, Order

Begins = Literal["plainly", "twice", "streaming"]

_USERS = ("drill-ada", "drill-bo", "drill-cy")
_STRANGER = "drill-stranger"
_EFFECTS: tuple[Effect, ...] = ("none", "verified", "verified", "bare", "bare")
_BACK_OFF_S = 0.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Fewest and most, both included."""

    watchers: int
    words: tuple[int, int]
    pace_ms: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plot:
    """What a story will be."""

    order: Order
    user: str
    begins: Begins
    habits: list[Habit]
    cancel_after_s: float | None
    stranger: bool
    seed: int


def plot(rng: random.Random, sizes: Sizes) -> Plot:
    """The next story."""
    order = Order(
        tag=f"{rng.getrandbits(48):012x}",
        words=rng.randint(*sizes.words),
        pace_ms=rng.randint(*sizes.pace_ms),
        question=rng.random() < 0.6,
        on_reject=rng.choice(["cancel", "continue"]),
        effect=rng.choice(_EFFECTS),
        secret=f"sk-drill0{rng.getrandbits(80):020x}",
    )
    return Plot(
        order=order,
        user=rng.choice(_USERS),
        begins=rng.choice(["plainly", "plainly", "twice", "streaming", "streaming"]),
        habits=[_habit(n, rng) for n in range(sizes.watchers)],
        cancel_after_s=rng.uniform(0.0, 1.5) if rng.random() < 0.1 else None,
        stranger=rng.random() < 0.3,
        seed=rng.getrandbits(64),
    )


def _habit(number: int, rng: random.Random) -> Habit:
    """The first is steady and looks; the others are of all kinds, one after the other."""
    cuts = (1, rng.choice([3, 15, 60]))
    late_s = rng.uniform(0.1, 3.0)
    kinds = (
        Habit("steady", looks=True),
        Habit("restless", cut=cuts),
        Habit("pages", pages=True),
        Habit("library", library=True),
        Habit("late", late_s=late_s, cut=cuts),
        Habit("slow", slow_s=rng.uniform(0.01, 0.1)),
        Habit("pauses", until="interrupt", looks=True),
        Habit("newcomer", late_s=late_s, from_now=True),
    )
    return kinds[0] if number == 0 else rng.choice(kinds[1:])


class Story:
    def __init__(self, doors: Doors, postbox: Postbox, record: Record, plot: Plot) -> None:
        self._doors, self._postbox, self._record = doors, postbox, record
        self._plot = plot
        self._rng = random.Random(plot.seed)
        self.case: Case | None = None
        self._begun = asyncio.Event()

    async def run(self) -> None:
        """Returns when every client of the run has read to its end."""
        if self._plot.order.secret:
            self._record.secrets.add(self._plot.order.secret)
        start = Start(
            self._doors,
            self._postbox,
            self._record,
            self._own_rng(),
            self._plot.user,
            self._plot.order,
        )
        await self._tell(start)
        if self.case is None:  # turned away; the record tells by what
            await asyncio.sleep(_BACK_OFF_S)

    async def ended(self) -> None:
        """Returns when some client has seen the end of the run; the others may be far behind."""
        await self._begun.wait()
        if self.case is not None:
            await self.case.ended.wait()

    def __str__(self) -> str:
        """Where it stands, for whoever asks what is stuck."""
        if self.case is None:
            return f"the start of {self._plot.order.tag} ({self._plot.begins})"
        unfinished = [s.client for s in self._record.of(self.case.run) if not s.finished]
        where = f"{self.case.phase} at {self.case.sequence}"
        return f"{self.case.run} ({where}; unfinished clients: {', '.join(unfinished) or 'none'})"

    async def _tell(self, start: Start) -> None:
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(self._start(start))]
            await first(reading[0], self._begun.wait())
            if self.case is not None:
                await self._followed(self.case, group, reading)

    async def _start(self, start: Start) -> None:
        """Whoever starts by a stream also reads it to its end."""
        with suppress(TurnedAway):
            if self._plot.begins == "streaming":
                await start.streaming(self._begin)
            else:
                self._begin(await start.plainly(twice=self._plot.begins == "twice"))

    def _begin(self, case: Case) -> None:
        self.case = case
        self._begun.set()

    async def _followed(
        self, case: Case, group: asyncio.TaskGroup, reading: list["asyncio.Task[None]"]
    ) -> None:
        person = Person(self._postbox, self._own_rng(), case)
        group.create_task(person.decide_all())
        if self._plot.cancel_after_s is not None:
            group.create_task(person.cancel_later(self._plot.cancel_after_s))
        if self._plot.stranger:
            group.create_task(self._knock(case))
        reading += [group.create_task(self._watcher(n, case).run()) for n in range(self._crowd)]
        await asyncio.wait(reading)
        case.close()

    @property
    def _crowd(self) -> int:
        return len(self._plot.habits)

    def _watcher(self, number: int, case: Case) -> Watcher:
        habit = self._plot.habits[number]
        seen = Seen(f"{habit.name}-{number}", case.run)
        self._record.clients.append(seen)
        return Watcher(self._doors, self._own_rng(), self._record, case, habit, seen)

    async def _knock(self, case: Case) -> None:
        """Somebody else's run is none that a stranger could see."""
        rng = self._own_rng()
        for path in (f"/api/runs/{case.run}", f"/api/runs/{case.run}/events"):
            with suppress(*NO_ANSWER):
                url = f"{self._doors.any(rng)}{path}"
                headers = {**self._doors.identity(_STRANGER), "Accept": "application/json"}
                answer = await self._doors.http.get(url, headers=headers)
                knock = Knock(case.run, path, answer.status_code, answer.content)
                self._record.knocks.append(knock)

    def _own_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))


async def first(task: "asyncio.Task[None]", awaited: Coroutine[Any, Any, object]) -> None:
    """Until what is awaited has come, or the task has ended without it."""
    waiting = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
