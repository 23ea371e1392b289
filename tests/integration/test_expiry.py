"""Questions that nobody decides in time: what becomes of them and of their runs, under races."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from common.bus.client import Bus
from common.bus.log import LogConnection
from common.bus.signals import Signals
from common.db import interrupts, runs
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.errors import Unavailable
from common.ownership import OwnerActs
from deploy.state import free_port
from runner.expirer import ASIDE_MAX, PAUSE_MAX_S, PAUSE_MIN_S, PORTION, Aside, Expirer
from tests.support import rows
from tests.support.edge import Edge
from tests.support.fake_runner import FakeRun, FakeRunner
from tests.support.until import until

REJECTION = {"value": {"type": "reject", "message": "Nobody decided in time; this was not done."}}


@dataclass
class World:
    """A gateway, a runner that does what the test says, and what expires."""

    edge: Edge
    runner: FakeRunner
    db: Database
    expirer: Expirer
    other: Expirer

    async def ask(self, *questions: dict[str, Any]) -> tuple[FakeRun, list[Interrupt]]:
        await self.edge.create()
        run = await self.runner.start()
        return run, await run.ask(*(rows.question(f"n{n}", **q) for n, q in enumerate(questions)))

    async def overdue(self, *asked: Interrupt, by_s: float = 1.0) -> None:
        async with self.db.connect() as connection:
            await connection.rows(
                "UPDATE interrupts SET expires_at = clock_timestamp() - make_interval(secs => $1)"
                " WHERE id = ANY($2::text[])",
                *(by_s, [row.id for row in asked]),
            )

    async def run(self, run: FakeRun) -> Run:
        async with self.db.connect() as connection:
            found = await runs.find(connection, run.id)
        assert found is not None
        return found

    async def stored(self, run: FakeRun) -> list[Interrupt]:
        async with self.db.connect() as connection:
            return await interrupts.of_run(connection, run.id)

    async def events(self, run: FakeRun) -> list[dict[str, Any]]:
        """What a client sees after the pause."""
        answer = await self.edge.client.get(
            f"/api/runs/{run.id}/events?after={run.top}", headers={"Accept": "application/json"}
        )
        page: list[dict[str, Any]] = answer.json()["events"]
        return page

    async def approve(self, run: FakeRun, row: Interrupt) -> int:
        body = {"interruptId": row.id, "decision": "approve"}
        return (await self.edge.client.post(f"/api/runs/{run.id}/resume", json=body)).status_code


def expirer(db: Database, log: LogConnection, bus: Bus, **options: Any) -> Expirer:
    signals = Signals(bus)
    return Expirer(db, OwnerActs(db, log, signals), signals, **options)


@pytest.fixture
async def bus(redis_url: str, redis_prefix: str) -> AsyncIterator[Bus]:
    opened = Bus(redis_url, prefix=redis_prefix)
    yield opened
    await opened.aclose()


@pytest.fixture
async def world(
    edge: Edge, runner: FakeRunner, database: Database, bus: Bus, redis_url: str, redis_prefix: str
) -> AsyncIterator[World]:
    logs = [LogConnection(redis_url, prefix=redis_prefix) for _ in range(2)]
    one, other = (expirer(database, log, bus, interval_s=0.01) for log in logs)
    yield World(edge, runner, database, one, other)
    for log in logs:
        await log.aclose()


async def test_a_question_whose_time_is_over_ends_its_run(world: World) -> None:
    run, [row] = await world.ask({})
    assert await world.expirer.sweep() == 0
    await world.overdue(row)
    assert await world.expirer.sweep() == 1
    now = await world.run(run)
    assert (now.status, now.cancel_reason, now.epoch) == ("cancelled", "expired", 2)
    [stored] = await world.stored(run)
    assert (stored.status, stored.answer, stored.resolved_by) == ("expired", None, None)
    resolved, ended = await world.events(run)
    assert (resolved["type"], resolved["status"], resolved["interruptId"]) == (
        "interrupt_resolved",
        "expired",
        row.id,
    )
    assert (ended["type"], ended["reason"]) == ("cancelled", "expired")
    assert await world.approve(run, row) == 410
    assert await world.expirer.sweep() == 0


async def test_whoever_watches_sees_the_expiry_at_once(world: World) -> None:
    run, [row] = await world.ask({})
    async with world.edge.read(run.id, 2) as reading:
        await world.overdue(row)
        await world.expirer.sweep()
        await reading.over()
    assert reading.types == ["interrupt_resolved", "cancelled"]


async def test_a_run_that_shall_go_on_gets_a_rejection_of_the_questions_format(
    world: World,
) -> None:
    """Also where a person's reject would end the run: that is another setting."""
    run, [row] = await world.ask({"on_expire": "reject", "on_reject": "cancel"})
    await world.overdue(row)
    await world.expirer.sweep()
    now = await world.run(run)
    assert (now.status, now.resume_reason, now.epoch) == ("queued", "decision", 2)
    [stored] = await world.stored(run)
    assert (stored.status, stored.answer, stored.decision) == ("expired", REJECTION, None)
    [resolved] = await world.events(run)
    assert resolved == resolved | {"type": "interrupt_resolved", "status": "expired"}
    assert "resolvedBy" not in resolved
    await (await world.runner.start()).finish()
    assert [event["type"] for event in await world.events(run)] == [
        "interrupt_resolved",
        "run_resumed",
        "done",
    ]


async def test_where_a_rejection_cannot_be_said_the_run_ends(world: World) -> None:
    run, [row] = await world.ask(
        {"format": "langchain-hitl", "on_expire": "reject", "allowed_decisions": ["approve"]}
    )
    await world.overdue(row)
    await world.expirer.sweep()
    assert (await world.run(run)).cancel_reason == "expired"


async def test_of_several_questions_one_expires_and_the_others_wait(world: World) -> None:
    run, [one, other] = await world.ask({"on_expire": "reject"}, {})
    await world.overdue(one)
    await world.expirer.sweep()
    assert [row.status for row in await world.stored(run)] == ["expired", "pending"]
    assert (await world.run(run)).status == "queued"
    assert await world.approve(run, other) == 202


async def test_of_several_questions_one_that_cancels_takes_the_others_with_it(
    world: World,
) -> None:
    run, [one, two, three] = await world.ask({"on_expire": "reject"}, {}, {})
    await world.overdue(one, two)
    await world.expirer.sweep()
    assert [row.status for row in await world.stored(run)] == ["expired", "expired", "cancelled"]
    assert [event.get("status") for event in await world.events(run)] == [
        *("expired", "expired", "cancelled"),
        None,
    ]
    assert await world.approve(run, three) == 409


@pytest.mark.parametrize("on_expire", ["cancel", "reject"])
async def test_a_question_expires_while_its_run_is_queued_again(
    world: World, on_expire: str
) -> None:
    run, [one, two] = await world.ask({}, {"on_expire": on_expire})
    assert await world.approve(run, one) == 202
    await world.overdue(two)
    await world.expirer.sweep()
    now, [_, stored] = await world.run(run), await world.stored(run)
    assert stored.status == "expired"
    assert (now.status, stored.answer) == (
        ("cancelled", None) if on_expire == "cancel" else ("queued", REJECTION)
    )


@pytest.mark.parametrize("on_expire", ["cancel", "reject"])
async def test_a_question_expires_while_its_run_is_executed(world: World, on_expire: str) -> None:
    """The runner that holds the run is asked, or told of the answer; the fence stays its own."""
    run, [one, two] = await world.ask({}, {"on_expire": on_expire})
    assert await world.approve(run, one) == 202
    again = await world.runner.start()
    await world.overdue(two)
    await world.expirer.sweep()
    now, [_, stored] = await world.run(run), await world.stored(run)
    assert (now.status, now.epoch, stored.status) == ("running", again.row.epoch, "expired")
    if on_expire == "cancel":
        assert now.cancel_requested == "expired"
    else:
        assert (now.cancel_requested, stored.answer) == (None, REJECTION)


async def test_whoever_asked_to_cancel_before_is_the_reason(world: World) -> None:
    run, [row] = await world.ask({})
    await world.overdue(row)
    async with world.db.connect() as connection:
        await runs.request_cancel(connection, run.id, "user")
    await world.expirer.sweep()
    assert (await world.run(run)).cancel_reason == "user"
    assert [row.status for row in await world.stored(run)] == ["expired"]


async def test_two_that_sweep_at_once_expire_each_run_once(world: World) -> None:
    asked = [await world.ask({"on_expire": on}) for on in ("cancel", "reject") * 8]
    await world.overdue(*(row for _, questions in asked for row in questions))
    counts = await asyncio.gather(*(one.sweep() for one in (world.expirer, world.other) * 3))
    while await world.expirer.sweep():
        pass
    assert sum(counts) <= len(asked)
    for run, _ in asked:
        now, events = await world.run(run), await world.events(run)
        assert now.epoch == 2
        assert [event["type"] for event in events].count("interrupt_resolved") == 1


async def test_a_run_that_is_locked_holds_up_no_other(world: World) -> None:
    (held, [one]), (_, [two]) = await world.ask({}), await world.ask({})
    await world.overdue(one, two)
    async with world.db.begin() as connection:
        await runs.lock(connection, held.id)
        assert await world.expirer.sweep() == 1
    assert await world.expirer.sweep() == 1


@pytest.mark.parametrize("on_expire", ["cancel", "reject"])
@pytest.mark.timeout(120)
async def test_of_a_decision_and_an_expiry_at_the_same_instant_one_wins(
    world: World, on_expire: str
) -> None:
    won = {"decision": 0, "expiry": 0}
    for n in range(60):
        run, [row] = await world.ask({"on_expire": on_expire})
        await world.overdue(row, by_s=-0.005 * (n % 12))  # about as long as a decision takes
        code, *_ = await asyncio.gather(
            world.approve(run, row),
            _until_decided(world, world.expirer, run),
            _until_decided(world, world.other, run),
        )
        now, [stored], events = (
            await world.run(run),
            await world.stored(run),
            await _told(world, run),
        )
        assert (code, stored.status) in ((202, "resolved"), (410, "expired"))
        assert events == [("interrupt_resolved", stored.status)]
        if code == 202:
            assert (now.status, stored.answer) == ("queued", {"value": {"type": "approve"}})
        else:
            assert (now.status, stored.answer) == (
                ("cancelled", None) if on_expire == "cancel" else ("queued", REJECTION)
            )
        won["decision" if code == 202 else "expiry"] += 1
        await world.edge.client.post(f"/api/runs/{run.id}/cancel")  # nobody executes it here
    assert min(won.values()) > 0, won


async def _until_decided(world: World, sweeping: Expirer, run: FakeRun) -> None:
    while (await world.stored(run))[0].status == "pending":
        await sweeping.sweep()


async def _told(world: World, run: FakeRun) -> list[tuple[str, str]]:
    found = await world.events(run)
    return [(e["type"], e["status"]) for e in found if e["type"] == "interrupt_resolved"]


async def test_without_redis_questions_expire_as_well(
    world: World, database: Database, bus: Bus
) -> None:
    away = LogConnection(f"redis://127.0.0.1:{free_port()}/0", timeout_s=0.2)
    (one, [first]), (two, [second]) = await world.ask({}), await world.ask({"on_expire": "reject"})
    await world.overdue(first, second)
    await expirer(database, away, bus).sweep()
    assert (await world.run(one)).cancel_reason == "expired"
    assert (await world.run(two)).status == "queued"
    assert [event["type"] for event in await world.events(one)] == [
        "interrupt_resolved",
        "cancelled",
    ]
    await away.aclose()


async def test_without_redis_a_dead_runners_run_is_asked_to_end(
    world: World, database: Database, bus: Bus
) -> None:
    """Its tail may be in that Redis; whoever takes the run up ends it."""
    run, [one, two] = await world.ask({}, {})
    assert await world.approve(run, one) == 202
    again = await world.runner.start()
    async with database.connect() as connection:
        await runs.give_back(connection, run.id, again.row.epoch)
    await world.overdue(two)
    away = LogConnection(f"redis://127.0.0.1:{free_port()}/0", timeout_s=0.2)
    assert await expirer(database, away, bus).sweep() == 1
    now, [_, stored] = await world.run(run), await world.stored(run)
    assert (now.status, now.cancel_requested, stored.status) == ("queued", "expired", "expired")
    await away.aclose()


class Faulty(Expirer):
    """Fails twice, then does what it should."""

    faults: Sequence[Exception] = (
        Unavailable("Postgres"),
        KeyError("a row that cannot be expired"),
    )

    async def sweep(self) -> int:
        if self.faults:
            fault, *self.faults = self.faults
            raise fault
        return await super().sweep()


async def test_the_loop_expires_by_itself_and_outlives_faults(
    world: World, database: Database, log: LogConnection, bus: Bus
) -> None:
    run, [row] = await world.ask({})
    await world.overdue(row)
    signals = Signals(bus)
    faulty = Faulty(database, OwnerActs(database, log, signals), signals, interval_s=0.01)
    loop = asyncio.create_task(faulty.run())
    await until(lambda: _ended(world, run))
    loop.cancel()
    await asyncio.wait({loop})
    assert loop.cancelled()
    assert not faulty.faults


class Refusing(OwnerActs):
    """Cannot end one run, whatever the reason."""

    run_ids: Sequence[str] = ()
    tried = 0

    async def end(self, connection: Any, run: Run, reason: Any) -> Any:
        if run.id in self.run_ids:
            self.tried += 1
            raise RuntimeError("this run cannot be ended")
        return await super().end(connection, run, reason)


async def test_a_run_that_cannot_be_expired_holds_up_no_other(
    world: World, database: Database, log: LogConnection, bus: Bus
) -> None:
    asked = [await world.ask({}) for _ in range(6)]
    await world.overdue(*(row for _, [row] in asked))
    signals = Signals(bus)
    owner = Refusing(database, log, signals)
    owner.run_ids = [asked[0][0].id]
    assert await Expirer(database, owner, signals).sweep() == 5
    assert (await world.run(asked[0][0])).status == "interrupted"
    for run, _ in asked[1:]:
        assert [e["type"] for e in await world.events(run)][-1] == "cancelled"


async def test_runs_that_cannot_be_expired_do_not_hide_those_behind_them(
    world: World, database: Database, log: LogConnection, bus: Bus
) -> None:
    asked = [await world.ask({}) for _ in range(PORTION + 2)]
    for n, (_, [row]) in enumerate(asked):
        await world.overdue(row, by_s=1000 - n)
    signals = Signals(bus)
    owner, now = Refusing(database, log, signals), 0.0
    owner.run_ids = [run.id for run, _ in asked[:PORTION]]
    sweeping = Expirer(database, owner, signals, clock=lambda: now)
    assert await sweeping.sweep() == 2
    assert owner.tried == PORTION
    assert await sweeping.sweep() == 0
    assert owner.tried == PORTION  # set aside
    now = PAUSE_MIN_S
    owner.run_ids = owner.run_ids[:1]
    assert await sweeping.sweep() == PORTION - 1
    assert owner.tried == PORTION + 1
    now += 2 * PAUSE_MIN_S - 0.1
    owner.run_ids = ()
    assert await sweeping.sweep() == 0  # twice as long the second time
    now += 0.2
    assert await sweeping.sweep() == 1


def test_what_is_set_aside_is_bounded_and_waits_no_longer_than_five_minutes() -> None:
    now = 0.0
    aside = Aside(lambda: now)
    for n in range(ASIDE_MAX + 1):
        aside.put(f"run_{n}")
    assert aside.waiting() == {f"run_{n}" for n in range(1, ASIDE_MAX + 1)}
    for _ in range(20):
        aside.put("run_7")
    now = PAUSE_MAX_S
    assert aside.waiting() == set()
    aside.take_back("run_7")
    aside.put("run_7")
    now += PAUSE_MIN_S
    assert aside.waiting() == set()


async def _ended(world: World, run: FakeRun) -> bool:
    return (await world.run(run)).status == "cancelled"
