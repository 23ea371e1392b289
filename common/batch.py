"""The unit of a run's log: consecutive events as finished text, numbered once, never cut again.

The same bytes are an entry of the Redis stream, a pub/sub message, a row of the archive and an item
of a gateway's ring. Only the header is parsed on the way; the frames are forwarded as they are.

    <after> <first> <last> <epoch> <ends>\\n
    id: <first>\\nevent: …\\ndata: …\\n\\n …

`after` is the sequence that the batch follows: `first - 1`, or lower where the numbers jump after a
failover. One rule serves every reader and source: take a batch iff `after <= cursor < last`, and of
it what is above the cursor; otherwise look elsewhere.
"""

from dataclasses import dataclass
from typing import Literal, Self

Ends = Literal["", "pause", "run"]

_LETTER: dict[Ends, bytes] = {"": b"-", "pause": b"p", "run": b"r"}
_ENDS: dict[bytes, Ends] = {letter: ends for ends, letter in _LETTER.items()}


@dataclass(frozen=True, slots=True)
class Batch:
    """Events `first`…`last` (sequences) of one epoch. `ends` closes a pause or the run."""

    after: int
    first: int
    last: int
    epoch: int
    ends: Ends
    frames: bytes

    def takes(self, cursor: int) -> bool:
        """Whether a reader that has everything up to `cursor` may go on with this batch."""
        return self.after <= cursor < self.last

    def cut(self, cursor: int) -> bytes:
        """The frames above `cursor`."""
        position = 0
        for _ in range(min(cursor, self.last) - self.first + 1):
            position = self.frames.index(b"\n\n", position) + 2
        return self.frames[position:]

    def encode(self) -> bytes:
        header = b"%d %d %d %d %s\n" % (
            self.after,
            self.first,
            self.last,
            self.epoch,
            _LETTER[self.ends],
        )
        return header + self.frames

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """The batch of `encode`; raises ValueError for anything else."""
        header, separator, frames = encoded.partition(b"\n")
        fields = header.split(b" ")
        if not separator or len(fields) != 5 or fields[4] not in _ENDS:
            raise ValueError("not a batch")
        after, first, last, epoch = map(int, fields[:4])
        return cls(after, first, last, epoch, _ENDS[fields[4]], frames)
