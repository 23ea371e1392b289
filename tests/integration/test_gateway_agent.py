"""The session facade over HTTP (contract §6): one call, one answer, and nothing in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.bus.log import LogConnection
from common.db import conversations, interrupts, runs
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.graphfile import GraphFile
from tests.support import rows
from tests.support.edge import Edge, bearer, graph_file, serving, settings
from tests.support.fake_runner import FakeRun, FakeRunner
from tests.support.until import until

HELLO = {"query": "restart pump 7"}
SESSION = f"/agent/session/{rows.USER}"


@asynccontextmanager
async def calling(
    edge: Edge, path: str, body: dict[str, Any], **headers: str
) -> AsyncIterator[Any]:
    """A call under way; its answer is the task's result."""
    call = asyncio.create_task(edge.client.post(path, json=body, headers=headers))
    try:
        yield call
    finally:
        call.cancel()
        await asyncio.wait({call})


async def queued(database: Database, runner: FakeRunner) -> FakeRun:
    """The run that somebody calls for, taken up."""

    async def waits() -> bool:
        async with database.connect() as connection:
            counts = await runs.count_by_status(connection)
        return counts.get("queued", 0) > 0

    await until(waits)
    return await runner.start()


async def invoked(edge: Edge, **more: Any) -> dict[str, Any]:
    response = await edge.client.post("/agent/invoke", json={**HELLO, "mode": "async", **more})
    assert response.status_code == 202, response.text
    made: dict[str, Any] = response.json()
    return made


async def asked(edge: Edge, runner: FakeRunner, *questions: Any) -> tuple[FakeRun, dict[str, Any]]:
    """The session's run waits for a person; what a fresh client is told."""
    await invoked(edge)
    run = await runner.start()
    await run.ask(*questions)
    return run, await session(edge)


async def ask_again(database: Database, run: FakeRun, native_id: str) -> Interrupt:
    """The graph has taken what was decided, and asks the next question."""
    async with database.connect() as connection:
        decided = [row.id for row in await interrupts.untaken(connection, run.id)]
        assert await interrupts.mark_taken(connection, run.id, run.row.epoch, decided)
    [row] = await run.ask(rows.question(native_id))
    return row


async def session(edge: Edge, **query: Any) -> dict[str, Any]:
    response = await edge.client.get(SESSION, params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def reply(edge: Edge, known: dict[str, Any], word: str, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"session_id": known["session_id"], "response_type": word, "mode": "async", **more}
    return await edge.client.post("/agent/resume", json=body, headers=headers)


def code(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["code"]


# invoke


async def test_a_call_answers_with_the_whole_answer_when_the_run_has_completed(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    async with calling(edge, "/agent/invoke", HELLO) as call:
        run = await queued(database, runner)
        await run.say("Look", "ing")
        assert not call.done()
        long = "word " * 2_000
        await run.finish(said=["Looking.", long], output={"pumps": 7})
        response = await call
    assert response.status_code == 200
    answer = response.json()
    assert (answer["status"], answer["message"], answer["interrupt_data"]) == (
        "completed",
        None,
        None,
    )
    assert answer["task_id"] == run.id
    assert answer["result"]["pumps"] == 7
    said = [(m["role"], m["content"]) for m in answer["result"]["messages"]]
    assert said == [("user", HELLO["query"]), ("assistant", "Looking."), ("assistant", long)]
    found = await session(edge)
    assert found["last_response"] == answer
    assert (found["status"], found["last_query"]) == ("completed", HELLO["query"])


async def test_a_call_answers_with_the_question_when_the_run_waits_for_a_person(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    async with calling(edge, "/agent/invoke", HELLO) as call:
        run = await queued(database, runner)
        action = {"toolCallId": "c1", "name": "restart", "args": {"pump": 7}}
        [row] = await run.ask(rows.question(actions=[action], required_permission="pumps"))
        answer = (await call).json()
    assert (answer["status"], answer["result"]) == ("interrupted", None)
    assert answer["interrupt_data"] == {
        "interrupt_id": row.id,
        "type": "confirm_action",
        "payload": {"question": "Restart pump 7?"},
        "actions": [{"tool_call_id": "c1", "name": "restart", "args": {"pump": 7}}],
        "allowed_response_types": ["accept", "reject"],
        "required_permission": "pumps",
        "expires_at": None,
        "pending": 1,
        "next": ["tools"],
    }
    assert (await session(edge))["last_response"] == answer


async def test_a_run_that_failed_answers_error_with_its_message(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    async with calling(edge, "/agent/invoke", HELLO) as call:
        run = await queued(database, runner)
        error = {"code": "GRAPH_ERROR", "message": "the agent has failed"}
        await run.finish(status="failed", error=error)
        response = await call
    assert response.status_code == 200
    assert (response.json()["status"], response.json()["message"]) == ("error", error["message"])
    assert (await session(edge))["status"] == "error"


async def test_an_async_call_answers_at_once_and_its_task_tells_the_rest(
    edge: Edge, runner: FakeRunner
) -> None:
    response = await edge.client.post("/agent/invoke", json={**HELLO, "mode": "async"})
    begun = response.json()
    assert (response.status_code, begun["status"]) == (202, "running")
    where = f"/agent/tasks/{begun['task_id']}"
    assert response.headers["location"] == where
    assert (await edge.client.get(where)).json()["status"] == "running"
    await (await runner.start()).finish(said=["done"])
    answer = (await edge.client.get(where)).json()
    assert answer["status"] == "completed"
    assert answer["result"]["messages"][-1]["content"] == "done"
    assert code(await edge.client.get(where, headers=bearer("eve"))) == (404, "NOT_FOUND")
    assert code(await edge.client.get("/agent/tasks/x")) == (404, "NOT_FOUND")


async def test_a_system_message_goes_to_the_runs_input(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    await invoked(edge, system_message="Be brief.")
    run = await runner.start()
    assert run.row.input["systemMessage"] == "Be brief."
    assert run.row.on_disconnect == "continue"


async def test_a_session_keeps_its_graph(
    database_url: str, redis_url: str, redis_prefix: str, runner: FakeRunner
) -> None:
    one = graph_file().graphs[rows.GRAPH]
    both = {name: replace(one, name=name) for name in (rows.GRAPH, "other")}
    graphs = GraphFile(Path("langgraph.json"), both, "other")
    async with serving(settings(database_url, redis_url, redis_prefix), graphs) as edge:
        unknown = await edge.client.post("/agent/invoke", json={**HELLO, "graph": "none"})
        assert code(unknown) == (422, "VALIDATION")
        await invoked(edge, graph=rows.GRAPH)
        await (await runner.start()).finish()
        another = await edge.client.post("/agent/invoke", json={**HELLO, "graph": "other"})
        assert code(another) == (422, "VALIDATION")
        await invoked(edge)
        assert (await runner.start()).row.graph == rows.GRAPH


async def test_a_second_invoke_goes_on_in_the_same_session(edge: Edge, runner: FakeRunner) -> None:
    first = await invoked(edge)
    await (await runner.start()).finish()
    second = await invoked(edge, query="and now?")
    assert second["session_id"] == first["session_id"]
    assert second["task_id"] != first["task_id"]
    found = await session(edge)
    assert (found["status"], found["last_query"]) == ("running", "and now?")
    assert found["last_response"] is None


async def test_an_invoke_of_a_session_that_is_busy_is_refused_and_loses_nothing(
    edge: Edge, runner: FakeRunner
) -> None:
    begun = await invoked(edge)
    for status in ("running", "interrupted"):
        response = await edge.client.post("/agent/invoke", json=HELLO)
        assert code(response) == (409, "CONVERSATION_BUSY")
        told = response.json()
        assert {k: told[k] for k in ("session_id", "task_id")} == {
            k: begun[k] for k in ("session_id", "task_id")
        }
        assert told["session_status"] == status
        if status == "running":
            await (await runner.start()).ask()
    assert (await reply(edge, begun, "accept")).status_code == 202


async def test_of_invokes_at_once_through_several_gateways_one_begins_a_run(
    edge: Edge, database_url: str, redis_url: str, redis_prefix: str, database: Database
) -> None:
    async with serving(settings(database_url, redis_url, redis_prefix)) as other:
        for n in range(12):
            headers = bearer(f"user-{n}")
            calls = [
                one.client.post("/agent/invoke", json={**HELLO, "mode": "async"}, headers=headers)
                for one in (edge, other) * 3
            ]
            answers = [(a.status_code, a.json()) for a in await asyncio.gather(*calls)]
            assert sorted(status for status, _ in answers) == [202, 409, 409, 409, 409, 409]
            assert len({body["session_id"] for _, body in answers}) == 1
            assert len({body["task_id"] for _, body in answers}) == 1
    async with database.connect() as connection:
        assert await runs.count_by_status(connection) == {"queued": 12}


async def test_invoking_and_ending_at_once_leaves_no_run_outside_a_session(
    edge: Edge, database: Database
) -> None:
    for n in range(10):
        user = f"user-{n}"
        headers = bearer(user)
        calls = [
            edge.client.post("/agent/invoke", json={**HELLO, "mode": "async"}, headers=headers)
            if odd
            else edge.client.delete(f"/agent/session/{user}", headers=headers)
            for odd in (1, 0, 1, 0, 1, 0)
        ]
        statuses = {answer.status_code for answer in await asyncio.gather(*calls)}
        assert statuses <= {202, 204, 404, 409}
        async with database.connect() as connection:
            found = await conversations.find_session(connection, user)
            busy = await connection.rows(
                "SELECT conversation_id FROM runs WHERE user_id = $1 AND finished_at IS NULL", user
            )
        assert {row[0] for row in busy} <= {found.id if found else None}


# resume


@pytest.mark.parametrize(
    ("question", "word", "args", "value"),
    [
        ({}, "accept", {}, {"type": "accept"}),
        ({}, "reject", {}, {"type": "reject"}),
        ({}, "edit", {"args": {"pump": 8}}, {"type": "edit", "args": {"pump": 8}}),
        ({}, "response", {"args": ["later"]}, {"type": "response", "args": ["later"]}),
        ({}, "response", {"args": False}, {"type": "response", "args": False}),
        ({"format": "steadyrun"}, "accept", {}, {"type": "approve", "by": rows.USER}),
        (
            {"format": "langchain-hitl", "actions": [{"name": "pay", "args": {}}] * 2},
            "accept",
            {},
            {"decisions": [{"type": "approve"}, {"type": "approve"}]},
        ),
        (
            {"format": "langchain-hitl", "actions": [{"name": "pay", "args": {}}]},
            "response",
            {"args": "it is paid"},
            {"decisions": [{"type": "respond", "message": "it is paid"}]},
        ),
        (
            {"format": "agent-inbox", "actions": [{"name": "pay", "args": {}}]},
            "edit",
            {"args": {"eur": 4}},
            [{"type": "edit", "args": {"action": "pay", "args": {"eur": 4}}}],
        ),
    ],
)
async def test_the_graph_gets_what_its_format_expects(
    edge: Edge,
    database: Database,
    runner: FakeRunner,
    question: dict[str, Any],
    word: str,
    args: dict[str, Any],
    value: Any,
) -> None:
    every = ["approve", "reject", "edit", "respond"]
    allowed = every if "langchain" in question.get("format", "") else [*every[:3], "fill"]
    given = {"allowed_decisions": allowed, "on_reject": "continue", **question}
    run, known = await asked(edge, runner, rows.question(**given))
    response = await reply(edge, known, word, **args)
    assert response.status_code == 202, response.text
    assert response.json()["task_id"] == run.id
    async with database.connect() as connection:
        [row] = await interrupts.of_run(connection, run.id)
    assert (row.status, row.answer_value, row.resolved_by) == ("resolved", value, rows.USER)


async def test_a_resume_waits_for_the_next_stop_of_the_same_run(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    _, known = await asked(edge, runner)
    body = {"session_id": known["session_id"], "response_type": "accept"}
    async with calling(edge, "/agent/resume", body) as call:
        run = await queued(database, runner)
        assert (await session(edge))["status"] == "running"
        second = await ask_again(database, run, "second")
        answer = (await call).json()
    assert (answer["status"], answer["task_id"]) == ("interrupted", known["task_id"])
    assert answer["interrupt_data"]["interrupt_id"] == second.id
    async with calling(edge, "/agent/resume", body) as call:
        run = await queued(database, runner)
        await run.finish(said=["Restarted."])
        answer = (await call).json()
    assert answer["result"]["messages"][-1]["content"] == "Restarted."


async def test_a_reject_that_cancels_answers_completed_and_says_so(
    edge: Edge, runner: FakeRunner
) -> None:
    _, known = await asked(edge, runner)
    body = {"session_id": known["session_id"], "response_type": "reject"}
    response = await edge.client.post("/agent/resume", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["status"], answer["message"]) == (
        "completed",
        "cancelled: the action was rejected",
    )
    assert (await session(edge))["last_response"] == answer


async def test_several_questions_are_answered_one_after_the_other(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    run, known = await asked(edge, runner, rows.question("a"), rows.question("b"))
    assert known["last_response"]["interrupt_data"]["pending"] == 2
    for _ in range(2):
        assert (await reply(edge, known, "accept")).status_code == 202
    async with database.connect() as connection:
        found = await interrupts.of_run(connection, run.id)
    assert [row.status for row in found] == ["resolved", "resolved"]


async def test_a_second_click_is_not_taken_for_the_next_question(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    _, known = await asked(edge, runner)
    seen = {"interrupt_id": known["last_response"]["interrupt_data"]["interrupt_id"]}
    keyed = {"Idempotency-Key": "click"}
    assert (await reply(edge, known, "accept", **seen)).status_code == 202
    run = await runner.start()
    second = await ask_again(database, run, "second")
    assert code(await reply(edge, known, "accept", **seen)) == (409, "INTERRUPT_NOT_PENDING")
    assert (await reply(edge, known, "accept", headers=keyed)).status_code == 202
    run = await runner.start()
    await ask_again(database, run, "third")
    again = await reply(edge, known, "accept", headers=keyed)
    assert (again.status_code, again.json()["task_id"]) == (202, known["task_id"])
    async with database.connect() as connection:
        found = {row.native_id: row for row in await interrupts.of_run(connection, run.id)}
    assert found["second"].id == second.id
    assert (found["second"].status, found["third"].status) == ("resolved", "pending")
    other = await reply(edge, known, "reject", headers=keyed)
    assert code(other) == (422, "IDEMPOTENCY_MISMATCH")


async def test_of_replies_at_once_one_wins_and_the_others_are_told_who_decided(
    edge: Edge, runner: FakeRunner
) -> None:
    _, known = await asked(edge, runner)
    calls = [reply(edge, known, word) for word in ("accept", "reject") * 4]
    answers = await asyncio.gather(*calls)
    assert sorted(a.status_code for a in answers) == [202, *[409] * 7]
    for lost in (a for a in answers if a.status_code == 409):
        assert lost.json()["code"] == "INTERRUPT_NOT_PENDING"
        assert lost.json()["resolvedBy"] in (rows.USER, None)  # None: cancelled with the run


async def test_a_breakpoint_goes_on_by_accept_only(edge: Edge, runner: FakeRunner) -> None:
    begun = await invoked(edge)
    await (await runner.start()).pause()
    data = (await session(edge))["last_response"]["interrupt_data"]
    assert (data["type"], data["next"]) == ("breakpoint", ["act"])
    assert data["allowed_response_types"] == ["accept"]
    assert code(await reply(edge, begun, "reject")) == (422, "VALIDATION")
    assert (await reply(edge, begun, "accept")).status_code == 202
    await (await runner.start()).finish()
    assert (await session(edge))["status"] == "completed"


async def test_a_decision_keeps_to_every_step_of_the_pipeline(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    needs = rows.question(required_permission="pumps.restart")
    _, known = await asked(edge, runner, needs)
    assert code(await reply(edge, known, "accept")) == (403, "PERMISSION_REVOKED")
    headers = bearer(rows.USER, "pumps.restart")
    assert code(await reply(edge, known, "edit", args={}, headers=headers)) == (422, "VALIDATION")
    past = "UPDATE interrupts SET expires_at = clock_timestamp() - interval '1 s'"
    async with database.connect() as connection:
        await connection.rows(past)
    response = await reply(edge, known, "accept", headers=headers)
    assert code(response) == (410, "INTERRUPT_EXPIRED")


async def test_facts_that_changed_are_shown_and_accepted_by_their_version(
    edge: Edge, runner: FakeRunner
) -> None:
    _, known = await asked(edge, runner)
    url = f"/api/conversations/{known['session_id']}/facts"
    changed = await edge.client.patch(url, json={"set": {"env": "prod"}, "version": 1})
    assert changed.status_code == 200
    refused = await reply(edge, known, "accept")
    assert code(refused) == (409, "VERSION_CONFLICT")
    version = refused.json()["confirmVersion"]
    assert (await reply(edge, known, "accept", confirm_version=version)).status_code == 202


async def test_there_is_nothing_to_answer_without_a_question(
    edge: Edge, runner: FakeRunner
) -> None:
    begun = await invoked(edge)
    assert code(await reply(edge, begun, "accept")) == (409, "RUN_NOT_RESUMABLE")
    await (await runner.start()).finish()
    assert code(await reply(edge, begun, "accept")) == (409, "RUN_NOT_RESUMABLE")


# who and what


async def test_nobody_speaks_for_another_user(edge: Edge) -> None:
    known = await invoked(edge)
    eve = bearer("eve")
    calls = [
        edge.client.post("/agent/invoke", json={**HELLO, "user_id": rows.USER}, headers=eve),
        reply(edge, known, "accept", user_id=rows.USER, headers=eve),
        edge.client.get(SESSION, headers=eve),
        edge.client.delete(SESSION, headers=eve),
    ]
    for call in calls:
        assert code(await call) == (403, "FORBIDDEN")
    assert (await session(edge))["session_id"] == known["session_id"]
    named = await edge.client.post("/agent/invoke", json={**HELLO, "user_id": rows.USER})
    assert code(named) == (409, "CONVERSATION_BUSY")
    nobody = await edge.client.get(SESSION, headers={"Authorization": ""})
    assert code(nobody) == (401, "UNAUTHENTICATED")


async def test_without_a_session_there_is_404_and_another_sessions_id_is_400(
    edge: Edge, runner: FakeRunner
) -> None:
    nothing = {"session_id": "conv_x"}
    assert code(await edge.client.get(SESSION)) == (404, "NOT_FOUND")
    assert code(await edge.client.delete(SESSION)) == (404, "NOT_FOUND")
    assert code(await reply(edge, nothing, "accept")) == (404, "NOT_FOUND")
    _, known = await asked(edge, runner)
    assert code(await reply(edge, nothing, "accept")) == (400, "BAD_REQUEST")
    wrong = await reply(edge, known, "accept", interrupt_id="int_x")
    assert code(wrong) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/agent/invoke", {}),
        ("/agent/invoke", {"query": ""}),
        ("/agent/invoke", {"query": "a\0"}),
        ("/agent/invoke", {"query": 5}),
        ("/agent/invoke", {"query": "a", "mode": "later"}),
        ("/agent/invoke", {"query": "a", "user": "ada"}),
        ("/agent/resume", {"session_id": "s", "response_type": "approve"}),
        ("/agent/resume", {"session_id": "s"}),
        ("/agent/resume", {"session_id": "s", "response_type": "edit", "args": "\0"}),
    ],
)
async def test_what_does_not_fit_is_422_and_begins_nothing(
    edge: Edge, path: str, body: dict[str, Any]
) -> None:
    assert code(await edge.client.post(path, json=body)) == (422, "VALIDATION")
    assert code(await edge.client.get(SESSION)) == (404, "NOT_FOUND")


async def test_a_query_that_is_too_large_is_413_and_begins_nothing(edge: Edge) -> None:
    response = await edge.client.post("/agent/invoke", json={"query": "x" * 300_000})
    assert code(response) == (413, "PAYLOAD_TOO_LARGE")
    assert code(await edge.client.get(SESSION)) == (404, "NOT_FOUND")


async def test_a_session_whose_runs_are_not_kept_any_more_is_idle(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    known = await invoked(edge)
    await (await runner.start()).finish(said=["done"])
    async with database.connect() as connection:
        await connection.rows("DELETE FROM runs")
    found = await session(edge)
    assert (found["status"], found["task_id"]) == ("idle", None)
    assert (found["session_id"], found["last_query"]) == (known["session_id"], HELLO["query"])


# ending


@pytest.mark.parametrize("when", ["queued", "interrupted", "running"])
async def test_ending_a_session_cancels_its_run_and_the_next_invoke_begins_anew(
    edge: Edge, database: Database, runner: FakeRunner, when: str
) -> None:
    begun = await invoked(edge)
    if when != "queued":
        run = await runner.start()
    if when == "interrupted":
        await run.ask()
    response = await edge.client.delete(SESSION)
    assert (response.status_code, response.content) == (204, b"")
    assert code(await edge.client.get(SESSION)) == (404, "NOT_FOUND")
    async with database.connect() as connection:
        found = await runs.find(connection, begun["task_id"])
    assert found is not None
    assert found.cancel_requested == "user"
    assert found.status == ("running" if when == "running" else "cancelled")
    if when != "running":
        task = (await edge.client.get(f"/agent/tasks/{begun['task_id']}")).json()
        assert (task["status"], task["message"]) == ("completed", "cancelled by the user")
    url = f"/api/conversations/{begun['session_id']}/messages"
    assert len((await edge.client.get(url)).json()["items"]) == 1
    assert (await invoked(edge))["session_id"] != begun["session_id"]


# waiting


async def test_a_client_that_goes_away_stops_neither_the_run_nor_keeps_its_place(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    async with calling(edge, "/agent/invoke", HELLO):
        run = await queued(database, runner)
        await until(lambda: edge.metric("streams_open") == 1)
    await until(lambda: edge.metric("streams_open") == 0)
    assert (await session(edge))["status"] == "running"
    await run.finish(said=["done"])
    assert (await session(edge))["status"] == "completed"


async def test_a_repeated_call_with_its_key_goes_on_waiting_for_the_same_run(
    edge: Edge, database: Database, runner: FakeRunner
) -> None:
    keyed = {"Idempotency-Key": "invoke-1"}
    async with calling(edge, "/agent/invoke", HELLO, **keyed):
        run = await queued(database, runner)
    async with calling(edge, "/agent/invoke", HELLO, **keyed) as call:
        await until(lambda: edge.metric("streams_open") == 1)
        await run.finish(said=["done"])
        answer = (await call).json()
    assert (answer["task_id"], answer["status"]) == (run.id, "completed")
    at_once = await edge.client.post(
        "/agent/invoke", json={**HELLO, "mode": "async"}, headers=keyed
    )
    assert at_once.json()["task_id"] == run.id


async def test_a_drain_tells_who_waits_to_ask_for_the_session(
    database_url: str, redis_url: str, redis_prefix: str, database: Database, runner: FakeRunner
) -> None:
    options = settings(database_url, redis_url, redis_prefix)
    async with serving(options) as edge, calling(edge, "/agent/invoke", HELLO) as call:
        run = await queued(database, runner)
        await until(lambda: edge.metric("streams_open") == 1)
        edge.server.should_exit = True
        response = await call
    assert code(response) == (503, "UNAVAILABLE")
    assert response.headers["retry-after"] == "1"
    assert response.json()["task_id"] == run.id
    async with database.connect() as connection:
        found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.status, found.cancel_requested) == ("running", None)


async def test_a_call_that_lasts_too_long_for_proxies_answers_that_it_runs(
    database_url: str, redis_url: str, redis_prefix: str, runner: FakeRunner
) -> None:
    options = settings(database_url, redis_url, redis_prefix, sync_wait_s=0.05)
    async with serving(options) as edge:
        response = await edge.client.post("/agent/invoke", json=HELLO)
        assert (response.status_code, response.json()["status"]) == (202, "running")
        assert response.headers["location"] == f"/agent/tasks/{response.json()['task_id']}"


async def test_a_client_may_wait_for_its_session_and_its_task(
    edge: Edge, runner: FakeRunner
) -> None:
    begun = await invoked(edge)
    task = f"/agent/tasks/{begun['task_id']}"
    assert (await session(edge, wait_s=0.01))["status"] == "running"
    run = await runner.start()
    waiting = asyncio.gather(session(edge, wait_s=20), edge.client.get(task, params={"wait_s": 20}))
    await until(lambda: edge.metric("streams_open") == 2)
    await run.ask()
    found, answered = await waiting
    assert (found["status"], answered.json()["status"]) == ("interrupted", "interrupted")
    bad = await edge.client.get(task, params={"wait_s": "nan"})
    assert code(bad) == (422, "VALIDATION")


async def test_calls_that_wait_hold_no_connection_to_postgres(
    database_url: str, redis_url: str, redis_prefix: str, database: Database, log: LogConnection
) -> None:
    options = settings(
        database_url, redis_url, redis_prefix, gateway_pool_size=1, heartbeat_interval_s=60
    )
    async with serving(options) as edge:
        users = [bearer(f"user-{n}") for n in range(8)]
        calls = [
            asyncio.create_task(edge.client.post("/agent/invoke", json=HELLO, headers=user))
            for user in users
        ]
        await until(lambda: edge.metric("streams_open") == 8)
        assert code(await edge.client.get(SESSION)) == (404, "NOT_FOUND")
        runner = FakeRunner(database, log)
        for _ in users:
            await (await queued(database, runner)).finish(said=["done"])
        answers = [await call for call in calls]
    assert [answer.json()["status"] for answer in answers] == ["completed"] * 8


async def test_a_house_that_is_full_begins_nothing(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    options = settings(database_url, redis_url, redis_prefix, streams_per_user_max=1)
    async with serving(options) as edge, calling(edge, "/agent/invoke", HELLO):
        await until(lambda: edge.metric("streams_open") == 1)
        response = await edge.client.post("/agent/invoke", json=HELLO)
        assert code(response) == (429, "RATE_LIMITED")
        assert response.headers["retry-after"]
