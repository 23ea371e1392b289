"""A visit of the terminal client, from the first word to the exit status."""

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.errors import Misconfigured, Refused
from deploy.chat import chat
from deploy.wire import Wire
from tests.unit.test_client import Answer, Peer, at_once, body, broken, frames, stream

Event = dict[str, Any]
ASKED: dict[str, Any] = {
    "id": "int_1", "type": "confirm_action", "format": "steadyrun", "payload": {"risk": "high"},
    "allowedDecisions": ["approve", "reject"], "actions": [{"name": "restart", "args": {"x": 1}}],
}  # fmt: skip
WAITING = {
    "id": "run_1", "conversationId": "conv_1", "status": "interrupted", "lastSequence": 3,
    "pendingInterrupts": [ASKED],
}  # fmt: skip


def event(sequence: int, kind: str, **fields: Any) -> Event:
    return {"type": kind, "runId": "run_1", "sequence": sequence, "stepId": "s1"} | fields


STARTED = event(1, "run_started", conversationId="conv_1")
QUESTION = event(3, "interrupt", interruptId="int_1", payload={})
RESUMED = event(4, "run_resumed", reason="decision", discard=[])
DONE = event(6, "done", messageId="m2")


def said(sequence: int, delta: str, message: str = "m1") -> Event:
    return event(sequence, "text_delta", delta=delta, messageId=message)


def pause() -> Answer:
    return stream(frames(STARTED, said(2, "Shall I?"), QUESTION))


def rest() -> Answer:
    return stream(frames(RESUMED, said(5, "Restarted.", "m2"), DONE))


class Visit:
    """What the person saw and how it ended."""

    def __init__(self, peer: Peer, *lines: str) -> None:
        self.peer = peer
        self.out = io.StringIO()
        self.leave_at_question = False  # by Ctrl-C
        self.transport = httpx.MockTransport(peer)
        self._lines = iter(lines)

    def __call__(self, text: str | None = "Restart it", **more: Any) -> int:
        return chat(
            "http://peer", text, token="t", out=self.out, ask=self._ask, connect=self._wire, **more
        )

    def _ask(self, prompt: str) -> str:
        if self.leave_at_question:
            raise KeyboardInterrupt
        for line in self._lines:
            return line
        raise EOFError

    def _wire(self, url: str, token: str, told: Callable[[str], object]) -> Wire:
        return Wire(url, token, told=told, sleep=at_once, transport=self.transport)

    def sent(self, path_end: str) -> list[Any]:
        calls = [r for r in self.peer.requests if r.method == "POST"]
        return [json.loads(r.content) for r in calls if r.url.path.endswith(path_end)]


def test_a_run_is_shown_decided_and_followed_to_its_end() -> None:
    visit = Visit(Peer(pause(), body(200, **WAITING), body(202, run={}), rest()), "y")
    assert visit() == 0
    assert visit.sent("/resume") == [{"interruptId": "int_1", "decision": "approve"}]
    page = visit.out.getvalue()
    assert page.index("Shall I?") < page.index("restart") < page.index("Restarted.")
    assert page.rstrip().endswith("conversation conv_1")
    assert visit.peer.requests[-1].headers["Last-Event-ID"] == "3"


def test_yes_decides_without_anybody_there() -> None:
    visit = Visit(Peer(pause(), body(200, **WAITING), body(202, run={}), rest()))
    assert visit(yes=True) == 0
    assert "Restarted." in visit.out.getvalue()


def test_without_anybody_there_it_says_how_to_go_on_and_leaves() -> None:
    visit = Visit(Peer(pause(), body(200, **WAITING)))
    assert visit() == 0
    assert "--conversation conv_1" in visit.out.getvalue()
    assert "/api/runs/run_1/resume" in visit.out.getvalue()


def test_a_question_that_somebody_else_has_decided_is_passed() -> None:
    gone = body(409, code="INTERRUPT_NOT_PENDING", detail="decided by ann", resolvedBy="ann")
    visit = Visit(Peer(pause(), body(200, **WAITING), gone, rest()), "y")
    assert visit() == 0
    assert "ann" in visit.out.getvalue()


def test_what_changed_meanwhile_is_shown_and_asked_again_even_with_yes() -> None:
    changed = body(409, code="RESOURCE_CHANGED", detail="changed", confirmVersion="v8")
    peer = Peer(pause(), body(200, **WAITING), changed, body(202, run={}), rest())
    visit = Visit(peer, "y")
    assert visit(yes=True) == 0
    assert visit.sent("/resume")[1] == {
        "interruptId": "int_1", "decision": "approve", "confirmVersion": "v8",
    }  # fmt: skip


def test_a_breakpoint_that_somebody_else_has_continued_is_read_on_from() -> None:
    paused = stream(frames(STARTED, event(2, "run_paused", reason="breakpoint", next=["act"])))
    held = body(200, **WAITING | {"pendingInterrupts": []})
    late = body(409, code="RUN_NOT_RESUMABLE", detail="it runs")
    visit = Visit(Peer(paused, held, late, rest()), "y")
    assert visit() == 0
    assert "Restarted." in visit.out.getvalue()


def test_a_breakpoint_is_continued_when_the_person_says_so() -> None:
    paused = stream(frames(STARTED, event(2, "run_paused", reason="breakpoint", next=["act"])))
    held = body(200, **(WAITING | {"pendingInterrupts": []}))
    visit = Visit(Peer(paused, held, body(202, run={}), rest()), "y")
    assert visit() == 0
    assert visit.sent("/resume") == [{"continue": True}]


def test_a_busy_conversation_is_joined_before_the_text_is_sent_again() -> None:
    busy = body(409, code="CONVERSATION_BUSY", detail="busy")
    active = body(200, activeRun=WAITING)
    peer = Peer(busy, active, pause(), body(200, **WAITING), body(202, run={}), rest(),
                stream(frames(STARTED, said(2, "Yes."), DONE)))  # fmt: skip
    visit = Visit(peer, "y")
    assert visit(conversation="conv_1") == 0
    assert visit.sent("/api/chat") == [
        {"message": {"content": "Restart it"}, "conversationId": "conv_1"},
    ] * 2  # fmt: skip


def busy_peer(*more: Answer) -> Peer:
    busy = body(409, code="CONVERSATION_BUSY", detail="busy")
    return Peer(busy, body(200, activeRun=WAITING), pause(), *more)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_text_that_could_not_be_sent_is_told(leaves: bool) -> None:
    """The earlier run still waits for a decision that is not taken now."""
    visit = Visit(busy_peer(body(200, **WAITING)))
    visit.leave_at_question = leaves
    assert visit(conversation="conv_1") == (0 if leaves else 1)
    assert len(visit.sent("/api/chat")) == 1
    assert visit.out.getvalue().rstrip().endswith("run has ended: Restart it")


def test_a_text_that_could_not_be_sent_is_told_with_the_error_as_well() -> None:
    visit = Visit(busy_peer(body(404, code="NOT_FOUND", detail="deleted")))
    with pytest.raises(Refused, match="NOT_FOUND"):
        visit(conversation="conv_1")
    assert visit.out.getvalue().rstrip().endswith("run has ended: Restart it")


def test_a_text_that_was_sent_is_not_said_to_be_unsent() -> None:
    more = (body(200, **WAITING), body(202, run={}), rest())
    visit = Visit(busy_peer(*more, stream(frames(STARTED, DONE)), body(200, id="run_1")), "y")
    assert visit(conversation="conv_1") == 0
    assert "not sent" not in visit.out.getvalue()


def test_who_leaves_before_anything_was_answered_is_told_no_tale() -> None:
    def leave(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    visit = Visit(Peer(leave))
    assert visit() == 0
    assert visit.out.getvalue() == "left before anything was answered\n"


def test_a_conversation_is_asked_for_under_its_name_whatever_it_is() -> None:
    visit = Visit(Peer(body(404, code="NOT_FOUND", detail="nothing")))
    with pytest.raises(Refused, match="NOT_FOUND"):
        visit(None, conversation="../x\ny?")
    assert visit.peer.requests[0].url.raw_path == b"/api/conversations/..%2Fx%0Ay%3F"


def test_without_a_text_the_active_run_is_joined() -> None:
    peer = Peer(body(200, activeRun=WAITING), pause(), body(200, **WAITING), body(202), rest())
    visit = Visit(peer, "y")
    assert visit(None, conversation="conv_1") == 0
    assert "Restarted." in visit.out.getvalue()


def test_the_status_tells_a_failed_run_from_a_cancelled_one() -> None:
    failed = event(2, "error", code="GRAPH_ERROR", message="it broke", retryable=False)
    cancelled = event(2, "cancelled", reason="rejected")
    first, second = (
        Visit(Peer(stream(frames(STARTED, failed)))),
        Visit(Peer(stream(frames(STARTED, cancelled)))),
    )
    assert (first(), second()) == (1, 0)
    assert "it broke" in first.out.getvalue()


def test_a_refusal_that_nobody_can_help_is_raised_with_its_cause() -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        Visit(Peer(body(401, code="UNAUTHENTICATED", detail="who are you?")))()


def test_a_person_is_told_that_nothing_answers_while_it_is_tried_again() -> None:
    visit = Visit(
        Peer(broken, broken, broken, broken, stream(frames(STARTED, said(2, "Hi."), DONE)))
    )
    assert visit() == 0
    page = visit.out.getvalue()
    assert page.count("nothing answers at http://peer") == 1
    assert "still trying" in page


def test_a_person_is_told_of_an_attempt_that_is_not_answered_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that drops packets keeps one attempt busy for ten seconds."""
    monkeypatch.setattr("deploy.client.calls._NEWS_S", 0.01)
    visit = Visit(Peer(stream(frames(STARTED, said(2, "Hi."), DONE))))

    async def silent(request: httpx.Request) -> httpx.Response:
        while "no answer yet from http://peer; still trying" not in visit.out.getvalue():
            await asyncio.sleep(0.01)
        return visit.peer(request)

    visit.transport = httpx.MockTransport(silent)
    assert visit() == 0
    assert visit.out.getvalue().count("still trying") == 1


def test_a_short_break_of_the_stream_is_no_news() -> None:
    visit = Visit(Peer(broken, stream(frames(STARTED, said(2, "Hi."), DONE))))
    assert visit() == 0
    assert "still trying" not in visit.out.getvalue()


def test_of_a_graph_that_says_nothing_the_output_is_shown() -> None:
    run = body(200, id="run_1", output={"receipt": "r-1"})
    visit = Visit(Peer(stream(frames(STARTED, DONE)), run))
    assert visit() == 0
    assert '{"receipt": "r-1"}' in visit.out.getvalue()


def test_who_leaves_is_told_how_to_come_back() -> None:
    visit = Visit(Peer(pause(), body(200, **WAITING)))
    visit.leave_at_question = True
    assert visit(user="ada") == 0
    assert "`steadyrun chat --user ada --conversation conv_1`" in visit.out.getvalue()


def test_without_address_and_topology_it_says_what_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEADYRUN_URL", raising=False)
    with pytest.raises(Misconfigured, match="steadyrun up"):
        chat(None, "hello", state=tmp_path)
