"""Steps 6 and 7 of contract §5: a guard looks again, and whatever it does, nothing is half done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest

from common.db.engine import Database
from common.graphfile import GraphFile
from tests.support import rows
from tests.support.deciding import PUMP, Asked, ask, author_of, code, edge, expire, graphs, hooks
from tests.support.edge import Edge, bearer, serving, settings
from tests.support.fake_runner import FakeRunner
from tests.support.until import until

__all__ = ["edge", "graphs", "hooks"]

OURS = {"format": "steadyrun", "on_reject": "continue", "resource": PUMP}


@pytest.fixture
async def hurried(
    database_url: str, redis_url: str, redis_prefix: str, graphs: GraphFile
) -> AsyncIterator[Edge]:
    """A gateway that waits for a guard only a moment."""
    options = settings(database_url, redis_url, redis_prefix, guard_timeout_s=0.2)
    async with serving(options, graphs) as running:
        yield running


@asynccontextmanager
async def held(hooks: Any, act: str = "revalidate") -> AsyncIterator[None]:
    """The guard stands still in `act` until the block ends."""
    hooks.gates[act] = gate = Event()
    try:
        yield
    finally:
        del hooks.gates[act]
        gate.set()


async def set_facts(edge: Edge, asked: Asked, version: int, **facts: Any) -> None:
    where = f"/api/conversations/{asked.run.row.conversation_id}/facts"
    body = {"set": facts, "version": version}
    done = await edge.client.patch(where, json=body, headers=bearer(rows.USER, "hr.view"))
    assert done.status_code == 200, done.text


async def untouched(asked: Asked, database: Database) -> bool:
    """Nothing of a refused decision is stored, and the interrupt waits."""
    [row] = await asked.stored(database)
    async with database.connect() as connection:
        keys = await connection.value("SELECT count(*) FROM idempotency_keys WHERE key LIKE 'k%'")
    assert (row.status, row.decision, row.answer, row.resolved_by) == ("pending", None, None, None)
    assert keys == 0
    return await asked.status() == "interrupted"


async def test_what_has_changed_is_told_field_by_field(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.now |= {"version": 2, "by": "bob"}
    refused = await asked.decide()
    assert code(refused) == (409, "RESOURCE_CHANGED")
    told = refused.json()
    assert told["changed"] == [{"interruptId": asked.id, "field": "version", "was": 1, "is": 2}]
    assert told["resource"] == {**PUMP, "version": 2, "by": "bob"}


async def test_fields_that_were_not_noted_are_shown_but_not_compared(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.now |= {"version": 2, "temperature": 20}
    refused = await asked.decide()
    hooks.now["temperature"] = 21
    assert (await asked.decide(confirmVersion=refused.json()["confirmVersion"])).status_code == 202


async def test_a_resource_that_is_gone_has_changed_and_the_guard_may_refuse_it(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.now["gone"] = True
    refused = await asked.decide()
    assert code(refused) == (409, "RESOURCE_CHANGED")
    assert refused.json()["changed"] == [{"interruptId": asked.id, "was": PUMP, "is": None}]
    version = refused.json()["confirmVersion"]
    hooks.permitted["revalidate"] = False
    assert code(await asked.decide(confirmVersion=version)) == (403, "PERMISSION_REVOKED")
    hooks.permitted["revalidate"] = True
    assert (await asked.decide(confirmVersion=version)).status_code == 202


async def test_a_confirmation_is_for_these_values_of_this_interrupt_only(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP}, {"resource": PUMP})
    first, second = (question.id for question in asked.questions)
    hooks.now["version"] = 2
    version = (await asked.decide(interruptId=first)).json()["confirmVersion"]
    other = await asked.decide(interruptId=second, confirmVersion=version)
    assert code(other) == (409, "RESOURCE_CHANGED")
    await set_facts(edge, asked, 1, env="prod")
    later = await asked.decide(interruptId=first, confirmVersion=version)
    assert code(later) == (409, "RESOURCE_CHANGED")
    assert later.json()["factsVersion"] == 2


async def test_an_answer_of_ours_tells_the_resource_that_was_accepted(
    edge: Edge, runner: FakeRunner, hooks: Any, database: Database
) -> None:
    asked = await ask(edge, runner, OURS)
    hooks.now |= {"version": 2, "password": "hunter2"}
    version = (await asked.decide()).json()["confirmVersion"]
    assert (await asked.decide(confirmVersion=version)).status_code == 202
    [row] = await asked.stored(database)
    assert row.answer_value == {
        "type": "approve",
        "by": rows.USER,
        "resource": {**PUMP, "version": 2},
    }


async def test_what_a_refusal_shows_is_masked(edge: Edge, runner: FakeRunner, hooks: Any) -> None:
    asked = await ask(edge, runner, {"resource": {**PUMP, "password": "hunter2"}})
    hooks.now |= {"password": "hunter3", "url": "postgresql://ada:hunter4@db/x"}
    await set_facts(edge, asked, 1, password="hunter5")
    refused = await asked.decide()
    assert code(refused) == (409, "RESOURCE_CHANGED")
    assert "hunter" not in refused.text
    invalid = await asked.send({"resume": {asked.id: "bad"}})
    assert code(invalid) == (422, "VALIDATION")
    assert "will not do" in invalid.text
    assert "hunter" not in invalid.text


async def test_an_approver_is_not_told_the_owners_facts(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP, "required_permission": "pumps.restart"})
    await set_facts(edge, asked, 1, city="Bremen")
    boss = bearer("boss", "pumps.restart")
    refused = await asked.decide(headers=boss)
    assert code(refused) == (409, "VERSION_CONFLICT")
    assert "Bremen" not in refused.text
    assert refused.json()["factsVersion"] == 2
    confirmed = await asked.decide(headers=boss, confirmVersion=refused.json()["confirmVersion"])
    assert confirmed.status_code == 202


async def test_a_refusal_shows_the_owner_only_facts_that_they_may_see(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner)
    await set_facts(edge, asked, 1, city="Bremen", salary=1)
    refused = await asked.decide()
    assert (code(refused), refused.json()["facts"]) == (
        (409, "VERSION_CONFLICT"),
        {"city": "Bremen"},
    )
    held = await asked.decide(headers=bearer(rows.USER, "hr.view"))
    assert held.json()["facts"] == {"city": "Bremen", "salary": 1}


@pytest.mark.parametrize("how", ["authorize", "revalidate", "stubborn"])
async def test_a_guard_that_hangs_refuses_in_time_and_stores_nothing(
    hurried: Edge, runner: FakeRunner, database: Database, how: str
) -> None:
    asked = await ask(hurried, runner, {"resource": PUMP})
    hooks = author_of(hurried)
    if how == "stubborn":
        hooks.now["stubborn"] = True
        refused = await asked.decide(idempotencyKey="k1")
        del hooks.now["stubborn"]
    else:
        async with held(hooks, how):
            refused = await asked.decide(idempotencyKey="k1")
    assert code(refused) == (503, "UNAVAILABLE")
    act = "reload" if how == "stubborn" else how
    assert f"guard's {act} did not answer within 0.2 s" in refused.json()["detail"]
    assert refused.headers["retry-after"]
    assert await untouched(asked, database)
    assert (await asked.decide(idempotencyKey="k1")).status_code == 202


@pytest.mark.parametrize("how", ["error", "exit"])
async def test_a_guard_that_raises_refuses_and_stores_nothing(
    edge: Edge, runner: FakeRunner, hooks: Any, database: Database, how: str
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.now[how] = True
    refused = await asked.decide(idempotencyKey="k1")
    assert code(refused) == (503, "UNAVAILABLE")
    assert "guard's reload failed" in refused.json()["detail"]
    assert "hunter2" not in refused.text
    assert await untouched(asked, database)
    del hooks.now[how]
    assert (await asked.decide(idempotencyKey="k1")).status_code == 202


async def test_no_transaction_and_no_connection_is_held_while_a_guard_is_asked(
    database_url: str,
    redis_url: str,
    redis_prefix: str,
    graphs: GraphFile,
    runner: FakeRunner,
    database: Database,
) -> None:
    options = settings(database_url, redis_url, redis_prefix, gateway_pool_size=1)
    async with serving(options, graphs) as edge:
        asked = await ask(edge, runner, {"resource": PUMP})
        hooks = author_of(edge)
        async with held(hooks):
            waiting = [asyncio.create_task(asked.decide(idempotencyKey=f"k{n}")) for n in range(5)]
            await until(lambda: len(hooks.waiting) == 5)
            assert await asked.status() == "interrupted"
            async with database.connect() as connection:
                open_ones = await connection.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND application_name = 'steadyrun:gateway' AND xact_start IS NOT NULL"
                )
            assert open_ones == 0
        answers = await asyncio.gather(*waiting)
    assert sorted(a.status_code for a in answers) == [202, 409, 409, 409, 409]


async def test_facts_that_change_while_the_guard_is_asked_are_noticed(
    edge: Edge, runner: FakeRunner, hooks: Any, database: Database
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    async with held(hooks):
        waiting = asyncio.create_task(asked.decide())
        await until(lambda: len(hooks.waiting) == 1)
        await set_facts(edge, asked, 1, env="prod")
    refused = await waiting
    assert code(refused) == (409, "VERSION_CONFLICT")
    assert refused.json()["facts"] == {"env": "prod"}
    assert await untouched(asked, database)
    confirmed = await asked.decide(confirmVersion=refused.json()["confirmVersion"])
    assert confirmed.status_code == 202


async def test_a_decision_made_while_the_guard_is_asked_wins(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP, "on_reject": "cancel"})
    async with held(hooks):
        waiting = asyncio.create_task(asked.decide())
        await until(lambda: len(hooks.waiting) == 1)
        assert (await asked.decide("reject")).json()["run"]["status"] == "cancelled"
    lost = await waiting
    assert code(lost) == (409, "INTERRUPT_NOT_PENDING")
    assert (lost.json()["decision"], lost.json()["resolvedBy"]) == ("reject", rows.USER)


async def test_a_cancellation_while_the_guard_is_asked_wins(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    async with held(hooks):
        waiting = asyncio.create_task(asked.decide())
        await until(lambda: len(hooks.waiting) == 1)
        await edge.client.post(f"/api/runs/{asked.run.id}/cancel")
    lost = await waiting
    assert code(lost) == (409, "INTERRUPT_NOT_PENDING")
    assert lost.json()["interruptStatus"] == "cancelled"
    assert await asked.status() == "cancelled"


async def test_what_expires_while_the_guard_is_asked_is_410(
    edge: Edge, runner: FakeRunner, hooks: Any, database: Database
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    async with held(hooks):
        waiting = asyncio.create_task(asked.decide())
        await until(lambda: len(hooks.waiting) == 1)
        await expire(database, asked)
    assert code(await waiting) == (410, "INTERRUPT_EXPIRED")
    assert await untouched(asked, database)


async def test_a_double_click_while_the_guard_is_asked_is_one_decision(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    async with held(hooks):
        clicks = [asyncio.create_task(asked.decide(idempotencyKey="k")) for _ in range(3)]
        await until(lambda: len(hooks.waiting) == 3)
    answers = await asyncio.gather(*clicks)
    assert {answer.status_code for answer in answers} == {202}
    assert all(answer.json()["run"] == answers[0].json()["run"] for answer in answers)


async def test_a_click_that_is_refused_after_its_twin_was_stored_gets_the_twins_answer(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    async with held(hooks):
        late = asyncio.create_task(asked.decide(idempotencyKey="k"))
        await until(lambda: len(hooks.waiting) == 1)
        gate = hooks.gates.pop("revalidate")
        first = await asked.decide(idempotencyKey="k")
        hooks.permitted["revalidate"] = False  # what the late one will find
        hooks.gates["revalidate"] = gate
    answer = await late
    assert (first.status_code, answer.status_code) == (202, 202)
    assert answer.json()["run"] == first.json()["run"]


async def test_a_lost_answer_is_given_again_after_the_run_went_on(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    first = await asked.decide(idempotencyKey="k")
    await (await runner.start()).finish()
    again = await asked.decide(idempotencyKey="k")
    assert (again.status_code, again.json()["run"]) == (202, first.json()["run"])
    assert code(await asked.decide(idempotencyKey="k2")) == (409, "INTERRUPT_NOT_PENDING")


async def test_both_tabs_hear_of_the_decision_and_the_second_click_is_told_of_the_first(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner)
    async with edge.read(asked.run.id, 2) as one, edge.read(asked.run.id, 2) as other:
        assert (await asked.decide(idempotencyKey="tab 1")).status_code == 202
        late = await asked.decide("reject", idempotencyKey="tab 2")
        for tab in (one, other):
            [resolved] = (await tab.count(1)).json()[:1]
            assert resolved["type"] == "interrupt_resolved"
            assert (resolved["decision"], resolved["resolvedBy"]) == ("approve", rows.USER)
    assert code(late) == (409, "INTERRUPT_NOT_PENDING")
    assert late.json()["decision"] == "approve"
    assert late.json()["resolvedAt"]


async def test_the_contexts_principal_is_the_owners_of_the_last_request(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, {}, {"required_permission": "b"})
    first, second = (question.id for question in asked.questions)
    await asked.decide(interruptId=first, headers=bearer(rows.USER, "a"))
    await asked.decide(interruptId=second, headers=bearer(rows.USER, "b"))
    run = await runner.take(asked.run.id)
    assert run.row.principal == {"user": rows.USER, "permissions": ["b"]}


async def test_an_approver_sees_the_interrupt_but_nothing_of_the_conversation(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner, {"required_permission": "pumps.restart"})
    run, talk = asked.run.id, asked.run.row.conversation_id
    boss = bearer("boss", "pumps.restart")
    for path in (
        f"/api/conversations/{talk}",
        f"/api/conversations/{talk}/messages",
        f"/api/conversations/{talk}/resume-state",
        f"/api/runs/{run}",
        f"/api/runs/{run}/events",
    ):
        assert code(await edge.client.get(path, headers=boss)) == (404, "NOT_FOUND"), path
    for path, body in (
        (f"/api/runs/{run}/cancel", None),
        (f"/api/runs/{run}/ticket", None),
        (f"/api/runs/{run}/resume", {"continue": True}),
        (f"/api/conversations/{talk}/runs", {"message": {"content": "hello"}}),
    ):
        answer = await edge.client.post(path, json=body, headers=boss)
        assert code(answer) == (404, "NOT_FOUND"), path
    assert (await asked.decide(headers=boss)).status_code == 202
