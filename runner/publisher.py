"""Moves the logs of all runs of this process to Redis and to the archive, off the graphs' path.

* One loop sends: what came since the last round goes out in one pipelined trip, the first event of
  a quiet process at once, later ones once a window (design §3).
* One loop archives, so that what Postgres lacks stays small, and reserves numbers ahead.
* `Outlet.settle` stores a state: its events are archived in the state's own transaction and are
  sent only after it has committed (I2).

After every new connection to Redis, and on LOST, a log is opened again before anything is appended;
before that one Postgres transaction proves the epoch, archives the whole buffer and notes which
Redis it is, because a Redis that lost its tail has lost its fence too (theory: common/bus/log).

While Redis is away (gone, silent, full, read-only) execution goes on: the archive is written more
often and gateways follow it. Redis is tried again, ever less often; nothing waits for that. What
was left to the archive is told once, by the last batch of each run, as soon as Redis carries a
message: whoever follows the run sees that it does not follow and looks into the archive.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from common.batch import Batch
from common.bus.log import Answer, LogConnection
from common.db import archive, runs
from common.db.archive import Found, Portion
from common.db.engine import Database
from common.errors import LeaseLost, Unavailable
from runner.metrics import Metrics, Since
from runner.outlet import NEVER, Change, Outlet
from runner.writer import RunWriter

log = structlog.get_logger(__name__)

_PAUSES_S = (0.05, 1.0)  # before Redis is tried again: at first, at most
_AGAIN_S = 0.2  # until what could not be archived is tried again
_LEFT_MAX = 500  # runs whose last batch is kept to be told


@dataclass(frozen=True, slots=True)
class PublisherLimits:
    """`fresh_s`: how long after its claim a new run's log may be opened without asking Postgres."""

    window_s: float
    archive_interval_s: float
    away_interval_s: float
    sequence_block: int
    buffer_bytes_max: int
    fresh_s: float


class Publisher:
    """Owns the sending connection; `run` ends by cancellation."""

    def __init__(
        self,
        db: Database,
        bus_log: LogConnection,
        limits: PublisherLimits,
        may_send: Callable[[], bool] = lambda: True,
        metrics: Metrics | None = None,
    ) -> None:
        """`may_send`: whether the lease lasts. The epoch would refuse what is sent after it, once
        somebody has claimed the run; a process that was stopped must not speak before that."""
        self._db = db
        self._may_send = may_send
        self._log = bus_log
        self._limits = limits
        self._outlets: set[Outlet] = set()
        self._dirty = asyncio.Event()
        self._archive_now = asyncio.Event()
        self._metrics = metrics or Metrics()
        self._unsent, self._behind = Since(), Since()
        self._metrics.lag_s.set_function(lambda: self._unsent.seconds)
        self._metrics.archive_behind_s.set_function(lambda: self._behind.seconds)
        self._away = False  # nothing was appended or opened since Redis failed
        self._rests_until = float("-inf")
        self._pause_s = _PAUSES_S[0]
        self._left: dict[str, Batch] = {}
        self._group: asyncio.TaskGroup

    def outlet(
        self,
        writer: RunWriter,
        *,
        generation: int,
        on_lost: Callable[[], None],
        noted: str | None = None,
    ) -> Outlet:
        """Take a run's log on; `generation` is NEVER unless it is open on that connection.

        `noted`: the Redis that the claim has noted for the run.
        """
        outlet = Outlet(
            self,
            writer,
            generation=generation,
            noted=noted,
            on_lost=on_lost,
            bytes_max=self._limits.buffer_bytes_max,
        )
        self._outlets.add(outlet)
        return outlet

    @property
    def held_bytes(self) -> int:
        """Of all runs: what Redis or the archive lacks."""
        return sum(outlet.writer.held_bytes for outlet in self._outlets)

    @property
    def redis_away(self) -> bool:
        return self._away

    def wake(self) -> None:
        self._dirty.set()

    def archive_soon(self) -> None:
        self._archive_now.set()

    def discard(self, outlet: Outlet) -> None:
        self._outlets.discard(outlet)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._send_forever())
            group.create_task(self._archive_forever())

    async def flush(self) -> None:
        """Archive and send what is there, once; used when the process leaves."""
        await self._archive_round()
        await self._send_round()

    # sending

    async def _send_forever(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._send_round()
            except Unavailable:
                self._redis_failed()
            await asyncio.sleep(self._limits.window_s)

    async def _send_round(self) -> None:
        busy = self._numbered()
        if self._away and time.monotonic() < self._rests_until:
            return self._leave_to_archive()
        if not (busy or self._left) or not self._may_send():
            self._unsent.end()
            return None
        self._unsent.begin()
        await self._log.connect()
        await self._tell_left()
        ready = [outlet for outlet in busy if self._is_open(outlet)]
        sent = [(outlet, batch) for outlet in ready for batch in outlet.writer.unsent()]
        if sent:
            with self._metrics.append_s.time():
                answers = await self._log.append([outlet.append(batch) for outlet, batch in sent])
            self._redis_answered()
            self._take_answers(sent, answers)
        if len(ready) == len(busy):
            self._unsent.end()
        for outlet in ready:
            outlet.after_round()

    def _numbered(self) -> list[Outlet]:
        for outlet in self._outlets:
            if outlet.writer.has_work:
                outlet.writer.number()
                if outlet.writer.runs_low(self._limits.sequence_block):
                    self.archive_soon()
        return [outlet for outlet in self._outlets if outlet.writer.unsent()]

    def _is_open(self, outlet: Outlet) -> bool:
        """Whether the log is open on this connection; if not, opening it has begun beside this."""
        if outlet.generation == self._log.generation:
            return True
        if not outlet.opening:
            outlet.opening = True
            self._group.create_task(self._open(outlet))
        return False

    async def _open(self, outlet: Outlet) -> None:
        try:
            generation = self._log.generation
            if outlet.needs_proof(self._limits.fresh_s, self._log.identity):
                await self._prove(outlet, self._log.identity)
            writer = outlet.writer
            again = not outlet.fresh
            answer, top = await self._log.open(writer.run_id, writer.epoch, writer.base, again)
            self._redis_answered()
            self._opened(outlet, generation, answer, top)
        except LeaseLost:
            outlet.lose_unless_settling()
        except Unavailable as error:
            await self._not_opened(error)
        finally:
            outlet.opening = False
            self.wake()

    async def _not_opened(self, error: Unavailable) -> None:
        if error.what == "Redis":
            self._redis_failed()
        else:
            await asyncio.sleep(0.1)

    def _opened(self, outlet: Outlet, generation: int, answer: Answer, top: int) -> None:
        outlet.fresh = False
        if answer == "FENCED":
            outlet.lose()
        elif outlet.writer.resend_after(top):
            outlet.generation = generation
            outlet.after_round()
        else:  # as LOST: what follows `top` was archived and forgotten meanwhile
            outlet.generation = NEVER

    async def _prove(self, outlet: Outlet, identity: str) -> None:
        """One transaction: still the owner, the whole buffer archived, this Redis noted."""
        writer = outlet.writer
        batches = writer.archivable()
        upto = writer.next_sequence + self._limits.sequence_block
        async with self._db.begin() as conn:
            held = await runs.note_identity(conn, writer.run_id, writer.epoch, identity, upto)
            if not held or not await archive.append(conn, writer.run_id, writer.epoch, batches):
                raise LeaseLost(writer.run_id, writer.epoch)
        writer.reserve(upto)
        outlet.archived(batches)

    def _take_answers(
        self, sent: list[tuple[Outlet, Batch]], answers: list[tuple[Answer, int]]
    ) -> None:
        failed: set[Outlet] = set()
        taken = [
            batch for (_, batch), (answer, _) in zip(sent, answers, strict=True) if answer == "OK"
        ]
        self._metrics.batches.inc(len(taken))
        self._metrics.events.inc(sum(batch.last - batch.first + 1 for batch in taken))
        for (outlet, batch), (answer, value) in zip(sent, answers, strict=True):
            if outlet in failed:
                continue
            if answer == "OK":
                outlet.writer.mark_sent(batch.last)
            else:
                failed.add(outlet)
                self._not_appended(outlet, answer, value)

    def _not_appended(self, outlet: Outlet, answer: Answer, value: int) -> None:
        if answer == "FENCED":
            outlet.lose()
        elif answer == "CLOSED":
            self._closed(outlet)
        else:
            if answer != "GAP" or not outlet.writer.resend_after(value):
                outlet.generation = NEVER
            self.wake()

    def _closed(self, outlet: Outlet) -> None:
        """The run's terminal event is in the log: ours was, or somebody ended the run."""
        if outlet.leaving:
            outlet.writer.mark_sent(outlet.writer.visible)
        else:
            outlet.lose()

    # while Redis is away

    def _redis_failed(self) -> None:
        """Rest before it is tried again. Several failures of one try count once."""
        now = time.monotonic()
        if not self._away:
            log.warning("redis_away")
        elif now < self._rests_until:
            return
        self._away = True
        self._rests_until = now + self._pause_s
        later_s = self._pause_s * random.uniform(1.0, 1.5)
        asyncio.get_running_loop().call_later(later_s, self.wake)
        self._pause_s = min(self._pause_s * 2, _PAUSES_S[1])
        self._leave_to_archive()
        self.archive_soon()

    def _redis_answered(self) -> None:
        if self._away:
            log.info("redis_back")
        self._away, self._pause_s = False, _PAUSES_S[0]

    def _leave_to_archive(self) -> None:
        self._unsent.end()  # readers have it from the archive
        for outlet in list(self._outlets):
            if (batch := outlet.writer.leave_to_archive()) is not None:
                self._left.pop(outlet.writer.run_id, None)
                self._left[outlet.writer.run_id] = batch
            outlet.after_round()
        while len(self._left) > _LEFT_MAX:
            del self._left[next(iter(self._left))]

    async def _tell_left(self) -> None:
        if not self._left:
            return
        told = dict(self._left)
        await self._log.tell(told)
        for run_id, batch in told.items():
            if self._left.get(run_id) is batch:
                del self._left[run_id]

    # archiving

    async def _archive_forever(self) -> None:
        while True:
            await self._wait_for_archive_time()
            try:
                if await self._archive_round():
                    continue
            except Unavailable:
                log.warning("archive_behind", outlets=len(self._outlets))
            await asyncio.sleep(_AGAIN_S)
            self.archive_soon()

    async def _wait_for_archive_time(self) -> None:
        limits = self._limits
        interval_s = limits.away_interval_s if self._away else limits.archive_interval_s
        try:
            async with asyncio.timeout(interval_s):
                await self._archive_now.wait()
            await asyncio.sleep(limits.window_s)
        except TimeoutError:
            pass
        self._archive_now.clear()

    async def _archive_round(self) -> bool:
        """One statement for all runs. Who no longer holds a run learns it here. False: not all
        could be done.

        Numbered here too, since a round of sending may wait for Redis meanwhile.
        """
        self._numbered()
        work = [(o, self._portion(o)) for o in self._outlets if self._wants_archive(o)]
        if not work:
            self._behind.end()
            return True
        self._behind.begin()
        async with self._db.connect() as conn:
            with self._metrics.archive_s.time():
                found = await archive.append_all(conn, [portion for _, portion in work])
        for (outlet, portion), what in zip(work, found, strict=True):
            self._take_found(outlet, portion, what)
        self.wake()
        if "busy" in found:
            return False
        self._behind.end()
        return True

    def _portion(self, outlet: Outlet) -> Portion:
        writer = outlet.writer
        upto = writer.next_sequence + self._limits.sequence_block
        return Portion(writer.run_id, writer.epoch, upto, writer.archivable())

    def _take_found(self, outlet: Outlet, portion: Portion, found: Found) -> None:
        if found == "lost":
            outlet.lose_unless_settling()
        elif found == "archived":
            outlet.writer.reserve(portion.upto)
            outlet.archived([*portion.batches])

    def _wants_archive(self, outlet: Outlet) -> bool:
        writer = outlet.writer
        low = writer.runs_low(self._limits.sequence_block)
        return not outlet.leaving and (low or bool(writer.archivable()))

    async def commit(self, outlet: Outlet, change: Change, last: int) -> None:
        """The state's transaction, tried until Postgres answers or the lease is lost."""
        unsure = False
        while True:
            try:
                return await self._commit_once(outlet.writer, change, last)
            except Unavailable:
                unsure = True
                await outlet.wait_or_lost(0.2)
            except LeaseLost:
                if unsure and await self._has_committed(outlet, last):
                    return None
                raise

    async def _commit_once(self, writer: RunWriter, change: Change, last: int) -> None:
        async with self._db.begin() as conn:
            batches = writer.unarchived()
            if batches and not await archive.append(conn, writer.run_id, writer.epoch, batches):
                raise LeaseLost(writer.run_id, writer.epoch)
            await change(conn, last)

    async def _has_committed(self, outlet: Outlet, last: int) -> bool:
        """Whether the answer to our commit was lost, not the commit: the row tells."""
        writer = outlet.writer
        while True:
            try:
                async with self._db.connect() as conn:
                    run = await runs.find(conn, writer.run_id)
                break
            except Unavailable:
                await outlet.wait_or_lost(0.2)
        return run is not None and run.epoch == writer.epoch and run.last_sequence == last
