"""The lease of a runner: who may execute runs, until when, and how a dead runner is noticed.

Terms
    runner    one process, or one life of it: its id is new at each start and never comes back.
    lease     the row's `runners.lease_until`. It is written and compared by the database's clock
              alone. While it lasts, nobody takes a run from the runner merely for being slow.
    lock      a session advisory lock (class, slot) that the runner's lease session holds. The
              kernel frees it with the process, so a kill is seen in milliseconds.
    deadline  the local half of the lease: a monotonic time after which this process executes
              nothing more. It is counted from *before* the last good renewal was sent and ends
              `MARGIN_S` early, so it is over before anybody else sees the lease end. The local
              clock may only make us stop earlier; it never prolongs anything.
    reaper    any runner (runner/reaper.py); calls runners dead and hands their runs back.
    epoch     the fence. Lease and lock decide when a run is taken up again; that it is not
              executed twice with effect is the epoch's matter alone (I3). So each mistake that
              lease and lock can make costs time, and never correctness.

A held lock is no sign of life (a stopped process holds it, so does a forked child of a dead one),
and a free lock is no proof of death (a living runner may be reconnecting). Hence a runner is dead
when its lease is over, or when its lock was seen free twice with a grace between.

    register
       │        lock got, renewed
       ▼     ─────────────────────▶
    SEEKING        session lost       HELD     renewed each second
       │     ◀─────────────────────    │
       │                               │
       ├─── stop() ─────▶ RELEASED ◀───┤
       │                               │
       └─── deadline ─────▶ LOST ◀─────┘
            over, or the renewal finds no row: somebody has declared us dead

LOST and RELEASED are final. A lost runner cancels all its runs at once and registers under a new
id. `lost_at` of the row is the reapers' note of the first look at a free lock; a renewal clears it
only while the lock is held. At 'infinity' a free lock does not count: before it was held for the
first time (a process that starts slowly is not dead), with death_notice=lease, and once a pooler
was discovered.

What happens on each failure (lease 6 s)
    kill -9             The lock is free at once; handed back after two looks (about a second). A
                        forked child that outlives us keeps the socket: then after the lease.
    SIGSTOP, VM pause   Lock held, lease runs out: handed back after it. Our database sessions are
                        ended by the reaper. Once continued, the deadline has passed (or the
                        renewal finds no row): LOST.
    network cut         Neither side hears: both ends the session after 4 s without an answer. Then
                        the lock is free, or the lease is over first. We stop at the deadline.
    session terminated  Readable socket; a new session has lock and renewal in tenths of a second,
                        before a second look: nothing happens.
    Postgres restarts   All locks are gone, all runners are back in tenths of a second. Within one
                        lease time of its start the reaper goes by leases alone: no storm.
    Postgres away       Runs go on until the deadline: nobody can take over meanwhile. Then LOST.
    loop blocked        This thread renews on, so a graph that blocks the loop for seconds keeps
                        its lease (unless it keeps the GIL as well). After `loop_stall_max_s` it
                        stops, and the lease runs out.
    this thread hangs   In the driver, at most until TCP gives up; the loop watches the deadline
                        itself (`watch`).
    transaction pooler  Session locks do not hold behind it: setting death_notice=lease. The lease
                        alone decides then, and a kill costs a lease time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

from common.db.lease import LeaseConnection
from common.errors import Misconfigured, Unavailable
from runner.renewal import check_renewal, usable_s

log = logging.getLogger(__name__)

DeathNotice = Literal["lock", "lease"]

RETRY_INTERVAL_S: Final = 0.1
BEAT_INTERVAL_S: Final = 1.0
STOP_LIMIT_S: Final = 5.0

DECLARED_DEAD: Final = "declared dead by another runner"
NOT_RENEWED: Final = "the lease could not be renewed in time"
LOOP_STALLED: Final = "the event loop stood still"
THREAD_FAILED: Final = "the lease thread failed"


class Term:
    """What the local clock says. Pure but for the clock; each attribute has one writing thread."""

    def __init__(
        self, ttl_s: float, loop_stall_max_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.deadline = float("-inf")
        self.usable_s = usable_s(ttl_s)
        self._loop_stall_max_s = loop_stall_max_s
        self._first_renewal_by = clock() + self.usable_s
        self._beat_at = clock()

    def renewed(self, sent_at: float) -> None:
        """A renewal sent at `sent_at` is known to be good."""
        self.deadline = sent_at + self.usable_s

    @property
    def holds(self) -> bool:
        return self.clock() < self.deadline

    @property
    def is_over(self) -> bool:
        return self.clock() >= max(self.deadline, self._first_renewal_by)

    @property
    def remaining_s(self) -> float:
        return max(0.0, max(self.deadline, self._first_renewal_by) - self.clock())

    def beat(self) -> None:
        self._beat_at = self.clock()

    @property
    def loop_stalled(self) -> bool:
        return self.clock() - self._beat_at > self._loop_stall_max_s


class Lease:
    """Holds the lease of one registered runner until `stop`, or until it is lost for good.

    The row exists already (common.db.runners.register). `on_lost(reason)` is called at most once,
    never after `stop`, from the lease's thread or the loop's: hand it over to the loop yourself.
    """

    def __init__(
        self,
        *,
        database_url: str,
        runner_id: str,
        slot: int,
        ttl_s: float,
        renew_interval_s: float,
        death_notice: DeathNotice,
        loop_stall_max_s: float = 60.0,
        on_lost: Callable[[str], None],
    ) -> None:
        self._term = Term(ttl_s, loop_stall_max_s)
        check_renewal(ttl_s, renew_interval_s)
        self._connection = LeaseConnection(
            database_url,
            runner_id=runner_id,
            slot=slot,
            ttl_s=ttl_s,
            locking=death_notice == "lock",
        )
        self._runner_id = runner_id
        self._renew_interval_s = renew_interval_s
        self._on_lost = on_lost
        self._renew_at = float("-inf")
        self._ending = threading.Lock()
        self._end: str | None = None
        self._released = False
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to renew. Call it inside the running loop, soon after registration."""
        self._loop = asyncio.get_running_loop()
        self._thread_ended = asyncio.Event()
        self._waker, self._wakened = socket.socketpair()
        self._wakened.settimeout(RETRY_INTERVAL_S)
        self._thread.start()

    async def stop(self) -> None:
        """Release: nobody has to wait for a lease that runs out. The last use of the database: hand
        all runs back before, since from now on reapers end what sessions this runner still has.

        Takes at most `STOP_LIMIT_S`: if Postgres does not answer, the lease runs out by itself.
        """
        with self._ending:
            self._released = True
        self._wake()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._thread_ended.wait(), STOP_LIMIT_S)

    @property
    def deadline(self) -> float:
        """Monotonic seconds until which runs may be executed; -inf before the first renewal."""
        return self._term.deadline

    @property
    def held(self) -> bool:
        """Whether runs may be claimed and executed now."""
        return self.lost is None and not self._released and self._term.holds

    @property
    def lost(self) -> str | None:
        """Why the lease is lost for good, None while it is not."""
        return self._end

    def beat(self) -> None:
        """The event loop is alive. `watch` does this; else call it every second or so."""
        self._term.beat()

    async def watch(self) -> str | None:
        """Beat until the lease is lost, then return why; None after `stop`.

        Does not depend on the thread, which may hang in the driver.
        """
        while self.lost is None and not self._released:
            self.beat()
            if self._term.is_over:
                self._lose(NOT_RENEWED)
            else:
                await self._pause_watching()
        return self.lost

    async def _pause_watching(self) -> None:
        with suppress(TimeoutError):
            pause_s = min(BEAT_INTERVAL_S, self._term.remaining_s)
            await asyncio.wait_for(self._thread_ended.wait(), pause_s)

    def _run(self) -> None:
        """The thread's root."""
        try:
            while self.lost is None and not self._released:
                self._turn()
            if self.lost is None:
                self._release()
        except Misconfigured as error:
            self._lose(str(error))
        except Exception:
            log.exception("lease of %s: the thread failed", self._runner_id)
            self._lose(THREAD_FAILED)
        finally:
            self._leave()

    def _turn(self) -> None:
        """Do what is due now, then sleep until something is."""
        if self._term.is_over:
            return self._lose(LOOP_STALLED if self._term.loop_stalled else NOT_RENEWED)
        had_session = self._connection.is_open
        try:
            self._secure()
            self._renew_if_due()
            self._connection.wait(self._pause_s(), self._wakened)
        except Unavailable:
            if not had_session or self._connection.is_open:  # else try again at once
                self._nap()

    def _secure(self) -> None:
        """Have a session, and the lock on it; a lock just got is followed by a renewal at once,
        since only that takes back what a reaper has noted (`lost_at`)."""
        if not self._connection.is_open:
            self._connection.connect()
            log.info("lease of %s has a new session", self._runner_id)
        if self._connection.locking and not self._connection.locked and self._connection.lock():
            self._renew_at = float("-inf")

    def _renew_if_due(self) -> None:
        sent_at = self._term.clock()
        if sent_at < self._renew_at:
            return
        if self._term.loop_stalled:
            log.warning("lease of %s is not renewed: %s", self._runner_id, LOOP_STALLED)
        elif self._connection.renew():
            self._term.renewed(sent_at)
        else:
            self._lose(DECLARED_DEAD)
        self._renew_at = sent_at + self._renew_interval_s

    def _nap(self) -> None:
        with suppress(TimeoutError):
            self._wakened.recv(1)

    def _pause_s(self) -> float:
        if self._connection.locking and not self._connection.locked:
            return RETRY_INTERVAL_S
        return max(0.0, self._renew_at - self._term.clock())

    def _release(self) -> None:
        """One try: a lease that cannot be given back runs out."""
        try:
            if not self._connection.is_open:
                self._connection.connect()
            self._connection.release()
        except Unavailable:
            log.warning("lease of %s could not be released: it runs out", self._runner_id)

    def _lose(self, reason: str) -> None:
        with self._ending:
            if self._end is not None or self._released:
                return
            self._end = reason
        log.warning("lease of %s is lost: %s", self._runner_id, reason)
        self._wake()
        self._on_lost(reason)

    def _wake(self) -> None:
        """Interrupt the thread's sleep. An error means that it has left already."""
        with suppress(OSError):
            self._waker.send(b".")

    def _leave(self) -> None:
        """The lock goes with the session, so that a lost lease is noticed early."""
        self._connection.close()
        self._waker.close()
        self._wakened.close()
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._thread_ended.set)
