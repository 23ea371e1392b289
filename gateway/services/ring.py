"""Merging replay and live without I/O: the ring of a followed run and the cursor of a reader.

There are three sources of one log: live messages (may be lost, never wrong), the Redis stream and
the archive. All speak in batches, and one rule serves them all: take a batch iff
`after <= cursor < last`, of it what is above the cursor; otherwise look elsewhere. A cursor that
only ever moves by this rule gives each event once, in order, whatever was lost on the way (I1).

The ring is an optimisation over reading the log: recent live batches that follow each other without
a hole. Where that is in doubt (a batch does not follow, a subscription was made anew, Postgres
knows of more) it is simply emptied, and every reader finds its place again in the log.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from common.batch import Batch, Ends

Until = Literal["interrupt", "end"]
Offered = Literal["taken", "known", "gap"]


@dataclass(frozen=True, slots=True)
class Portion:
    """Frames ready for one write. `ends` is set when the response ends with them (contract §3)."""

    frames: bytes
    ends: Ends = ""
    events: int = 0


NOTHING = Portion(b"")


class Ring:
    """The newest live batches of one run, each following the one before; bounded in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: deque[Batch] = deque()
        self.bytes = 0

    def offer(self, batch: Batch) -> Offered:
        """Take a live batch. After a gap the ring begins anew with it."""
        if self._batches and batch.last <= self._batches[-1].last:
            return "known"
        offered: Offered = "taken"
        if self._batches and not batch.takes(self._batches[-1].last):
            offered = "gap"
            self.clear()
        self._append(batch)
        return offered

    def since(self, cursor: int) -> list[Batch] | None:
        """What follows `cursor`, in order; None when the ring cannot tell, as it does not reach
        back, or only reaches, so far."""
        if not self._batches:
            return None
        if not self._batches[0].after <= cursor <= self._batches[-1].last:
            return None
        newer: list[Batch] = []
        for batch in reversed(self._batches):
            if batch.last <= cursor:
                break
            newer.append(batch)
        newer.reverse()
        return newer

    def clear(self) -> None:
        self._batches.clear()
        self.bytes = 0

    def _append(self, batch: Batch) -> None:
        self._batches.append(batch)
        self.bytes += len(batch.frames)
        while self.bytes > self._bytes_max and len(self._batches) > 1:
            self.bytes -= len(self._batches.popleft().frames)


class Cursor:
    """How far one reader has come. The only way forward is `take`."""

    def __init__(self, position: int, until: Until) -> None:
        self.position = position
        self._until = until

    def take(self, batches: Iterable[Batch], bytes_max: int) -> Portion:
        """All that may go out in one write, at least one batch if any follows the cursor.

        Stops before a batch that does not follow, and after one at which the response ends. What
        was not taken is asked for again from the new position.
        """
        parts: list[bytes] = []
        size = events = 0
        ends: Ends = ""
        for batch in self._following(batches):
            frames = batch.cut(self.position)
            if parts and size + len(frames) > bytes_max:
                break
            parts.append(frames)
            size += len(frames)
            events += batch.last - max(self.position, batch.first - 1)
            self.position = batch.last
            if self._is_end(batch):
                ends = batch.ends
                break
        return Portion(b"".join(parts), ends, events)

    def _following(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if batch.last > self.position:
                if not batch.takes(self.position):
                    return
                yield batch

    def _is_end(self, batch: Batch) -> bool:
        return batch.ends == "run" or (batch.ends == "pause" and self._until == "interrupt")
