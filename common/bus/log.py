"""The log of a run in Redis: the theory, its readers, and the one connection that appends.

Terms
-----
* **batch**: consecutive events of one epoch as finished text (common.batch), numbered once and
  never cut again. One batch is one entry of the stream, one message on the run's channel, one row
  of the archive, one item of a gateway's ring, byte for byte.
* **log**: the Redis stream of a run; entry id `<last>-0`. What is archived is trimmed away from its
  front, so the log holds at least what is *not* archived. May be lost at any moment.
* **head**: a hash beside the log. `epoch` fences, `top` is the last sequence in the log, `base` is
  what it began after, `closed` follows a terminal event, `virgin` if the run had no log before.
* **archive**: the rows in Postgres; the truth. **Buffer**: the owner's batches not yet archived.
* **owner**: whoever holds (run, epoch): a runner, or a process that acts on a run which no runner
  holds. **Identity**: `run_id` of Redis (INFO server): changed means "may have lost its tail".

The one rule for readers
------------------------
From whatever source (ring, log, archive): take a batch iff `after <= cursor < last`, and of it what
is above the cursor; else look elsewhere. `after` is `first - 1`, or lower where numbers jump.
A reader subscribes, waits for the confirmation and then reads the log; it reads the log again at
every later confirmation, since a reconnect loses messages without saying so (common.bus.fanout).

Numbering
---------
The owner numbers. A new owner goes on at top + 1 if Redis still has the identity that was noted for
the run and `open` answered OPEN; else above both top and `runs.sequence_reserved`, which is raised
in blocks *before* numbers are used. A number that a client can have seen never gets other content.
Identity is noted in the transaction that archives the owner's first batch, not before: otherwise an
owner that dies in between makes the next one trust a Redis that has lost what was told.

`open`: a new epoch takes the log, or the same one takes it again after a loss (`again`)
----------------------------------------------------------------------------------------
FENCED e     a newer epoch e holds the log.
             Caller: stops, LeaseLost.
NEW base     there was no log, or it lacks what is archived or what its head speaks of; with `again`
             also one of an older epoch. An empty one begins at base. Also, to a new owner: such a
             log was begun and nothing was written since, so what was lost is still unknown.
             Caller: goes on after base; with `again` sends what its buffer has beyond base.
OPEN top     the log is there.
             Caller: a new owner archives (base, top] from `tail` before its first event; with
             `again` sends the buffered batches that follow top (none follows: as GAP).
CLOSED top   the run's terminal event is in the log.
             Caller: a new owner archives the tail; writes no more.

`append`: one batch, told to all who follow
-------------------------------------------
OK top       appended; or it was there already, so sending again after a lost reply is safe.
             Caller: drops it from what is to be sent.
FENCED e     as above.
LOST 0       no head, a head of an older epoch or without its log; or the run was not opened on this
             connection (below).
             Caller: proves its lease and opens again, before any append.
CLOSED top   a batch behind the terminal event: a mistake of the owner.
             Caller: stops.
GAP top      the log does not end where this batch begins.
             Caller: sends again from the buffered batch whose `after` is top; none: as LOST.

Both scripts validate everything before their first write, as Redis does not undo half a script.

What happens at each failure
----------------------------
* *Reply lost, connection broken*: the batch may be there or not. Connect, prove the lease, open
  again, send again.
* *Redis restarted, or failed over to a replica that lacks the tail*: it has lost its fence as well
  and would let an older owner append. Hence the rule: **after every new connection and on LOST,
  before any append: one Postgres transaction** (the run's row FOR SHARE with our epoch, the whole
  buffer archived, Redis's identity noted) **and then `open`**. LogConnection holds its callers to
  it: what was not opened on the present connection is answered LOST without being sent.
* *FLUSHALL, eviction, expiry*: LOST; `open` begins a new log at the archive's top.
* *A publish that nobody got*: the next batch does not follow the reader's cursor, or the
  heartbeat's look at Postgres shows it; both end in reading the log.
* *Scripts forgotten (restart, SCRIPT FLUSH)*: loaded again, and the whole exchange is repeated.
* *Owner dies*: its un-archived events are in the log only; the next owner archives them first. If
  Redis loses them before that, the numbers jump and clients keep what they saw.
* *Redis away for long*: execution goes on, the archive grows, gateways follow the archive.
* *Run ended*: the log stays for a short time, then the archive alone serves replays.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from redis.exceptions import NoScriptError, ResponseError

from common.batch import Batch
from common.bus.client import Bus
from common.bus.names import head_key, log_key, run_channel
from common.bus.script import Script
from common.bus.wire import Wire, identity_of, packed
from common.errors import Unavailable

Answer = Literal["OK", "FENCED", "LOST", "CLOSED", "GAP", "NEW", "OPEN"]

_ANSWERS: dict[bytes, Answer] = {
    b"OK": "OK",
    b"FENCED": "FENCED",
    b"LOST": "LOST",
    b"CLOSED": "CLOSED",
    b"GAP": "GAP",
    b"NEW": "NEW",
    b"OPEN": "OPEN",
}
_LOST: tuple[Answer, int] = ("LOST", 0)
_PAGE = 200
_AWAY_S = 0.1  # how long `connect` fails at once after it has failed
_OPENED_MAX = 10_000


class LogReader:
    """Reads logs through the process's ordinary client. Raises Unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @property
    def away(self) -> bool:
        """Whether Redis is away: reading fails at once."""
        return self._bus.away

    async def read(self, run_id: str, after: int, count: int = _PAGE) -> list[Batch]:
        """Up to `count` batches with `last > after`, in order.

        The first one may begin above `after + 1`: then the log was trimmed, and the archive has it.
        Empty: nothing newer here, which says nothing about the archive.
        """
        key = log_key(self._bus.prefix, run_id)
        entries = await self._bus.call("XRANGE", key, f"{after + 1}-0", "+", "COUNT", count)
        return [Batch.decode(fields[1]) for _, fields in entries]

    async def top(self, run_id: str) -> int | None:
        """The last sequence that the log knows; None without a log."""
        top = await self._bus.call("HGET", head_key(self._bus.prefix, run_id), "top")
        return None if top is None else int(top)


@dataclass(frozen=True, slots=True)
class Append:
    """A batch to append; `archived`: the log may forget what is not above it (0: nothing)."""

    run_id: str
    batch: Batch
    archived: int = 0


class LogConnection:
    """The appending connection of one process, for any number of runs and callers.

    `connect` before use and after every Unavailable: nothing reconnects by itself, because whoever
    appends must learn of it. Calls travel in the order in which they are made and wait for nobody.
    After a failed `connect` further ones fail at once for a moment, so that many callers do not
    queue before a server that does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        ttl_s: float = 86_400,
        ended_ttl_s: float = 300,
        timeout_s: float = 2.0,
    ) -> None:
        self.generation = 0
        self.identity = ""
        self._prefix = prefix
        self._ttl_s, self._ended_ttl_s = max(1, int(ttl_s)), max(1, int(ended_ttl_s))
        self._open, self._append = Script("open"), Script("append")
        self._wire = Wire(url, timeout_s)
        self._connecting = asyncio.Lock()
        self._away_until = float("-inf")
        self._known = False  # the server of the present connection
        self._opened: dict[str, tuple[str, str, str]] = {}  # of this connection: run → keys

    @property
    def connected(self) -> bool:
        """Also to a server that is known: whoever connected may have been cancelled in between."""
        return self._known and self._wire.connected

    async def connect(self) -> None:
        """Nothing, if there is a connection; else a new one: `generation` rises, `identity` is its
        server's, and every run has to be opened again. Raises Unavailable."""
        loop = asyncio.get_running_loop()
        async with self._connecting:
            if self.connected:
                return
            if loop.time() < self._away_until:
                raise Unavailable("Redis")
            try:
                await self._connect()
            except Unavailable:
                self._away_until = loop.time() + _AWAY_S
                raise

    async def open(
        self, run_id: str, epoch: int, base: int, again: bool = False
    ) -> tuple[Answer, int]:
        """Takes the log for `epoch`. Raises Unavailable.

        `base`: what the log must reach to be of use, and where it begins otherwise: the archive's
        top; with `again` any `after` of the buffer, since from there on it can be sent once more.
        `again`: the same owner after a new connection or LOST, with its lease proved meanwhile.
        """
        keys = self._keys(run_id)
        command = self._open.call(keys[:2], epoch, base, int(again), self._ttl_s)
        generation = self.generation
        answer, value = (await self._ask([command]))[0]
        if answer != "FENCED" and generation == self.generation:
            self._remember(run_id, keys)
        return answer, value

    async def append(self, items: Sequence[Append]) -> list[tuple[Answer, int]]:
        """One answer an item, all in one round trip. Raises Unavailable: then nothing is known.

        Batches of one run are given in order; after one that is not OK the next ones answer GAP.
        """
        opened = self._opened
        sent = [item for item in items if item.run_id in opened]
        answers = await self._ask([self._packed(item) for item in sent])
        for item, (answer, _) in zip(sent, answers, strict=True):
            if answer in ("FENCED", "CLOSED") or (answer == "OK" and item.batch.ends == "run"):
                opened.pop(item.run_id, None)
        answered = dict(zip(map(id, sent), answers, strict=True))
        return [answered.get(id(item), _LOST) for item in items]

    async def tell(self, batches: Mapping[str, Batch]) -> None:
        """Best of what can be done for batches, by run, that are archived and not in the log: a
        message to those who follow. It needs no fence, as what is archived never changes, and no
        room: a Redis that is full or read-only carries it too. Raises Unavailable."""
        channels = [run_channel(self._prefix, run_id) for run_id in batches]
        told = zip(channels, batches.values(), strict=True)
        await self._exchange([packed("PUBLISH", name, batch.encode()) for name, batch in told])

    async def tail(self, run_id: str, after: int) -> list[Batch]:
        """All the log has above `after`, for the new owner who holds it. Raises Unavailable."""
        key = log_key(self._prefix, run_id)
        batches: list[Batch] = []
        while True:
            page = packed("XRANGE", key, f"{after + 1}-0", "+", "COUNT", _PAGE)
            [entries] = await self._exchange([page])
            batches += [Batch.decode(fields[1]) for _, fields in entries]
            if len(entries) < _PAGE:
                return batches
            after = batches[-1].last

    async def aclose(self) -> None:
        async with self._connecting:
            await self._wire.aclose()

    async def _connect(self) -> None:
        """Until the server is known nobody else uses the connection."""
        self._known = False
        self._opened = {}  # a new one: an older exchange may still look at the old
        await self._wire.connect()
        self.identity = await self._greet()
        self.generation += 1
        self._known = True

    async def _greet(self) -> str:
        commands = [packed("INFO", "server"), self._open.load, self._append.load]
        section: bytes = self._good(await self._wire.exchange(commands))[0]
        return identity_of(section)

    def _keys(self, run_id: str) -> tuple[str, str, str]:
        prefix = self._prefix
        return log_key(prefix, run_id), head_key(prefix, run_id), run_channel(prefix, run_id)

    def _packed(self, item: Append) -> bytes:
        return self._append.call(
            self._opened[item.run_id],
            item.batch.encode(),
            item.archived,
            self._ttl_s,
            self._ended_ttl_s,
        )

    def _remember(self, run_id: str, keys: tuple[str, str, str]) -> None:
        """Bounded: a run that falls out is answered LOST, and opened again."""
        self._opened.pop(run_id, None)
        self._opened[run_id] = keys
        if len(self._opened) > _OPENED_MAX:
            del self._opened[next(iter(self._opened))]

    async def _ask(self, commands: list[bytes]) -> list[tuple[Answer, int]]:
        replies = await self._exchange(commands)
        return [(_ANSWERS[word], value) for word, value in replies]

    async def _exchange(self, commands: list[bytes]) -> list[Any]:
        """The replies, none of them an error. Scripts that the server forgot are loaded again, on
        the same connection: on another one nothing is opened."""
        generation = self.generation
        if not self._known:
            raise Unavailable("Redis")
        replies = await self._wire.exchange(commands)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            if generation != self.generation or not self._known:
                raise Unavailable("Redis")
            loads = [self._open.load, self._append.load]
            replies = (await self._wire.exchange(loads + commands))[len(loads) :]
        return self._good(replies)

    def _good(self, replies: list[Any]) -> list[Any]:
        """Whatever else a server refuses (no memory, read-only, no rights) is Unavailable, and a
        reconnect may find a better one."""
        for reply in replies:
            if isinstance(reply, ResponseError):
                self._wire.give_up()
                raise Unavailable("Redis") from reply
        return replies
