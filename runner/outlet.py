"""One run's way out of its runner: where its events go in, and where its states are stored.

`runner/sending` and `runner/archiving` move what lies here; this is what an execution sees of it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from common.batch import Batch
from common.bus.log import Append
from common.db.engine import Database
from common.errors import LeaseLost
from common.events import Event
from runner.settling import Change, Declined, commit
from runner.writer import RunWriter

NEVER: Final = -1
"""The generation of no connection."""


class Outlet:
    """One run's way out of this process."""

    def __init__(
        self,
        outlets: "Outlets",
        db: Database,
        writer: RunWriter,
        *,
        generation: int,
        noted: str | None,
        on_lost: Callable[[], None],
        bytes_max: int,
    ) -> None:
        self.writer = writer
        self.generation = generation
        self.fresh = generation == NEVER and writer.epoch == 1  # there was no earlier owner
        self.leaving = False  # the status is stored and no longer `running`; what is left is told
        self.opening = False
        self.is_mute = False
        self._outlets = outlets
        self._db = db
        self._noted = noted
        self._claimed_at = time.monotonic()
        self._on_lost = on_lost
        self._bytes_max = bytes_max
        self._lost = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def emit(self, events: Iterable[Event]) -> None:
        """Never waits. See `room` for the bound. Nothing follows the state with which the run was
        left: the fence is still ours until its next owner opens the log."""
        if self.is_mute or self.leaving:
            return
        self.writer.emit(events)
        self._outlets.to_send.set()
        if self.writer.held_bytes > self._bytes_max:
            self._room.clear()
            self._outlets.to_archive.set()

    def mute(self) -> None:
        """From now on only `settle` speaks: the run's code goes on though it was stopped."""
        self.is_mute = True

    async def room(self) -> None:
        """Returns at once unless neither Redis nor Postgres has taken anything for long (I8)."""
        await self._room.wait()

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    async def complete(self) -> list[Batch]:
        """What the archive lacks of all that was emitted so far. Raises LeaseLost.

        Whoever archives it says so with `archived`.
        """
        while not self.writer.number_all():
            self._outlets.to_archive.set()  # it reserves numbers, too
            await self.wait_or_lost(0.005)
        return self.writer.archivable()

    async def settle(self, events: list[Event], change: Change, *, leaves: bool) -> bool:
        """Store a state and then tell it. False: declined, nothing happened. Raises LeaseLost.

        `leaves`: the run is no longer ours afterwards (it ended, waits or was handed over).
        """
        last = self.writer.number_state(events)
        try:
            await commit(self._db, self.writer, change, last, self.wait_or_lost)
        except Declined:
            self.writer.withdraw_state()
            return False
        except BaseException:  # lost, or cancelled: nothing of this owner is told any more
            self.lose()
            raise
        self.writer.confirm_state()
        self.leaving = leaves
        self.after_round()
        self._outlets.to_send.set()
        return True

    def needs_proof(self, fresh_s: float, identity: str) -> bool:
        """A claim proves the epoch for a moment, if it has noted this Redis; what is settled is
        archived and may be told."""
        recent = time.monotonic() - self._claimed_at < fresh_s
        return not (self.leaving or (self.fresh and recent and self._noted == identity))

    def append(self, batch: Batch) -> Append:
        return Append(self.writer.run_id, batch, self.writer.archived)

    def archived(self, batches: list[Batch]) -> None:
        if batches:
            self.writer.mark_archived(batches[-1].last)
        self.after_round()

    def after_round(self) -> None:
        if self.writer.held_bytes <= self._bytes_max:
            self._room.set()
        if self.leaving and not self.writer.has_work:
            self._outlets.discard(self)

    def lose(self) -> None:
        """Another owner has the run: nothing of ours may follow."""
        self._outlets.discard(self)
        if not self._lost.is_set():
            self._lost.set()
            self._room.set()
            if not self.leaving:
                self._on_lost()

    def lose_unless_settling(self) -> None:
        """While a state is stored its own transaction decides: the status may just have left."""
        if not self.writer.settling and not self.leaving:
            self.lose()

    async def wait_or_lost(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        except TimeoutError:
            return
        raise LeaseLost(self.writer.run_id, self.writer.epoch)


class Outlets:
    """All of this process, and what wakes the loops that empty them."""

    def __init__(self) -> None:
        self.to_send = asyncio.Event()
        self.to_archive = asyncio.Event()
        self._all: set[Outlet] = set()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Outlet]:
        """Those of this moment: some may leave meanwhile."""
        return iter(list(self._all))

    def add(self, outlet: Outlet) -> None:
        self._all.add(outlet)

    def discard(self, outlet: Outlet) -> None:
        self._all.discard(outlet)

    def number(self) -> None:
        """Make batches of what lies here, as far as numbers are reserved."""
        for outlet in self:
            if outlet.writer.has_work:
                outlet.writer.number()
                if outlet.writer.runs_low:
                    self.to_archive.set()
