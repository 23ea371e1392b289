"""All that is known of a drill, brought together for the invariants: record, truth, parsed logs."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from common.events import TERMINAL
from deploy.drill.frames import Cut, body, cut
from deploy.drill.record import Act, Frame, Json, Ordered, Record, Seen
from deploy.drill.truth import RunTruth, Truth


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a run's archive. `epoch`: by its batch."""

    frame: Cut
    epoch: int
    event: Json = field(default_factory=dict)

    @property
    def sequence(self) -> int:
        return self.frame.sequence

    @property
    def type(self) -> str:
        return self.frame.type


class Log:
    """The archive of one run as a sequence of events. What clients saw is compared with it."""

    def __init__(self, truth: RunTruth) -> None:
        self.truth = truth
        self.entries: list[Entry] = []
        for batch in truth.batches:
            for block in batch.frames.split(b"\n\n")[:-1]:
                frame = cut(block)
                self.entries.append(Entry(frame, batch.epoch, body(frame.raw)))
        self.place = {entry.sequence: n for n, entry in enumerate(self.entries)}

    def after(self, sequence: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.sequence > sequence]

    def of(self, type_: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.type == type_]

    def jump_over(self, sequence: int) -> Entry | None:
        """The take-up that jumped over this number, because the tail may be lost (contract §3)."""
        place = bisect_left(self.entries, sequence, key=lambda entry: entry.sequence)
        found = self.entries[place] if place < len(self.entries) else None
        return found if found is not None and may_jump(found) else None

    @property
    def ends(self) -> list[Entry]:
        """Terminal events: one, in a right history."""
        return [entry for entry in self.entries if entry.type in TERMINAL]

    @property
    def last_sequence(self) -> int:
        return self.entries[-1].sequence if self.entries else 0

    @property
    def is_closed(self) -> bool:
        return bool(self.entries) and self.entries[-1].type in TERMINAL

    def is_end_of_pause(self, sequence: int) -> bool:
        """The last event of a pause: all its interrupts, or `run_paused`."""
        here = self.place.get(sequence)
        if here is None or self.entries[here].type not in ("interrupt", "run_paused"):
            return False
        following = self.entries[here + 1 : here + 2]
        return not following or following[0].type not in ("interrupt", "run_paused")


def may_jump(entry: Entry) -> bool:
    return entry.type == "run_resumed" and entry.event.get("reason") == "failover"


@dataclass(frozen=True, slots=True)
class Dossier:
    record: Record
    truth: Truth
    logs: dict[str, Log]

    @classmethod
    def of(cls, record: Record, truth: Truth) -> "Dossier":
        return cls(record, truth, {run: Log(told) for run, told in truth.runs.items()})

    @property
    def may_lose_a_tail(self) -> bool:
        """Only a Redis that something was done to can lose what is not archived yet."""
        return any(note.name.startswith("redis-") for note in self.record.faults)

    def watched(self) -> Iterator[tuple[Seen, Log]]:
        """Every client whose run Postgres knows; of the others tells I2."""
        for seen in self.record.clients:
            if (log := self.logs.get(seen.run)) is not None:
                yield seen, log

    def ordered(self) -> Iterator[tuple[Ordered, Log]]:
        for ordered in self.record.ordered.values():
            if (log := self.logs.get(ordered.run)) is not None:
                yield ordered, log

    def decisions(self, interrupt: str) -> list[Act]:
        acts = self.record.acts
        return [act for act in acts if act.what == "decide" and act.interrupt == interrupt]

    def allowed(self, ordered: Ordered, log: Log) -> bool:
        """Whether the run may perform its effect: it asks nobody, or somebody has approved."""
        if not ordered.order.question:
            return True
        return any(is_approval(question.decision) for question in log.truth.questions)


def is_approval(decision: object) -> bool:
    return decision == "approve"


def where(seen: Seen, frame: Frame | None = None) -> str:
    """How a violation names its place."""
    at = "" if frame is None else f" #{frame.sequence}"
    return f"{seen.run} {seen.client}{at}"


def frames_of_links(seen: Seen) -> Sequence[list[Frame]]:
    """The frames of each connection."""
    found: list[list[Frame]] = [[] for _ in seen.links]
    for frame in seen.frames:
        found[frame.link].append(frame)
    return found
