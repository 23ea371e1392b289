"""I1: whoever joins a live run, when and where ever, has each event once, in order, same bytes."""

import asyncio
import json
import random

import pytest

from tests.support.api import Api, History

EVENTS = 600


@pytest.mark.timeout(120)
async def test_ninety_clients_that_join_at_random_see_the_same_bytes(
    gateways: list[Api],
) -> None:
    """Through both gateways and nginx, from the start or from a random sequence, with cuts."""
    rng = random.Random(20)
    content = json.dumps({"events": EVENTS, "pause_s": 0.004})
    run = await gateways[0].start(content, graph="events")
    run_id = run["id"]

    async def watch(seed: int) -> tuple[int, History]:
        mine = random.Random(seed)
        await asyncio.sleep(mine.uniform(0, 3.5))
        start = mine.choice([0, 0, mine.randrange(EVENTS)])
        history = History(cursor=start)
        while not history.ended:
            where = mine.choice(gateways)
            cut = mine.choice([1_000_000, mine.randrange(1, 200)])
            await where.connect(run_id, history, events_max=cut)
        return start, history

    watched = await asyncio.gather(*(watch(rng.randrange(10**9)) for _ in range(90)))
    truth = await gateways[0].read(run_id)
    last = truth.order[-1]
    assert truth.order == list(range(1, last + 1))
    assert [e["data"]["n"] for e in truth.events if e["type"] == "custom"] == list(range(EVENTS))
    for start, history in watched:
        assert history.order == list(range(start + 1, last + 1))
        assert all(history.frames[n] == truth.frames[n] for n in history.order)
    assert sum(history.connections for _, history in watched) > 90
    assert await gateways[0].pages(run_id) == truth.events


async def test_a_cursor_at_the_end_of_a_run_gets_204(api: Api) -> None:
    run = await api.start("{}", graph="events")
    history = await api.read(run["id"])
    answer = await api.http.get(
        f"/api/runs/{run['id']}/events",
        headers={"Last-Event-ID": str(history.cursor), "Accept": "text/event-stream"},
    )
    assert answer.status_code == 204


@pytest.mark.parametrize("start", ["-1", "0"])
async def test_minus_one_and_zero_mean_from_the_start(api: Api, start: str) -> None:
    run = await api.start("{}", graph="events")
    whole = await api.read(run["id"])
    for headers, query in (({"Last-Event-ID": start}, {}), ({}, {"after": start})):
        path = f"/api/runs/{run['id']}/events"
        async with api.http.stream("GET", path, headers=headers, params=query) as response:
            again = History()
            again.take(await response.aread())
        assert again.frames == whole.frames


@pytest.mark.parametrize("start", ["-2", "abc", "1.5", "1" * 40, "\u0661"])
async def test_a_cursor_that_is_no_number_is_refused(api: Api, start: str) -> None:
    run = await api.start("{}", graph="events")
    answer = await api.http.get(f"/api/runs/{run['id']}/events", params={"after": start})
    assert answer.status_code == 400
    assert answer.json()["code"] == "BAD_REQUEST"


async def test_a_post_that_streams_ends_cleanly_at_the_pause(api: Api) -> None:
    async with api.http.stream(
        "POST",
        "/api/chat",
        json={"graph": "ask", "message": {"content": "go"}},
        headers={"Accept": "text/event-stream"},
    ) as response:
        assert response.status_code == 200
        location = response.headers["location"]
        history = History()
        history.take(await response.aread())
    types = [event["type"] for event in history.events]
    assert types[0] == "run_started"
    assert types[-1] == "interrupt"
    run_id = location.split("/")[3]
    assert (await api.run(run_id))["status"] == "interrupted"
