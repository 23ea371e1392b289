"""The Python client against a peer that cuts, refuses and comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, get_args, get_type_hints

import httpx
import pytest

from common.errors import Refused
from common.events import EVENT_FIELDS
from deploy.client import Client, Event, Patience, RunOptions, RunStream, TokenSource, Unreachable

Answer = Callable[[httpx.Request], httpx.Response]
EVENTS = [
    {"type": "run_started", "runId": "run_1", "sequence": 1, "conversationId": "conv_1"},
    {"type": "text_delta", "runId": "run_1", "sequence": 2, "messageId": "m", "delta": "重"},
    {"type": "interrupt", "runId": "run_1", "sequence": 3, "interruptId": "int_1"},
    {"type": "interrupt", "runId": "run_1", "sequence": 4, "interruptId": "int_2"},
]


class Cut(httpx.AsyncByteStream):
    """Some bytes, and then a broken connection."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        raise httpx.ReadError("connection reset")


class Peer:
    """Answers the calls in the given order and remembers them."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[httpx.Request] = []
        self.tokens: list[str] = []
        self._answers = iter(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.tokens.append(request.headers["Authorization"])
        return next(self._answers)(request)

    def client(self, attempts_max: int = 6, token: str | TokenSource = "token") -> Client:
        return Client(
            "http://peer",
            token,
            patience=lambda _: Patience(attempts_max, sleep=at_once),
            transport=httpx.MockTransport(self),
        )


async def at_once(_seconds: float) -> None:
    """A pause that takes no time."""


def frames(*events: dict[str, Any]) -> bytes:
    return b": hello\n" + b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n"
        % (e["sequence"], e["type"].encode(), json.dumps(e, ensure_ascii=False).encode())
        for e in events
    )


def stream(data: bytes, *, cut: bool = False) -> Answer:
    headers = {"Content-Type": "text/event-stream", "Content-Location": "/api/runs/run_1"}
    content: Any = Cut(data) if cut else data
    return lambda _: (
        httpx.Response(200, headers=headers, stream=content)
        if cut
        else httpx.Response(200, headers=headers, content=content)
    )


def body(status_code: int, /, **fields: Any) -> Answer:
    return lambda _: httpx.Response(status_code, json=fields)


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


async def sequences(stream: RunStream) -> list[int]:
    return [event["sequence"] async for event in stream]


async def test_a_stream_that_ends_at_its_pause_is_read_once() -> None:
    peer = Peer(stream(frames(*EVENTS)))
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]


async def test_a_cut_stream_goes_on_after_the_last_whole_event() -> None:
    data = frames(*EVENTS[:2])
    peer = Peer(stream(data[:-20], cut=True), broken, body(503), stream(frames(*EVENTS[1:])))
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]
    assert [r.headers.get("Last-Event-ID") for r in peer.requests] == [None, "1", "1", "1"]
    assert peer.requests[-1].url.path == "/api/runs/run_1/events"
    assert peer.requests[-1].url.params["until"] == "interrupt"


async def test_a_clean_end_in_the_middle_of_a_run_is_taken_for_a_cut() -> None:
    peer = Peer(stream(frames(*EVENTS[:2])), stream(frames(*EVENTS[2:])))
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]


async def test_a_replay_of_known_events_gives_them_once() -> None:
    peer = Peer(stream(frames(*EVENTS[:2]), cut=True), stream(frames(*EVENTS)))
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]


async def test_a_post_is_sent_again_with_the_same_key_until_it_is_answered() -> None:
    peer = Peer(broken, body(503), stream(frames(*EVENTS)))
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]
    assert len({r.headers["Idempotency-Key"] for r in peer.requests}) == 1
    assert {r.method for r in peer.requests} == {"POST"}


async def test_a_cut_after_the_whole_pause_does_not_wait_for_more() -> None:
    held = body(200, status="interrupted", lastSequence=4)
    peer = Peer(stream(frames(*EVENTS), cut=True), held)
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]


async def test_a_cut_after_the_whole_pause_is_asked_about_until_somebody_answers() -> None:
    away, held = body(503, code="UNAVAILABLE"), body(200, status="interrupted", lastSequence=4)
    peer = Peer(stream(frames(*EVENTS), cut=True), away, away, held)
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]
    assert [request.url.path for request in peer.requests[1:]] == ["/api/runs/run_1"] * 3


async def test_a_cut_in_the_middle_of_a_pause_gets_the_rest_of_it() -> None:
    held = body(200, status="interrupted", lastSequence=4)
    peer = Peer(stream(frames(*EVENTS[:3]), cut=True), held, stream(frames(EVENTS[3])))
    assert await sequences(peer.client().chat("…")) == [1, 2, 3, 4]


async def test_a_run_that_ended_before_is_answered_with_nothing() -> None:
    peer = Peer(lambda _: httpx.Response(204))
    assert await sequences(peer.client().follow("run_1", after=9)) == []


async def test_a_problem_is_raised_with_its_code_and_what_it_carries() -> None:
    problem = {"code": "RESOURCE_CHANGED", "detail": "it changed", "confirmVersion": 8}
    with pytest.raises(Refused) as raised:
        await Peer(body(409, **problem)).client().resume("run_1", "int_1", "approve")
    assert raised.value.code == "RESOURCE_CHANGED"
    assert raised.value.extra == {"confirmVersion": 8}


async def test_a_refused_stream_is_raised_too() -> None:
    peer = Peer(body(409, code="CONVERSATION_BUSY", detail="busy"))
    with pytest.raises(Refused, match="CONVERSATION_BUSY"):
        await sequences(peer.client().chat("…"))


async def test_a_lost_answer_to_a_decision_is_asked_for_again_with_its_key() -> None:
    peer = Peer(broken, body(503), body(202, run={}))
    assert await peer.client().resume("run_1", "int_1", "approve") == {"run": {}}
    assert len({r.headers["Idempotency-Key"] for r in peer.requests}) == 1


async def test_an_address_where_nothing_answers_is_given_up_in_the_end() -> None:
    with pytest.raises(Unreachable, match="http://peer"):
        await sequences(Peer(*[broken] * 4).client(attempts_max=4).chat("…"))


async def test_pauses_grow_up_to_a_bound_and_begin_again_after_progress() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    patience = Patience(10, sleep=sleep)
    for _ in range(8):
        await patience.wait("…")
    assert pauses[0] < pauses[3]
    assert max(pauses) <= 5
    patience.renew()
    await patience.wait("…", at_least_s=7)
    assert pauses[-1] == 7


async def test_a_stream_to_the_end_does_not_stop_at_a_question() -> None:
    done = {"type": "done", "runId": "run_1", "sequence": 5}
    peer = Peer(stream(frames(*EVENTS)), stream(frames(done)))
    assert await sequences(peer.client().follow("run_1")) == [1, 2, 3, 4, 5]
    assert [r.headers["Last-Event-ID"] for r in peer.requests] == ["0", "4"]


async def test_a_refused_token_is_renewed_once_and_the_stream_goes_on_where_it_was() -> None:
    tokens = iter(["old", "new"])

    async def source() -> str:
        return next(tokens)

    expired = body(401, code="UNAUTHENTICATED", detail="expired")
    peer = Peer(stream(frames(*EVENTS[:2]), cut=True), expired, stream(frames(*EVENTS[2:])))
    assert await sequences(peer.client(token=source).chat("…")) == [1, 2, 3, 4]
    assert peer.tokens == ["Bearer old", "Bearer old", "Bearer new"]


async def test_all_whose_token_was_refused_at_once_share_one_new_one() -> None:
    made, both = iter(["old", "new", "one too many"]), asyncio.Barrier(2)

    async def source() -> str:
        return next(made)

    async def answer(request: httpx.Request) -> httpx.Response:
        token = request.headers["Authorization"]
        if token == "Bearer old":
            await both.wait()
            return httpx.Response(401, json={"code": "UNAUTHENTICATED"})
        return httpx.Response(200, json={"token": token})

    client = Client("http://peer", source, transport=httpx.MockTransport(answer))
    found = await asyncio.gather(*(client.get(f"/api/runs/{n}") for n in range(2)))
    assert [one["token"] for one in found] == ["Bearer new"] * 2


async def test_a_token_that_cannot_be_renewed_is_refused() -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await Peer(body(401, code="UNAUTHENTICATED", detail="…")).client().run("run_1")


async def test_history_that_is_gone_is_told_and_not_asked_for_again() -> None:
    peer = Peer(body(410, code="HISTORY_EXPIRED", detail="dropped"))
    with pytest.raises(Refused, match="HISTORY_EXPIRED"):
        await sequences(peer.client().follow("run_1"))
    assert len(peer.requests) == 1


async def test_a_stream_can_be_left_at_any_event() -> None:
    run = Peer(stream(frames(*EVENTS))).client().chat("…")
    async for event in run:
        if event["sequence"] == 2:
            break
    await run.aclose()
    assert (run.run_id, run.cursor) == ("run_1", 2)


async def test_lists_are_read_over_all_their_pages() -> None:
    last = body(200, items=[{"id": "b"}], nextCursor=None)
    peer = Peer(body(200, items=[{"id": "a"}], nextCursor="c1"), last)
    assert [c["id"] async for c in peer.client().conversations()] == ["a", "b"]
    assert [r.url.params.get("cursor") for r in peer.requests] == [None, "c1"]


async def test_an_id_from_outside_stays_one_part_of_the_path() -> None:
    peer = Peer(body(404, code="NOT_FOUND", detail="…"))
    with pytest.raises(Refused, match="NOT_FOUND"):
        await peer.client().run("../interrupts?x=1")
    assert peer.requests[0].url.raw_path == b"/api/runs/..%2Finterrupts%3Fx%3D1"


async def test_a_run_is_started_with_its_options_by_the_names_of_the_wire() -> None:
    peer = Peer(body(202, run={"id": "run_1"}, streamUrl="/…"))
    options: RunOptions = {"on_conflict": "enqueue", "metadata": {"a": 1}, "key": "k1"}
    assert (await peer.client().create_run("conv_1", "hello", **options))["id"] == "run_1"
    sent = peer.requests[0]
    wanted = {"message": {"content": "hello"}, "onConflict": "enqueue", "metadata": {"a": 1}}
    assert (json.loads(sent.content), sent.headers["Idempotency-Key"]) == (wanted, "k1")


def test_the_events_are_typed_as_the_producers_make_them() -> None:
    common = {"type", "runId", "sequence", "epoch", "at", "stepId"}
    seen = {}
    for kind in get_args(Event):
        hints = get_type_hints(kind, include_extras=True)
        (name,) = get_args(hints["type"])
        seen[name] = (kind.__required_keys__ - common, kind.__optional_keys__ - common)
    assert seen == dict(EVENT_FIELDS)
