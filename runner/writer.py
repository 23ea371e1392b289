"""The log of one run as its owner sees it: what has no number yet, is not sent, is not archived.

Sans I/O. Events become batches here (numbers, frames, borders) and nowhere else; `runner/publisher`
moves them to Redis and Postgres. A number is used only after it was reserved in Postgres, and a
batch is never cut again, so whatever is sent twice is the same bytes (theory: common/bus/log).

    sequence   1 ……………… archived ……… sent ……… visible ……… top
    kept                          └────────────────────────────┘

`visible` stands behind `top` only while a state is being stored: its events may not leave before
its transaction has committed (I2).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from common.batch import Batch, Ends
from common.events import Event, encode_frame, ends_of, utc_text

_OVERHEAD = 200
_JOINED = ("text_delta", "reasoning_delta")


@dataclass(slots=True)
class _Pending:
    event: Event
    at: str


def _size(event: Event) -> int:
    """About how much memory an event without a number holds: exact for text, which is most."""
    delta = event.fields.get("delta")
    if isinstance(delta, str):
        return _OVERHEAD + len(delta)
    return _OVERHEAD + sum(len(str(value)) for value in event.fields.values())


class RunWriter:
    """Sequences of one run under one epoch. `reserved` is the last one that may be given; they are
    reserved in blocks of `block`.
    """

    def __init__(
        self,
        run_id: str,
        epoch: int,
        *,
        top: int,
        archived: int,
        next_sequence: int,
        reserved: int,
        block: int,
        batch_bytes_max: int,
    ) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.reserved = reserved
        self.archived = archived
        self.top = self.visible = self.sent = top
        self.next_sequence = next_sequence
        self.kept_bytes = 0
        self._pending_bytes = 0
        self._block = block
        self._batch_bytes_max = batch_bytes_max
        self._pending: list[_Pending] = []
        self._withheld: list[_Pending] | None = None  # set while a state is being stored
        self._kept: deque[Batch] = deque()

    @property
    def has_work(self) -> bool:
        return self.sent < self.visible or bool(self._pending and self._withheld is None)

    @property
    def settling(self) -> bool:
        return self._withheld is not None

    @property
    def runs_low(self) -> bool:
        """Whether less than half a block of reserved numbers is left."""
        return self.reserved - self.top < self._block // 2

    @property
    def next_block(self) -> int:
        """The number up to which is to be reserved next."""
        return self.next_sequence + self._block

    def reserve(self, upto: int) -> None:
        """Postgres has reserved the numbers up to `upto`."""
        self.reserved = max(self.reserved, upto)

    @property
    def held_bytes(self) -> int:
        """What this run holds in memory, with or without numbers (I8)."""
        return self.kept_bytes + self._pending_bytes

    def emit(self, events: Iterable[Event]) -> None:
        """Take events in order; adjacent deltas of one message and step become one (design §3)."""
        at = utc_text()
        for event in events:
            self._pending_bytes += _size(event)
            last = self._pending[-1] if self._pending else None
            if last is not None and _joinable(last.event, event):
                last.event = _joined(last.event, event)
            else:
                self._pending.append(_Pending(event, at))

    def number(self) -> None:
        """Number what is pending, as far as reserved; not while a state is being stored."""
        if self._withheld is None:
            room = max(0, self.reserved - self.next_sequence + 1)
            taken, self._pending = self._pending[:room], self._pending[room:]
            self._append(taken)
            self.visible = self.top
            self._count_pending()

    def number_all(self) -> bool:
        """Number what is pending. False: not all of it can be now."""
        self.number()
        return not self._pending and self._withheld is None

    def number_state(self, events: list[Event]) -> int:
        """Number all that is pending and `events`, which announce a state; answers the last number.

        The state's transaction archives them and stores that number, so no reservation is needed.
        `confirm_state` lets them out, `withdraw_state` takes the numbers back.
        """
        self.number()
        at = utc_text()
        self._withheld, self._pending = self._pending, []
        self._count_pending()
        self._append([*self._withheld, *(_Pending(event, at) for event in events)])
        return self.top

    def confirm_state(self) -> None:
        """The transaction has committed: everything numbered is archived and may be seen."""
        self._withheld = None
        self.visible = self.top
        self.mark_archived(self.top)

    def withdraw_state(self) -> None:
        """The transaction was rolled back, so nobody has seen the numbers: they are free again."""
        while self._kept and self._kept[-1].last > self.visible:
            batch = self._kept.pop()
            self.kept_bytes -= len(batch.frames)
            self.top, self.next_sequence = batch.after, batch.first
        self._pending = [*(self._withheld or []), *self._pending]
        self._withheld = None
        self._count_pending()

    def unsent(self) -> list[Batch]:
        """Asked every window, so it looks at the new end alone, not at all that is kept."""
        newest = takewhile(lambda b: b.last > self.sent, reversed(self._kept))
        return [b for b in newest if b.last <= self.visible][::-1]

    def unarchived(self) -> list[Batch]:
        """What Postgres lacks, including what is withheld for a state."""
        return [b for b in self._kept if b.last > self.archived]

    def archivable(self) -> list[Batch]:
        """What may be archived at any time: without what belongs to an uncommitted state."""
        return [b for b in self._kept if self.archived < b.last <= self.visible]

    def mark_sent(self, last: int) -> None:
        self.sent = max(self.sent, last)
        self._forget()

    def mark_archived(self, last: int) -> None:
        self.archived = max(self.archived, last)
        self._forget()

    def leave_to_archive(self) -> Batch | None:
        """Redis is away: readers take what is archived from there, so it need not be sent.

        The last batch that is left so, if any: told later, it makes them look there.
        """
        upto = min(self.archived, self.visible)
        left = [b for b in self._kept if self.sent < b.last <= upto]
        self.mark_sent(upto)
        return left[-1] if left else None

    def resend_after(self, top: int) -> bool:
        """Redis has the log up to `top`, maybe less than was sent. False: the rest is not here."""
        self.sent = top
        if unsent := self.unsent():
            return unsent[0].after == top
        self.sent = self.visible
        return top >= self.visible

    @property
    def base(self) -> int:
        """Where a new log in Redis may begin, once everything unarchived has been archived."""
        unsent = self.unsent()
        return unsent[0].after if unsent else self.visible

    def _count_pending(self) -> None:
        self._pending_bytes = sum(_size(item.event) for item in self._pending)

    def _forget(self) -> None:
        done = min(self.archived, self.sent)
        while self._kept and self._kept[0].last <= done:
            self.kept_bytes -= len(self._kept.popleft().frames)

    def _append(self, pending: list[_Pending]) -> None:
        for batch in self._batches(pending):
            self._kept.append(batch)
            self.kept_bytes += len(batch.frames)

    def _batches(self, pending: list[_Pending]) -> Iterator[Batch]:
        frames: list[bytes] = []
        size = 0
        for index, item in enumerate(pending):
            frame = self._frame(item, self.next_sequence + len(frames))
            frames.append(frame)
            size += len(frame)
            at_end = index == len(pending) - 1
            if size >= self._batch_bytes_max or at_end:
                # a pause ends with the last of its interrupts, wherever a batch before it is full
                yield self._close(frames, ends_of([item.event]) if at_end else "")
                frames, size = [], 0

    def _frame(self, item: _Pending, sequence: int) -> bytes:
        return encode_frame(
            item.event, run_id=self.run_id, sequence=sequence, epoch=self.epoch, at=item.at
        )

    def _close(self, frames: list[bytes], ends: Ends) -> Batch:
        first, last = self.next_sequence, self.next_sequence + len(frames) - 1
        batch = Batch(self.top, first, last, self.epoch, ends, b"".join(frames))
        self.top, self.next_sequence = last, last + 1
        return batch


def _joinable(last: Event, event: Event) -> bool:
    return (
        event.type in _JOINED
        and event.type == last.type
        and event.step_id == last.step_id
        and event.fields["messageId"] == last.fields["messageId"]
    )


def _joined(last: Event, event: Event) -> Event:
    delta = last.fields["delta"] + event.fields["delta"]
    return replace(last, fields={**last.fields, "delta": delta})
