"""Reading a run's events over HTTP: each rule of contract §3."""

import asyncio

import httpx
import pytest
from httpx_sse import aconnect_sse

from common.db import retention
from common.db.engine import Database
from common.events import Event
from common.ids import new_id
from gateway.auth import Principal, Tickets
from tests.support.edge import SECRET, Edge, bearer, serving, settings
from tests.support.fake_runner import FakeRunner


async def test_a_stream_gives_history_then_live_and_ends_after_the_end(
    edge: Edge, runner: FakeRunner
) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a", "b")
    async with edge.read(made["run"]["id"]) as reading:
        await reading.count(3)
        await run.say("c")
        await reading.count(4)
        await run.finish()
        await reading.over()
    assert reading.ended
    assert reading.sequences == [1, 2, 3, 4, 5]
    assert reading.types[-1] == "done"
    assert [e["sequence"] for e in reading.json()] == reading.sequences


async def test_first_bytes_are_a_comment_and_frames_are_the_log_byte_for_byte(
    edge: Edge, runner: FakeRunner
) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a", "b")
    await run.finish()
    async with edge.read(made["run"]["id"]) as reading:
        await reading.over()
    assert reading.raw.startswith(b": keep-alive\n")
    assert reading.frames == b"".join(batch.frames for batch in run.told)
    assert reading.response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reading.response.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_reading_goes_on_after_any_sequence_also_inside_a_batch(
    edge: Edge, runner: FakeRunner, after: int
) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a", "b", "c")
    await run.finish()
    async with edge.read(made["run"]["id"], after) as reading:
        await reading.over()
    assert reading.sequences == list(range(after + 1, 6))


async def test_the_header_wins_over_the_query(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a", "b")
    await run.finish()
    url = f"/api/runs/{made['run']['id']}/events"
    headers = {"Last-Event-ID": "2", "Accept": "application/json"}
    page = (await edge.client.get(url, params={"after": 0}, headers=headers)).json()
    assert [e["sequence"] for e in page["events"]] == [3, 4]


@pytest.mark.parametrize("name", ["after", "last_event_id", "lastEventId"])
async def test_the_query_serves_where_no_header_can_be_sent(
    edge: Edge, runner: FakeRunner, name: str
) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a")
    await run.finish()
    async with edge.read(made["run"]["id"], **{name: 1}) as reading:
        await reading.over()
    assert reading.sequences == [2, 3]


async def test_minus_one_is_the_beginning(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    await (await runner.start()).finish()
    async with edge.read(made["run"]["id"], -1) as reading:
        await reading.over()
    assert reading.sequences == [1, 2]


@pytest.mark.parametrize(
    "value", ["", "x", "-2", "1.5", "1e3", "+1", " 1", "0x1", "٣", "9" * 19, "9" * 40, "1\0"]
)
async def test_what_is_no_sequence_is_a_bad_request(edge: Edge, value: str) -> None:
    made = await edge.create()
    url = f"/api/runs/{made['run']['id']}/events"
    response = await edge.client.get(url, params={"after": value})
    assert response.status_code == 400
    assert response.json()["code"] == "BAD_REQUEST"


@pytest.mark.parametrize("after", [2, 3, 10**9])
async def test_reconnecting_behind_the_end_is_204(
    edge: Edge, runner: FakeRunner, after: int
) -> None:
    made = await edge.create()
    await (await runner.start()).finish()
    url = f"/api/runs/{made['run']['id']}/events"
    response = await edge.client.get(url, headers={"Last-Event-ID": str(after)})
    assert response.status_code == 204
    assert response.content == b""


async def test_a_cursor_beyond_the_log_waits_for_later_events(
    edge: Edge, runner: FakeRunner
) -> None:
    made = await edge.create()
    run = await runner.start()
    async with edge.read(made["run"]["id"], 3) as reading:
        await run.say("two", "three")
        await run.say("four")
        await reading.count(1)
        await run.finish()
        await reading.over()
    assert reading.sequences == [4, 5]


async def test_a_cursor_beyond_the_end_of_a_run_that_ends_is_ended(
    edge: Edge, runner: FakeRunner
) -> None:
    made = await edge.create()
    run = await runner.start()
    async with edge.read(made["run"]["id"], 50) as reading:
        await reading.until(lambda r: bool(r.raw))
        await run.finish()
        await reading.over()
    assert reading.ended
    assert reading.sequences == []


async def test_until_interrupt_ends_after_all_questions_of_a_pause(
    edge: Edge, runner: FakeRunner
) -> None:
    from tests.support import rows

    made = await edge.create()
    run = await runner.start()
    async with edge.read(made["run"]["id"], until="interrupt") as reading:
        await run.say("a")
        await run.ask(rows.question("n1"), rows.question("n2"))
        await reading.over()
    assert reading.ended
    assert reading.types == ["run_started", "text_delta", "interrupt", "interrupt"]


async def test_until_end_goes_on_over_a_pause(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    run = await runner.start()
    async with edge.read(made["run"]["id"]) as reading:
        await run.pause()
        await reading.count(2)
        url = f"/api/runs/{run.id}/resume"
        answer = await edge.client.post(url, json={"continue": True})
        assert answer.status_code == 202, answer.text
        await (await runner.start()).finish()
        await reading.over()
    assert reading.types == ["run_started", "run_paused", "run_resumed", "done"]
    assert reading.sequences == [1, 2, 3, 4]


async def test_a_cursor_at_the_end_of_a_pause_that_holds_waits(
    edge: Edge, runner: FakeRunner
) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.pause()
    async with edge.read(made["run"]["id"], 2, until="interrupt") as reading:
        await reading.until(lambda r: bool(r.raw))
        await edge.client.post(f"/api/runs/{run.id}/cancel")
        await reading.over()
    assert reading.types == ["cancelled"]


async def test_until_of_anything_else_is_refused(edge: Edge) -> None:
    made = await edge.create()
    url = f"/api/runs/{made['run']['id']}/events"
    assert (await edge.client.get(url, params={"until": "lunch"})).status_code == 422


async def test_history_that_is_not_kept_is_410_before_the_stream_begins(
    edge: Edge, runner: FakeRunner, database: Database, redis_url: str
) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a")
    await run.finish()
    await forget(edge, database)
    for after in (0, 1):
        url = f"/api/runs/{made['run']['id']}/events"
        response = await edge.client.get(url, params={"after": after})
        assert response.status_code == 410
        assert response.json()["code"] == "HISTORY_EXPIRED"
    assert edge.gateway.slots.open == 0


async def forget(edge: Edge, database: Database) -> None:
    """The retention of ended runs, in Redis and in the archive."""
    bus, prefix = edge.gateway.bus, edge.gateway.bus.prefix
    for key in await bus.call("KEYS", f"{prefix}run:*"):
        await bus.call("DEL", key)
    async with database.connect() as connection:
        assert await retention.drop_events(connection, -1) == 1


async def test_what_is_settled_is_served_although_redis_was_never_told(
    edge: Edge, runner: FakeRunner
) -> None:
    """The runner died, or Redis was away, between the commit of the end and telling it."""
    made = await edge.create()
    run_id = made["run"]["id"]
    run = await runner.start()
    await run.say("a", "b")
    await run.finish(publish=False)
    async with edge.read(run_id, after=1) as reading:
        await reading.over()
    assert reading.ended
    assert reading.sequences == [2, 3, 4]
    answer = await edge.client.get(
        f"/api/runs/{run_id}/events?after=3", headers={"Accept": "application/json"}
    )
    assert [event["sequence"] for event in answer.json()["events"]] == [4]
    assert answer.json()["complete"]


async def test_a_page_of_json_pages_to_the_end(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.say("a", "b", "c")
    url = f"/api/runs/{made['run']['id']}/events"
    headers = {"Accept": "application/json"}

    async def page(after: int) -> tuple[list[int], int, bool]:
        params = {"after": after, "limit": 3}
        got = (await edge.client.get(url, params=params, headers=headers)).json()
        return [e["sequence"] for e in got["events"]], got["next"], got["complete"]

    assert await page(0) == ([1, 2, 3], 3, False)
    assert await page(3) == ([4], 4, False)
    assert await page(4) == ([], 4, False)
    await run.finish()
    assert await page(3) == ([4, 5], 5, True)
    assert await page(5) == ([], 5, True)


@pytest.mark.parametrize("limit", ["0", "1001", "x", "-1"])
async def test_a_page_has_one_to_a_thousand_events(edge: Edge, limit: str) -> None:
    made = await edge.create()
    url = f"/api/runs/{made['run']['id']}/events"
    headers = {"Accept": "application/json"}
    assert (await edge.client.get(url, params={"limit": limit}, headers=headers)).status_code == 422


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/event-stream", "text/event-stream"),
        ("application/json, text/event-stream", "text/event-stream"),
        ("application/json;q=0.5, */*", "text/event-stream"),
        ("application/json", "application/json"),
        ("text/event-stream;q=0.5, application/json", "application/json"),
    ],
)
async def test_the_accept_header_chooses(
    edge: Edge, runner: FakeRunner, accept: str | None, kind: str
) -> None:
    made = await edge.create()
    await (await runner.start()).finish()
    url = f"/api/runs/{made['run']['id']}/events"
    headers = {} if accept is None else {"Accept": accept}
    response = await edge.client.get(url, headers=headers)
    assert response.headers["content-type"].split(";")[0] == kind


async def test_another_users_run_does_not_exist(edge: Edge) -> None:
    made = await edge.create()
    url = f"/api/runs/{made['run']['id']}/events"
    assert (await edge.client.get(url, headers=bearer("eve"))).status_code == 404
    assert (await edge.client.get(f"/api/runs/{new_id('run')}/events")).status_code == 404
    assert (await edge.client.get("/api/runs/x/events")).status_code == 404


async def test_a_ticket_opens_its_run_only(edge: Edge, runner: FakeRunner) -> None:
    made, other = await edge.create(), await edge.create()
    await (await runner.start(made["run"]["id"])).finish()
    async with httpx.AsyncClient(base_url=edge.url) as stranger:
        assert (await stranger.get(made["streamUrl"])).status_code == 200
        wrong = made["streamUrl"].replace(made["run"]["id"], other["run"]["id"])
        assert (await stranger.get(wrong)).status_code == 401
        assert (await stranger.get(made["streamUrl"] + "x")).status_code == 401
        assert (await stranger.get(made["streamUrl"].split("?")[0])).status_code == 401


async def test_a_ticket_of_another_user_opens_nothing(edge: Edge) -> None:
    made = await edge.create()
    ticket = Tickets(SECRET, 60).issue(made["run"]["id"], Principal("eve", frozenset()))
    async with httpx.AsyncClient(base_url=edge.url) as stranger:
        url = f"/api/runs/{made['run']['id']}/events?ticket={ticket.text}"
        assert (await stranger.get(url)).status_code == 404


async def test_a_second_decoder_sees_the_same(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    run = await runner.start()
    await run.tell([Event("custom", {"data": "zwölf \u2028 \r\n Boxkämpfer"})])
    await run.finish()
    url = f"/api/runs/{made['run']['id']}/events"
    async with aconnect_sse(edge.client, "GET", url) as source:
        seen = [(e.id, e.event, e.retry) async for e in source.aiter_sse()]
    assert [(i, kind) for i, kind, _ in seen] == [
        ("1", "run_started"),
        ("2", "custom"),
        ("3", "done"),
    ]
    assert 1000 <= (seen[0][2] or 0) <= 3000


async def test_two_readers_of_two_gateways_get_the_same_bytes(
    edge: Edge, runner: FakeRunner, database_url: str, redis_url: str, redis_prefix: str
) -> None:
    made = await edge.create()
    run = await runner.start()
    async with (
        serving(settings(database_url, redis_url, redis_prefix)) as second,
        edge.read(made["run"]["id"]) as one,
        second.read(made["run"]["id"], 2) as two,
    ):
        await run.say("a", "b")
        await run.say("c")
        await run.finish()
        await one.over()
        await two.over()
    assert two.frames == one.frames[one.frames.index(b"id: 3\n") :]


async def test_a_stream_holds_no_connection_of_the_pool(edge: Edge, runner: FakeRunner) -> None:
    made = await edge.create()
    await runner.start()
    readings = [edge.read(made["run"]["id"]) for _ in range(12)]
    async with asyncio.TaskGroup() as group:
        opened = [group.create_task(r.__aenter__()) for r in readings]
    await asyncio.gather(*(task.result().count(1) for task in opened))
    assert (await edge.client.get(f"/api/runs/{made['run']['id']}")).status_code == 200
    for reading in readings:
        await reading.__aexit__()


async def test_too_many_streams_of_a_user_are_429_before_they_open(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    options = settings(database_url, redis_url, redis_prefix, streams_per_user_max=1)
    async with serving(options) as edge:
        made = await edge.create()
        url = f"/api/runs/{made['run']['id']}/events"
        async with edge.read(made["run"]["id"]) as reading:
            await reading.until(lambda r: bool(r.raw))
            response = await edge.client.get(url)
            assert response.status_code == 429
            assert response.headers["retry-after"]
            assert response.json()["code"] == "RATE_LIMITED"
            chat = {"message": {"content": "hello"}}
            assert (await edge.client.post("/api/chat", json=chat)).status_code == 429
        listed = (await edge.client.get("/api/conversations")).json()["items"]
        assert len(listed) == 1


async def test_the_gateway_beats_at_the_interval(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    options = settings(database_url, redis_url, redis_prefix, heartbeat_interval_s=0.02)
    async with serving(options) as edge:
        made = await edge.create()
        async with edge.read(made["run"]["id"]) as reading:
            await reading.until(lambda r: r.raw.count(b": keep-alive\n") >= 4)
        assert b"\n\n" not in reading.raw


async def test_leaving_frees_the_slot_and_the_topic(edge: Edge) -> None:
    from tests.support.until import until

    made = await edge.create()
    async with edge.read(made["run"]["id"]) as reading:
        await reading.until(lambda r: bool(r.raw))
        assert edge.gateway.slots.open == 1
    await until(lambda: edge.gateway.slots.open == 0)
    await until(lambda: edge.metric("topics") == 0)
    assert edge.metric("streams_open") == 0


async def test_head_of_the_stream_opens_none(edge: Edge) -> None:
    made = await edge.create()
    response = await edge.client.head(f"/api/runs/{made['run']['id']}/events")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert edge.gateway.slots.open == 0
