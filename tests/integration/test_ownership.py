"""Owning a run's log: taking it over, and acts on runs that nobody holds, on real servers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from common.batch import Batch
from common.bus.client import Bus
from common.bus.log import Append, LogConnection, LogReader
from common.bus.signals import Signals
from common.db import archive, interrupts, runners, runs
from common.db.engine import Connection, Database
from common.db.interrupts import Interrupt
from common.db.runs import ClaimedRun, Run
from common.errors import LeaseLost, Unavailable
from common.ownership import Opened, OwnerActs, open_log
from deploy.state import free_port
from tests.support.rows import (
    BLOCK,
    GRAPH,
    USER,
    batch,
    claim,
    new_run,
    question,
    queued_run,
    runner,
)


@pytest.fixture
async def log(redis_url: str, redis_prefix: str) -> AsyncIterator[LogConnection]:
    opened = LogConnection(redis_url, prefix=redis_prefix)
    await opened.connect()
    yield opened
    await opened.aclose()


@pytest.fixture
async def bus(redis_url: str, redis_prefix: str) -> AsyncIterator[Bus]:
    opened = Bus(redis_url, prefix=redis_prefix)
    yield opened
    await opened.aclose()


@pytest.fixture
def acts(database: Database, log: LogConnection, bus: Bus) -> OwnerActs:
    return OwnerActs(database, log, Signals(bus))


@pytest.fixture
async def away() -> AsyncIterator[LogConnection]:
    """A Redis that is not there."""
    opened = LogConnection(f"redis://127.0.0.1:{free_port()}/0", timeout_s=0.2)
    yield opened
    await opened.aclose()


# taking over


async def claimed(connection: Connection, log: LogConnection) -> ClaimedRun:
    """A first claim, by a runner that writes to this Redis."""
    run = await queued_run(connection)
    holder = await runner(connection)
    found = await runs.claim(connection, holder, [GRAPH], 99, BLOCK, log.identity)
    return next(one for one in found if one.id == run.id)


async def write(
    connection: Connection, log: LogConnection, run: ClaimedRun, *, archived: int, upto: int
) -> None:
    """Batches of two events each; those up to `archived` are in the archive, too."""
    assert await log.open(run.id, run.epoch, 0) == ("NEW", 0)
    batches = [batch(n, n + 1, epoch=run.epoch) for n in range(1, upto, 2)]
    answers = await log.append([Append(run.id, one) for one in batches])
    assert {answer for answer, _ in answers} <= {"OK"}
    kept = [one for one in batches if one.last <= archived]
    assert await archive.append(connection, run.id, run.epoch, kept)


async def taken_over(connection: Connection, run: Run) -> ClaimedRun:
    """The owner has died, another runner claims."""
    await connection.rows("UPDATE runners SET lease_until = now() - interval '1 second'")
    await runners.reap(connection, 1.0, 6.0)
    found = await claim(connection, await runner(connection))
    return next(one for one in found if one.id == run.id)


async def lose(bus: Bus, run_id: str) -> None:
    keys = await bus.call("KEYS", f"{bus.prefix}run:{{{run_id}}}:*")
    await bus.call("DEL", *keys)


async def test_a_first_owner_begins_at_one(
    database: Database, connection: Connection, log: LogConnection
) -> None:
    run = await claimed(connection, log)
    assert await open_log(database, log, run) == Opened(0, 1, trusted=True)
    assert await open_log(database, log, run) == Opened(0, 1, trusted=True)


async def test_the_tail_that_only_redis_has_is_archived(
    database: Database, connection: Connection, log: LogConnection
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=8)
    again = await taken_over(connection, run)
    assert again.archived == 2
    assert await open_log(database, log, again, 500) == Opened(8, 9, trusted=True)
    rows = await archive.read(connection, run.id, 0, 99)
    assert [(row.after, row.last, row.epoch) for row in rows] == [
        (0, 2, 1),
        (2, 4, 1),
        (4, 6, 1),
        (6, 8, 1),
    ]
    found = await runs.find(connection, run.id)
    assert found is not None
    assert found.sequence_reserved == max(BLOCK, 8 + 500)
    # and the former owner is fenced
    assert (await log.append([Append(run.id, batch(9, 9, epoch=1))]))[0][0] == "FENCED"


async def test_a_lost_log_makes_the_numbers_jump(
    database: Database, connection: Connection, log: LogConnection, bus: Bus
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=8)
    again = await taken_over(connection, run)
    await lose(bus, run.id)
    assert await open_log(database, log, again) == Opened(2, BLOCK + 1, trusted=False)
    following = batch(BLOCK + 1, BLOCK + 1, after=2, epoch=2)
    assert await log.append([Append(run.id, following)]) == [("OK", BLOCK + 1)]


async def test_another_redis_makes_the_numbers_jump_behind_its_tail(
    database: Database, connection: Connection, log: LogConnection
) -> None:
    """A replica that was promoted has a part of the tail, and knows nothing of the rest."""
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=6)
    await connection.rows("UPDATE runs SET redis_identity = 'the one that was lost'")
    again = await taken_over(connection, run)
    assert await open_log(database, log, again) == Opened(6, BLOCK + 1, trusted=False)
    assert await archive.top(connection, run.id) == 6
    assert again.redis_identity == "the one that was lost"  # not noted yet: nothing is written


async def test_an_owner_that_opened_after_a_loss_and_died_is_not_trusted(
    database: Database, connection: Connection, log: LogConnection
) -> None:
    """Noting the new Redis before its log holds the jump would let the next owner use numbers
    again that clients have seen."""
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=6)
    await connection.rows("UPDATE runs SET redis_identity = 'the one that was lost'")
    second = await taken_over(connection, run)
    first_number = (await open_log(database, log, second, 10)).next_sequence
    third = await taken_over(connection, run)
    opened = await open_log(database, log, third, 10)
    assert not opened.trusted
    assert opened.next_sequence > BLOCK
    assert opened.next_sequence >= first_number


async def test_a_clean_release_never_jumps(
    database: Database, connection: Connection, log: LogConnection, bus: Bus
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=6, upto=6)
    assert await runs.requeue(connection, run.id, 1, last_sequence=6, reason="handover")
    await lose(bus, run.id)
    [again] = await claim(connection, await runner(connection))
    assert await open_log(database, log, again) == Opened(6, 7, trusted=True)


async def test_a_newer_owner_makes_it_a_lost_lease(
    database: Database, connection: Connection, log: LogConnection
) -> None:
    run = await claimed(connection, log)
    again = await taken_over(connection, run)
    await open_log(database, log, again)
    with pytest.raises(LeaseLost):
        await open_log(database, log, run)


async def test_a_lease_lost_in_postgres_archives_nothing(
    database: Database, connection: Connection, log: LogConnection
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=6)
    second = await taken_over(connection, run)
    await connection.rows("UPDATE runs SET epoch = epoch + 1")
    with pytest.raises(LeaseLost):
        await open_log(database, log, second)
    assert await archive.top(connection, run.id) == 2


async def test_without_redis_the_log_cannot_be_taken_over(
    database: Database, connection: Connection, log: LogConnection, away: LogConnection
) -> None:
    run = await claimed(connection, log)
    with pytest.raises(Unavailable, match="Redis"):
        await open_log(database, away, run)


# acts


async def log_of(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """The events of the archive, which must follow each other."""
    cursor, events = 0, []
    for one in await archive.read(connection, run_id, 0, 999):
        assert one.takes(cursor)
        assert one.after == cursor
        lines = one.frames.split(b"\n")
        events += [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
        cursor = one.last
    return events


def told(events: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(event["type"], event["sequence"], event["epoch"]) for event in events]


async def in_redis(bus: Bus, run_id: str) -> list[Batch]:
    return await LogReader(bus).read(run_id, 0)


async def interrupted(
    connection: Connection, log: LogConnection, **values: Any
) -> tuple[ClaimedRun, Interrupt]:
    """Events 1 to 4 archived and in the log, one question pending."""
    run = await claimed(connection, log)
    await write(connection, log, run, archived=4, upto=4)
    [row] = await interrupts.insert(connection, run.id, 1, [question(**values)]) or []
    assert await runs.pause(connection, run.id, 1, last_sequence=4, next_nodes=["tools"])
    return run, row


async def test_a_run_that_never_began_is_cancelled_at_once(
    acts: OwnerActs, connection: Connection, bus: Bus
) -> None:
    run = await queued_run(connection)
    cancelled = await acts.cancel(run, "user")
    assert (cancelled.status, cancelled.epoch, cancelled.last_sequence) == ("cancelled", 1, 1)
    events = await log_of(connection, run.id)
    assert told(events) == [("cancelled", 1, 1)]
    assert events[0]["reason"] == "user"
    assert await in_redis(bus, run.id) == await archive.read(connection, run.id, 0, 9)
    assert await acts.cancel(run, "user") == cancelled
    assert await log_of(connection, run.id) == events


async def test_cancelling_an_interrupted_run_closes_its_questions(
    acts: OwnerActs, connection: Connection, log: LogConnection, bus: Bus
) -> None:
    run, row = await interrupted(connection, log)
    cancelled = await acts.cancel(run, "user")
    assert (cancelled.status, cancelled.cancel_reason) == ("cancelled", "user")
    events = (await log_of(connection, run.id))[4:]
    assert told(events) == [("interrupt_resolved", 5, 2), ("cancelled", 6, 2)]
    assert (events[0]["interruptId"], events[0]["status"]) == (row.id, "cancelled")
    found = await interrupts.find(connection, row.id)
    assert found is not None
    assert (found.status, found.told) == ("cancelled", True)
    assert (await in_redis(bus, run.id))[-1].ends == "run"


async def test_a_question_whose_time_is_over_is_told_as_expired(
    acts: OwnerActs, connection: Connection, log: LogConnection
) -> None:
    run, _ = await interrupted(connection, log)
    await connection.rows("UPDATE interrupts SET expires_at = now() - interval '1 second'")
    assert (await acts.cancel(run, "expired")).cancel_reason == "expired"
    assert (await log_of(connection, run.id))[4]["status"] == "expired"


async def test_a_running_run_is_only_asked(
    acts: OwnerActs, connection: Connection, log: LogConnection
) -> None:
    run = await claimed(connection, log)
    asked = await acts.cancel(run, "user")
    assert (asked.status, asked.cancel_requested) == ("running", "user")
    assert await runs.owned(connection, run.runner_id or "") == {run.id: (1, "user")}
    assert await log_of(connection, run.id) == []


async def test_a_cancelled_run_makes_room_for_the_one_behind_it(
    acts: OwnerActs, connection: Connection
) -> None:
    run = await queued_run(connection)
    waiting = await runs.create(connection, new_run(run.conversation_id, on_conflict="enqueue"))
    assert waiting is not None
    await acts.cancel(run, "superseded")
    assert [one.id for one in await claim(connection, await runner(connection))] == [waiting.id]


async def test_a_dead_runners_tail_is_archived_before_the_cancellation(
    acts: OwnerActs, connection: Connection, log: LogConnection, bus: Bus
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=6)
    await runs.give_back(connection, run.id, 1)
    await acts.cancel(run, "user")
    assert told(await log_of(connection, run.id))[5:] == [("custom", 6, 1), ("cancelled", 7, 2)]
    assert (await in_redis(bus, run.id))[-1].last == 7


async def test_after_a_lost_tail_the_cancellation_jumps_at_run_resumed(
    acts: OwnerActs, connection: Connection, log: LogConnection, bus: Bus
) -> None:
    """Numbers may jump there only (contract §3)."""
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=6)
    await runs.give_back(connection, run.id, 1)
    await lose(bus, run.id)
    await acts.cancel(run, "user")
    events = (await log_of(connection, run.id))[2:]
    assert told(events) == [("run_resumed", BLOCK + 1, 2), ("cancelled", BLOCK + 2, 2)]
    assert events[0]["reason"] == "failover"


async def test_a_dead_runners_run_cannot_be_cancelled_without_redis_but_is_asked(
    database: Database, connection: Connection, log: LogConnection, away: LogConnection, bus: Bus
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=2, upto=6)
    await runs.give_back(connection, run.id, 1)
    with pytest.raises(Unavailable, match="Redis"):
        await OwnerActs(database, away, Signals(bus)).cancel(run, "user")
    found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.status, found.epoch, found.cancel_requested) == ("queued", 1, "user")


async def test_a_clean_run_is_cancelled_without_redis(
    database: Database, connection: Connection, log: LogConnection, away: LogConnection, bus: Bus
) -> None:
    run, _ = await interrupted(connection, log)
    cancelled = await OwnerActs(database, away, Signals(bus)).cancel(run, "user")
    assert cancelled.status == "cancelled"
    assert told(await log_of(connection, run.id))[-1] == ("cancelled", 6, 2)


async def test_of_a_cancellation_and_a_claim_one_owns_the_run(
    acts: OwnerActs, database: Database
) -> None:
    async def claim_it(holder: str) -> list[ClaimedRun]:
        async with database.connect() as connection:
            return await claim(connection, holder)

    for _ in range(15):
        async with database.connect() as connection:
            run, holder = await queued_run(connection), await runner(connection)
        found, cancelled = await asyncio.gather(claim_it(holder), acts.cancel(run, "user"))
        async with database.connect() as connection:
            now = await runs.find(connection, run.id)
            events = told(await log_of(connection, run.id))
        assert now is not None
        if found:
            assert (now.status, now.cancel_requested, events) == ("running", "user", [])
        else:
            assert (cancelled.status, events) == ("cancelled", [("cancelled", 1, 1)])


# decisions


async def decide(
    database: Database, acts: OwnerActs, row: Interrupt, **values: Any
) -> tuple[Interrupt | None, Any]:
    """As the gateway's service does it."""
    given: dict[str, Any] = {"decision": "approve", "answer": {"value": True}, "by": USER}
    async with database.begin() as connection:
        run = await runs.lock(connection, row.run_id)
        assert run is not None
        decided = await interrupts.decide(connection, row.id, **{**given, **values})
        if decided is None:
            return None, None
        act = await acts.resolve(connection, run, principal={"user": USER, "permissions": []})
    if act is not None:
        await acts.tell(act)
    return decided, act


async def test_a_decision_queues_the_run_and_tells(
    acts: OwnerActs, database: Database, connection: Connection, log: LogConnection, bus: Bus
) -> None:
    run, row = await interrupted(connection, log)
    decided, act = await decide(database, acts, row)
    assert decided is not None
    assert (act.run.status, act.run.epoch, act.run.resume_reason) == ("queued", 2, "decision")
    assert act.run.principal == {"user": USER, "permissions": []}
    events = (await log_of(connection, run.id))[4:]
    assert told(events) == [("interrupt_resolved", 5, 2)]
    assert (events[0]["decision"], events[0]["resolvedBy"]) == ("approve", USER)
    assert (await in_redis(bus, run.id))[-1].last == 5
    [again] = await claim(connection, await runner(connection))
    assert (again.epoch, again.resume_reason) == (3, "decision")
    assert await open_log(database, log, again) == Opened(5, 6, trusted=True)
    assert await interrupts.untold(connection, run.id) == []
    assert [one.id for one in await interrupts.untaken(connection, run.id)] == [row.id]


async def test_a_decision_stands_when_redis_is_away(
    database: Database, connection: Connection, log: LogConnection, away: LogConnection, bus: Bus
) -> None:
    run, row = await interrupted(connection, log)
    decided, _ = await decide(database, OwnerActs(database, away, Signals(bus)), row)
    assert decided is not None
    assert told(await log_of(connection, run.id))[-1] == ("interrupt_resolved", 5, 2)
    assert (await in_redis(bus, run.id))[-1].last == 4
    # whoever goes on finds a log that lacks what is archived, and begins it anew
    [again] = await claim(connection, await runner(connection))
    assert await open_log(database, log, again) == Opened(5, 6, trusted=True)


async def test_of_simultaneous_decisions_one_resolves(
    acts: OwnerActs, database: Database, connection: Connection, log: LogConnection
) -> None:
    run, row = await interrupted(connection, log)
    results = await asyncio.gather(*(decide(database, acts, row, by=f"user-{n}") for n in range(5)))
    assert sum(decided is not None for decided, _ in results) == 1
    assert told(await log_of(connection, run.id))[4:] == [("interrupt_resolved", 5, 2)]


async def test_a_second_decision_on_a_queued_run_is_left_to_its_runner(
    acts: OwnerActs, database: Database, connection: Connection, log: LogConnection
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=4, upto=4)
    asked = [question("a"), question("b")]
    first, second = await interrupts.insert(connection, run.id, 1, asked) or []
    assert await runs.pause(connection, run.id, 1, last_sequence=4, next_nodes=[])
    await decide(database, acts, first)
    decided, act = await decide(database, acts, second)
    assert decided is not None
    assert act is None
    assert [one.id for one in await interrupts.untold(connection, run.id)] == [second.id]
    assert len(await interrupts.untaken(connection, run.id)) == 2
    # cancelled before anybody executed it: what was decided is told first
    current = await runs.find(connection, run.id)
    assert current is not None
    await acts.cancel(current, "user")
    assert told(await log_of(connection, run.id))[4:] == [
        ("interrupt_resolved", 5, 2),
        ("interrupt_resolved", 6, 3),
        ("cancelled", 7, 3),
    ]


async def test_a_breakpoint_goes_on_without_an_event(
    acts: OwnerActs, database: Database, connection: Connection, log: LogConnection
) -> None:
    run = await claimed(connection, log)
    await write(connection, log, run, archived=4, upto=4)
    assert await runs.pause(connection, run.id, 1, last_sequence=4, next_nodes=["pay"])
    async with database.begin() as deciding:
        locked = await runs.lock(deciding, run.id)
        assert locked is not None
        act = await acts.resolve(deciding, locked, "continue")
    assert act is not None
    assert (act.run.status, act.batches) == ("queued", ())
    assert (act.run.resume_reason, act.run.principal) == ("continue", run.principal)
    await acts.tell(act)
    assert len(await log_of(connection, run.id)) == 4


async def test_a_reject_that_cancels_is_one_act(
    acts: OwnerActs, database: Database, connection: Connection, log: LogConnection
) -> None:
    run, row = await interrupted(connection, log)
    async with database.begin() as deciding:
        locked = await runs.lock(deciding, run.id)
        assert locked is not None
        assert await interrupts.decide(deciding, row.id, decision="reject", answer=None, by=USER)
        act = await acts.end(deciding, locked, "rejected")
    assert act is not None
    await acts.tell(act)
    events = (await log_of(connection, run.id))[4:]
    assert told(events) == [("interrupt_resolved", 5, 2), ("cancelled", 6, 2)]
    assert (events[0]["status"], events[0]["decision"]) == ("resolved", "reject")


async def test_telling_outlives_the_caller(
    acts: OwnerActs, database: Database, connection: Connection, log: LogConnection, bus: Bus
) -> None:
    run, row = await interrupted(connection, log)
    async with database.begin() as deciding:
        locked = await runs.lock(deciding, run.id)
        assert locked is not None
        await interrupts.decide(deciding, row.id, decision="approve", answer={"value": 1}, by=USER)
        act = await acts.resolve(deciding, locked)
    assert act is not None
    telling = asyncio.create_task(acts.tell(act))
    await asyncio.sleep(0)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    await asyncio.gather(*acts._telling)
    assert (await in_redis(bus, run.id))[-1].last == 5
