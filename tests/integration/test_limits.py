"""Limits of one user over all gateways: runs, streams, requests (contract §4, RATE_LIMITED)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from common.bus.client import Bus
from common.bus.names import rate_key
from common.bus.usage import Places, Rate
from tests.support import rows
from tests.support.edge import Edge, bearer, serving, settings
from tests.support.fake_runner import FakeRunner
from tests.support.until import until
from tests.support.valkey import private_valkey

JSON = {"Accept": "application/json"}
Gateways = Callable[..., AbstractAsyncContextManager[list[Edge]]]


@pytest.fixture
async def bus(redis_url: str, redis_prefix: str) -> AsyncIterator[Bus]:
    made = Bus(redis_url, prefix=redis_prefix)
    yield made
    await made.aclose()


@pytest.fixture
def gateways(database_url: str, redis_url: str, redis_prefix: str) -> Gateways:
    @asynccontextmanager
    async def two(**limits: Any) -> AsyncIterator[list[Edge]]:
        given = {"REDIS_URL": redis_url, **limits}
        options = settings(database_url, given.pop("REDIS_URL"), redis_prefix, **given)
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(serving(options)) for _ in range(2)]

    return two


def refusal(response: httpx.Response, limit: str, most: int) -> None:
    """It names the limit and says when to come again."""
    assert response.status_code == 429, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["code"], problem["limit"], problem["most"]) == ("RATE_LIMITED", limit, most)
    assert int(response.headers["retry-after"]) == problem["retryAfterS"] >= 1


async def chat(edge: Edge, key: str | None = None, **body: Any) -> httpx.Response:
    named = {} if key is None else {"idempotencyKey": key}
    body = {"message": {"content": "hello"}, **named, **body}
    return await edge.client.post("/api/chat", json=body, headers=JSON)


class TestRuns:
    async def test_of_many_runs_at_once_on_two_gateways_exactly_as_many_begin_as_are_allowed(
        self, gateways: Gateways
    ) -> None:
        async with gateways(user_runs_max=5) as edges:
            answers = await asyncio.gather(*(chat(edges[n % 2]) for n in range(24)))
            assert sorted(a.status_code for a in answers) == [202] * 5 + [429] * 19
            for answer in answers:
                if answer.status_code == 429:
                    refusal(answer, "runs", 5)
            listed = (await edges[0].client.get("/api/conversations")).json()["items"]
            assert len(listed) == 5
            assert edges[0].metric("rate_limited_total", limit="runs") > 0

    async def test_another_user_is_not_limited_by_it(self, gateways: Gateways) -> None:
        async with gateways(user_runs_max=1) as [edge, _]:
            assert (await chat(edge)).status_code == 202
            refusal(await chat(edge), "runs", 1)
            edge.client.headers.update(bearer("bob"))
            assert (await chat(edge)).status_code == 202

    async def test_a_run_that_has_ended_or_waits_for_a_person_leaves_room(
        self, gateways: Gateways, runner: FakeRunner
    ) -> None:
        async with gateways(user_runs_max=1) as [edge, other]:
            run = (await chat(edge)).json()["run"]
            claimed = await runner.start(run["id"])
            refusal(await chat(other), "runs", 1)
            await claimed.ask()
            second = await chat(other)
            assert second.status_code == 202
            cancelled = await edge.client.post(f"/api/runs/{second.json()['run']['id']}/cancel")
            assert cancelled.status_code == 202
            assert (await chat(edge)).status_code == 202

    async def test_a_decision_is_taken_though_the_user_has_all_the_runs_he_may(
        self, gateways: Gateways, runner: FakeRunner
    ) -> None:
        async with gateways(user_runs_max=1) as [edge, _]:
            run = (await chat(edge)).json()["run"]
            [asked] = await (await runner.start(run["id"])).ask()
            assert (await chat(edge)).status_code == 202
            decided = await edge.client.post(
                f"/api/runs/{run['id']}/resume",
                json={"interruptId": asked.id, "decision": "approve", "idempotencyKey": "k"},
            )
            assert decided.status_code == 202, decided.text

    async def test_a_repeated_request_is_answered_though_there_is_no_room(
        self, gateways: Gateways
    ) -> None:
        async with gateways(user_runs_max=1) as [edge, other]:
            first = await chat(edge, "one")
            again = await chat(other, "one")
            assert (again.status_code, again.json()["run"]) == (202, first.json()["run"])
            refusal(await chat(other, "two"), "runs", 1)

    async def test_a_refused_key_is_free_again(self, gateways: Gateways) -> None:
        async with gateways(user_runs_max=1) as [edge, _]:
            run = (await chat(edge)).json()["run"]
            refusal(await chat(edge, "two"), "runs", 1)
            await edge.client.post(f"/api/runs/{run['id']}/cancel")
            assert (await chat(edge, "two")).status_code == 202

    async def test_a_run_instead_of_another_needs_no_room_and_a_busy_one_is_told_so(
        self, gateways: Gateways
    ) -> None:
        async with gateways(user_runs_max=1) as [edge, _]:
            run = (await chat(edge)).json()["run"]
            url = f"/api/conversations/{run['conversationId']}/runs"
            body = {"message": {"content": "instead"}}
            busy = await edge.client.post(url, json=body)
            assert (busy.status_code, busy.json()["code"]) == (409, "CONVERSATION_BUSY")
            refusal(await edge.client.post(url, json={**body, "onConflict": "enqueue"}), "runs", 1)
            instead = await edge.client.post(url, json={**body, "onConflict": "interrupt"})
            assert instead.status_code == 202


class TestStreams:
    async def test_streams_are_counted_over_all_gateways(
        self, gateways: Gateways, runner: FakeRunner
    ) -> None:
        async with gateways(user_streams_max=2) as [edge, other]:
            run_id = (await chat(edge)).json()["run"]["id"]
            url = f"/api/runs/{run_id}/events"
            async with edge.read(run_id) as one, other.read(run_id) as two:
                await one.until(lambda r: bool(r.raw))
                await two.until(lambda r: bool(r.raw))
                refusal(await edge.client.get(url), "streams", 2)
                refusal(await other.client.get(url), "streams", 2)
                assert edge.gateway.slots.open == other.gateway.slots.open == 1
            await until(lambda: edge.gateway.slots.open + other.gateway.slots.open == 0)

    async def test_a_place_is_free_for_the_other_gateway_once_a_stream_has_gone(
        self, gateways: Gateways
    ) -> None:
        async with gateways(user_streams_max=1) as [edge, other]:
            run_id = (await chat(edge)).json()["run"]["id"]
            async with edge.read(run_id) as one:
                await one.until(lambda r: bool(r.raw))
                refusal(await other.client.get(f"/api/runs/{run_id}/events"), "streams", 1)

            async def opens() -> bool:
                async with other.read(run_id) as two:
                    return two.response.status_code == 200

            await until(opens)

    async def test_a_full_house_starts_no_run(self, gateways: Gateways) -> None:
        async with gateways(user_streams_max=1) as [edge, other]:
            run_id = (await chat(edge)).json()["run"]["id"]
            async with edge.read(run_id) as one:
                await one.until(lambda r: bool(r.raw))
                body = {"message": {"content": "hello"}}
                refusal(await other.client.post("/api/chat", json=body), "streams", 1)
            listed = (await other.client.get("/api/conversations")).json()["items"]
            assert len(listed) == 1

    async def test_places_of_a_gateway_that_died_count_no_longer(self, bus: Bus) -> None:
        dead, alive = Places(bus, "dead", ttl_s=0.05), Places(bus, "alive", ttl_s=10)
        assert await dead.take("ada", 3, 3)
        assert not await alive.take("ada", 1, 3)
        await until(lambda: alive.take("ada", 1, 3))

    async def test_what_is_said_replaces_what_was_said_before(self, bus: Bus) -> None:
        one, two = Places(bus, "one", ttl_s=10), Places(bus, "two", ttl_s=10)
        await one.say({"ada": 5, "bob": 1})
        assert not await two.take("ada", 1, 3)
        await one.say({"ada": 2})
        assert await two.take("ada", 1, 3)
        assert await two.take("ada", 1, 3), "said twice it is still one"
        await one.say({"ada": 0})
        assert await two.take("ada", 3, 3)
        assert not await two.take("ada", 4, 3)


class TestRequests:
    async def test_requests_are_counted_over_all_gateways_and_say_when_to_come_again(
        self, gateways: Gateways
    ) -> None:
        async with gateways(user_requests_per_minute_max=6) as edges:
            answers = [await edges[n % 2].client.get("/api/conversations") for n in range(9)]
            assert [a.status_code for a in answers] == [200] * 6 + [429] * 3
            refusal(answers[-1], "requests", 6)
            assert int(answers[-1].headers["retry-after"]) <= 11
            edges[0].client.headers.update(bearer("bob"))
            assert (await edges[0].client.get("/api/conversations")).status_code == 200
            assert (await edges[0].client.get("/healthz")).status_code == 200

    @pytest.mark.parametrize("place", ["body", "header"])
    async def test_a_repeated_request_is_answered_all_the_same(
        self, gateways: Gateways, place: str
    ) -> None:
        async with gateways(user_requests_per_minute_max=1) as [edge, _]:
            body: dict[str, Any] = {"message": {"content": "hello"}}
            headers = dict(JSON)
            (body if place == "body" else headers)[
                "idempotencyKey" if place == "body" else "Idempotency-Key"
            ] = "one"
            first = await edge.client.post("/api/chat", json=body, headers=headers)
            again = await edge.client.post("/api/chat", json=body, headers=headers)
            assert (first.status_code, again.status_code) == (202, 202)
            assert again.json()["run"] == first.json()["run"]
            refusal(await chat(edge, "another"), "requests", 1)

    async def test_streams_count_as_requests(self, gateways: Gateways) -> None:
        async with gateways(user_requests_per_minute_max=2) as [edge, _]:
            run_id = (await chat(edge)).json()["run"]["id"]
            async with edge.read(run_id) as one:
                assert one.response.status_code == 200
            refusal(await edge.client.get(f"/api/runs/{run_id}/events"), "requests", 2)

    async def test_a_rate_is_even_after_the_first_burst(self, bus: Bus) -> None:
        rate = Rate(bus, 60_000)  # one in a millisecond
        taken = [await rate.take("ada") for _ in range(100)]
        assert taken == [0] * 100
        slow = Rate(bus, 2)
        assert [await slow.take("bob") > 0 for _ in range(3)] == [False, False, True]
        assert 25 < await slow.take("bob") <= 30

    async def test_a_clock_that_was_set_back_locks_nobody_out(
        self, bus: Bus, redis_prefix: str
    ) -> None:
        await bus.call("SET", rate_key(redis_prefix, "ada"), "99999999999.0")
        assert 0 < await Rate(bus, 60).take("ada") <= 1.1


async def test_without_redis_requests_and_streams_go_on_with_each_gateways_own_limits(
    gateways: Gateways,
) -> None:
    with private_valkey() as valkey:
        limits = {"user_streams_max": 1, "user_requests_per_minute_max": 1, "REDIS_URL": valkey.url}
        async with gateways(streams_per_user_max=2, **limits) as [edge, _]:
            run_id = (await chat(edge)).json()["run"]["id"]
            refusal(await edge.client.get("/api/conversations"), "requests", 1)
            valkey.kill()
            await until(lambda: _is_ok(edge))
            async with edge.read(run_id) as one, edge.read(run_id) as two:
                assert (one.response.status_code, two.response.status_code) == (200, 200)
                full = await edge.client.get(f"/api/runs/{run_id}/events")
                assert (full.status_code, full.json()["limit"]) == (429, "streams")


async def _is_ok(edge: Edge) -> bool:
    return (await edge.client.get("/api/conversations")).status_code == 200


async def test_limits_that_are_off_ask_redis_for_nothing(edge: Edge, bus: Bus) -> None:
    run_id = (await chat(edge)).json()["run"]["id"]
    async with edge.read(run_id) as one:
        await one.until(lambda r: bool(r.raw))
        assert await _keys(bus, "user:*") == []


async def _keys(bus: Bus, pattern: str) -> list[bytes]:
    found: list[bytes] = await bus.call("KEYS", bus.prefix + pattern)
    return found


async def test_no_users_name_is_in_a_key(bus: Bus) -> None:
    await Rate(bus, 5).take(rows.USER)
    await Places(bus, "one", ttl_s=5).say({rows.USER: 1})
    keys = await _keys(bus, "*")
    assert len(keys) == 2
    assert not any(rows.USER.encode() in key for key in keys)
