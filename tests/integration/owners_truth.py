"""What the machine of owners may never see: all that is stored, compared with what was seen before.

`look` reads everything that a client could be given at this moment, in both servers. `Truth` raises
`Violation` as soon as two looks contradict each other or one breaks a rule of contract.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from common.batch import Batch
from common.bus.client import Bus
from common.bus.names import head_key, log_key
from common.db.engine import Connection
from common.events import TERMINAL
from common.runs import TERMINAL_STATUSES, Status, can_become

# what announces a state (I2); run_started leaves before it is archived
_STATES = {*TERMINAL, "interrupt", "interrupt_resolved", "run_paused", "run_resumed"}


class Violation(AssertionError):
    """What nobody may ever see."""


class Row(NamedTuple):
    id: str
    conversation_id: str
    status: Status
    epoch: int
    waiting: bool
    runner_id: str | None
    last_sequence: int
    sequence_reserved: int
    cancel_requested: str | None
    rollback: bool
    redis_identity: str | None
    position: int


class Question(NamedTuple):
    id: str
    run_id: str
    status: str
    answer: Any
    resolved_by: str | None
    told: bool
    taken: bool


@dataclass(frozen=True)
class Sight:
    """All that is stored at one moment. `fences`: the epochs that the logs' heads hold."""

    rows: dict[str, Row]
    archives: dict[str, list[Batch]]
    questions: dict[str, Question]
    effects: dict[tuple[str, str], tuple[int, Any]]
    logs: dict[str, list[Batch]]
    fences: dict[str, int]

    def holds(self, run_id: str, epoch: int) -> bool:
        row = self.rows[run_id]
        return row.status == "running" and row.epoch == epoch

    def stored_of(self, run_id: str) -> tuple[Any, ...]:
        """All of one run that is in Postgres."""
        questions = [one for one in self.questions.values() if one.run_id == run_id]
        effects = {key: one for key, one in self.effects.items() if key[0] == run_id}
        return self.rows[run_id], self.archives[run_id], questions, effects


class Frame(NamedTuple):
    sequence: int
    type: str
    body: dict[str, Any]
    text: bytes


def frames_of(batch: Batch, cursor: int = 0) -> Iterator[Frame]:
    for text in batch.cut(cursor).split(b"\n\n")[:-1]:
        body = orjson.loads(text.split(b"\ndata: ", 1)[1])
        yield Frame(body["sequence"], body["type"], body, text)


async def look(connection: Connection, bus: Bus) -> Sight:
    rows = {row[0]: Row(*row) for row in await connection.rows(_ROWS)}
    archives: dict[str, list[Batch]] = {run_id: [] for run_id in rows}
    for run_id, *batch in await connection.rows(_ARCHIVES):
        archives[run_id].append(Batch(*batch))
    questions = {row[0]: Question(*row) for row in await connection.rows(_QUESTIONS)}
    effects = {(row[0], row[1]): (row[2], row[3]) for row in await connection.rows(_EFFECTS)}
    logs = await bus.batch(*(("XRANGE", log_key(bus.prefix, one), "-", "+") for one in rows))
    heads = await bus.batch(*(("HGET", head_key(bus.prefix, one), "epoch") for one in rows))
    decoded = [[Batch.decode(fields[1]) for _, fields in log] for log in logs]
    fences = [int(epoch or 0) for epoch in heads]
    named = dict(zip(rows, decoded, strict=True)), dict(zip(rows, fences, strict=True))
    return Sight(rows, archives, questions, effects, *named)


_ROWS = f"SELECT {', '.join(Row._fields)} FROM runs ORDER BY position"
_ARCHIVES = """SELECT run_id, after_sequence, first_sequence, last_sequence, epoch, ends, frames
                 FROM run_events ORDER BY run_id, last_sequence"""
_QUESTIONS = f"SELECT {', '.join(Question._fields)} FROM interrupts ORDER BY position"
_EFFECTS = "SELECT run_id, key, epoch, outcome FROM effects"


@dataclass
class Truth:
    """What was seen so far. `winners`: whose decision on an interrupt was acknowledged."""

    last: Sight = field(default_factory=lambda: Sight({}, {}, {}, {}, {}, {}))
    seen: dict[tuple[str, int], bytes] = field(default_factory=dict)
    winners: dict[str, str] = field(default_factory=dict)

    def wins(self, interrupt_id: str, by: str) -> None:
        if self.winners.setdefault(interrupt_id, by) != by:
            raise Violation(f"{interrupt_id} was decided by {self.winners[interrupt_id]} and {by}")

    def check(self, now: Sight) -> None:
        for row in now.rows.values():
            self._check_row(row, now)
            self._check_archive(row, now)
            self._check_log(row, now)
        self._check_questions(now)
        self._check_effects(now)
        _check_waiting(now)
        self.last = now

    def read(self, run_id: str, frame: Frame) -> None:
        """A client got it."""
        if self.seen.setdefault((run_id, frame.sequence), frame.text) != frame.text:
            before = self.seen[run_id, frame.sequence]
            raise Violation(f"{frame.sequence} has two contents: {before!r} {frame.text!r}")

    def _check_row(self, row: Row, now: Sight) -> None:
        before = self.last.rows.get(row.id)
        if before is None:
            return
        if before.status in TERMINAL_STATUSES and before != row:
            raise Violation(f"an ended run was changed: {before} {row}")
        if row.status != before.status and not can_become(before.status, row.status):
            raise Violation(f"{before.status} became {row.status}")
        if row.epoch < before.epoch:
            raise Violation(f"the epoch fell: {before} {row}")

    def _check_archive(self, row: Row, now: Sight) -> None:
        """It only grows, without a hole; an ended run's ends with its one terminal event."""
        stored, before = now.archives[row.id], self.last.archives.get(row.id, [])
        if stored[: len(before)] != before:
            raise Violation(f"the archive of {row.id} was changed: {before} {stored}")
        follow(0, stored)
        self._see(row, stored, now)
        ends = [frame for one in stored for frame in frames_of(one) if frame.type in TERMINAL]
        if len(ends) != (row.status in TERMINAL_STATUSES):
            raise Violation(f"{row.status} with {len(ends)} terminal events")
        if ends and not ends[0].sequence == stored[-1].last == row.last_sequence:
            raise Violation(f"something follows the end: {row} {stored[-1]}")

    def _check_log(self, row: Row, now: Sight) -> None:
        log, ended = now.logs[row.id], row.status in TERMINAL_STATUSES
        self._see(row, log, now)
        if ended and log and log[-1].last > row.last_sequence:
            raise Violation(f"the log goes on behind the end: {row} {log[-1]}")

    def _see(self, row: Row, batches: list[Batch], now: Sight) -> None:
        """What is new is told only when it is stored, and has a number that was reserved."""
        stored = {one.last for one in now.archives[row.id]}
        for one in batches:
            if one.epoch > row.epoch:
                raise Violation(f"of an owner that is none: {one} {row}")
            for frame in frames_of(one):
                is_new = (row.id, frame.sequence) not in self.seen
                self.read(row.id, frame)
                if is_new and frame.sequence > row.sequence_reserved:
                    raise Violation(f"{frame.sequence} is above {row.sequence_reserved}")
                if frame.type in _STATES and one.last not in stored:
                    raise Violation(f"told before it is stored: {frame}")

    def _check_questions(self, now: Sight) -> None:
        for one in now.questions.values():
            row, before = now.rows[one.run_id], self.last.questions.get(one.id)
            if one.status == "pending" and row.status in TERMINAL_STATUSES:
                raise Violation(f"nobody can decide this any more: {one} {row}")
            if before is not None and before.status != "pending" and before[2:5] != one[2:5]:
                raise Violation(f"decided twice: {before} {one}")
            if before is not None and (before.told, before.taken) > (one.told, one.taken):
                raise Violation(f"taken back: {before} {one}")
            winner = self.winners.get(one.id)
            if (winner or one.resolved_by) and (one.status, one.resolved_by) != (
                "resolved",
                winner,
            ):
                raise Violation(f"{winner} has won, stored is {one}")

    def _check_effects(self, now: Sight) -> None:
        for key, (epoch, outcome) in self.last.effects.items():
            if outcome is not None and now.effects.get(key) != (epoch, outcome):
                raise Violation(f"an outcome was changed: {key} {outcome} {now.effects.get(key)}")


def follow(cursor: int, batches: list[Batch]) -> int:
    """Reads on as any client does: each batch has to lead on, and numbers jump at one event."""
    for batch in batches:
        if not batch.takes(cursor):
            raise Violation(f"{batch} does not lead on from {cursor}")
        cursor = take(cursor, batch)
    return cursor


def take(cursor: int, batch: Batch) -> int:
    for frame in frames_of(batch, cursor):
        jumps = frame.type == "run_resumed" and frame.sequence > cursor
        if frame.sequence != cursor + 1 and not jumps:
            raise Violation(f"{frame} came after {cursor}")
        cursor = frame.sequence
    return cursor


def _check_waiting(now: Sight) -> None:
    """Nothing waits for nobody."""
    pending = {one.run_id for one in now.questions.values() if one.status == "pending"}
    for row in now.rows.values():
        active = [
            other
            for other in now.rows.values()
            if other.conversation_id == row.conversation_id
            and other.status not in TERMINAL_STATUSES
            and not other.waiting
        ]
        if len(active) > 1:
            raise Violation(f"two active runs in one conversation: {active}")
        if row.waiting and not active and row.cancel_requested is None:
            raise Violation(f"waits for nobody: {row}")
        asks = row.id in pending or row.cancel_requested is not None
        if row.status == "interrupted" and not asks and last_event(now, row.id) != "run_paused":
            raise Violation(f"interrupted, and nobody is asked: {row}")
        if (row.status == "running") != (row.runner_id is not None):
            raise Violation(f"held by nobody: {row}")


def last_event(now: Sight, run_id: str) -> str:
    *_, last = frames_of(now.archives[run_id][-1])
    return last.type
