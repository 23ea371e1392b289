"""What a drill's clients saw and what was acknowledged to them: append only, no I/O.

Every moment is `time.monotonic()` of the drill's own process. Frames are kept as they came, without
comments and the `retry:` line, which are no part of an event (contract §3); an event that came on a
page of JSON is kept as the frame that it is on a stream, so that all clients can be compared byte
by byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.graphs.drill.order import Order

Json = dict[str, Any]

Until = Literal["end", "interrupt"]
Way = Literal["stream", "post", "page"]
Ended = Literal["open", "clean", "cut", "left", "refused"]
"""`clean`: the response ended as HTTP says; `cut`: it broke; `left`: we hung up; `refused`: no
success came, or no answer at all (status None)."""
What = Literal["open", "create", "decide", "cancel"]


@dataclass(slots=True)
class Link:
    """One connection of a client: what it asked for, where, and how that ended."""

    address: str
    way: Way
    until: Until
    after: int
    began_at: float
    status: int | None = None
    ended: Ended = "open"
    ended_at: float | None = None
    complete: bool = False
    """A page of JSON said that nothing follows it."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it arrived. `link` is the place of its connection in `Seen.links`."""

    sequence: int
    type: str
    raw: bytes
    at: float
    link: int


@dataclass(slots=True)
class Seen:
    """One client on one run: every connection it had and every frame that it received, in order."""

    client: str
    run: str
    start: int = 0
    links: list[Link] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    finished: bool = False
    """The client has read to what it takes for the end."""

    @property
    def cursor(self) -> int:
        return self.frames[-1].sequence if self.frames else self.start


@dataclass(slots=True)
class Act:
    """One POST. Attempts with the same key are acts of their own."""

    what: What
    run: str | None
    user: str
    key: str
    address: str
    sent_at: float
    interrupt: str | None = None
    decision: Any = None
    status: int | None = None
    """None: no answer came, so that nobody knows whether it took effect."""
    answer: Json = field(default_factory=dict)
    answered_at: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """A GET of the run by a client that has just received the event `sequence` of `type`."""

    client: str
    run: str
    sequence: int
    type: str
    event: Json
    found: Json
    at: float


@dataclass(frozen=True, slots=True)
class Knock:
    """What somebody was answered who asked for a run that is not his."""

    run: str
    path: str
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Ordered:
    """A run that was acknowledged, with what it was told to do."""

    run: str
    user: str
    order: Order
    acknowledged_at: float


@dataclass(slots=True)
class FaultNote:
    """What was done to the system, to whom, and for how long. `ended_at` None: it still lasts."""

    name: str
    target: str
    began_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """Resident memory of one process at a moment."""

    process: str
    role: str
    pid: int
    at: float
    resident_bytes: int


@dataclass(slots=True)
class Record:
    """All of it. What a scenario adds itself: `faults`."""

    ordered: dict[str, Ordered] = field(default_factory=dict)
    clients: list[Seen] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    knocks: list[Knock] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    faults: list[FaultNote] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)
    """Written into prompts; no frame and no answer may hold one."""

    def of(self, run: str) -> Iterator[Seen]:
        return (seen for seen in self.clients if seen.run == run)
