"""The writer of a run's log: numbers, borders, what is kept until Redis and Postgres have it."""

import itertools
import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.batch import Batch
from common.events import Event
from runner.writer import RunWriter


def writer(*, top: int = 0, next_sequence: int = 1, reserved: int = 1000) -> RunWriter:
    return RunWriter(
        "run_1",
        1,
        top=top,
        archived=top,
        next_sequence=next_sequence,
        reserved=reserved,
        block=1000,
        batch_bytes_max=1000,
    )


def delta(text: str, message: str = "msg_1", step: str | None = "s") -> Event:
    return Event("text_delta", {"messageId": message, "delta": text}, step_id=step)


def bodies(batch: Batch) -> list[dict[str, Any]]:
    frames = [frame for frame in batch.frames.split(b"\n\n") if frame]
    return [json.loads(frame.split(b"\ndata: ")[1]) for frame in frames]


def test_adjacent_deltas_of_one_message_become_one_event() -> None:
    w = writer()
    w.emit([delta("a"), delta("b"), delta("c", step="t"), delta("d", message="msg_2", step="t")])
    w.number()
    [batch] = w.unsent()
    assert [body["delta"] for body in bodies(batch)] == ["ab", "c", "d"]
    assert (batch.after, batch.first, batch.last) == (0, 1, 3)


def test_deltas_in_two_rounds_are_two_events() -> None:
    w = writer()
    for text in "ab":
        w.emit([delta(text)])
        w.number()
    assert [body["delta"] for batch in w.unsent() for body in bodies(batch)] == ["a", "b"]


def test_no_number_is_used_before_it_is_reserved() -> None:
    w = writer(reserved=2)
    w.emit([Event("custom", {"data": n}) for n in range(5)])
    w.number()
    assert w.top == 2
    w.reserved = 4
    w.number()
    assert w.top == 4
    assert w.has_work


def test_a_state_is_not_sent_before_it_is_confirmed() -> None:
    w = writer()
    w.emit([delta("a")])
    last = w.number_state([Event("done")])
    assert last == 2
    assert [b.last for b in w.unsent()] == [1]
    assert [b.last for b in w.archivable()] == [1]
    assert [b.last for b in w.unarchived()] == [1, 2]
    w.confirm_state()
    assert [(b.last, b.ends) for b in w.unsent()] == [(1, ""), (2, "run")]
    assert w.unarchived() == []


def test_a_withdrawn_state_frees_its_numbers_and_keeps_what_came_before() -> None:
    w = writer(reserved=1)
    w.emit([Event("custom", {"data": n}) for n in range(2)])
    w.number_state([Event("run_paused", {"reason": "breakpoint", "next": []})])
    w.emit([Event("custom", {"data": 2})])
    w.withdraw_state()
    w.reserved = 10
    w.number()
    assert [body["data"] for batch in w.unsent() for body in bodies(batch)] == [0, 1, 2]
    assert w.top == 3


def test_only_the_last_of_several_interrupts_ends_the_pause() -> None:
    w = writer()
    payload = {"text": "x" * 900}
    fields = {"interruptId": "int_1", "interruptType": "confirm_action", "payload": payload}
    w.number_state([Event("interrupt", fields) for _ in range(3)])
    w.confirm_state()
    assert [batch.ends for batch in w.unsent()] == ["", "", "pause"]


def test_numbers_jump_between_the_top_and_the_first_batch() -> None:
    w = writer(top=7, next_sequence=1001, reserved=2000)
    w.emit([delta("a")])
    w.number()
    [batch] = w.unsent()
    assert (batch.after, batch.first, batch.last) == (7, 1001, 1001)


def test_what_redis_lost_is_sent_again_from_the_buffer() -> None:
    w = writer()
    for n in range(4):
        w.emit([Event("custom", {"data": n})])
        w.number()
    w.mark_sent(4)
    w.mark_archived(1)
    assert w.resend_after(2)
    assert [b.last for b in w.unsent()] == [3, 4]
    assert w.base == 2


def test_what_is_no_longer_kept_cannot_be_sent_again() -> None:
    w = writer()
    for n in range(4):
        w.emit([Event("custom", {"data": n})])
        w.number()
    w.mark_sent(4)
    w.mark_archived(3)
    assert not w.resend_after(1)
    assert w.base == 3


class WriterMachine(RuleBasedStateMachine):
    """Any order of emitting, storing states, sending, archiving and losing what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = writer(reserved=0)
        self.emitted = 0
        self.visible: dict[int, Batch] = {}  # by first sequence: what may have been seen
        self.data: list[int] = []

    @rule(count=st.integers(1, 4))
    def emit(self, count: int) -> None:
        self.writer.emit(
            [Event("custom", {"data": n}) for n in range(self.emitted, self.emitted + count)]
        )
        self.emitted += count

    @rule(more=st.integers(0, 5))
    def reserve(self, more: int) -> None:
        self.writer.reserved = max(self.writer.reserved, self.writer.top + more)

    @rule()
    def number(self) -> None:
        self.writer.number()

    @precondition(lambda self: not self.writer.settling)
    @rule()
    def begin_state(self) -> None:
        self.writer.number_state([Event("custom", {"data": -1})])

    @precondition(lambda self: self.writer.settling)
    @rule(commits=st.booleans())
    def end_state(self, commits: bool) -> None:
        if commits:
            self.writer.confirm_state()
        else:
            self.writer.withdraw_state()

    @rule()
    def send_one(self) -> None:
        if unsent := self.writer.unsent():
            self.writer.mark_sent(unsent[0].last)

    @rule(share=st.floats(0, 1))
    def archive(self, share: float) -> None:
        batches = self.writer.archivable()
        if part := batches[: int(len(batches) * share)]:
            self.writer.mark_archived(part[-1].last)

    @rule()
    def lose_tail(self) -> None:
        kept = self.writer.archivable()
        if kept:
            assert self.writer.resend_after(kept[0].after)

    @rule()
    def redis_away(self) -> None:
        self.writer.leave_to_archive()

    @invariant()
    def kept_batches_follow_one_another(self) -> None:
        batches = list(self.writer._kept)
        for left, right in itertools.pairwise(batches):
            assert right.after == left.last
        assert self.writer.kept_bytes == sum(len(batch.frames) for batch in batches)

    @invariant()
    def a_visible_number_never_changes_its_content(self) -> None:
        for batch in self.writer.archivable() + self.writer.unsent():
            assert self.visible.setdefault(batch.first, batch) == batch

    @invariant()
    def nothing_unarchived_is_forgotten(self) -> None:
        w = self.writer
        unarchived = w.archivable()
        if w.archived < w.visible:
            assert unarchived
            assert unarchived[0].after <= w.archived
            assert unarchived[-1].last == w.visible

    @invariant()
    def plain_events_are_numbered_in_order_and_once(self) -> None:
        seen = [
            body["data"]
            for _, batch in sorted(self.visible.items())
            for body in bodies(batch)
            if body["data"] >= 0
        ]
        assert seen == list(range(len(seen)))


TestWriterMachine = WriterMachine.TestCase
TestWriterMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
