"""Random histories of a run's log on a real server, and the faults that each rule is there for.

STEADYRUN_LOG_HISTORIES sets how many histories are tried (default 30; thousands find rare ones).
Most mistakes are rare in random histories, so each has its directed case too.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.integration.log_world import PROCESSES, READERS, Dies, Mutant, Owner, Violation, World
from tests.support.valkey import Valkey, private_valkey

HISTORIES = int(os.environ.get("STEADYRUN_LOG_HISTORIES", "30"))
QUICK = settings(
    max_examples=HISTORIES,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
pytestmark = pytest.mark.timeout(60 + 2 * HISTORIES)

WHOSE = st.sampled_from([0, 0, 0, 0, 0, 1, 2])  # counted from the newest owner
PROCESS = st.integers(0, PROCESSES - 1)
READER = st.integers(0, READERS - 1)
UNHEARD = st.integers(0, 2**READERS - 1)
FAULT = st.sampled_from(
    ["cut", "copy", "copy", "copy", "fail over", "fail over", "flush", "evict log", "evict head"]
)


class History(RuleBasedStateMachine):
    """Each rule is one thing that happens to somebody."""

    valkey: Valkey
    mutant: Mutant = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.world = World(self.valkey, self.mutant)
        self.loop.run(self.world.begin())
        self.loop.run(self.world.claim(0))

    def owner(self, back: int) -> Owner:
        return self.world.owners[-1 - min(back, len(self.world.owners) - 1)]

    @rule(whose=WHOSE, count=st.integers(1, 4), unheard=UNHEARD, trim=st.booleans())
    def write(self, whose: int, count: int, unheard: int, trim: bool) -> None:
        self.world.emit(self.owner(whose), count)
        self.loop.run(self.world.send(self.owner(whose), unheard=unheard, trim=trim))

    @rule(whose=WHOSE, unheard=UNHEARD)
    def send(self, whose: int, unheard: int) -> None:
        self.loop.run(self.world.send(self.owner(whose), unheard=unheard))

    @rule(count=st.integers(1, 4), unheard=UNHEARD)
    def go_on(self, count: int, unheard: int) -> None:
        self.write(0, count, unheard, False)

    @rule(whose=WHOSE, count=st.integers(1, 4))
    def emit(self, whose: int, count: int) -> None:
        self.world.emit(self.owner(whose), count)

    @rule(whose=WHOSE, unheard=UNHEARD)
    def lose_reply(self, whose: int, unheard: int) -> None:
        self.loop.run(self.world.send(self.owner(whose), lose_reply=True, unheard=unheard))

    @rule(whose=WHOSE)
    def archive(self, whose: int) -> None:
        self.world.archive(self.owner(whose))

    @rule(process=PROCESS, dies=st.sampled_from(["no", "no", "after open", "before telling"]))
    def claim(self, process: int, dies: Dies) -> None:
        self.loop.run(self.world.claim(process, dies))

    @precondition(lambda self: self.world.pg.running)
    @rule(told=st.booleans())
    def pause(self, told: bool) -> None:
        self.world.settle(self.owner(0), "pause")
        if told:
            self.loop.run(self.world.send(self.owner(0)))

    @rule(fault=FAULT, process=PROCESS)
    def suffer(self, fault: str, process: int) -> None:
        world = self.world
        faults: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "cut": lambda: world.cut(process),
            "copy": world.snapshot,
            "fail over": world.fail_over,
            "flush": world.flush,
            "evict log": lambda: world.evict(0),
            "evict head": lambda: world.evict(1),
        }
        self.loop.run(faults[fault]())

    @rule(reader=READER)
    def read(self, reader: int) -> None:
        self.loop.run(self.world.read(reader))

    @rule(reader=READER, cursor=st.integers(0, 200))
    def rejoin(self, reader: int, cursor: int) -> None:
        self.world.rejoin(reader, cursor)

    def teardown(self) -> None:
        try:
            self.loop.run(self.world.finish())
        finally:
            self.loop.run(self.world.aclose())
            self.loop.close()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with private_valkey() as server:
        yield server


def histories_of(valkey: Valkey, mutant: Mutant = "") -> type[History]:
    return type("History", (History,), {"valkey": valkey, "mutant": mutant})


def test_in_no_history_a_reader_sees_a_hole_or_a_number_with_two_contents(valkey: Valkey) -> None:
    run_state_machine_as_test(histories_of(valkey), settings=QUICK)


@pytest.mark.parametrize("mutant", ["no tail", "always trust"][: 1 if HISTORIES < 300 else 2])
def test_random_histories_catch_the_commoner_mistakes(valkey: Valkey, mutant: Mutant) -> None:
    found_soon = settings(QUICK, max_examples=300, derandomize=True, phases=[Phase.generate])
    with pytest.raises(Violation):
        run_state_machine_as_test(histories_of(valkey, mutant), settings=found_soon)


Begin = Callable[..., AbstractAsyncContextManager[World]]
Case = Callable[[World], Awaitable[None]]


@pytest.fixture
def begin(valkey: Valkey) -> Begin:
    @asynccontextmanager
    async def world(mutant: Mutant = "") -> AsyncIterator[World]:
        world = World(valkey, mutant)
        try:
            await world.begin()
            await world.claim(0)
            yield world
        finally:
            await world.aclose()

    return world


async def _tail_is_lost_with_its_owner(world: World) -> None:
    [first] = world.owners
    world.emit(first, 4)
    await world.send(first)
    await world.fail_over()
    await world.claim(1)
    world.emit(world.owners[-1], 4)
    await world.send(world.owners[-1])
    await world.finish()


async def _fence_is_lost_with_the_tail(world: World) -> None:
    """The old owner lives, and the replica has not heard of the new one."""
    [old] = world.owners
    world.emit(old, 4)
    await world.send(old)
    await world.snapshot()
    await world.claim(1)
    world.emit(old, 1)
    await world.fail_over()
    await world.send(old)
    await world.read(READERS - 1)
    await world.finish()


async def _owner_dies_with_an_unarchived_tail(world: World) -> None:
    [first] = world.owners
    world.emit(first, 4)
    await world.send(first)
    await world.claim(1)
    await world.finish()


async def _two_owners_die_after_a_loss(world: World) -> None:
    """The one that found the loss dies before it has written anything."""
    [first] = world.owners
    world.emit(first, 4)
    await world.send(first)
    await world.fail_over()
    await world.claim(1, dies="after open")
    await world.claim(2)
    await world.finish()


async def _flushed_and_two_owners_die(world: World) -> None:
    """As before, but Redis keeps its identity."""
    [first] = world.owners
    world.archive(first)
    world.emit(first, 4)
    await world.send(first)
    await world.flush()
    await world.claim(1, dies="after open")
    await world.claim(2)
    await world.finish()


async def _rolled_back_and_two_owners_die(world: World) -> None:
    """The replica has a part of the log, so it is there: only its identity gives it away."""
    [first] = world.owners
    await world.snapshot()
    world.emit(first, 4)
    await world.send(first)
    await world.fail_over()
    await world.claim(1, dies="after open")
    await world.claim(2)
    await world.finish()


CASES = [
    _tail_is_lost_with_its_owner,
    _fence_is_lost_with_the_tail,
    _owner_dies_with_an_unarchived_tail,
    _two_owners_die_after_a_loss,
    _flushed_and_two_owners_die,
    _rolled_back_and_two_owners_die,
]


@pytest.mark.parametrize("case", CASES)
async def test_what_the_rules_are_there_for_does_no_harm(begin: Begin, case: Case) -> None:
    async with begin() as world:
        await case(world)


@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        ("always trust", _tail_is_lost_with_its_owner),
        ("no reopen", _fence_is_lost_with_the_tail),
        ("no proof", _fence_is_lost_with_the_tail),
        ("no tail", _owner_dies_with_an_unarchived_tail),
        ("note early", _rolled_back_and_two_owners_die),
    ],
)
async def test_without_its_rule_it_does(begin: Begin, mutant: Mutant, case: Case) -> None:
    async with begin(mutant) as world:
        with pytest.raises(Violation):
            await case(world)
