"""The lines on SSE of the list of tests in `seeds/000_f85b8e53bd89419d.txt`, "How to test", through
the whole system; more of each stands in tests/unit/test_sse_decoder.py, tests/unit/test_sse.py and
tests/integration/test_gateway_events.py.
"""

import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from common.sse import Decoder
from deploy.client.transcript import Piece, Transcript
from tests.acceptance.conftest import GRAPHS
from tests.support.api import Api, History, Json
from tests.support.cluster import Cluster
from tests.support.proxy import Proxy

HEARTBEAT_S = 0.2
IDLE_S = 1.5  # a proxy that closes what is silent for so long; less than the run's pauses


@pytest.fixture(scope="module")
def system() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        Path(name).chmod(0o755)
        environment = {"STEADYRUN_HEARTBEAT_INTERVAL_S": str(HEARTBEAT_S)}
        cluster = Cluster(Path(name) / "state", environment=environment)
        with cluster.running("--graphs", str(GRAPHS)) as running:
            yield running


@pytest.fixture
async def client(system: Cluster) -> AsyncIterator[Api]:
    async with Api(system.url, system.topology.jwt_secret) as made:
        yield made


async def bytes_of(client: Api, graph: str = "events", content: str = "{}") -> bytes:
    """What a whole stream is on the wire, comments and all."""
    run = await client.start(content, graph=graph)
    answer = await client.http.get(
        f"/api/runs/{run['id']}/events", headers={"Accept": "text/event-stream"}
    )
    assert answer.status_code == 200, answer.text
    return answer.content


def decoded(chunks: Iterable[bytes]) -> list[Json]:
    decoder = Decoder()
    return [json.loads(event.data) for chunk in chunks for event in decoder.feed(chunk)]


def whole(raw: bytes) -> list[Json]:
    """By the frames themselves, without a decoder."""
    history = History()
    history.take(raw)
    return history.events


async def test_one_event_split_into_multiple_chunks(client: Api) -> None:
    raw = await bytes_of(client, "agent", "weather?")
    assert decoded(raw[n : n + 1] for n in range(len(raw))) == whole(raw)


async def test_multiple_events_in_one_chunk(client: Api) -> None:
    raw = await bytes_of(client, "agent", "weather?")
    events = decoded([raw])
    assert len(events) > 10
    assert events == whole(raw)


async def test_chinese_split_across_chunks(client: Api) -> None:
    """Cut inside each character in turn, at each of its bytes."""
    raw = await bytes_of(client, content='{"events": 4, "size": 3}')
    events = whole(raw)
    assert [e["data"]["text"] for e in events if e["type"] == "custom"] == ["数数数"] * 4
    inside = [n for n, byte in enumerate(raw) if 0x80 <= byte < 0xC0]
    assert len(inside) == 4 * 3 * 2
    for cut in inside:
        assert decoded([raw[:cut], raw[cut:]]) == events


@pytest.mark.timeout(60)
async def test_gateway_idle_timeout(client: Api) -> None:
    """Comments keep a silent stream open behind a proxy that closes idle connections."""
    run = await client.start(f'{{"events": 2, "pause_s": {2 * IDLE_S}}}', graph="events")
    timeout = httpx.Timeout(30, read=IDLE_S)
    path = f"/api/runs/{run['id']}/events"
    raw = b""
    async with client.http.stream("GET", path, timeout=timeout) as response:
        async for chunk in response.aiter_raw():
            raw += chunk
    assert whole(raw)[-1]["type"] == "done"
    assert raw.count(b": keep-alive\n") > 4 * IDLE_S / HEARTBEAT_S / 2


@pytest.mark.timeout(60)
async def test_network_disconnect(client: Api, system: Cluster) -> None:
    """Cut again and again in the middle: the client goes on with Last-Event-ID, and has each event
    once, in order, byte for byte."""
    run = await client.start('{"events": 120, "pause_s": 0.02}', graph="events")
    async with Proxy(system.url) as proxy, Api(proxy.url, system.topology.jwt_secret) as far:
        history = History()
        while not history.ended:
            wanted = len(history.order) + 15
            cut = await far.connect(run["id"], history, events_max=wanted)
            assert history.ended or not cut
            await proxy.cut()
    straight = await client.read(run["id"])
    assert history.order == straight.order
    assert history.frames == straight.frames
    assert history.connections > 3


async def test_page_refresh(client: Api) -> None:
    """In the middle of a run and at its question: what was on the page comes again, once, and the
    page goes on from there."""
    run = await client.start("go", graph="approving")
    before = await client.read(run["id"], until="interrupt")
    url = f"/api/conversations/{run['conversationId']}/resume-state"
    state = (await client.http.get(url)).json()
    assert (state["run"]["id"], state["lastSequence"]) == (run["id"], before.cursor)
    [asked] = state["pendingInterrupts"]
    assert asked["id"] == before.events[-1]["interruptId"]
    assert state["resumable"]
    after = await client.read(run["id"], until="interrupt")
    assert after.frames == before.frames
    await client.resume(run["id"], interruptId=asked["id"], decision="approve")
    ended = await client.read(run["id"], history=after)
    straight = await client.read(run["id"])
    assert ended.order == straight.order
    refreshed = (await client.http.get(url)).json()
    assert (refreshed["run"]["status"], refreshed["pendingInterrupts"]) == ("completed", [])
    assert not refreshed["resumable"]


async def test_reconnect_and_see_if_the_same_step_is_drawn_again(client: Api) -> None:
    """A tool's step is executed again after its question. Whoever reconnects behind any event has
    the page of one who never left: each call once, each text once."""
    run = await client.start("go", graph="approving")
    await client.read(run["id"], until="interrupt")
    [asked] = (await client.run(run["id"]))["pendingInterrupts"]
    await client.resume(run["id"], interruptId=asked["id"], decision="approve")
    events = (await client.read(run["id"])).events
    assert any(e["type"] == "run_resumed" and e["discard"] for e in events)
    straight = drawn(events)
    calls = [piece.key for piece in straight if piece.kind == "tool"]
    assert len(calls) == len({*calls}) == 1
    for left in range(len(events)):
        rest = History(cursor=events[left]["sequence"])
        await client.connect(run["id"], rest)
        assert drawn([*events[: left + 1], *rest.events]) == straight
        overlapping = [*events[: left + 1], *events[max(0, left - 3) :]]  # sent twice
        assert drawn(overlapping) == straight


def drawn(events: Iterable[Json]) -> list[Piece]:
    transcript = Transcript()
    for event in events:
        transcript.apply(event)
    return transcript.pieces
