"""A run with owners, zombies, readers and every fault of its log; Redis is real, Postgres a model.

`World` does what the theory in common/bus/log.py asks of owners and readers, and nothing cleverer,
and raises `Violation` as soon as a reader sees a hole, an event twice or out of order, or a number
that somebody else saw with other content. A mutant leaves one rule out; it has to be caught.
"""

from dataclasses import dataclass, field
from typing import Literal

from common.batch import Batch, Ends
from common.bus.client import Bus
from common.bus.log import Append, LogConnection, LogReader
from common.bus.names import head_key, log_key
from tests.support.valkey import Valkey

RUN = "run_a"
BLOCK = 20  # numbers reserved at once
PROCESSES, READERS = 3, 4

Mutant = Literal["", "always trust", "no reopen", "no proof", "no tail", "note early"]
Dies = Literal["no", "after open", "before telling"]


class Violation(AssertionError):
    """What no client may ever see."""


@dataclass
class Postgres:
    """The run's row and its archive. Every step of the world is one transaction."""

    epoch: int = 0
    reserved: int = 0
    identity: int | None = None
    running: bool = False
    ended: bool = False
    archive: list[Batch] = field(default_factory=list)

    @property
    def top(self) -> int:
        return self.archive[-1].last if self.archive else 0

    def held(self, epoch: int) -> bool:
        return self.running and self.epoch == epoch

    def store(self, batches: list[Batch]) -> None:
        for batch in batches:
            if batch.last > self.top:
                if batch.after != self.top:
                    raise Violation(f"{batch} does not follow {self.top} in the archive")
                self.archive.append(batch)


@dataclass
class Owner:
    """Whoever holds (run, epoch), or believes so. `buffer`: what is not both archived and told."""

    process: int
    epoch: int
    top: int = 0
    told: int = 0
    reserved: int = 0
    buffer: list[Batch] = field(default_factory=list)
    dead: bool = False
    leaving: bool = False
    fresh: bool = False

    def number(self, count: int, ends: Ends, body: int, first: int | None = None) -> Batch:
        first = self.top + 1 if first is None else first
        last = first + count - 1
        frames = b"".join(
            b"id: %d\nevent: x\ndata: %d.%d\n\n" % (q, self.epoch, body)
            for q in range(first, last + 1)
        )
        batch = Batch(self.top, first, last, self.epoch, ends, frames)
        self.buffer.append(batch)
        self.top = last
        return batch


class Forgetful(LogConnection):
    """A mutant: it takes for open what was opened on former connections."""

    async def connect(self) -> None:
        opened = dict(self._opened)
        await super().connect()
        self._opened.update(opened)


class World:
    def __init__(self, valkey: Valkey, mutant: Mutant = "") -> None:
        kind = Forgetful if mutant == "no reopen" else LogConnection
        self.pg = Postgres()
        self.owners: list[Owner] = []
        self.cursors = [0] * READERS
        self._valkey = valkey
        self._mutant = mutant
        self._logs = [kind(valkey.url, timeout_s=20) for _ in range(PROCESSES)]
        self._seen = [0] * PROCESSES  # the incarnation of Redis that each is connected to
        self._incarnation = 1
        self._snapshot: tuple[bytes | None, bytes | None] | None = None
        self._bus = Bus(valkey.url, timeout_s=20)
        self._reader = LogReader(self._bus)
        self._truth: dict[int, bytes] = {}
        self._bodies = 0
        self._keys = log_key("", RUN), head_key("", RUN)

    async def begin(self) -> None:
        await self._bus.call("FLUSHALL")

    async def aclose(self) -> None:
        for log in self._logs:
            await log.aclose()
        await self._bus.aclose()

    # owners

    async def claim(self, process: int, dies: Dies = "no") -> None:
        """Another owner, as after the death of the last one or from the queue."""
        if self.pg.ended:
            return
        await self._connect(process)
        former_reserved, former_identity = self.pg.reserved, self.pg.identity
        self.pg.epoch += 1
        self.pg.running = True
        owner = Owner(process, self.pg.epoch, dead=dies != "no")
        self.owners.append(owner)
        if owner.epoch == 1:
            self._begin(owner)
        else:
            await self._take_over(owner, former_reserved, former_identity, dies)
        if dies == "no":
            await self.send(owner)

    def _begin(self, owner: Owner) -> None:
        """The very first owner begins at 1 without asking anybody."""
        self.pg.identity = self._seen[owner.process]
        self.pg.reserved = owner.reserved = BLOCK
        owner.fresh = True
        owner.number(1, "", self._body())

    async def _take_over(
        self, owner: Owner, former_reserved: int, former_identity: int | None, dies: Dies
    ) -> None:
        log, here = self._logs[owner.process], self._seen[owner.process]
        answer, top = await log.open(RUN, owner.epoch, self.pg.top)
        if answer not in ("NEW", "OPEN"):
            raise Violation(f"a new owner was answered {answer} {top}")
        if self._mutant != "no tail":
            self.pg.store(await log.tail(RUN, self.pg.top) if top > self.pg.top else [])
            if top != self.pg.top:
                raise Violation(f"the log ends at {top}, its archived tail at {self.pg.top}")
        trusted = answer == "OPEN" and here == former_identity
        if not trusted and self._mutant != "always trust":
            top = max(top, former_reserved)
        if self._mutant == "note early":
            self.pg.identity = here
        if dies == "after open":
            return
        owner.top = owner.told = self.pg.top
        batch = owner.number(1, "", self._body(), first=top + 1)
        self.pg.identity = here
        self.pg.reserved = owner.reserved = max(self.pg.reserved, batch.last + BLOCK)
        self.pg.store([batch])

    def emit(self, owner: Owner, count: int) -> None:
        """Numbers are reserved before they are used; that is where a zombie may learn of it."""
        if owner.dead or owner.leaving:
            return
        if owner.top + count > owner.reserved:
            if not self.pg.held(owner.epoch):
                owner.dead = True
                return
            self.pg.reserved = owner.reserved = owner.top + count + BLOCK
        owner.number(count, "", self._body())

    def archive(self, owner: Owner) -> None:
        """From time to time, and always before a state is told."""
        if owner.dead or owner.leaving:
            return
        if not self.pg.held(owner.epoch):
            owner.dead = True
            return
        self.pg.store(owner.buffer)
        self._forget(owner)

    def settle(self, owner: Owner, ends: Ends) -> None:
        """The run pauses or ends: stored with all its events before anything of it is told."""
        if owner.dead or owner.leaving or not self.pg.held(owner.epoch):
            owner.dead = owner.dead or not owner.leaving
            return
        owner.number(1, ends, self._body())
        self.pg.store(owner.buffer)
        self.pg.reserved = owner.top
        self.pg.running, self.pg.ended = False, ends == "run"
        owner.leaving = True

    async def send(
        self, owner: Owner, *, lose_reply: bool = False, unheard: int = 0, trim: bool = False
    ) -> None:
        """What is not told yet; `unheard` is the set of readers that pub/sub fails, as bits."""
        for _ in range(20):
            if owner.dead:
                return
            await self._connect(owner.process)
            if owner.fresh:
                await self._open(owner, again=False)
                continue
            batches = [batch for batch in owner.buffer if batch.last > owner.told]
            if not batches:
                return
            archived = self.pg.top if trim else 0
            items = [Append(RUN, batch, archived) for batch in batches]
            answers = await self._logs[owner.process].append(items)
            for batch, answered in zip(batches, answers, strict=True):
                if answered == ("OK", batch.last):
                    self._publish(batch, unheard)
            if lose_reply:
                await self.cut(owner.process)
                return
            for batch, (answer, value) in zip(batches, answers, strict=True):
                if answer != "OK":
                    await self._not_appended(owner, answer, value)
                    break
                owner.told = batch.last
            self._forget(owner)
        raise Violation("sending does not come to an end")

    async def _not_appended(self, owner: Owner, answer: str, value: int) -> None:
        if answer == "FENCED":
            owner.dead = True
        elif answer == "GAP" and any(batch.after == value for batch in owner.buffer):
            owner.told = value
        elif answer in ("GAP", "LOST"):
            await self._open(owner, again=True)
        else:
            raise Violation(f"an append was answered {answer} {value}")

    async def _open(self, owner: Owner, *, again: bool) -> None:
        """Proved, archived and noted before; what is settled is archived and needs no proof."""
        if self._mutant != "no proof" and not owner.leaving:
            if not self.pg.held(owner.epoch):
                owner.dead = True
                return
            self.pg.store(owner.buffer)
            self.pg.identity = self._seen[owner.process]
        base = min([self.pg.top, *(batch.after for batch in owner.buffer)])
        answer, top = await self._logs[owner.process].open(RUN, owner.epoch, base, again)
        if answer == "FENCED":
            owner.dead = True
            return
        owner.fresh = False
        owner.told = top if answer != "CLOSED" else owner.top
        rest = [batch for batch in owner.buffer if batch.last > owner.told]
        if rest and rest[0].after != owner.told:
            raise Violation(f"the log ends at {owner.told}, the buffer goes on after {rest[0]}")

    def _forget(self, owner: Owner) -> None:
        done = min(owner.told, self.pg.top)
        owner.buffer = [batch for batch in owner.buffer if batch.last > done]

    def _body(self) -> int:
        self._bodies += 1
        return self._bodies

    # faults

    async def _connect(self, process: int) -> None:
        if not self._logs[process].connected:
            await self._logs[process].connect()
            self._seen[process] = self._incarnation

    async def cut(self, process: int) -> None:
        await self._logs[process].aclose()

    async def snapshot(self) -> None:
        """What a replica has got so far."""
        log, head = [await self._bus.call("DUMP", key) for key in self._keys]
        self._snapshot = log, head

    async def fail_over(self) -> None:
        """The replica is promoted: it lacks what came since, has another identity, and everybody
        has to connect anew. Without a snapshot it was empty."""
        await self._bus.call("DEL", *self._keys)
        for key, dump in zip(self._keys, self._snapshot or (None, None), strict=True):
            if dump is not None:
                await self._bus.call("RESTORE", key, 0, dump)
        self._incarnation += 1
        for process in range(PROCESSES):
            await self.cut(process)

    async def flush(self) -> None:
        """FLUSHALL: the identity stays, and so do the connections."""
        await self._bus.call("DEL", *self._keys)
        self._snapshot = None

    async def evict(self, which: int) -> None:
        """The server was short of memory and took one of the two keys."""
        await self._bus.call("DEL", self._keys[which])

    # readers

    def _publish(self, batch: Batch, unheard: int) -> None:
        for reader in range(READERS - 1):  # one reader never hears anything
            if not unheard & 1 << reader:
                self._take(reader, batch)

    async def read(self, reader: int, page: int = 3) -> None:
        """The log from the cursor, else the archive, until neither leads on."""
        while True:
            before = self.cursors[reader]
            for batch in await self._reader.read(RUN, before, page):
                if not self._take(reader, batch):
                    break
            if self.cursors[reader] == before and not self._read_archive(reader):
                return

    def _read_archive(self, reader: int) -> bool:
        cursor = self.cursors[reader]
        row = next((batch for batch in self.pg.archive if batch.last > cursor), None)
        if row is not None and not self._take(reader, row):
            raise Violation(f"the archive does not lead on from {cursor}: {row}")
        return row is not None

    def rejoin(self, reader: int, cursor: int) -> None:
        """A client comes back with an older cursor, or another client with none."""
        self.cursors[reader] = min(cursor, self.cursors[reader])

    def _take(self, reader: int, batch: Batch) -> bool:
        cursor = self.cursors[reader]
        if not batch.takes(cursor):
            return False
        for frame in batch.cut(cursor).split(b"\n\n")[:-1]:
            sequence = int(frame.split(b"\n", 1)[0].removeprefix(b"id: "))
            jumps = sequence == batch.first and batch.after <= cursor
            if sequence != cursor + 1 and not (jumps and sequence > cursor):
                raise Violation(f"{sequence} came after {cursor}")
            if self._truth.setdefault(sequence, frame) != frame:
                raise Violation(f"{sequence} has two contents")
            cursor = sequence
        self.cursors[reader] = cursor
        return True

    async def finish(self) -> None:
        """A last owner ends the run; then all readers have come to the same end, also a new one
        that has nothing but the archive."""
        if not self.pg.ended:
            await self.claim(0)
            self.settle(self.owners[-1], "run")
            await self.send(self.owners[-1])
        for reader in range(READERS):
            await self.read(reader)
        await self.flush()
        self.rejoin(0, 0)
        await self.read(0)
        if set(self.cursors) != {self.pg.top}:
            raise Violation(f"readers ended at {self.cursors}, the run at {self.pg.top}")
