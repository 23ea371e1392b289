"""Sends the logs of all runs of this process to Redis (theory: common/bus/log).

What came since the last round goes out in one pipelined trip, the first event of a quiet process at
once, later ones once a window (design §3). After every new connection to Redis, and on LOST, a log
is opened again before anything is appended; before that one Postgres transaction proves the epoch,
archives the whole buffer and notes which Redis it is, because a Redis that lost its tail has lost
its fence too.

While Redis is away (gone, silent, full, read-only) execution goes on and gateways follow the
archive. Redis is tried again, ever less often; nothing waits for that. What was left to the archive
is told once, by the last batch of each run, as soon as Redis carries a message: whoever follows the
run sees that it does not follow and looks into the archive.
"""

import asyncio
import random
import time
from collections.abc import Callable

import structlog

from common.batch import Batch
from common.bus.log import Answer, LogConnection
from common.db import archive, runs
from common.db.engine import Database
from common.errors import LeaseLost, Unavailable
from runner.metrics import Metrics, Since
from runner.outlet import NEVER, Outlet, Outlets

log = structlog.get_logger(__name__)

_PAUSES_S = (0.05, 1.0)  # before Redis is tried again: at first, at most
_LEFT_MAX = 500  # runs whose last batch is kept to be told


class Sender:
    """Owns the sending connection; `run` ends by cancellation.

    `fresh_s`: how long after its claim a new run's log may be opened without asking Postgres.
    `may_send`: whether the lease lasts. The epoch would refuse what is sent after it, once somebody
    has claimed the run; a process that was stopped must not speak before that.
    """

    def __init__(
        self,
        outlets: Outlets,
        db: Database,
        bus_log: LogConnection,
        *,
        window_s: float,
        fresh_s: float,
        may_send: Callable[[], bool],
        metrics: Metrics,
    ) -> None:
        self._outlets = outlets
        self._db = db
        self._log = bus_log
        self._window_s, self._fresh_s = window_s, fresh_s
        self._may_send = may_send
        self._metrics = metrics
        self._unsent = Since()
        metrics.lag_s.set_function(lambda: self._unsent.seconds)
        self._away = False  # nothing was appended or opened since Redis failed
        self._rests_until = float("-inf")
        self._pause_s = _PAUSES_S[0]
        self._left: dict[str, Batch] = {}
        self._group: asyncio.TaskGroup

    @property
    def redis_away(self) -> bool:
        return self._away

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            while True:
                await self._outlets.to_send.wait()
                self._outlets.to_send.clear()
                try:
                    await self.round()
                except Unavailable:
                    self._redis_failed()
                await asyncio.sleep(self._window_s)

    async def round(self) -> None:
        """Send what there is. Raises Unavailable."""
        self._outlets.number()
        busy = [outlet for outlet in self._outlets if outlet.writer.unsent()]
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
            if outlet.needs_proof(self._fresh_s, self._log.identity):
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
            self._outlets.to_send.set()

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
        batches, upto = writer.archivable(), writer.next_block
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
            self._outlets.to_send.set()

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
        asyncio.get_running_loop().call_later(later_s, self._outlets.to_send.set)
        self._pause_s = min(self._pause_s * 2, _PAUSES_S[1])
        self._leave_to_archive()
        self._outlets.to_archive.set()

    def _redis_answered(self) -> None:
        if self._away:
            log.info("redis_back")
        self._away, self._pause_s = False, _PAUSES_S[0]

    def _leave_to_archive(self) -> None:
        self._unsent.end()  # readers have it from the archive
        for outlet in self._outlets:
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
