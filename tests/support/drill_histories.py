"""Forged histories for the drill's checker: right ones, made from a short story, to be damaged.

`Story` is what happened (events with their epochs, questions, effects); `forge` makes of it what
clients and Postgres would hold. Change the story for what all have seen alike, or the result for
what one client alone has seen.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from common.batch import Batch
from common.db.audit import EffectBegun, Saved
from common.events import TERMINAL, Event, encode_frame
from deploy.drill.frames import cut
from deploy.drill.record import Act, Frame, Json, Knock, Link, Look, Ordered, Record, Seen, Weight
from deploy.drill.truth import Question, RunTruth, Stored, Truth
from runner.graphs.drill.order import MASK, Order, outcome_text

AT = "2026-01-01T00:00:00.000Z"
SECRET = "sk-drill01234567890abcdef"
MIB = 1 << 20


@dataclass
class Told:
    """One event of a story."""

    type: str
    epoch: int
    fields: Json = field(default_factory=dict)
    step: str | None = None
    sequence: int = 0


@dataclass
class Story:
    run: str
    order: Order
    events: list[Told]
    status: str
    questions: list[Question] = field(default_factory=list)
    performed: int = 0
    messages: list[Stored] = field(default_factory=list)
    reason: str | None = None

    def find(self, type_: str, nth: int = 0) -> Told:
        return [event for event in self.events if event.type == type_][nth]

    def number(self, jump_at: Told | None = None) -> None:
        """Consecutive, with a jump at one event."""
        sequence = 0
        for event in self.events:
            sequence += 100 if event is jump_at else 1
            event.sequence = sequence


@dataclass
class Forged:
    record: Record
    truth: Truth

    def client(self, name: str, run: str = "run_a") -> Seen:
        return next(seen for seen in self.record.of(run) if seen.client == name)

    def change(self, run: str, **fields: Any) -> None:
        self.truth.runs[run] = replace(self.truth.runs[run], **fields)


def approved() -> Story:
    """Completed: a failover with a jump in the middle of a text, a retried step, a question."""
    order = Order("a", words=2, question=True, effect="verified", secret=SECRET)
    begin = [
        Told("run_started", 1, {"conversationId": "conv_a", "graph": "drill"}),
        *_said(1, "opening", "s0", order.text("opening")),
        *_customs(1, "right", "s2", order),
        Told("text_delta", 1, {"messageId": "m-void", "delta": order.text("left")[0]}, "s1"),
        Told("run_resumed", 2, {"reason": "failover", "discard": ["s1"]}),
        *_said(2, "left", "s1", order.text("left")),
        Told("tool_started", 2, {"callId": "a", "tool": "look_up"}, "s3"),
        Told("tool_finished", 2, {"callId": "a", "tool": "look_up", "status": "success"}, "s3"),
        *_customs(2, "inner", "s3", order),
        *_said(2, "nested", "s4", order.text("nested")),
        Told("text_delta", 2, {"messageId": "m-void2", "delta": order.text("shaky")[0]}, "s5"),
        Told("step_retried", 2, {"attempt": 2}, "s5"),
        *_said(2, "shaky", "s5", order.text("shaky")),
        Told("interrupt", 2, {"interruptId": "int_a", "interruptType": "confirm_action"}),
    ]
    decided = {"interruptId": "int_a", "status": "resolved", "decision": "approve"}
    closing = [*order.text("closing"), "the key is ", MASK, " and stays so. "]
    end = [
        Told("interrupt_resolved", 3, decided),
        Told("run_resumed", 4, {"reason": "decision", "discard": []}),
        *_said(4, "act", "s6", [outcome_text(order, performed=True)]),
        *_said(4, "closing", "s7", closing),
        Told("done", 4, {"messageId": "m-closing"}),
    ]
    story = Story("run_a", order, begin + end, "completed", performed=1)
    story.questions = [Question("int_a", "resolved", "approve")]
    story.messages = _messages(story)
    story.number(jump_at=story.find("run_resumed"))
    return story


def rejected() -> Story:
    """Cancelled by a rejection."""
    order = Order("b", words=2, question=True, effect="bare", secret=SECRET)
    decided = {"interruptId": "int_b", "status": "resolved", "decision": "reject"}
    events = [
        Told("run_started", 1, {"conversationId": "conv_b", "graph": "drill"}),
        *_said(1, "opening", "s0", order.text("opening")),
        Told("interrupt", 1, {"interruptId": "int_b", "interruptType": "confirm_action"}),
        Told("interrupt_resolved", 2, decided),
        Told("cancelled", 2, {"reason": "rejected"}),
    ]
    story = Story("run_b", order, events, "cancelled", reason="rejected")
    story.questions = [Question("int_b", "resolved", "reject")]
    story.messages = _messages(story)
    story.number()
    return story


def forge(*stories: Story) -> Forged:
    record, truth = Record(secrets={SECRET}), Truth()
    for story in stories:
        frames = _frames(story)
        truth.runs[story.run] = _truth(story, frames)
        truth.performed[story.order.key] = ["line"] * story.performed
        record.ordered[story.run] = Ordered(story.run, "ada", story.order, 0.0)
        record.clients += _clients(story, frames)
        record.acts += list(_acts(story))
        record.looks += list(_looks(story, truth.runs[story.run]))
        record.knocks.append(Knock(story.run, f"/api/runs/{story.run}", 404, b"{}"))
    record.weights += [Weight("gateway-1", "gateway", 7, float(n), 90 * MIB) for n in range(30)]
    return Forged(record, truth)


def right() -> Forged:
    return forge(approved(), rejected())


def told_otherwise(change: Callable[[Story], object]) -> Forged:
    """A history in which everybody has seen the same, and that is wrong."""
    story = copy.deepcopy(approved())
    change(story)
    return forge(story, rejected())


def _said(epoch: int, name: str, step: str, words: list[str]) -> Iterator[Told]:
    for word in words:
        yield Told("text_delta", epoch, {"messageId": f"m-{name}", "delta": word}, step)


def _customs(epoch: int, name: str, step: str, order: Order) -> Iterator[Told]:
    for number in range(order.words):
        yield Told("custom", epoch, {"data": {"stream": name, "number": number}}, step)


def _messages(story: Story) -> list[Stored]:
    texts: dict[str, str] = {}
    for event in story.events:
        if event.type == "text_delta" and not event.fields["messageId"].startswith("m-void"):
            name = event.fields["messageId"]
            texts[name] = texts.get(name, "") + event.fields["delta"]
    return [Stored(name, "assistant", text) for name, text in texts.items()]


def _frames(story: Story) -> list[bytes]:
    return [
        encode_frame(
            Event(told.type, told.fields, told.step),  # type: ignore[arg-type]
            run_id=story.run,
            sequence=told.sequence,
            epoch=told.epoch,
            at=AT,
        )
        for told in story.events
    ]


def _truth(story: Story, frames: list[bytes]) -> RunTruth:
    """One batch an event, which is the hardest to keep together."""
    batches, before = [], 0
    for told, raw in zip(story.events, frames, strict=True):
        batches.append(Batch(before, told.sequence, told.sequence, told.epoch, "", raw))
        before = told.sequence
    last = story.events[-1]
    key = story.order.key
    return RunTruth(
        id=story.run,
        status=story.status,
        epoch=max(told.epoch for told in story.events),
        last_sequence=last.sequence,
        message_id=last.fields.get("messageId"),
        cancel_reason=story.reason,
        questions=list(story.questions),
        messages=list(story.messages),
        batches=batches,
        effects=[EffectBegun(key, last.epoch, True)] * story.performed,
        checkpoints=[Saved("c1", None, story.run), Saved("c2", "c1", story.run)],
    )


def _clients(story: Story, frames: list[bytes]) -> Iterator[Seen]:
    """One that never lost its connection, one that did twice, one that came late, one of pages,
    and whoever started the run by a stream that ends at the pause."""
    last, middle = len(frames), len(frames) // 2
    pause = 1 + next(n for n, told in enumerate(story.events) if told.type == "interrupt")
    yield _client(story, frames, "steady", [last])
    yield _client(story, frames, "restless", [3, middle, last])
    yield _client(story, frames, "newcomer", [last], skip=middle)
    pages = _client(story, frames, "pages", [middle, last])
    for link in pages.links:
        link.way, link.ended = "page", "clean"
    pages.links[-1].complete = True
    yield pages
    poster = _client(story, frames, "poster", [pause, last])
    for link in poster.links:
        link.way, link.until, link.ended = "post", "interrupt", "clean"
    yield poster


def _client(story: Story, frames: list[bytes], name: str, cuts: list[int], skip: int = 0) -> Seen:
    start = story.events[skip - 1].sequence if skip else 0
    seen, place = Seen(name, story.run, start, finished=True), skip
    for number, end in enumerate(cuts):
        link = Link("http://a", "stream", "end", seen.cursor, 0.0, 200, "left", 1.0)
        link.ended = "clean" if end == len(frames) else "cut"
        seen.links.append(link)
        for raw in frames[place:end]:
            found = cut(raw[:-2])
            at = float(len(seen.frames))
            seen.frames.append(Frame(found.sequence, found.type, found.raw, at, number))
        place = end
    return seen


def _acts(story: Story) -> Iterator[Act]:
    """A start, and two clicks with different keys; the first one was sent again."""
    answer = {"run": {"id": story.run, "status": "queued"}}
    run = story.run
    yield Act("create", run, "ada", f"k-{run}", "http://a", 0.0, status=202, answer=answer)
    for question in story.questions:
        said = {"interrupt": question.id, "decision": question.decision}
        yield Act("decide", run, "ada", f"d-{run}", "http://a", 1.0, **said)
        for _ in range(2):
            act = Act("decide", run, "ada", f"d-{run}", "http://b", 1.1, status=202, **said)
            act.answer = answer
            yield act
        code = {"code": "INTERRUPT_NOT_PENDING", "decision": question.decision}
        yield Act(
            "decide", run, "ada", f"e-{run}", "http://b", 1.2, **said, status=409, answer=code
        )


def _looks(story: Story, truth: RunTruth) -> Iterator[Look]:
    """What a client that looked at once has found."""
    for told in story.events:
        if told.type not in TERMINAL | {"run_started", "interrupt", "interrupt_resolved"}:
            continue
        asking = told.type == "interrupt"
        status = {"interrupt": "interrupted", "interrupt_resolved": "queued"}.get(
            told.type, "running"
        )
        found = {
            "status": truth.status if told.type in TERMINAL else status,
            "epoch": told.epoch,
            "lastSequence": told.sequence,
            "pendingInterrupts": [{"id": told.fields["interruptId"]}] if asking else [],
        }
        event = {**told.fields, "epoch": told.epoch}
        yield Look("steady", story.run, told.sequence, told.type, event, found, 0.0)
