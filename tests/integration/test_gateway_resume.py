"""Deciding interrupts over HTTP: every step of contract §5, in its order."""

import asyncio
from typing import Any

import pytest

from common.db import interrupts, runs
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.ids import new_id
from tests.support import rows
from tests.support.deciding import PUMP, Asked, ask, code, edge, expire, graphs, hooks
from tests.support.edge import Edge, bearer
from tests.support.fake_runner import FakeRunner

__all__ = ["edge", "graphs", "hooks"]


async def test_an_approval_queues_the_run_and_tells_of_it(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner)
    async with edge.read(asked.run.id, 2) as reading:
        response = await asked.decide()
        assert response.status_code == 202, response.text
        await reading.count(1)
        await (await runner.start()).finish()
        await reading.over()
    assert response.json()["run"]["status"] == "queued"
    assert "after=2&ticket=" in response.json()["streamUrl"]
    assert reading.types == ["interrupt_resolved", "run_resumed", "done"]
    assert reading.sequences == [3, 4, 5]
    assert reading.json()[0]["decision"] == "approve"
    assert reading.json()[0]["resolvedBy"] == rows.USER
    [row] = await asked.stored(database)
    assert (row.status, row.answer) == ("resolved", {"value": {"type": "approve"}})


async def test_step_0_the_same_key_gets_the_same_answer(edge: Edge, runner: FakeRunner) -> None:
    asked = await ask(edge, runner)
    first = await asked.decide(idempotencyKey="k")
    again = await asked.decide(idempotencyKey="k")
    by_header = await asked.decide(headers={"Idempotency-Key": "k"})
    assert {r.status_code for r in (first, again, by_header)} == {202}
    assert again.json()["run"] == first.json()["run"] == by_header.json()["run"]
    assert code(await asked.decide("reject", idempotencyKey="k")) == (422, "IDEMPOTENCY_MISMATCH")


async def test_step_1_an_interrupt_of_another_run_does_not_exist(
    edge: Edge, runner: FakeRunner
) -> None:
    asked, other = await ask(edge, runner), await ask(edge, runner)
    response = await asked.decide(interruptId=other.id)
    assert code(response) == (404, "NOT_FOUND")
    assert code(await asked.decide(interruptId=new_id("int"))) == (404, "NOT_FOUND")
    assert code(await asked.decide(interruptId="x")) == (404, "NOT_FOUND")
    unknown = await edge.client.post(
        f"/api/runs/{new_id('run')}/resume", json={"interruptId": asked.id, "decision": "approve"}
    )
    assert code(unknown) == (404, "NOT_FOUND")


async def test_step_1_a_decided_interrupt_says_who_and_how(edge: Edge, runner: FakeRunner) -> None:
    asked = await ask(edge, runner)
    await asked.decide()
    late = await asked.decide("reject")
    assert code(late) == (409, "INTERRUPT_NOT_PENDING")
    assert (late.json()["decision"], late.json()["resolvedBy"]) == ("approve", rows.USER)


async def test_step_1_a_decision_on_an_ended_run_is_not_pending(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner)
    await edge.client.post(f"/api/runs/{asked.run.id}/cancel")
    assert code(await asked.decide()) == (409, "INTERRUPT_NOT_PENDING")
    assert code(await asked.send({"continue": True})) == (409, "RUN_NOT_RESUMABLE")


async def test_step_2_strangers_see_nothing_and_owners_need_the_permission(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner, {"required_permission": "pumps.restart"})
    assert code(await asked.decide(headers=bearer("eve"))) == (404, "NOT_FOUND")
    assert code(await asked.decide()) == (403, "PERMISSION_REVOKED")
    assert await asked.status() == "interrupted"
    allowed = await asked.decide(headers=bearer(rows.USER, "pumps.restart"))
    assert allowed.status_code == 202
    assert code(await asked.decide(headers=bearer("eve"))) == (404, "NOT_FOUND")


async def test_step_2_an_approver_sees_the_interrupt_and_nothing_else(
    edge: Edge, runner: FakeRunner
) -> None:
    asked = await ask(edge, runner, {"required_permission": "pumps.restart"})
    boss = bearer("boss", "pumps.restart")
    inbox = (await edge.client.get("/api/interrupts", headers=boss)).json()["items"]
    assert [i["id"] for i in inbox] == [asked.id]
    response = await asked.decide(headers=boss)
    assert response.status_code == 202
    assert set(response.json()) == {"interrupt"}
    assert response.json()["interrupt"]["resolvedBy"] == "boss"
    for path in ("", "/events"):
        seen = await edge.client.get(f"/api/runs/{asked.run.id}{path}", headers=boss)
        assert code(seen) == (404, "NOT_FOUND")
    assert (await edge.client.get("/api/interrupts", headers=boss)).json()["items"] == []
    assert (await edge.client.get("/api/interrupts", headers=bearer("eve"))).json()["items"] == []


async def test_step_2_an_approver_does_not_become_the_runs_principal(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, {"required_permission": "pumps.restart"})
    await asked.decide(headers=bearer("boss", "pumps.restart", "all.doors"))
    async with database.connect() as connection:
        run = await runs.find(connection, asked.run.id)
    assert run is not None
    assert run.principal["user"] == rows.USER
    assert "all.doors" not in run.principal["permissions"]


async def test_step_2_the_guard_may_refuse_the_caller(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner)
    hooks.permitted["authorize"] = False
    assert code(await asked.decide()) == (403, "PERMISSION_REVOKED")
    assert await asked.status() == "interrupted"


async def test_step_3_what_has_expired_is_410_before_and_after_the_sweep(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner)
    await expire(database, asked)
    for decision in ("approve", "nonsense"):
        assert code(await asked.decide(decision)) == (410, "INTERRUPT_EXPIRED")
    async with database.connect() as connection:
        await interrupts.expire_overdue(connection, asked.run.id)
    assert code(await asked.decide()) == (410, "INTERRUPT_EXPIRED")


@pytest.mark.parametrize(
    "decision",
    [
        "maybe",
        {},
        {"approve": {}},
        {"edit": {}, "reject": {}},
        {"edit": "x"},
        {"reject": {"message": 5}},
        {"fill": []},
        None,
    ],
)
async def test_step_4_what_is_no_decision_is_422(
    edge: Edge, runner: FakeRunner, database: Database, decision: Any
) -> None:
    asked = await ask(edge, runner)
    assert code(await asked.decide(decision)) == (422, "VALIDATION")
    [row] = await asked.stored(database)
    assert (row.status, row.decision) == ("pending", None)


async def test_step_4_a_decision_that_is_not_offered_is_422(edge: Edge, runner: FakeRunner) -> None:
    asked = await ask(edge, runner, {"allowed_decisions": ["approve"]})
    assert code(await asked.decide({"edit": {"a": 1}})) == (422, "VALIDATION")
    assert await asked.status() == "interrupted"


async def test_step_4_the_validator_sees_what_the_graph_would_get(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    offers = ["approve", "reject", "edit", "fill", "select"]
    asked = await ask(edge, runner, {"allowed_decisions": offers})
    refused = await asked.decide({"edit": {"bad": True}})
    assert code(refused) == (422, "VALIDATION")
    assert "that will not do" in refused.json()["detail"]
    assert code(await asked.send({"resume": {asked.id: "bad"}})) == (422, "VALIDATION")
    assert await asked.status() == "interrupted"


async def test_step_5_a_reject_that_cancels_ends_the_run(
    edge: Edge, runner: FakeRunner, database: Database, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"on_reject": "cancel", "resource": PUMP})
    hooks.now["version"] = 2
    hooks.calls.clear()
    async with edge.read(asked.run.id, 2) as reading:
        response = await asked.decide({"reject": {"message": "password=hunter2"}})
        await reading.over()
    run = response.json()["run"]
    assert (run["status"], run["cancelReason"]) == ("cancelled", "rejected")
    assert reading.types == ["interrupt_resolved", "cancelled"]
    assert hooks.calls == ["authorize"]
    assert b"hunter2" not in reading.raw
    [row] = await asked.stored(database)
    assert (row.status, row.answer) == ("resolved", None)
    assert "hunter2" not in str(row.decision)


async def test_step_5_a_reject_that_continues_goes_to_the_graph(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, {"on_reject": "continue"})
    response = await asked.decide({"reject": {"message": "later"}})
    assert response.json()["run"]["status"] == "queued"
    [row] = await asked.stored(database)
    assert row.answer == {"value": {"type": "reject", "message": "later"}}


async def test_step_6_a_changed_resource_must_be_confirmed(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.now["version"] = 2
    refused = await asked.decide(idempotencyKey="k")
    assert code(refused) == (409, "RESOURCE_CHANGED")
    assert refused.json()["resource"] == {**PUMP, "version": 2}
    assert await asked.status() == "interrupted"
    version = refused.json()["confirmVersion"]
    hooks.now["version"] = 3
    again = await asked.decide(confirmVersion=version)
    assert code(again) == (409, "RESOURCE_CHANGED")
    confirmed = await asked.decide(confirmVersion=again.json()["confirmVersion"])
    assert confirmed.status_code == 202


async def test_step_6_changed_facts_must_be_confirmed(edge: Edge, runner: FakeRunner) -> None:
    asked = await ask(edge, runner)
    talk = asked.run.row.conversation_id
    changes = {"set": {"env": "prod"}, "version": 1}
    await edge.client.patch(f"/api/conversations/{talk}/facts", json=changes)
    refused = await asked.decide()
    assert code(refused) == (409, "VERSION_CONFLICT")
    assert refused.json()["facts"] == {"env": "prod"}
    confirmed = await asked.decide(confirmVersion=refused.json()["confirmVersion"])
    assert confirmed.status_code == 202


async def test_step_7_the_guard_checks_again(edge: Edge, runner: FakeRunner, hooks: Any) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.permitted["revalidate"] = False
    assert code(await asked.decide()) == (403, "PERMISSION_REVOKED")
    assert await asked.status() == "interrupted"


async def test_step_7_a_guard_that_fails_lets_nothing_through(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.now["error"] = True
    response = await asked.decide()
    assert code(response) == (503, "UNAVAILABLE")
    assert "hunter2" not in response.text
    assert await asked.status() == "interrupted"


async def test_the_steps_come_in_their_order(edge: Edge, runner: FakeRunner, hooks: Any) -> None:
    asked = await ask(edge, runner, {"resource": PUMP})
    hooks.calls.clear()
    assert (await asked.decide()).status_code == 202
    assert hooks.calls == ["authorize", "validate", "reload", "revalidate"]


async def test_step_8_of_simultaneous_decisions_one_wins(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, {"on_reject": "continue"})
    decisions = ["approve", "reject"] * 5
    answers = await asyncio.gather(*(asked.decide(d) for d in decisions))
    won = [d for d, a in zip(decisions, answers, strict=True) if a.status_code == 202]
    assert len(won) == 1
    lost = [a for a in answers if a.status_code != 202]
    assert {code(a) for a in lost} == {(409, "INTERRUPT_NOT_PENDING")}
    assert {a.json()["decision"] for a in lost} == set(won)
    [row] = await asked.stored(database)
    assert row.decision == won[0]


async def test_step_8_the_same_key_at_once_is_one_decision(edge: Edge, runner: FakeRunner) -> None:
    asked = await ask(edge, runner)
    answers = await asyncio.gather(*(asked.decide(idempotencyKey="k") for _ in range(10)))
    assert {a.status_code for a in answers} == {202}
    assert all(a.json()["run"] == answers[0].json()["run"] for a in answers)


async def test_a_map_is_taken_as_a_whole_or_not_at_all(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, {}, {})
    first, second = (question.id for question in asked.questions)
    assert code(await asked.send({"resume": {first: 1, second: "bad"}})) == (422, "VALIDATION")
    assert code(await asked.send({"resume": {first: 1, new_id("int"): 2}})) == (404, "NOT_FOUND")
    assert code(await asked.send({"resume": {}})) == (422, "VALIDATION")
    assert {row.status for row in await asked.stored(database)} == {"pending"}
    taken = await asked.send({"resume": {first: None, second: {"any": ["json"]}}})
    assert taken.status_code == 202
    assert [row.answer for row in await asked.stored(database)] == [
        {"value": None},
        {"value": {"any": ["json"]}},
    ]


async def test_an_approver_is_told_of_every_question_that_a_map_has_answered(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    needed = {"required_permission": "pumps.restart"}
    asked = await ask(edge, runner, needed, needed)
    first, second = (question.id for question in asked.questions)
    values = {second: "two", first: "one"}
    taken = await asked.send({"resume": values}, **bearer("boss", "pumps.restart"))
    assert taken.status_code == 202, taken.text
    told = taken.json()["interrupts"]
    assert taken.json() == {"interrupt": told[0], "interrupts": told}
    assert [(one["id"], one["decision"], one["resolvedBy"]) for one in told] == [
        (id_, {"resume": value}, "boss") for id_, value in values.items()
    ]
    assert [(row.decision, row.resolved_by) for row in await asked.stored(database)] == [
        ({"resume": "one"}, "boss"),
        ({"resume": "two"}, "boss"),
    ]


async def test_several_interrupts_may_be_decided_one_by_one(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, {}, {}, {})
    first, second, third = (question.id for question in asked.questions)
    assert (await asked.decide(interruptId=first)).json()["run"]["status"] == "queued"
    queued = await asked.decide(interruptId=second)
    assert queued.status_code == 202
    assert [i["id"] for i in queued.json()["run"]["pendingInterrupts"]] == [third]
    await runner.start()
    running = await asked.decide(interruptId=third)
    assert running.status_code == 202
    assert running.json()["run"]["status"] == "running"
    assert {row.status for row in await asked.stored(database)} == {"resolved"}


async def test_a_reject_that_cancels_a_running_run_asks_its_runner(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    asked = await ask(edge, runner, {}, {})
    first, second = (question.id for question in asked.questions)
    await asked.decide(interruptId=first)
    run = await runner.start()
    assert (await asked.decide("reject", interruptId=second)).status_code == 202
    async with database.connect() as connection:
        held = await runs.owned(connection, runner.id)
    assert held[run.id] == (run.row.epoch, "rejected")


async def test_continue_goes_on_from_a_breakpoint_only(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    run = await runner.start()
    paused = Asked(edge, run, [])
    assert code(await paused.send({"continue": True})) == (409, "RUN_NOT_RESUMABLE")
    await run.pause()
    eve = await paused.send({"continue": True}, **bearer("eve"))
    assert code(eve) == (404, "NOT_FOUND")
    assert code(await paused.send({"continue": False})) == (422, "VALIDATION")
    response = await paused.send({"continue": True, "idempotencyKey": "k"})
    assert response.json()["run"]["status"] == "queued"
    again = await paused.send({"continue": True, "idempotencyKey": "k"})
    assert again.json()["run"] == response.json()["run"]
    assert made["run"]["id"] == run.id


async def test_continue_does_not_pass_over_a_question(edge: Edge, runner: FakeRunner) -> None:
    asked = await ask(edge, runner)
    refused = await asked.send({"continue": True})
    assert code(refused) == (409, "RUN_NOT_RESUMABLE")
    assert refused.json()["pendingInterrupts"] == [asked.id]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"interruptId": "x"},
        {"decision": "approve"},
        {"resume": {"a": 1}, "decision": "approve"},
        {"continue": True, "resume": {"a": 1}},
        [],
        "approve",
    ],
)
async def test_a_body_of_another_shape_is_422(edge: Edge, runner: FakeRunner, body: Any) -> None:
    asked = await ask(edge, runner)
    assert code(await asked.send(body)) == (422, "VALIDATION")


async def test_the_inbox_lists_by_status(edge: Edge, runner: FakeRunner) -> None:
    asked = await ask(edge, runner)
    get = edge.client.get
    [pending] = (await get("/api/interrupts", params={"status": "pending"})).json()["items"]
    assert set(pending) == {
        "id", "runId", "conversationId", "type", "format", "status", "payload",
        "allowedDecisions", "actions", "requiredPermission", "expiresAt", "decision",
        "resolvedBy", "resolvedAt", "createdAt",
    }  # fmt: skip
    await asked.decide()
    assert (await get("/api/interrupts")).json()["items"] == []
    [done] = (await get("/api/interrupts", params={"status": "resolved"})).json()["items"]
    assert done["decision"] == "approve"
    assert code(await get("/api/interrupts", params={"status": "lost"})) == (422, "VALIDATION")


@pytest.mark.parametrize("path", ["runs/{run}", "conversations/{conversation}/resume-state"])
async def test_a_run_is_never_shown_waiting_without_the_question_it_waits_for(
    edge: Edge, runner: FakeRunner, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Found by the drill: the decision fell between the two reads of the view."""
    asked = await ask(edge, runner)
    run = (await edge.client.get(f"/api/runs/{asked.run.id}")).json()
    address = path.format(run=run["id"], conversation=run["conversationId"])
    read, decisions = interrupts.of_run, list[Any]()

    async def read_after_a_decision(*arguments: Any) -> list[Interrupt]:
        if not decisions:
            decisions.append(None)
            decisions[0] = await asked.decide("approve")
        return await read(*arguments)

    monkeypatch.setattr(interrupts, "of_run", read_after_a_decision)
    shown = (await edge.client.get(f"/api/{address}")).json()
    assert decisions[0].status_code == 202
    run = shown.get("run", shown)
    assert (run["status"] == "interrupted") == bool(run["pendingInterrupts"]), run
