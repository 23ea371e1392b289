"""The client's HTTP side against a peer that cuts, refuses and comes back."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from common.errors import Refused
from deploy.wire import Patience, Unreachable, Wire

Answer = Callable[[httpx.Request], httpx.Response]
EVENTS = [
    {"type": "run_started", "runId": "run_1", "sequence": 1, "conversationId": "conv_1"},
    {"type": "text_delta", "runId": "run_1", "sequence": 2, "messageId": "m", "delta": "重"},
    {"type": "interrupt", "runId": "run_1", "sequence": 3, "interruptId": "int_1"},
    {"type": "interrupt", "runId": "run_1", "sequence": 4, "interruptId": "int_2"},
]


class Cut(httpx.SyncByteStream):
    """Some bytes, and then a broken connection."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data
        raise httpx.ReadError("connection reset")


class Peer:
    """Answers the calls in the given order and remembers them."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = iter(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return next(self._answers)(request)

    def wire(self, attempts_max: int = 6) -> Wire:
        pauses: list[float] = []
        return Wire(
            "http://peer",
            "token",
            patience=lambda _: Patience(attempts_max, sleep=pauses.append),
            transport=httpx.MockTransport(self),
        )


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


def sequences(events: Any) -> list[int]:
    return [event["sequence"] for event in events]


def test_a_stream_that_ends_at_its_pause_is_read_once() -> None:
    peer = Peer(stream(frames(*EVENTS)))
    assert sequences(peer.wire().chat({})) == [1, 2, 3, 4]


def test_a_cut_stream_goes_on_after_the_last_whole_event() -> None:
    data = frames(*EVENTS[:2])
    peer = Peer(stream(data[:-20], cut=True), broken, body(503), stream(frames(*EVENTS[1:])))
    assert sequences(peer.wire().chat({})) == [1, 2, 3, 4]
    assert [r.headers.get("Last-Event-ID") for r in peer.requests] == [None, "1", "1", "1"]
    assert peer.requests[-1].url.path == "/api/runs/run_1/events"
    assert peer.requests[-1].url.params["until"] == "interrupt"


def test_a_clean_end_in_the_middle_of_a_run_is_taken_for_a_cut() -> None:
    peer = Peer(stream(frames(*EVENTS[:2])), stream(frames(*EVENTS[2:])))
    assert sequences(peer.wire().chat({})) == [1, 2, 3, 4]


def test_a_replay_of_known_events_gives_them_once() -> None:
    peer = Peer(stream(frames(*EVENTS[:2]), cut=True), stream(frames(*EVENTS)))
    assert sequences(peer.wire().chat({})) == [1, 2, 3, 4]


def test_a_post_is_sent_again_with_the_same_key_until_it_is_answered() -> None:
    peer = Peer(broken, body(503), stream(frames(*EVENTS)))
    assert sequences(peer.wire().chat({"message": {"content": "…"}})) == [1, 2, 3, 4]
    assert len({r.headers["Idempotency-Key"] for r in peer.requests}) == 1
    assert {r.method for r in peer.requests} == {"POST"}


def test_a_cut_after_the_whole_pause_does_not_wait_for_more() -> None:
    held = body(200, status="interrupted", lastSequence=4)
    peer = Peer(stream(frames(*EVENTS), cut=True), held)
    assert sequences(peer.wire().chat({})) == [1, 2, 3, 4]


def test_a_cut_in_the_middle_of_a_pause_gets_the_rest_of_it() -> None:
    held = body(200, status="interrupted", lastSequence=4)
    peer = Peer(stream(frames(*EVENTS[:3]), cut=True), held, stream(frames(EVENTS[3])))
    assert sequences(peer.wire().chat({})) == [1, 2, 3, 4]


def test_a_run_that_ended_before_is_answered_with_nothing() -> None:
    peer = Peer(lambda _: httpx.Response(204))
    assert sequences(peer.wire().follow("run_1", 9)) == []


def test_a_problem_is_raised_with_its_code_and_what_it_carries() -> None:
    problem = {"code": "RESOURCE_CHANGED", "detail": "it changed", "confirmVersion": 8}
    with pytest.raises(Refused) as raised:
        Peer(body(409, **problem)).wire().post("/api/runs/run_1/resume", {})
    assert raised.value.code == "RESOURCE_CHANGED"
    assert raised.value.extra == {"confirmVersion": 8}


def test_a_refused_stream_is_raised_too() -> None:
    peer = Peer(body(409, code="CONVERSATION_BUSY", detail="busy"))
    with pytest.raises(Refused, match="CONVERSATION_BUSY"):
        list(peer.wire().chat({}))


def test_a_lost_answer_to_a_decision_is_asked_for_again_with_its_key() -> None:
    peer = Peer(broken, body(503), body(202, run={}))
    assert peer.wire().post("/api/runs/run_1/resume", {"decision": "approve"}) == {"run": {}}
    assert len({r.headers["Idempotency-Key"] for r in peer.requests}) == 1


def test_an_address_where_nothing_answers_is_given_up_in_the_end() -> None:
    with pytest.raises(Unreachable, match="http://peer"):
        list(Peer(*[broken] * 4).wire(attempts_max=4).chat({}))


def test_pauses_grow_up_to_a_bound_and_begin_again_after_progress() -> None:
    pauses: list[float] = []
    patience = Patience(10, sleep=pauses.append)
    for _ in range(8):
        patience.wait("…")
    assert pauses[0] < pauses[3]
    assert max(pauses) <= 5
    patience.renew()
    patience.wait("…", at_least_s=7)
    assert pauses[-1] == 7
