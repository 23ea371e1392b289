"""Dead runners and effects: what the reaper hands back, and what it leaves alone."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from common.db import effects, runners, runs
from common.db.effects import CancelAsked, Effect
from common.db.engine import Connection, Database
from common.db.runners import LOCK_CLASS, Reaped
from common.db.runs import Run
from tests.support.rows import BLOCK, claim, queued_run, runner, running_run
from tests.support.until import until

NOBODY = Reaped(runners=[], runs=[])
JUST_STARTED_S = 1e6  # so long that Postgres's start was within it
LONG_AGO_S = 0.0  # a lease time so short that Postgres's start was before it

Locked = Callable[[str], AbstractAsyncContextManager[None]]


@pytest.fixture
def locked(database_url: str) -> Locked:
    """The runner's lock, held by a session of its own."""

    @asynccontextmanager
    async def hold(runner_id: str) -> AsyncIterator[None]:
        database = Database(
            database_url, application_name=runners.application_name(runner_id), pool_size=1
        )
        async with database.connect() as connection:
            slot = await connection.value("SELECT slot FROM runners WHERE id = $1", runner_id)
            await connection.rows("SELECT pg_advisory_lock($1::int, $2::int)", LOCK_CLASS, slot)
            await connection.rows("UPDATE runners SET lost_at = NULL WHERE id = $1", runner_id)
            yield
        await database.aclose()

    return hold


async def expire(connection: Connection, runner_id: str | None) -> None:
    await connection.rows(
        "UPDATE runners SET lease_until = now() - interval '1 second' WHERE id = $1", runner_id
    )


async def test_a_lease_that_is_over_hands_the_runs_back(connection: Connection) -> None:
    run, other = await running_run(connection), await running_run(connection)
    await expire(connection, run.runner_id)
    dead = await runners.reap(connection, 1.0, LONG_AGO_S)
    assert dead == Reaped([run.runner_id or ""], [run.id])
    found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.status, found.runner_id, found.attempts) == ("queued", None, 1)
    assert (found.epoch, found.resume_reason) == (1, "failover")
    assert found.sequence_reserved == BLOCK
    assert await runs.owned(connection, other.runner_id or "") == {other.id: (1, None)}
    assert await runners.reap(connection, 1.0, 6.0) == NOBODY
    assert not await runners.renew(connection, run.runner_id or "", 60.0)


@pytest.mark.parametrize(
    ("charged", "ttl_s"),
    [
        pytest.param(False, LONG_AGO_S, id="nobody could look for long"),
        pytest.param(True, JUST_STARTED_S, id="Postgres has just started"),
    ],
)
async def test_leases_that_ran_out_while_postgres_was_away_are_not_charged(
    connection: Connection, charged: bool, ttl_s: float
) -> None:
    run = await running_run(connection)
    await expire(connection, run.runner_id)
    dead = await runners.reap(connection, 1.0, ttl_s, charged=charged)
    assert dead == Reaped([run.runner_id or ""], [run.id])
    found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.attempts, found.resume_reason) == (0, "failover")


async def test_a_renewed_lease_is_left_alone(connection: Connection) -> None:
    run = await running_run(connection)
    await expire(connection, run.runner_id)
    assert await runners.renew(connection, run.runner_id or "", 60.0)
    assert await runners.reap(connection, 1.0, 6.0) == NOBODY


async def test_a_lock_seen_free_twice_with_a_grace_between_is_a_death(
    database: Database, connection: Connection, locked: Locked
) -> None:
    run = await running_run(connection)
    async with locked(run.runner_id or ""):
        assert await runners.reap(connection, 0.0, LONG_AGO_S) == NOBODY
        assert await runners.reap(connection, 0.0, LONG_AGO_S) == NOBODY
    await until(lambda: is_free(connection))
    assert await runners.reap(connection, 3600.0, LONG_AGO_S) == NOBODY  # the first look
    assert await runners.reap(connection, 3600.0, LONG_AGO_S) == NOBODY  # within the grace
    dead = await runners.reap(connection, 0.0, LONG_AGO_S)
    assert dead == Reaped([run.runner_id or ""], [run.id])


async def is_free(connection: Connection) -> bool:
    held: int = await connection.value(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = $1",
        LOCK_CLASS,
    )
    return held == 0


async def test_a_lock_that_is_back_before_the_second_look_is_no_death(
    connection: Connection, locked: Locked
) -> None:
    run = await running_run(connection)
    async with locked(run.runner_id or ""):
        pass
    await until(lambda: is_free(connection))
    assert await runners.reap(connection, 0.0, LONG_AGO_S) == NOBODY
    async with locked(run.runner_id or ""):
        assert await runners.reap(connection, 0.0, LONG_AGO_S) == NOBODY


async def test_a_free_lock_says_nothing_before_it_was_first_held(connection: Connection) -> None:
    await running_run(connection)
    for _ in range(3):
        assert await runners.reap(connection, 0.0, LONG_AGO_S) == NOBODY


async def test_just_after_a_start_of_postgres_the_lease_alone_counts(
    connection: Connection, locked: Locked
) -> None:
    run = await running_run(connection)
    async with locked(run.runner_id or ""):
        pass
    await until(lambda: is_free(connection))
    started_ago_s = await connection.value(
        "SELECT extract(epoch FROM now() - pg_postmaster_start_time())::float8"
    )
    ttl_s = started_ago_s + 3600.0
    for _ in range(3):
        assert await runners.reap(connection, 0.0, ttl_s) == NOBODY
    await expire(connection, run.runner_id)
    assert (await runners.reap(connection, 0.0, ttl_s)).runs == [run.id]


async def test_a_run_of_a_runner_that_is_dead_already_is_swept(connection: Connection) -> None:
    """A claim that was under way while its runner was declared dead."""
    run = await running_run(connection)
    await runners.release(connection, run.runner_id or "")
    assert await runners.reap(connection, 1.0, 6.0) == Reaped([], [run.id])


async def test_a_run_of_a_runner_that_nobody_knows_is_swept(connection: Connection) -> None:
    run = await running_run(connection)
    await connection.rows("DELETE FROM runners")
    assert await runners.reap(connection, 1.0, 6.0) == Reaped([], [run.id])


async def test_a_row_that_a_stopped_process_holds_blocks_nobody(
    database: Database, database_url: str, connection: Connection
) -> None:
    run, free = await claimed_together(connection)
    stopped = Database(
        database_url,
        application_name=runners.application_name(run.runner_id or ""),
        pool_size=1,
    )
    ended: list[type[BaseException]] = []
    try:
        async with stopped.begin() as holding:
            assert await runs.hold(holding, run.id, 1)
            await expire(connection, run.runner_id)
            reaped = await runners.reap(connection, 1.0, 6.0)
            assert reaped == Reaped([run.runner_id or ""], [free.id])
            assert await runners.terminate_sessions(connection) == 1
            await until(lambda: swept(connection, run))
    except Exception as error:  # the session was ended under it, as it must be
        ended.append(type(error))
    assert [error.__name__ for error in ended] == ["Unavailable"]
    assert await runners.terminate_sessions(connection) == 0
    await stopped.aclose()


async def swept(connection: Connection, run: Run) -> bool:
    return (await runners.reap(connection, 1.0, 6.0)).runs == [run.id]


async def claimed_together(connection: Connection) -> list[Run]:
    for _ in range(2):
        await queued_run(connection)
    return [*await claim(connection, await runner(connection))]


async def test_the_console_sees_the_living_and_the_lately_dead(connection: Connection) -> None:
    run = await running_run(connection)
    idle = await runner(connection)
    await runners.drain(connection, idle)
    assert await runners.count_alive(connection) == 2
    listed = {one.id: one for one in await runners.list_all(connection)}
    assert (listed[run.runner_id or ""].runs, listed[idle].runs) == (1, 0)
    assert listed[idle].draining
    await runners.release(connection, idle)
    assert len(await runners.list_all(connection)) == 2
    assert len(await runners.list_all(connection, dead_for_s=0.0)) == 1
    assert await runners.purge(connection, 0.0) == 1
    assert await runners.purge(connection, 0.0) == 0


# effects (I5)


async def test_an_effect_is_begun_once_and_its_outcome_stays(connection: Connection) -> None:
    run = await running_run(connection)
    key: tuple[str, int, str] = (run.id, 1, "pay:17")
    first = await effects.begin(connection, *key)
    assert isinstance(first, Effect)
    assert first.outcome is None
    again = await effects.begin(connection, *key)
    assert isinstance(again, Effect)
    assert again == first
    assert await effects.complete(connection, *key, None)
    assert await effects.complete(connection, *key, "another")
    assert not await effects.complete(connection, run.id, 1, "unknown", 1)
    known = await effects.begin(connection, *key)
    assert isinstance(known, Effect)
    assert known.outcome == {"value": None}


async def test_an_intent_that_is_taken_back_can_be_begun_again(connection: Connection) -> None:
    run = await running_run(connection)
    first = await effects.begin(connection, run.id, 1, "pay:17")
    assert await effects.forget(connection, run.id, 1, "pay:17")
    again = await effects.begin(connection, run.id, 1, "pay:17")
    assert isinstance(first, Effect)
    assert isinstance(again, Effect)
    assert again.started_at > first.started_at


async def test_an_effect_starts_under_the_newest_epoch_only(connection: Connection) -> None:
    run = await running_run(connection)
    await effects.begin(connection, run.id, 1, "pay:17")
    assert await runs.give_back(connection, run.id, 1)
    await claim(connection, await runner(connection))
    late: list[Any] = [
        await effects.begin(connection, run.id, 1, "pay:18"),
        await effects.complete(connection, run.id, 1, "pay:17", 1),
        await effects.forget(connection, run.id, 1, "pay:17"),
        await effects.take_over(connection, run.id, 1, "pay:17"),
    ]
    assert late == [None, False, False, False]
    known = await effects.begin(connection, run.id, 2, "pay:17")
    assert isinstance(known, Effect)
    assert known.epoch == 1


async def test_an_intent_is_taken_over_by_the_newest_epoch(connection: Connection) -> None:
    run = await running_run(connection)
    await effects.begin(connection, run.id, 1, "pay:17")
    assert await runs.give_back(connection, run.id, 1)
    await claim(connection, await runner(connection))
    for _ in range(2):  # the first answer may be lost
        assert await effects.take_over(connection, run.id, 2, "pay:17")
    ours = await effects.begin(connection, run.id, 2, "pay:17")
    assert isinstance(ours, Effect)
    assert ours.epoch == 2


async def test_nothing_is_begun_once_a_cancellation_was_asked_for(connection: Connection) -> None:
    run = await running_run(connection)
    await runs.request_cancel(connection, run.id, "user")
    assert await effects.begin(connection, run.id, 1, "pay:17") == CancelAsked("user")
    assert await connection.value("SELECT count(*) FROM effects") == 0


async def test_an_outcome_may_say_that_the_value_is_not_kept(connection: Connection) -> None:
    run = await running_run(connection)
    await effects.begin(connection, run.id, 1, "pay:17")
    assert await effects.complete(connection, run.id, 1, "pay:17", None, refused="too big")
    known = await effects.begin(connection, run.id, 1, "pay:17")
    assert isinstance(known, Effect)
    assert known.outcome == {"refused": "too big"}
