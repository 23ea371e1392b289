"""A run tells who asked for its cancellation and when, as a question tells who decided it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.bus.client import Bus
from common.bus.signals import Signals
from common.db import runs
from common.db.engine import Connection, Database
from common.ownership import OwnerActs
from runner.expirer import Expirer
from tests.support import rows
from tests.support.deciding import ask, edge, expire, graphs
from tests.support.edge import Edge, bearer
from tests.support.fake_runner import FakeRunner

__all__ = ["edge", "graphs"]

ENDS_IT: dict[str, Any] = {"on_reject": "cancel", "required_permission": "pumps.restart"}


@pytest.fixture
async def expirer(runner: FakeRunner, redis_url: str, redis_prefix: str) -> AsyncIterator[Expirer]:
    bus = Bus(redis_url, prefix=redis_prefix)
    signals = Signals(bus)
    yield Expirer(runner.db, OwnerActs(runner.db, runner.log, signals), signals)
    await bus.aclose()


async def told(edge: Edge, run_id: str) -> tuple[str, str | None, bool]:
    """Reason, by whom, and whether it says when; checked against the row's end."""
    run: dict[str, Any] = (await edge.client.get(f"/api/runs/{run_id}")).json()
    at = run["cancelledAt"]
    assert at is None or run["createdAt"] <= at <= run["finishedAt"]
    return run["cancelReason"], run["cancelledBy"], at is not None


async def test_a_run_that_its_owner_cancels(edge: Edge) -> None:
    run_id = (await edge.create())["run"]["id"]
    await edge.client.post(f"/api/runs/{run_id}/cancel")
    assert await told(edge, run_id) == ("user", rows.USER, True)


@pytest.mark.parametrize(
    ("end", "by"), [("cancelled", rows.USER), ("completed", None), ("failed", None)]
)
async def test_a_run_that_is_at_work_is_cancelled_by_somebody_only_if_it_is(
    edge: Edge, runner: FakeRunner, end: str, by: str | None
) -> None:
    await edge.create()
    run = await runner.start()
    asked = (await edge.client.post(f"/api/runs/{run.id}/cancel")).json()
    assert (asked["status"], asked["cancelledBy"], asked["cancelledAt"]) == ("running", None, None)
    how: dict[str, dict[str, Any]] = {
        "cancelled": {"cancel_reason": "user"},
        "failed": {"error": {"code": "GRAPH_ERROR", "message": "m"}},
    }
    await run.finish(status=end, **how.get(end, {}))
    assert (await told(edge, run.id))[1:] == (by, by is not None)


async def test_a_run_that_a_reject_ends_was_cancelled_by_whoever_rejected(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner, ENDS_IT)
    await asked.decide("reject", headers=bearer("boss", "pumps.restart"))
    assert await told(edge, asked.run.id) == ("rejected", "boss", True)


async def test_the_first_who_asked_counts(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, ENDS_IT, ENDS_IT)
    boss, chief = bearer("boss", "pumps.restart"), bearer("chief", "pumps.restart")
    await asked.decide(headers=boss)  # the run is queued again
    run = await runner.start()
    other = {"interruptId": asked.questions[1].id}
    assert (await asked.decide("reject", headers=chief, **other)).status_code == 202
    await edge.client.post(f"/api/runs/{run.id}/cancel")
    await run.finish(status="cancelled", cancel_reason="rejected")
    assert await told(edge, run.id) == ("rejected", "chief", True)


async def test_a_run_that_another_one_supersedes(edge: Edge, runner: FakeRunner) -> None:
    first = (await edge.create())["run"]
    body = {"message": {"content": "no, pump 8"}, "onConflict": "interrupt"}
    where = f"/api/conversations/{first['conversationId']}/runs"
    await edge.client.post(where, json=body)
    assert await told(edge, first["id"]) == ("superseded", rows.USER, True)


async def test_a_run_that_nobody_cancelled_names_nobody(
    edge: Edge, runner: FakeRunner, database: Database, expirer: Expirer
) -> None:
    asked = await ask(edge, runner)
    await expire(database, asked)
    assert await expirer.sweep() == 1
    assert await told(edge, asked.run.id) == ("expired", None, True)


async def test_an_abandoned_run_names_nobody(connection: Connection) -> None:
    run = await rows.running_run(connection)
    assert await runs.abandon(connection, [(run.id, run.epoch)]) == [run.id]
    await runs.request_cancel(connection, run.id, "user", by="ada")
    found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.cancel_requested, found.cancel_requested_by) == ("disconnected", None)
    assert found.cancel_requested_at is not None


async def test_a_request_from_before_the_columns_names_nobody(connection: Connection) -> None:
    """A program of the revision before runs beside this one."""
    run = await rows.queued_run(connection)
    await connection.rows("UPDATE runs SET cancel_requested = 'user' WHERE id = $1", run.id)
    found = await runs.request_cancel(connection, run.id, "rejected", by="eve")
    assert found is not None
    assert (found.cancel_requested, found.cancel_requested_by) == ("user", None)


async def test_the_facade_tells_it_too(edge: Edge, runner: FakeRunner) -> None:
    begun = await edge.client.post("/agent/invoke", json={"query": "go", "mode": "async"})
    run = await runner.start()
    [question] = await run.ask(rows.question(**ENDS_IT))
    body = {"interruptId": question.id, "decision": "reject"}
    boss = bearer("boss", "pumps.restart")
    where = f"/api/runs/{run.id}/resume"
    assert (await edge.client.post(where, json=body, headers=boss)).status_code == 202
    answer = (await edge.client.get(f"/agent/tasks/{begun.json()['task_id']}")).json()
    assert (answer["status"], answer["cancelled_by"]) == ("completed", "boss")
