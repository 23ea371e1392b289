"""The stream response (gateway/sse): first bytes, beats, ends and aborts (contract §3)."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Refused
from common.sse import Decoder
from gateway.metrics import Metrics
from gateway.services.ring import NOTHING, Portion
from gateway.sse import ABORT_EXTENSION, Drain, EventStream, Pace, Slots, StreamAborted
from tests.support.counted import counted

ONE = b"id: 1\nevent: done\ndata: {}\n\n"
FOR_EVER = 3600.0


class Script:
    """A source that gives portions one after the other, then waits until it is interrupted."""

    def __init__(self, *portions: Portion) -> None:
        self.portions = list(portions)
        self.closed = False
        self.woken = asyncio.Event()

    async def next(self) -> Portion:
        if self.portions:
            return self.portions.pop(0)
        await self.woken.wait()
        self.woken.clear()
        return NOTHING

    def interrupt(self) -> None:
        self.woken.set()

    def close(self) -> None:
        self.closed = True


class Client:
    """The server's side of one connection, as the app sees it."""

    def __init__(self, *, abortable: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self.got = asyncio.Condition()
        self.gone = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self.asked = False
        self.aborts: list[bool] = []
        extensions = {ABORT_EXTENSION: self.abort} if abortable else {}
        self.scope = {"type": "http", "extensions": extensions}

    async def receive(self) -> dict[str, Any]:
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.takes.wait()
        async with self.got:
            self.sent.append(dict(message))
            self.got.notify_all()

    async def abort(self, now: bool) -> None:
        self.aborts.append(now)
        self.gone.set()
        self.takes.set()

    async def until(self, text: bytes) -> None:
        async with self.got:
            await self.got.wait_for(lambda: text in self.body)

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent[1:])

    @property
    def ended(self) -> bool:
        return self.sent[-1].get("more_body") is False


class House:
    def __init__(self, *, heartbeat_s: float = FOR_EVER, send_s: float = FOR_EVER) -> None:
        self.metrics = Metrics()
        self.slots = Slots(2, 1, self.metrics)
        self.drain = Drain(0)
        self.pace = Pace(heartbeat_s, send_s)

    def stream(self, source: Script, **headers: str) -> EventStream:
        return EventStream(
            source,
            self.slots.take("ada"),
            pace=self.pace,
            drain=self.drain,
            metrics=self.metrics,
            began_at=0,
            headers=headers,
        )

    def count(self, name: str, **labels: str) -> float:
        return counted(self.metrics, name, **labels)


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
async def client() -> Client:
    return Client()


@pytest.fixture
async def running() -> AsyncIterator[set[asyncio.Task[None]]]:
    tasks: set[asyncio.Task[None]] = set()
    yield tasks
    for task in tasks:
        task.cancel()


def open_stream(stream: EventStream, client: Client) -> asyncio.Task[None]:
    return asyncio.create_task(stream(client.scope, client.receive, client.send))


async def test_the_first_bytes_are_a_comment_and_retry_stands_in_the_first_block(
    house: House, client: Client
) -> None:
    await open_stream(house.stream(Script(Portion(ONE, "run"))), client)
    assert client.sent[1]["body"] == b": keep-alive\n"
    block = client.sent[2]["body"]
    assert block.startswith(b"retry: ")
    assert 1000 <= int(block.split(b"\n")[0].removeprefix(b"retry: ")) <= 3000
    assert block.endswith(ONE)


async def test_headers_keep_proxies_from_buffering_and_transforming(
    house: House, client: Client
) -> None:
    stream = house.stream(Script(Portion(ONE, "run")), Location="/x")
    await open_stream(stream, client)
    headers = dict(client.sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"cache-control"] == b"no-cache, no-transform"
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"location"] == b"/x"
    assert b"content-length" not in headers


async def test_the_end_that_the_source_names_is_a_clean_end(house: House, client: Client) -> None:
    await open_stream(house.stream(Script(Portion(ONE), Portion(ONE, "run"))), client)
    assert client.ended
    assert client.aborts == []
    assert house.count("stream_ends_total", reason="finished") == 1


async def test_retry_is_said_once(house: House, client: Client) -> None:
    await open_stream(house.stream(Script(Portion(ONE), Portion(ONE, "run"))), client)
    assert client.body.count(b"retry: ") == 1


async def test_an_idle_stream_beats_with_one_newline(client: Client) -> None:
    house = House(heartbeat_s=0.001)
    running = open_stream(house.stream(Script()), client)
    await client.until(b": keep-alive\n: keep-alive\n")
    assert b"\n\n" not in client.body
    await client.abort(True)
    await running


async def test_a_client_that_left_ends_the_stream_without_an_end(
    house: House, client: Client
) -> None:
    source = Script()
    running = open_stream(house.stream(source), client)
    await client.until(b": keep-alive")
    client.gone.set()
    await running
    assert not client.ended
    assert source.closed
    assert house.slots.open == 0
    assert house.count("stream_ends_total", reason="left") == 1


async def test_a_drain_aborts_and_never_ends_cleanly(house: House, client: Client) -> None:
    running = open_stream(house.stream(Script()), client)
    await client.until(b": keep-alive")
    await house.drain.run()
    await running
    assert client.body.endswith(b": drain\n")
    assert client.aborts == [False]
    assert not client.ended


async def test_a_stream_that_opens_during_a_drain_is_aborted(house: House, client: Client) -> None:
    stream = house.stream(Script())
    await house.drain.run()
    await open_stream(stream, client)
    assert client.aborts == [False]
    with pytest.raises(Refused, match="UNAVAILABLE"):
        house.drain.refuse_new()


async def test_a_client_that_takes_nothing_is_dropped(client: Client) -> None:
    house = House(heartbeat_s=0.001, send_s=0.002)
    client.takes.clear()
    await open_stream(house.stream(Script(Portion(ONE))), client)
    assert client.aborts[0] is True
    assert house.count("slow_disconnects_total") == 1
    assert house.slots.open == 0


async def test_without_a_way_to_abort_the_stream_fails_loudly(house: House) -> None:
    client = Client(abortable=False)
    running = open_stream(house.stream(Script()), client)
    await client.until(b": keep-alive")
    await house.drain.run()
    with pytest.raises(StreamAborted):
        await running
    assert not client.ended


async def test_history_that_goes_away_under_a_reader_aborts(house: House, client: Client) -> None:
    class Expired(Script):
        async def next(self) -> Portion:
            raise Refused("HISTORY_EXPIRED", "gone")

    await open_stream(house.stream(Expired()), client)
    assert client.aborts == [False]
    assert house.count("stream_ends_total", reason="expired") == 1


async def test_a_source_that_fails_frees_the_slot(house: House, client: Client) -> None:
    class Broken(Script):
        async def next(self) -> Portion:
            raise OSError("gone")

    source = Broken()
    with pytest.raises(OSError, match="gone"):
        await open_stream(house.stream(source), client)
    assert source.closed
    assert house.slots.open == 0
    assert house.count("streams_open") == 0


def test_slots_are_limited_for_each_user_and_for_the_process(house: House) -> None:
    first = house.slots.take("ada")
    with pytest.raises(Refused, match="user"):
        house.slots.take("ada")
    house.slots.take("bob")
    with pytest.raises(Refused, match="gateway"):
        house.slots.take("eve")
    first.free()
    first.free()
    assert house.slots.open == 1
    house.slots.take("ada")
    assert house.count("streams_rejected_total", reason="user") == 1


def cut(body: bytes, places: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(body), *(p % (len(body) + 1) for p in places)})
    return (body[a:b] for a, b in itertools.pairwise(edges))


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_a_decoder_gets_the_events_wherever_the_bytes_are_cut(places: list[int]) -> None:
    async def body() -> bytes:
        house, client = House(), Client()
        frames = 'id: 7\nevent: text_delta\ndata: {"delta":"héllo 世界"}\n\n'.encode()
        await open_stream(house.stream(Script(Portion(frames), Portion(ONE, "run"))), client)
        return client.body

    decoder = Decoder()
    whole = asyncio.run(body())
    events = [event for piece in cut(whole, places) for event in decoder.feed(piece)]
    assert [(e.id, e.type) for e in events] == [("7", "text_delta"), ("1", "done")]
    assert events[0].data == '{"delta":"héllo 世界"}'
    assert decoder.retry_ms is not None
