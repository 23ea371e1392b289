"""Conversations and runs over HTTP: creating, idempotency, conflicts, cancelling (contract §4)."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from common.db import runs
from common.db.engine import Database
from common.ids import new_id
from gateway.services.idempotency import Forgetting
from tests.support import rows
from tests.support.edge import Edge, Reading, bearer, graph_file, serving, settings
from tests.support.fake_runner import FakeRunner

JSON = {"Accept": "application/json"}
HELLO = {"message": {"content": "hello"}}


async def conversation(edge: Edge, **body: Any) -> dict[str, Any]:
    response = await edge.client.post("/api/conversations", json=body)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def start(edge: Edge, conversation_id: str, **body: Any) -> httpx.Response:
    url = f"/api/conversations/{conversation_id}/runs"
    return await edge.client.post(url, json={**HELLO, **body})


def code(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


async def test_a_conversation_has_the_fields_of_the_contract(edge: Edge) -> None:
    made = await conversation(edge, title="Pumps", facts={"env": "prod"})
    assert made["id"].startswith("conv_")
    assert (made["title"], made["graph"], made["facts"]) == ("Pumps", rows.GRAPH, {"env": "prod"})
    assert (made["factsVersion"], made["summary"], made["activeRun"]) == (1, None, None)
    assert made["createdAt"].endswith("Z")
    assert (await edge.client.get(f"/api/conversations/{made['id']}")).json() == made


async def test_a_run_has_the_fields_of_the_contract(edge: Edge) -> None:
    talk = await conversation(edge)
    response = await start(edge, talk["id"], metadata={"from": "test"})
    assert response.status_code == 202
    made = response.json()
    run = made["run"]
    assert set(run) == {
        "id", "conversationId", "userMessageId", "graph", "status", "epoch", "lastSequence",
        "pendingInterrupts", "next", "output", "messageId", "error", "cancelReason",
        "cancelledBy", "cancelledAt", "onDisconnect", "metadata", "createdAt", "startedAt",
        "finishedAt", "updatedAt",
    }  # fmt: skip
    assert (run["status"], run["epoch"], run["metadata"]) == ("queued", 0, {"from": "test"})
    assert made["streamUrl"].startswith(f"/api/runs/{run['id']}/events?after=0&ticket=")
    assert response.headers["location"] == f"/api/runs/{run['id']}"
    assert (await edge.client.get(f"/api/runs/{run['id']}")).json() == run
    messages = (await edge.client.get(f"/api/conversations/{talk['id']}/messages")).json()
    [message] = messages["items"]
    assert message["id"] == run["userMessageId"]
    assert (message["role"], message["content"]) == ("user", "hello")
    assert "toolCallId" not in message
    active = (await edge.client.get(f"/api/conversations/{talk['id']}")).json()["activeRun"]
    assert active["id"] == run["id"]


async def test_lists_are_paged_to_the_end(edge: Edge) -> None:
    made = [(await conversation(edge, title=f"{n}"))["id"] for n in range(5)]
    seen, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await edge.client.get("/api/conversations", params=params)).json()
        seen += [item["id"] for item in page["items"]]
        if (cursor := page["nextCursor"]) is None:
            break
    assert seen == made[::-1]
    for bad in ({"limit": 0}, {"limit": 201}, {"limit": "x"}):
        assert code(await edge.client.get("/api/conversations", params=bad)) == (422, "VALIDATION")
    bad_cursor = await edge.client.get("/api/conversations", params={"cursor": "é%00"})
    assert code(bad_cursor) == (400, "BAD_REQUEST")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message": "hello"},
        {"message": {"content": ""}},
        {"message": {"content": 5}},
        {"message": {"content": "a\0b"}},
        {"message": {"content": "a", "role": "user"}},
        {**HELLO, "userId": "eve"},
        {**HELLO, "input_format": "json"},
        {**HELLO, "onConflict": "panic"},
        {**HELLO, "idempotencyKey": ""},
        {**HELLO, "metadata": {"a": "\0"}},
        {**HELLO, "metadata": {"a\0": 1}},
        {**HELLO, "metadata": []},
        {**HELLO, "interruptBefore": "one"},
    ],
)
async def test_what_does_not_fit_the_schema_is_422(edge: Edge, body: dict[str, Any]) -> None:
    talk = await conversation(edge)
    response = await edge.client.post(f"/api/conversations/{talk['id']}/runs", json=body)
    assert code(response) == (422, "VALIDATION")
    assert (await edge.client.get(f"/api/conversations/{talk['id']}")).json()["activeRun"] is None


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata": {"a": NaN}}',
        '{"metadata": {"a": 1e999}}',
        '{"metadata": {"a": 99999999999999999999}}',
        '{"metadata": {"a": "\\ud800"}}',
        '{"metadata": ' + '{"a":' * 200 + "1" + "}" * 201,
    ],
)
async def test_json_that_cannot_be_stored_is_422(edge: Edge, text: str) -> None:
    body = text[:-1] + ', "message": {"content": "x"}}'
    headers = {"Content-Type": "application/json"}
    response = await edge.client.post("/api/chat", content=body, headers={**headers, **JSON})
    assert code(response) == (422, "VALIDATION")


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "\xff"])
async def test_what_is_no_json_is_400(edge: Edge, content: str) -> None:
    headers = {"Content-Type": "application/json"}
    body = content.encode("latin-1")
    response = await edge.client.post("/api/chat", content=body, headers=headers)
    assert code(response) == (400, "BAD_REQUEST")


async def test_others_conversations_and_runs_do_not_exist(edge: Edge) -> None:
    made = await edge.create()
    run_id, talk_id = made["run"]["id"], made["run"]["conversationId"]
    eve = bearer("eve")
    calls = [
        ("GET", f"/api/conversations/{talk_id}"),
        ("DELETE", f"/api/conversations/{talk_id}"),
        ("GET", f"/api/conversations/{talk_id}/messages"),
        ("GET", f"/api/conversations/{talk_id}/resume-state"),
        ("GET", f"/api/runs/{run_id}"),
        ("POST", f"/api/runs/{run_id}/cancel"),
        ("POST", f"/api/runs/{run_id}/ticket"),
        ("GET", f"/api/runs/{new_id('run')}"),
        ("GET", "/api/runs/run_%00"),
    ]
    for method, path in calls:
        assert code(await edge.client.request(method, path, headers=eve)) == (404, "NOT_FOUND")
    url = f"/api/conversations/{talk_id}/runs"
    assert code(await edge.client.post(url, json=HELLO, headers=eve)) == (404, "NOT_FOUND")
    async with httpx.AsyncClient(base_url=edge.url) as nobody:
        for method, path in calls:
            assert code(await nobody.request(method, path)) == (401, "UNAUTHENTICATED")


async def test_a_busy_conversation_refuses_and_the_key_is_free_again(
    edge: Edge, runner: FakeRunner
) -> None:
    talk = await conversation(edge)
    await start(edge, talk["id"])
    busy = await start(edge, talk["id"], idempotencyKey="k")
    assert code(busy) == (409, "CONVERSATION_BUSY")
    await (await runner.start()).finish()
    assert (await start(edge, talk["id"], idempotencyKey="k")).status_code == 202


async def test_enqueued_runs_wait_in_order(edge: Edge, runner: FakeRunner) -> None:
    talk = await conversation(edge)
    made = [(await start(edge, talk["id"], onConflict="enqueue")).json() for _ in range(3)]
    done = []
    for _ in made:
        run = await runner.start()
        done.append(run.id)
        await run.finish()
    assert done == [one["run"]["id"] for one in made]


@pytest.mark.parametrize("conflict", ["interrupt", "rollback"])
async def test_a_superseded_run_that_waits_is_cancelled_at_once(
    edge: Edge, runner: FakeRunner, conflict: str
) -> None:
    talk = await conversation(edge)
    first = (await start(edge, talk["id"])).json()["run"]
    second = (await start(edge, talk["id"], onConflict=conflict)).json()["run"]
    seen = (await edge.client.get(f"/api/runs/{first['id']}")).json()
    assert (seen["status"], seen["cancelReason"]) == ("cancelled", "superseded")
    assert (await runner.start()).id == second["id"]
    messages = (await edge.client.get(f"/api/conversations/{talk['id']}/messages")).json()
    left = {message["runId"] for message in messages["items"]}
    assert left == ({second["id"]} if conflict == "rollback" else {first["id"], second["id"]})


async def test_what_waited_is_superseded_with_the_active_run(
    edge: Edge, runner: FakeRunner
) -> None:
    """The new run is wanted instead of all that has not ended."""
    talk = await conversation(edge)
    await start(edge, talk["id"])
    active = await runner.start()
    waiting = (await start(edge, talk["id"], onConflict="enqueue")).json()["run"]
    newest = (await start(edge, talk["id"], onConflict="interrupt")).json()["run"]
    behind = (await start(edge, talk["id"], onConflict="enqueue")).json()["run"]
    seen = (await edge.client.get(f"/api/runs/{waiting['id']}")).json()
    assert (seen["status"], seen["cancelReason"]) == ("cancelled", "superseded")
    async with edge.read(waiting["id"]) as reading:
        await reading.over()
    assert reading.types == ["cancelled"]
    await active.finish()
    order = []
    for _ in "ab":
        run = await runner.start()
        order.append(run.id)
        await run.finish()
    assert order == [newest["id"], behind["id"]]


async def test_a_superseded_run_that_runs_is_its_runners_to_cancel(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    talk = await conversation(edge)
    await start(edge, talk["id"])
    run = await runner.start()
    await start(edge, talk["id"], onConflict="interrupt")
    async with database.connect() as connection:
        found = await runs.find(connection, run.id)
    assert found is not None
    assert (found.status, found.cancel_requested) == ("running", "superseded")


async def test_the_same_key_twice_is_one_run(edge: Edge) -> None:
    talk = await conversation(edge)
    first = await start(edge, talk["id"], idempotencyKey="k")
    url = f"/api/conversations/{talk['id']}/runs"
    again = await edge.client.post(url, json=HELLO, headers={"Idempotency-Key": "k"})
    assert again.json()["run"] == first.json()["run"]
    assert again.status_code == 202
    other = await start(edge, talk["id"], message={"content": "other"}, idempotencyKey="k")
    assert code(other) == (422, "IDEMPOTENCY_MISMATCH")
    differing = await edge.client.post(
        url, json={**HELLO, "idempotencyKey": "a"}, headers={"Idempotency-Key": "b"}
    )
    assert code(differing) == (422, "VALIDATION")


async def test_the_same_key_at_once_is_one_run(edge: Edge) -> None:
    body = {**HELLO, "idempotencyKey": "k"}
    calls = [edge.client.post("/api/chat", json=body, headers=JSON) for _ in range(10)]
    answers = await asyncio.gather(*calls)
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["run"]["id"] for a in answers}) == 1
    assert len((await edge.client.get("/api/conversations")).json()["items"]) == 1


async def test_keys_are_forgotten_after_their_retention(edge: Edge, database: Database) -> None:
    body = {**HELLO, "idempotencyKey": "k"}
    first = await edge.client.post("/api/chat", json=body, headers=JSON)
    assert await Forgetting(database, 3600, 60).forget() == 0
    assert await Forgetting(database, 0, 60).forget() == 1
    second = await edge.client.post("/api/chat", json=body, headers=JSON)
    assert first.json()["run"]["id"] != second.json()["run"]["id"]


async def test_keys_belong_to_users(edge: Edge) -> None:
    body = {**HELLO, "idempotencyKey": "k"}
    mine = await edge.client.post("/api/chat", json=body, headers=JSON)
    hers = await edge.client.post("/api/chat", json=body, headers={**JSON, **bearer("eve")})
    assert mine.json()["run"]["id"] != hers.json()["run"]["id"]


async def test_chat_streams_and_says_where_to_join_again(edge: Edge, runner: FakeRunner) -> None:
    async with Reading(edge.client, "POST", "/api/chat", json=HELLO) as reading:
        await reading.until(lambda r: bool(r.raw))
        run = await runner.start()
        await run.ask()
        await reading.over()
    assert reading.ended
    assert reading.types == ["run_started", "interrupt"]
    headers = reading.response.headers
    assert headers["location"] == f"/api/runs/{run.id}/events"
    assert headers["content-location"] == f"/api/runs/{run.id}"
    talk = (await edge.client.get(f"/api/conversations/{run.row.conversation_id}")).json()
    assert talk["title"] == "hello"


async def test_a_streaming_post_with_the_same_key_streams_that_run_from_the_start(
    edge: Edge, runner: FakeRunner
) -> None:
    body = {**HELLO, "idempotencyKey": "k"}
    made = (await edge.client.post("/api/chat", json=body, headers=JSON)).json()
    await (await runner.start()).finish()
    async with Reading(edge.client, "POST", "/api/chat", json=body) as reading:
        await reading.over()
    assert reading.types == ["run_started", "done"]
    assert reading.response.headers["content-location"] == f"/api/runs/{made['run']['id']}"


async def test_a_run_is_joined_in_its_conversation_by_accept(
    edge: Edge, runner: FakeRunner
) -> None:
    talk = await conversation(edge)
    url, headers = f"/api/conversations/{talk['id']}/runs", {"Accept": "text/event-stream"}
    async with Reading(edge.client, "POST", url, json=HELLO, headers=headers) as reading:
        await reading.until(lambda r: bool(r.raw))
        await (await runner.start()).finish()
        await reading.over()
    assert reading.types == ["run_started", "done"]


async def test_an_unknown_graph_is_422(edge: Edge) -> None:
    response = await edge.client.post("/api/conversations", json={"graph": "nothing"})
    assert code(response) == (422, "VALIDATION")
    talk = await conversation(edge)
    body = {**HELLO, "conversationId": talk["id"], "graph": "nothing"}
    assert code(await edge.client.post("/api/chat", json=body)) == (422, "VALIDATION")


async def test_a_queued_run_is_cancelled_at_once_and_again_is_the_same(edge: Edge) -> None:
    made = await edge.create()
    url = f"/api/runs/{made['run']['id']}/cancel"
    for _ in range(2):
        response = await edge.client.post(url)
        assert response.status_code == 202
        assert (response.json()["status"], response.json()["cancelReason"]) == ("cancelled", "user")
    async with edge.read(made["run"]["id"]) as reading:
        await reading.over()
    assert reading.types == ["cancelled"]


async def test_a_running_run_is_asked_of_its_runner(
    edge: Edge, runner: FakeRunner, database: Database
) -> None:
    await edge.create()
    run = await runner.start()
    response = await edge.client.post(f"/api/runs/{run.id}/cancel")
    assert (response.status_code, response.json()["status"]) == (202, "running")
    async with database.connect() as connection:
        assert await runs.owned(connection, runner.id) == {run.id: (1, "user")}


async def test_last_sequence_is_that_of_the_log(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a", "b", "c")
    url = f"/api/runs/{made['run']['id']}"
    assert (await edge.client.get(url)).json()["lastSequence"] == 4
    await run.finish()
    seen = (await edge.client.get(url)).json()
    assert (seen["status"], seen["lastSequence"]) == ("completed", 5)


async def test_a_ticket_is_made_anew(edge: Edge) -> None:
    made = await edge.create()
    response = await edge.client.post(f"/api/runs/{made['run']['id']}/ticket")
    assert response.status_code == 201
    assert set(response.json()) == {"ticket", "streamUrl", "expiresAt"}
    assert response.json()["ticket"] in response.json()["streamUrl"]


async def test_facts_change_under_their_version(edge: Edge) -> None:
    talk = await conversation(edge, facts={"a": 1, "b": 2})
    url = f"/api/conversations/{talk['id']}/facts"
    changed = await edge.client.patch(url, json={"set": {"c": 3}, "unset": ["a"], "version": 1})
    assert changed.json()["facts"] == {"b": 2, "c": 3}
    assert changed.json()["factsVersion"] == 2
    stale = await edge.client.patch(url, json={"set": {}, "version": 1})
    assert code(stale) == (409, "VERSION_CONFLICT")
    assert stale.json()["factsVersion"] == 2


async def test_facts_that_take_more_room_than_their_text_are_refused(edge: Edge) -> None:
    """Postgres keeps every digit of 1e300."""
    talk, facts = await conversation(edge), {"a": [1e300] * 2000}
    url = f"/api/conversations/{talk['id']}/facts"
    changed = await edge.client.patch(url, json={"set": facts, "version": 1})
    assert code(changed) == (422, "VALIDATION")
    made = await edge.client.post("/api/conversations", json={"facts": facts})
    assert code(made) == (422, "VALIDATION")


async def test_facts_of_a_graph_beyond_their_bound_can_be_made_smaller_step_by_step(
    edge: Edge, database: Database
) -> None:
    talk = await conversation(edge)
    async with database.connect() as connection:
        await connection.rows(
            "UPDATE conversations SET facts = $1::jsonb WHERE id = $2",
            *({f"a{n}": "x" * 9_000 for n in range(4)}, talk["id"]),
        )
    url = f"/api/conversations/{talk['id']}/facts"
    more = await edge.client.patch(url, json={"set": {"b": 1}, "version": 1})
    assert code(more) == (422, "VALIDATION")
    for version, key in enumerate(["a0", "a1", "a2"], 1):
        less = await edge.client.patch(url, json={"unset": [key], "version": version})
        assert less.status_code == 200, less.text
    assert (await edge.client.patch(url, json={"set": {"b": 1}, "version": 4})).status_code == 200


async def test_of_changes_of_facts_at_once_one_wins_and_the_others_learn_the_current_ones(
    edge: Edge,
) -> None:
    talk = await conversation(edge)
    url = f"/api/conversations/{talk['id']}/facts"
    changes = [{"set": {"n": n}, "version": 1} for n in range(8)]
    answers = await asyncio.gather(*(edge.client.patch(url, json=c) for c in changes))
    won = [a for a in answers if a.status_code == 200]
    lost = [a for a in answers if a.status_code != 200]
    assert (len(won), len(lost)) == (1, 7)
    for answer in lost:
        assert code(answer) == (409, "VERSION_CONFLICT")
        now = {name: answer.json()[name] for name in ("facts", "factsVersion")}
        assert now == {"facts": won[0].json()["facts"], "factsVersion": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"1a": 1}},
        {"set": {"": 1}},
        {"set": {"a b": 1}},
        {"set": {"__proto__": 1}},
        {"set": {"a" * 65: 1}},
        {"set": {"a": [[[[[[[1]]]]]]]}},
        {"set": {"a": "x" * 17_000}},
        {"set": {f"a{n}": n for n in range(101)}},
        {"unset": ["</facts>"]},
        {"unset": ["a"] * 101},
        {"set": {"a": float("nan")}},
        {"set": [], "unset": {}},
    ],
)
async def test_what_is_no_fact_is_refused_and_changes_nothing(edge: Edge, changes: Any) -> None:
    talk = await conversation(edge, facts={"env": "prod"})
    url = f"/api/conversations/{talk['id']}"
    content = json.dumps({"version": 1, **changes})
    headers = {"Content-Type": "application/json"}
    refused = await edge.client.patch(f"{url}/facts", content=content, headers=headers)
    assert code(refused) == (422, "VALIDATION")
    now = (await edge.client.get(url)).json()
    assert (now["facts"], now["factsVersion"]) == ({"env": "prod"}, 1)


async def test_facts_that_become_too_many_by_and_by_are_refused(edge: Edge) -> None:
    talk = await conversation(edge, facts={f"a{n}": n for n in range(60)})
    url = f"/api/conversations/{talk['id']}/facts"
    more = {"set": {f"b{n}": n for n in range(60)}, "version": 1}
    refused = await edge.client.patch(url, json=more)
    assert code(refused) == (422, "VALIDATION")
    assert "120" in refused.json()["detail"]
    fewer = {**more, "unset": [f"a{n}" for n in range(60)]}
    assert (await edge.client.patch(url, json=fewer)).status_code == 200


async def test_facts_that_need_a_permission_are_hidden_and_fixed_without_it(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    rules = {"salary*": "hr.view"}
    graphs = graph_file(fact_permissions=rules)
    async with serving(settings(database_url, redis_url, redis_prefix), graphs) as edge:
        hr = bearer(rows.USER, "hr.view")
        body = {"facts": {"salary": 7, "env": "prod"}}
        assert code(await edge.client.post("/api/conversations", json=body)) == (403, "FORBIDDEN")
        made = (await edge.client.post("/api/conversations", json=body, headers=hr)).json()
        assert made["facts"] == body["facts"]
        url = f"/api/conversations/{made['id']}"
        assert (await edge.client.get(url)).json()["facts"] == {"env": "prod"}
        listed = (await edge.client.get("/api/conversations")).json()["items"]
        assert [one["facts"] for one in listed] == [{"env": "prod"}]
        for change in ({"set": {"salary": 1}}, {"unset": ["salary_2"]}):
            refused = await edge.client.patch(f"{url}/facts", json={**change, "version": 1})
            assert code(refused) == (403, "FORBIDDEN")
        stale = await edge.client.patch(f"{url}/facts", json={"set": {"a": 1}, "version": 9})
        assert stale.json()["facts"] == {"env": "prod"}
        changed = await edge.client.patch(f"{url}/facts", json={"set": {"a": 1}, "version": 1})
        assert changed.json()["facts"] == {"env": "prod", "a": 1}
        assert (await edge.client.get(url, headers=hr)).json()["facts"] == {**body["facts"], "a": 1}


async def test_a_fresh_page_learns_what_it_needs(edge: Edge, runner: FakeRunner) -> None:
    talk = await conversation(edge)
    url = f"/api/conversations/{talk['id']}/resume-state"
    empty = (await edge.client.get(url)).json()
    assert (empty["run"], empty["resumable"], empty["lastSequence"]) == (None, False, 0)
    await start(edge, talk["id"])
    run = await runner.start()
    [asked] = await run.ask()
    state = (await edge.client.get(url)).json()
    assert state["run"]["id"] == run.id
    assert (state["resumable"], state["lastSequence"], state["next"]) == (True, 2, ["tools"])
    assert [i["id"] for i in state["pendingInterrupts"]] == [asked.id]
    assert state["pendingInterrupts"][0]["payload"] == asked.payload


async def test_deleting_a_conversation_ends_what_waits_and_removes_all(
    edge: Edge, runner: FakeRunner
) -> None:
    talk = await conversation(edge)
    await start(edge, talk["id"])
    run = await runner.start()
    url = f"/api/conversations/{talk['id']}"
    assert code(await edge.client.delete(url)) == (409, "CONVERSATION_BUSY")
    await run.pause()
    assert (await edge.client.delete(url)).status_code == 204
    assert code(await edge.client.get(url)) == (404, "NOT_FOUND")
    assert code(await edge.client.get(f"/api/runs/{run.id}")) == (404, "NOT_FOUND")


async def test_deleting_a_conversation_lets_nothing_that_waits_begin(
    edge: Edge, runner: FakeRunner
) -> None:
    """The one behind the active run would be taken up as soon as that is cancelled."""
    talk = await conversation(edge)
    await start(edge, talk["id"])
    await (await runner.start()).pause()
    for _ in range(3):
        await start(edge, talk["id"], onConflict="enqueue")
    claimed: list[str] = []

    async def claim() -> None:
        while True:
            async with runner.db.connect() as connection:
                claimed.extend(run.id for run in await rows.claim(connection, runner.id))
            await asyncio.sleep(0)

    async with runner.db.connect() as connection:
        runner.id = await rows.runner(connection)
    claiming = asyncio.create_task(claim())
    deleted = await edge.client.delete(f"/api/conversations/{talk['id']}")
    claiming.cancel()
    await asyncio.wait({claiming})
    assert (deleted.status_code, claimed) == (204, [])


async def test_unknown_paths_and_methods_are_problems(edge: Edge) -> None:
    assert code(await edge.client.get("/api/nothing")) == (404, "NOT_FOUND")
    assert code(await edge.client.put("/api/chat")) == (405, "METHOD_NOT_ALLOWED")
