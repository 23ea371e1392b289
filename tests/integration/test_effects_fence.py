"""Two owners of one run and one ledger: the fence and the local lease check, each without the
other (I3, I5). What the older owner does is held at exact places; nobody has to be stopped."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from common.db import runs
from common.db.engine import Connection, Database
from common.db.runs import ClaimedRun
from common.masking import Masker
from runner.asking import Asking
from runner.authoring import NOT_PERFORMED, Performed, effect_key
from runner.effects import Effects
from runner.gate import Gate
from runner.ledger import Ledger
from tests.support.rows import claim, runner, running_run


@dataclass
class Outside:
    """Where effects happen; `acting` and `go_on` hold one in its middle."""

    lines: list[str] = field(default_factory=list)
    acting: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def act(self) -> str:
        self.lines.append(effect_key())
        return "done"

    async def act_slowly(self) -> str:
        self.acting.set()
        await self.go_on.wait()
        return await self.act()

    def look(self) -> Any:
        return Performed("found") if effect_key() in self.lines else NOT_PERFORMED


@dataclass
class Owner:
    """An execution reduced to its effects; `stopped` holds what ended it."""

    effects: Effects
    asking: Asking
    stopped: list[Any]

    @property
    def has_stopped(self) -> bool:
        return bool(self.stopped) or self.asking.is_over

    async def performs(self, fn: Callable[[], Any], verify: Any = None) -> Any:
        """What `guarded` returns; None when it ended the execution, which cancels it."""
        work = asyncio.create_task(self.effects.perform("key", fn, verify))
        while not work.done() and not self.has_stopped:
            await asyncio.sleep(0.002)
        if self.has_stopped:
            work.cancel()
            await asyncio.wait({work})
        return None if self.has_stopped else work.result()


def owner(db: Database, run: ClaimedRun, may: Callable[[], bool] = lambda: True) -> Owner:
    stopped: list[Any] = []
    asking = Asking(Gate())
    effects = Effects(
        Ledger(db, run.id, run.epoch),
        may_start=lambda: not stopped and may(),
        may_go_on=may,
        stop=stopped.append,
        mask=Masker().text,
        asking=asking,
    )
    effects.enter()
    return Owner(effects, asking, stopped)


async def taken_over(connection: Connection, run: ClaimedRun) -> ClaimedRun:
    """By another runner, which holds it under the next epoch."""
    assert await runs.give_back(connection, run.id, run.epoch)
    claimed = await claim(connection, await runner(connection))
    return next(held for held in claimed if held.id == run.id)


async def intents(connection: Connection, run: ClaimedRun) -> list[tuple[Any, ...]]:
    rows = await connection.rows("SELECT epoch, outcome FROM effects WHERE run_id = $1", run.id)
    return [tuple(row) for row in rows]


@pytest.fixture
def outside() -> Outside:
    return Outside()


async def test_the_fence_alone_keeps_an_older_owner_from_beginning(
    database: Database, connection: Connection, outside: Outside
) -> None:
    """Its clock says that it may."""
    run = await running_run(connection)
    old = owner(database, run)
    await taken_over(connection, run)
    assert await old.performs(outside.act) is None
    assert old.stopped == [None]
    assert (outside.lines, await intents(connection, run)) == ([], [])


async def test_the_local_check_alone_keeps_an_effect_from_starting_and_takes_the_intent_back(
    database: Database, connection: Connection, outside: Outside
) -> None:
    """The ledger says that it may: nobody has taken the run up yet."""
    run = await running_run(connection)
    for fn in (outside.act, lambda: outside.act(), lambda: outside.lines.append("sync")):
        late = owner(database, run, lambda: False)
        assert await late.performs(fn) is None
        assert late.stopped == [None]
    assert (outside.lines, await intents(connection, run)) == ([], [])


@pytest.mark.parametrize("checks", [True, False])
async def test_an_owner_that_stood_still_after_its_intent_performs_nothing(
    database: Database, connection: Connection, outside: Outside, checks: bool
) -> None:
    """Another has verified and performed meanwhile. Without the check the fence is blind here."""
    run = await running_run(connection)
    asked, answer = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stands_still() -> Any:
        """In the effect's thread, where its check is the last thing before user code."""
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(answer.wait(), loop).result()
        return not checks

    first = owner(database, run, stands_still)
    standing = asyncio.create_task(first.performs(lambda: outside.lines.append("old")))
    await asked.wait()
    second = owner(database, await taken_over(connection, run))
    assert await second.performs(outside.act, outside.look) == "done"
    answer.set()
    await standing
    assert len(outside.lines) == (1 if checks else 2)
    assert await intents(connection, run) == [(2, {"value": "done"})]


async def test_an_older_owner_takes_no_intent_back_that_another_has_taken_over(
    database: Database, connection: Connection, outside: Outside
) -> None:
    run = await running_run(connection)
    await connection.rows("INSERT INTO effects (run_id, key, epoch) VALUES ($1, 'key', 1)", run.id)
    later = await taken_over(connection, run)
    second = owner(database, later)
    performing = asyncio.create_task(second.performs(outside.act_slowly, outside.look))
    await outside.acting.wait()
    old = owner(database, run, lambda: False)
    assert await old.performs(outside.act, outside.look) is None
    assert await intents(connection, run) == [(2, None)]
    outside.go_on.set()
    assert await performing == "done"
    assert len(outside.lines) == 1


async def test_the_outcome_of_an_older_owner_changes_nothing(
    database: Database, connection: Connection, outside: Outside
) -> None:
    run = await running_run(connection)
    old = owner(database, run)
    performing = asyncio.create_task(old.performs(outside.act_slowly))
    await outside.acting.wait()
    second = owner(database, await taken_over(connection, run))
    assert await second.performs(outside.act) is None
    assert [unknown.epoch for unknown in second.asking.unknown] == [1]
    outside.go_on.set()
    assert await performing is None
    assert old.stopped == [None]
    assert await intents(connection, run) == [(1, None)]


async def test_an_effect_that_asks_for_its_key_stops_there_when_the_run_is_lost(
    database: Database, connection: Connection, outside: Outside
) -> None:
    run = await running_run(connection)
    old = owner(database, run, lambda: not outside.go_on.is_set())
    performing = asyncio.create_task(old.performs(outside.act_slowly))
    await outside.acting.wait()
    outside.go_on.set()
    assert await performing is None
    assert (outside.lines, old.stopped) == ([], [None])


async def test_an_intent_whose_answer_was_lost_is_performed_by_the_same_owner(
    database: Database, connection: Connection, outside: Outside
) -> None:
    run = await running_run(connection)
    await connection.rows("INSERT INTO effects (run_id, key, epoch) VALUES ($1, 'key', 1)", run.id)
    assert await owner(database, run).performs(outside.act) == "done"


async def test_an_effect_waits_while_postgres_is_away_and_is_performed_once(
    database_url: str, connection: Connection, outside: Outside
) -> None:
    run = await running_run(connection)
    db = Database(database_url, application_name="cut off", pool_size=2)
    performing = asyncio.create_task(owner(db, run).performs(outside.act_slowly))
    await outside.acting.wait()
    await connection.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cut off'"
    )
    outside.go_on.set()
    assert await performing == "done"
    assert (len(outside.lines), await intents(connection, run)) == (1, [(1, {"value": "done"})])
    await db.aclose()


async def test_a_sync_effect_in_a_thread_of_a_sync_node_ends_with_its_execution(
    database: Database, connection: Connection
) -> None:
    """Nobody hears it any more; nothing waits for ever."""
    run = await running_run(connection)
    await connection.rows("INSERT INTO effects (run_id, key, epoch) VALUES ($1, 'key', 0)", run.id)
    held = owner(database, run)
    node = asyncio.create_task(asyncio.to_thread(held.effects.perform_sync, "key", list, None))
    while not held.has_stopped:
        await asyncio.sleep(0.002)
    await held.effects.settle()
    await asyncio.wait({node}, timeout=20)
    assert node.cancelled() or node.exception() is not None


async def test_a_guarded_effect_that_waits_for_itself_is_an_error(
    database: Database, connection: Connection
) -> None:
    held = owner(database, await running_run(connection))

    async def inner() -> Any:
        return await held.effects.perform("key", list, None)

    with pytest.raises(RuntimeError, match="waits for itself"):
        await held.performs(inner)


async def test_verify_has_to_answer_one_of_the_three(
    database: Database, connection: Connection, outside: Outside
) -> None:
    run = await running_run(connection)
    await connection.rows("INSERT INTO effects (run_id, key, epoch) VALUES ($1, 'key', 0)", run.id)
    with pytest.raises(TypeError, match="NOT_PERFORMED"):
        await owner(database, run).performs(outside.act, lambda: False)
    assert await intents(connection, run) == [(0, None)]
