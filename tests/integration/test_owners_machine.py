"""Runs and their owners, stale and fresh, in any order, on real Postgres and Redis at once.

Everything that is done is done by the product's own code (tests/integration/owners_world.py); after
every step all that is stored anywhere is compared with all that was seen before (owners_truth.py).
It finds a missing fence or a missing rule of takeover by itself, wherever that is.

STEADYRUN_FAULT_ROUNDS multiplies how many histories are tried.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from common.bus.client import Bus
from common.db.engine import Database
from common.runs import OnConflict
from common.settings import RunnerSettings
from tests.integration.owners_process import BLOCK, Dies, End, Owner, Servers, Watched
from tests.integration.owners_truth import Sight, Violation
from tests.integration.owners_world import PROCESSES, READERS, World

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "1"))
BUDGET = settings(
    max_examples=12 * ROUNDS,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=[Phase.reuse, Phase.generate],  # making a history shorter would take minutes
)
pytestmark = pytest.mark.timeout(120 + 60 * ROUNDS)

PROCESS = st.integers(0, PROCESSES - 1)
ANY = st.integers(0, 99)  # counted from the newest
ENDS = st.sampled_from(
    ["done", "failed", "cancelled", "handed over", "asks", "asks", "asks twice", "breakpoint"]
)
CONFLICTS = st.sampled_from(["reject", "enqueue", "enqueue", "interrupt", "rollback"])
DEATHS = st.sampled_from(["no", "no", "no", "no", "claimed", "opened", "opening", "storing"])
FAULTS = st.sampled_from(["flush", "copy", "copy", "fail over", "fail over", "cut"])
LEASES = st.sampled_from(["expire", "renew", "reap", "expire renew", "expire reap", "renew reap"])
READER = st.integers(0, READERS - 1)
SOURCES = st.sampled_from(["both", "both", "redis", "archive"])

Result = TypeVar("Result")


class Owners(RuleBasedStateMachine):
    """Each rule is one thing that happens to somebody."""

    servers: Servers
    loop: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.servers)
        self.do(self.world.begin())

    def do(self, act: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run(act)

    @property
    def sight(self) -> Sight:
        return self.world.truth.last

    def teardown(self) -> None:
        try:
            self.do(self.world.finish())
        finally:
            self.do(self.world.aclose())

    @initialize()
    def begin(self) -> None:
        self.create(0, "reject")
        self.create(1, "reject")
        self.claim(0, 2, "no")

    # whom it happens to

    def runs(self) -> list[str]:
        return list(self.sight.rows)

    def asked(self) -> list[str]:
        return list(self.sight.questions)

    def fresh(self) -> list[Owner]:
        owners = (one for one in self.world.owners if not one.dead)
        return [one for one in owners if self.sight.holds(*one.key)]

    def stale(self) -> list[Owner]:
        """Whose process does not hold the run again."""
        again = {(one.process, one.run.id) for one in self.fresh()}
        owners = (one for one in self.world.owners if not one.dead)
        return [one for one in owners if (one.process, one.run.id) not in again]

    def busy(self, which: int) -> int:
        """A process that holds runs, if there is one."""
        fresh = self.fresh()
        if not fresh:
            return which % PROCESSES
        return self.world.processes.index(nth(fresh, which).process)

    # from outside

    @rule(which=st.integers(0, 1), how=CONFLICTS)
    def create(self, which: int, how: OnConflict) -> None:
        self.do(self.world.create(which, how))
        self.everything_is_as_it_must_be()

    @rule(which=ANY, dies=st.sampled_from(["no", "no", "storing", "stored"]))
    def cancel(self, which: int, dies: Dies) -> None:
        self.do(self.world.cancel(nth(self.runs(), which), "user", dies))

    @rule()
    def sweep(self) -> None:
        self.do(self.world.sweep())

    @precondition(lambda self: self.asked())
    @rule(which=ANY, rejects=st.sampled_from([False, False, False, True]), told=st.booleans())
    def decide(self, which: int, rejects: bool, told: bool) -> None:
        one = nth(self.asked(), which)
        self.do(self.world.decide(one, "ada", rejects=rejects, told=told))

    @precondition(lambda self: self.asked())
    @rule(which=ANY)
    def two_decide(self, which: int) -> None:
        one = nth(self.asked(), which)

        async def both() -> None:
            deciding = (
                self.world.decide(one, by, rejects=False, told=True) for by in ("bob", "eve")
            )
            await asyncio.gather(*deciding)

        self.do(both())

    @precondition(lambda self: self.asked())
    @rule(which=ANY)
    def expire_question(self, which: int) -> None:
        self.do(self.world.expire_question(nth(self.asked(), which)))

    @rule(which=ANY)
    def go_on(self, which: int) -> None:
        self.do(self.world.go_on(nth(self.runs(), which)))

    # runners

    @rule(process=PROCESS, limit=st.integers(1, 3), dies=DEATHS)
    def claim(self, process: int, limit: int, dies: Dies) -> None:
        self.do(self.world.claim(process, limit, dies))
        self.everything_is_as_it_must_be()

    @rule(which=ANY, process=PROCESS, acts=LEASES)
    def leases(self, which: int, process: int, acts: str) -> None:
        """One runs out, one is renewed, late maybe, and somebody looks."""
        if "expire" in acts:
            self.do(self.world.expire(nth(self.world.runner_ids, which)))
        if "renew" in acts:
            self.do(self.world.renew(self.world.processes[process]))
        if "reap" in acts:
            self.do(self.world.reap())

    @rule(process=PROCESS)
    def die(self, process: int) -> None:
        self.do(self.world.die(process))

    @rule(which=ANY, other=PROCESS, said=st.integers(0, 2), dies=DEATHS)
    def be_taken_over(self, which: int, other: int, said: int, dies: Dies) -> None:
        """The old owner lives and may have something left to say, in Redis or not even there."""
        process = self.busy(which)
        self.speak_up(process, said)
        self.do(self.world.lose(process))
        self.claim(other, 3, dies)

    @rule(which=ANY, away=st.integers(1, PROCESSES - 1), fault=FAULTS, told=st.booleans())
    def sleep_through_a_takeover(self, which: int, away: int, fault: str, told: bool) -> None:
        """It spoke, was stopped, and continues in the middle of a sentence."""
        process = self.busy(which)
        sleeper, other = self.world.processes[process], (process + away) % PROCESSES
        owners = self.speak_up(process, 1)
        self.do(sleeper.send())
        self.do(self.world.lose(process))
        self.claim(other, 3, "no")
        self.suffer(fault if fault in ("flush", "copy") else "copy", other)
        if told:
            self.do(self.world.processes[other].send())
        for owner in owners:
            self.go_on_as_stale(owner, "done")

    @rule(which=ANY, other=PROCESS, said=st.integers(1, 3), fault=st.booleans())
    def die_with_a_tail(self, which: int, other: int, said: int, fault: bool) -> None:
        """And Redis may lose it at the same time."""
        process = self.busy(which)
        if fault:
            self.do(self.world.copy())
        self.speak_up(process, said)
        self.do(self.world.processes[process].send())
        self.everything_is_as_it_must_be()
        if fault:
            self.do(self.world.fail_over())
        self.do(self.world.lose(process))
        self.do(self.world.die(process))
        self.claim(other, 3, "no")

    def speak_up(self, process: int, said: int) -> list[Owner]:
        sought = self.world.processes[process]
        owners = [one for one in self.fresh() if one.process is sought]
        for owner in owners:
            self.world.say(owner, said)
        return owners

    # owners

    @precondition(lambda self: self.fresh())
    @rule(which=ANY, count=st.integers(1, 5), sends=st.booleans())
    def say(self, which: int, count: int, sends: bool) -> None:
        owner = nth(self.fresh(), which)
        self.world.say(owner, count)
        if sends:
            self.do(owner.process.send())

    @rule(process=PROCESS)
    def send(self, process: int) -> None:
        self.do(self.world.processes[process].send())

    @rule(process=PROCESS)
    def archive(self, process: int) -> None:
        self.do(self.world.processes[process].archive())

    @precondition(lambda self: self.fresh())
    @rule(which=ANY, end=ENDS, dies=st.sampled_from(["no", "no", "no", "storing", "stored"]))
    def settle(self, which: int, end: End, dies: Dies) -> None:
        owner = nth(self.fresh(), which)
        number = self.world.processes.index(owner.process)
        self.do(self.world.settle(owner, end, dies))
        if dies != "no":
            self.do(self.world.die(number))
        elif which % 2:
            self.do(owner.process.send())

    @precondition(lambda self: self.fresh())
    @rule(which=ANY)
    def take_answers(self, which: int) -> None:
        owner = nth(self.fresh(), which)
        self.do(self.world.tell_decisions(owner))
        assert self.do(owner.take_answers())

    @precondition(lambda self: self.fresh())
    @rule(which=ANY, name=st.sampled_from("ab"), completes=st.booleans())
    def effect(self, which: int, name: str, completes: bool) -> None:
        owner = nth(self.fresh(), which)
        asked = self.sight.rows[owner.run.id].cancel_requested is not None
        outcome = self.world.said if completes else None
        assert self.do(owner.effect(name, outcome)) != asked

    @precondition(lambda self: self.stale())
    @rule(which=ANY, end=ENDS)
    def a_stale_owner_tries_everything(self, which: int, end: End) -> None:
        self.go_on_as_stale(nth(self.stale(), which), end)

    def go_on_as_stale(self, owner: Owner, end: End) -> None:
        before = self.do(self.world.look())
        self.world.say(owner, 2)
        self.do(owner.process.send())
        self.do(self.world.try_everything(owner))
        assert not self.do(self.world.settle(owner, end))
        self.do(owner.process.archive())
        self.do(owner.process.send())
        run_id, now = owner.run.id, self.do(self.world.look())
        assert now.stored_of(run_id) == before.stored_of(run_id)
        is_fenced = before.fences[run_id] > owner.run.epoch
        if is_fenced and now.logs[run_id] != before.logs[run_id]:
            raise Violation(f"{owner.key} has written to a log that another one holds")

    # faults of Redis

    @rule(fault=FAULTS, process=PROCESS)
    def suffer(self, fault: str, process: int) -> None:
        world = self.world
        faults: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "flush": world.flush,
            "copy": world.copy,
            "fail over": world.fail_over,
            "cut": world.processes[process].log.aclose,
        }
        self.do(faults[fault]())

    # readers

    @rule(reader=READER, which=ANY, source=SOURCES, back=st.integers(0, 5))
    def read(self, reader: int, which: int, source: str, back: int) -> None:
        """Also with an older cursor."""
        key = reader, nth(self.runs(), which)
        self.world.cursors[key] = max(0, self.world.cursors.get(key, 0) - back)
        self.do(self.world.read(*key, source))

    # always

    @invariant()
    def everything_is_as_it_must_be(self) -> None:
        self.do(self.world.look())


T = TypeVar("T")


def nth(items: list[T], which: int) -> T:
    """The newest come first."""
    return items[-1 - which % len(items)]


@pytest.fixture
def machine(database_url: str, redis_url: str, redis_prefix: str) -> Iterator[type[Owners]]:
    def pool(name: str) -> Watched:
        return Watched(database_url, application_name=name, pool_size=2)

    bus = Bus(redis_url, prefix=redis_prefix)
    eye = Database(database_url, application_name="eye", pool_size=1)
    found = RunnerSettings(DATABASE_URL=database_url, REDIS_URL=redis_url, sequence_block=BLOCK)
    pools = [pool("runner") for _ in range(PROCESSES)]
    servers = Servers(redis_url, bus, eye, pool("gateway"), pools, found)
    with asyncio.Runner() as loop:
        yield type("Here", (Owners,), {"servers": servers, "loop": loop})
        for database in (servers.gateway, eye, *pools):
            loop.run(database.aclose())
        loop.run(bus.aclose())


def test_owners_in_any_order_lose_nothing_and_change_nothing_late(machine: type[Owners]) -> None:
    run_state_machine_as_test(machine, settings=BUDGET)
