"""Merging replay and live (gateway/services/ring): the exact log, whatever is lost on the way."""

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.batch import Batch, Ends
from gateway.services.ring import Cursor, Ring, Until


def batch(after: int, first: int, last: int, ends: Ends = "", epoch: int = 1) -> Batch:
    frames = b"".join(b"id: %d\ndata: e%d\n\n" % (n, epoch) for n in range(first, last + 1))
    return Batch(after, first, last, epoch, ends, frames)


def ids(frames: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb"^id: (\d+)$", frames, re.M)]


@dataclass
class Run:
    """What a runner did: its log, what was told live, and what a failover of Redis took away."""

    log: list[Batch] = field(default_factory=list)
    told: list[Batch] = field(default_factory=list)
    highest: int = 0
    epoch: int = 1

    @property
    def top(self) -> int:
        return self.log[-1].last if self.log else 0

    def append(self, size: int, ends: Ends = "") -> Batch:
        first = self.highest + 1
        made = batch(self.top, first, first + size - 1, ends, self.epoch)
        self.highest = made.last
        self.log.append(made)
        self.told.append(made)
        return made

    def lose_tail(self, count: int) -> None:
        """The next owner goes on above all that can have been seen, after what is left."""
        del self.log[len(self.log) - min(count, len(self.log)) :]
        self.highest += 1000
        self.epoch += 1

    def read(self, after: int, count: int) -> list[Batch]:
        return [b for b in self.log if b.last > after][:count]


class Reader:
    """A follower without I/O: ring, else log, else nothing."""

    def __init__(self, position: int, until: Until = "end") -> None:
        self.start = position
        self.cursor = Cursor(position, until)
        self.frames = b""

    def step(self, ring: Ring, run: Run, page: int, bytes_max: int) -> bool:
        ready = ring.since(self.cursor.position)
        if ready is None:
            ready = run.read(self.cursor.position, page)
        portion = self.cursor.take(ready, bytes_max)
        self.frames += portion.frames
        return bool(portion.frames)


ACTIONS = st.one_of(
    st.tuples(st.just("live"), st.integers(1, 4)),
    st.tuples(st.just("lost"), st.integers(1, 4)),
    st.tuples(st.just("again"), st.integers(0, 40)),
    st.tuples(st.just("confirmed"), st.just(0)),
    st.tuples(st.just("read"), st.integers(0, 40)),
    st.tuples(st.just("join"), st.integers(0, 40)),
)


def play(actions: list[tuple[str, int]], ring: Ring, page: int, bytes_max: int) -> list[Reader]:
    run, readers = Run(), [Reader(0)]
    for action, number in actions:
        if action == "live":
            ring.offer(run.append(number))
        elif action == "lost":
            run.append(number)
        elif action == "again" and run.told:
            ring.offer(run.told[number % len(run.told)])
        elif action == "confirmed":
            ring.clear()
        elif action == "read":
            readers[number % len(readers)].step(ring, run, page, bytes_max)
        elif action == "join":
            readers.append(Reader(min(number, run.top)))
    ring.clear()  # the position check
    for reader in readers:
        while reader.step(ring, run, page, bytes_max):
            pass
        expected = b"".join(b.cut(reader.start) for b in run.log if b.last > reader.start)
        assert reader.frames == expected
    return readers


@given(
    st.lists(ACTIONS, max_size=60),
    st.integers(20, 400),
    st.integers(1, 5),
    st.integers(1, 200),
)
def test_every_reader_has_the_exact_log_however_live_messages_are_lost_or_repeated(
    actions: list[tuple[str, int]], ring_bytes: int, page: int, bytes_max: int
) -> None:
    play(actions, Ring(ring_bytes), page, bytes_max)


@settings(max_examples=200)
@given(
    st.lists(st.one_of(ACTIONS, st.tuples(st.just("failover"), st.integers(1, 3))), max_size=60),
    st.integers(20, 400),
)
def test_after_a_lost_tail_numbers_rise_and_never_mean_something_else(
    actions: list[tuple[str, int]], ring_bytes: int
) -> None:
    run, ring, readers = Run(), Ring(ring_bytes), [Reader(0), Reader(0)]
    for action, number in actions:
        if action == "failover":
            run.lose_tail(number)
        elif action == "live":
            ring.offer(run.append(number))
        elif action == "lost":
            run.append(number)
        elif action == "again" and run.told:
            ring.offer(run.told[number % len(run.told)])
        elif action == "confirmed":
            ring.clear()
        elif action == "read":
            readers[number % 2].step(ring, run, 3, 100)
    ring.clear()
    told = {n: b.epoch for b in run.told for n in range(b.first, b.last + 1)}
    for reader in readers:
        while reader.step(ring, run, 3, 100):
            pass
        got = ids(reader.frames)
        assert got == sorted(set(got))
        assert {n for b in run.log for n in range(b.first, b.last + 1)} <= set(got)
        epochs = [int(e) for e in re.findall(rb"data: e(\d+)", reader.frames)]
        assert epochs == [told[n] for n in got]


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 300))
def test_a_ring_holds_no_more_than_its_bytes_or_one_batch(sizes: list[int], most: int) -> None:
    run, ring = Run(), Ring(most)
    for size in sizes:
        newest = run.append(size)
        ring.offer(newest)
        assert ring.bytes <= max(most, len(newest.frames))
    ring.clear()
    assert ring.bytes == 0


def test_a_batch_that_does_not_follow_makes_readers_look_elsewhere() -> None:
    ring = Ring(1000)
    assert ring.offer(batch(0, 1, 2)) == "taken"
    assert ring.offer(batch(5, 6, 7)) == "gap"
    assert ring.since(2) is None
    assert ring.since(6) == [batch(5, 6, 7)]


def test_a_batch_that_is_known_is_dropped() -> None:
    ring = Ring(1000)
    ring.offer(batch(0, 1, 2))
    assert ring.offer(batch(0, 1, 2)) == "known"
    assert ring.since(0) == [batch(0, 1, 2)]


def test_a_ring_says_nothing_about_cursors_beyond_its_end() -> None:
    ring = Ring(1000)
    ring.offer(batch(0, 1, 2))
    assert ring.since(2) == []
    assert ring.since(3) is None


def test_a_cursor_inside_a_batch_gets_the_rest_of_it() -> None:
    cursor = Cursor(2, "end")
    portion = cursor.take([batch(0, 1, 4), batch(4, 90, 91)], 1000)
    assert ids(portion.frames) == [3, 4, 90, 91]
    assert portion.events == 4
    assert cursor.position == 91


def test_a_cursor_stops_before_a_batch_that_does_not_follow() -> None:
    cursor = Cursor(0, "end")
    assert ids(cursor.take([batch(0, 1, 2), batch(4, 5, 6)], 1000).frames) == [1, 2]
    assert cursor.take([batch(4, 5, 6)], 1000).frames == b""
    assert cursor.position == 2


def test_a_write_is_bounded_but_never_empty() -> None:
    batches = [batch(0, 1, 3), batch(3, 4, 6)]
    cursor = Cursor(0, "end")
    assert ids(cursor.take(batches, 1).frames) == [1, 2, 3]
    assert ids(cursor.take(batches, 1).frames) == [4, 5, 6]


@pytest.mark.parametrize(("until", "expected"), [("interrupt", [1, 2]), ("end", [1, 2, 3, 4])])
def test_until_interrupt_ends_after_a_pause_and_until_end_does_not(
    until: Until, expected: list[int]
) -> None:
    batches = [batch(0, 1, 2, "pause"), batch(2, 3, 4, "run"), batch(4, 5, 5)]
    portion = Cursor(0, until).take(batches, 1000)
    assert ids(portion.frames) == expected
    assert portion.ends == ("pause" if until == "interrupt" else "run")


def test_a_cursor_at_the_end_of_a_pause_goes_on_to_what_follows() -> None:
    batches = [batch(0, 1, 2, "pause"), batch(2, 3, 3)]
    assert ids(Cursor(2, "interrupt").take(batches, 1000).frames) == [3]
