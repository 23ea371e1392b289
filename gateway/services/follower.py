"""One reader of a followed run, and what the readers of one run share (gateway.services.follow)."""

import asyncio
import random
from typing import Any, Protocol

from common.batch import Batch
from common.errors import Refused, Unavailable
from gateway.services.ring import NOTHING, Cursor, Portion, Ring, Until

WRITE_BYTES_MAX = 64 << 10  # one write of a stream
_PAGE_BYTES = 256 << 10  # aimed at when the log is read, since a slow client holds a page
_PAGE_BATCHES = 32  # the first page, before it is known how large this run's batches are
_PAGE_BATCHES_MAX = 400
_RETRY_S = 0.2  # after a read for which no server answered


Read = tuple[int, int, int, int, int]
"""What tells reads of a log apart: version, archived, told, after, count."""


class Shelf(Protocol):
    """What a follower needs of the hub."""

    def read(self, topic: "Topic", after: int, count: int) -> "asyncio.Task[list[Batch]]": ...
    def leave(self, topic: "Topic", follower: "Follower") -> None: ...


class Topic:
    """A followed run in this process."""

    def __init__(self, run_id: str, ring_bytes_max: int) -> None:
        self.run_id = run_id
        self.ring = Ring(ring_bytes_max)
        self.version = 0  # rises with every reason to look again
        self.archived = 0  # what Postgres was seen to have
        self.told = 0  # the last sequence of which a live message spoke
        self.ended: int | None = None  # sequence of the terminal event, once known
        self.gone = False  # the run was deleted
        self.followers: set[Follower] = set()
        self.reads: dict[Read, asyncio.Task[list[Batch]]] = {}
        self.release: asyncio.TimerHandle | None = None

    @property
    def waited_for(self) -> bool:
        """Whether some reader believes that there is nothing for it now."""
        return any(follower.waiting for follower in self.followers)

    def note(self, batch: Batch) -> None:
        if batch.ends == "run":
            self.ended = batch.last

    def lags(self, top: int, ended: bool) -> bool:
        """Whether somebody waits for what Postgres already has."""
        return any(f.waiting and (ended or f.position < top) for f in self.followers)

    def changed(self) -> None:
        self.version += 1
        for follower in self.followers:
            follower.wake()

    def distrust(self) -> None:
        """Forget what is held: everybody looks at the log again."""
        self.ring.clear()
        self.changed()


class Follower:
    """One reader of one run; used by one task. Leave it with `close`."""

    def __init__(self, hub: Shelf, topic: Topic, position: int, until: Until) -> None:
        self._hub, self._topic = hub, topic
        self._cursor = Cursor(position, until)
        self._page: list[Batch] = []  # read from the log, not yet taken
        self._looked = -1  # version at which the log had nothing for us
        self._page_size = _PAGE_BATCHES
        self._waiter: asyncio.Future[None] | None = None
        self._reading: tuple[int, asyncio.Task[list[Batch]]] | None = None  # since which version
        self._interrupted = False
        self._interruption: asyncio.Future[None] | None = None

    @property
    def position(self) -> int:
        return self._cursor.position

    @property
    def run_id(self) -> str:
        return self._topic.run_id

    @property
    def waiting(self) -> bool:
        """Whether it believes that there is nothing for it now."""
        return self._waiter is not None and not self._waiter.done()

    async def prime(self) -> bool:
        """Read the first page; whether there is one. Refuses with HISTORY_EXPIRED (410).

        Raises Unavailable: before the response begins that can still be said.
        """
        await self._look()
        return bool(self._page)

    async def next(self, bytes_max: int = WRITE_BYTES_MAX) -> Portion:
        """The next frames, or NOTHING after `interrupt`. Refused when they cannot come any more."""
        while not self._interrupted:
            portion = self._cursor.take(self._ready(), bytes_max)
            if portion.frames:
                return portion
            if self._topic.ended is not None and self.position >= self._topic.ended:
                return Portion(b"", "run")
            if self._topic.gone:
                raise Refused("NOT_FOUND", "the run has been deleted")
            try:
                await self._look_or_wait()
            except Unavailable:
                await asyncio.sleep(_RETRY_S * (0.5 + random.random()))
        self._interrupted = False
        return NOTHING

    def interrupt(self) -> None:
        """Make `next` return: its caller has something else to do."""
        self._interrupted = True
        self.wake()
        if self._interruption is not None and not self._interruption.done():
            self._interruption.set_result(None)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._page = []
        self._hub.leave(self._topic, self)

    def _ready(self) -> list[Batch]:
        """What can be taken without I/O: the rest of the page, then the ring."""
        self._page = [batch for batch in self._page if batch.last > self.position]
        if self._page and self._page[0].takes(self.position):
            return self._page
        self._page = []
        return self._topic.ring.since(self.position) or []

    async def _look_or_wait(self) -> None:
        version = self._topic.version
        if self._looked == version or self._topic.ring.since(self.position) is not None:
            await self._wait()
        else:
            await self._look()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _look(self) -> None:
        """Interrupted while no server answers, it leaves the read to the next look: no heartbeat
        and no drain waits for a server, and one reader has never more than one read under way."""
        if self._reading is None:
            version = self._topic.version  # noted before: what changes meanwhile is looked at again
            reading = self._hub.read(self._topic, self.position, self._page_size)
            self._reading = version, reading
        version, reading = self._reading
        await self._until_read_or_interrupted(reading)
        if reading.done():
            self._reading = None
            self._turn_to(reading.result(), version)

    async def _until_read_or_interrupted(self, reading: "asyncio.Task[list[Batch]]") -> None:
        """Cancels nothing: others may wait for the same read."""
        self._interruption = asyncio.get_running_loop().create_future()
        either: set[asyncio.Future[Any]] = {reading, self._interruption}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._interruption = None

    def _turn_to(self, page: list[Batch], version: int) -> None:
        self._page = page
        if page:
            self._page_size = _page_size(page)
        else:
            self._looked = version


def _page_size(page: list[Batch]) -> int:
    """How many batches of this run make a page of `_PAGE_BYTES`."""
    mean = sum(len(batch.frames) for batch in page) // len(page) + 1
    return max(2, min(_PAGE_BYTES // mean, _PAGE_BATCHES_MAX))
