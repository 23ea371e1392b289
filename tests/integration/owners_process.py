"""The processes of the machine of owners: a runner without graphs and without its loops.

It is what `runner.app` puts together, and does each thing when it is told to. What its loops would
do at the same time as something else is done at the moment that matters (`Watched`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from common.bus.client import Bus
from common.bus.log import LogConnection
from common.bus.signals import Signals
from common.db import archive, effects, interrupts, runs
from common.db.archive import Portion
from common.db.engine import Connection, Database
from common.db.runs import ClaimedRun
from common.events import Event
from common.masking import Masker
from common.page import Page
from common.runs import CancelReason
from common.settings import RunnerSettings
from runner.durable import Durable
from runner.kit import Kit
from runner.metrics import Metrics
from runner.opening import open_outlet
from runner.outcomes import Cancelled, Failed, Finished, HandedOver, Outcome, Paused, Waiting
from runner.outlet import Outlet
from runner.publisher import Publisher, PublisherLimits
from runner.registry import Graph
from runner.storing import Storing
from tests.support.rows import batch, question

BLOCK = 12  # numbers reserved at once
STATE = Durable(True, [], {}, [], [], waiting=False, values={})
LIMITS = PublisherLimits(
    window_s=0,
    archive_interval_s=1,
    away_interval_s=1,
    buffer_bytes_max=1 << 20,
    fresh_s=0,  # leases end at once here
)

Dies = Literal["no", "claimed", "opened", "opening", "storing", "stored"]
End = Literal["done", "failed", "cancelled", "handed over", "asks", "asks twice", "breakpoint"]


class Died(Exception):
    """The process is gone, in the middle of a transaction."""


class Watched(Database):
    """`at_commit` is called with every transaction that is about to commit."""

    at_commit: Callable[[], Awaitable[None]] | None = None

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        async with super().begin() as connection:
            yield connection
            if self.at_commit is not None:
                await self.at_commit()


class Incarnated(LogConnection):
    """To a Redis whose identity changes with each promotion of a replica."""

    incarnation = 1

    async def _greet(self) -> str:
        return f"{await super()._greet()}.{self.incarnation}"


@dataclass
class Asking:
    """In place of `runner.questions`, which reads a graph's state."""

    count: int = 1

    def new(
        self,
        run: ClaimedRun,
        _graph: Any,
        _state: Any,
        known: list[Any],
        _now: Any,
        _unknown: Any = (),
    ) -> Any:
        asked = [question(f"native-{len(known) + n}") for n in range(self.count)]
        return [] if any(row.status == "pending" for row in known) and self.count > 1 else asked


@dataclass
class Parts:
    """Those of `runner.kit` that need no graph."""

    db: Database
    bus_log: LogConnection
    publisher: Publisher
    masker: Masker
    signals: Signals
    settings: RunnerSettings
    questions: Asking
    metrics: Metrics = field(default_factory=Metrics)


@dataclass(frozen=True)
class Servers:
    """What all histories share. `eye` is nobody's: it sees what is committed."""

    redis_url: str
    bus: Bus
    eye: Database
    gateway: Watched
    pools: list[Watched]
    settings: RunnerSettings


@dataclass(eq=False)
class Process:
    """One life of a process of runners."""

    db: Watched
    log: Incarnated
    kit: Parts
    runner_id: str | None = None

    @classmethod
    def start(cls, db: Watched, log: Incarnated, bus: Bus, found: RunnerSettings) -> Self:
        kit = Parts(db, log, Publisher(db, log, LIMITS), Masker(), Signals(bus), found, Asking())
        return cls(db, log, kit)

    async def open(self, run: ClaimedRun) -> "Owner":
        """Takes the log of a claimed run over. Raises Died if it is to."""
        page = Page()
        outlet = await open_outlet(
            cast(Kit, self.kit),
            run,
            page,
            lambda _: [],
            on_lost=lambda: None,
            stopped=lambda: True,
            hurried=lambda: False,
        )
        graph = cast(Graph, object())  # it is only handed on to `Asking`
        storing = Storing(cast(Kit, self.kit), run, graph, outlet, page, _no_values)
        return Owner(self, run, outlet, storing)

    async def archive(self) -> None:
        await self.kit.publisher.archiver.round()

    async def send(self, rounds: int = 6) -> None:
        """What its loop does until there is nothing left to be sent."""
        sender = self.kit.publisher.sender
        for _ in range(rounds):
            async with asyncio.TaskGroup() as group:
                sender._group = group
                await sender.round()


@dataclass(eq=False)
class Owner:
    """Whoever holds (run, epoch), or believes so."""

    process: Process
    run: ClaimedRun
    outlet: Outlet
    storing: Storing
    dead: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.run.id, self.run.epoch

    def say(self, *numbers: int) -> None:
        self.outlet.emit([Event("custom", {"data": n}) for n in numbers])

    async def take_answers(self) -> bool:
        async with self.process.db.begin() as connection:
            ids = [row.id for row in await interrupts.untaken(connection, self.run.id)]
            return await interrupts.mark_taken(connection, *self.key, ids)

    async def effect(self, name: str, outcome: int | None) -> bool:
        """Whether this owner was let; None: it does not come to an outcome."""
        async with self.process.db.connect() as connection:
            begun = await effects.begin(connection, *self.key, name)
            if not isinstance(begun, effects.Effect) or outcome is None:
                return isinstance(begun, effects.Effect)
            return await effects.complete(connection, *self.key, name, outcome)

    async def settle(self, end: End, reason: CancelReason) -> bool:
        self.process.kit.questions.count = 2 if end == "asks twice" else 1
        return await self.storing.store(outcome_of(end, reason))

    async def try_everything(self, top: int, asked: list[str]) -> list[Any]:
        """What Postgres lets it do, past all that its own process has noticed: nothing, once it is
        stale. `top` is the archive's, `asked` are the interrupts of the run."""
        late = [batch(top + 1, top + 2, epoch=self.run.epoch)]
        last: dict[str, Any] = {"last_sequence": top}
        async with self.process.db.begin() as conn:
            return [
                await archive.append(conn, *self.key, late),
                await archive.append_all(conn, [Portion(*self.key, 10**6, late)]) != ["lost"],
                await runs.reserve(conn, *self.key, 10**6),
                await runs.note_identity(conn, *self.key, "another", 10**6),
                await interrupts.insert(conn, *self.key, [question("late")]),
                await interrupts.mark_told(conn, *self.key, asked),
                await interrupts.mark_taken(conn, *self.key, asked),
                await runs.hold(conn, *self.key),
                await effects.begin(conn, *self.key, "late"),
                await effects.complete(conn, *self.key, "a", "late"),
                await effects.take_over(conn, *self.key, "a"),
                await effects.forget(conn, *self.key, "a"),
                await runs.pause(conn, *self.key, **last, next_nodes=[]),
                await runs.requeue(conn, *self.key, **last, reason="handover"),
                await runs.give_back(conn, *self.key),
                await runs.finish(conn, *self.key, **last, status="completed"),
            ]


async def _no_values() -> None:
    """There is no thread."""


def dies_at_commit(count: int) -> Callable[[], Awaitable[None]]:
    left = [count]

    async def at_commit() -> None:
        left[0] -= 1
        if not left[0]:
            raise Died

    return at_commit


def outcome_of(end: End, reason: CancelReason) -> Outcome:
    outcomes: dict[End, Outcome] = {
        "done": Finished(STATE),
        "failed": Failed("GRAPH_ERROR", "it failed", retryable=False),
        "cancelled": Cancelled(reason),
        "handed over": HandedOver("handover"),
        "asks": Waiting(STATE),
        "asks twice": Waiting(STATE),
        "breakpoint": Paused(STATE),
    }
    return outcomes[end]
