"""Following runs: one pub/sub connection a process, one topic a followed run, one cursor a reader.

A subscription is a cursor, not a queue: a slow client costs no memory. A follower asks the ring of
its topic for what is after its cursor; where the ring does not reach back so far it reads the log
(the Redis stream, then the archive); where that has nothing yet it waits until the topic changes.

Joining has no hole because it is subscribe, wait for the server's confirmation, then read. Every
later confirmation (a reconnect), a live batch that does not follow, and a position that Postgres
knows and we do not, all end in the same place: the ring is emptied, everybody reads the log from
its own cursor. `version` counts these changes. A follower may wait only if it has looked at the log
at the current version and found nothing, so no wake-up is lost between looking and waiting.

While Redis is away the archive is asked for all followed runs at once, again and again, and the
followers read it. The same question at each heartbeat heals a lost last publish and a FLUSHALL.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

import structlog

from common.batch import Batch
from common.bus.log import LogReader
from common.bus.names import run_channel
from common.db import archive
from common.db.engine import Database
from common.errors import Refused, Unavailable
from gateway.metrics import Metrics
from gateway.services.ring import NOTHING, Cursor, Portion, Ring, Until

logger = structlog.get_logger(__name__)

WRITE_BYTES_MAX = 64 << 10  # one write of a stream
_PAGE_BYTES = WRITE_BYTES_MAX  # aimed at when the log is read: a slow client holds a page
_PAGE_BATCHES = 32  # the first page, before it is known how large this run's batches are
_PAGE_BATCHES_MAX = 400
_AWAY_S = 1.0  # how long Redis is not asked again, and how often the archive is asked instead
_CONFIRM_S = 1.0  # a join goes on after this without a confirmation; the later one reads again
_RETRY_S = 0.2  # after a read for which no server answered
_READS_AT_ONCE = 4  # of all followers: after a reconnect thousands want to, and pools time out


class Channels(Protocol):
    """The pub/sub connection (common.bus.fanout.Subscriptions)."""

    @property
    def healthy(self) -> bool: ...
    @property
    def reconnects(self) -> int: ...
    def subscribe(self, channel: str) -> "asyncio.Future[None]": ...
    def unsubscribe(self, channel: str) -> None: ...
    async def run(self) -> None: ...


Connect = Callable[[Callable[[str, bytes], None], Callable[[str], None]], Channels]


class Topic:
    """A followed run in this process."""

    def __init__(self, run_id: str, ring_bytes_max: int) -> None:
        self.run_id = run_id
        self.ring = Ring(ring_bytes_max)
        self.version = 0  # rises with every reason to look again
        self.archived = 0  # what Postgres was seen to have
        self.ended: int | None = None  # sequence of the terminal event, once known
        self.gone = False  # the run was deleted
        self.followers: set[Follower] = set()
        self.reads: dict[tuple[int, int, int], asyncio.Task[list[Batch]]] = {}
        self.release: asyncio.TimerHandle | None = None

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

    def __init__(self, hub: "Hub", topic: Topic, position: int, until: Until) -> None:
        self._hub, self._topic = hub, topic
        self._cursor = Cursor(position, until)
        self._page: list[Batch] = []  # read from the log, not yet taken
        self._looked = -1  # version at which the log had nothing for us
        self._page_size = _PAGE_BATCHES
        self._waiter: asyncio.Future[None] | None = None
        self._interrupted = False

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
        version = self._topic.version  # noted before: what changes meanwhile is looked at again
        self._page = await self._hub.read(self._topic, self.position, self._page_size)
        if self._page:
            self._page_size = _page_size(self._page)
        else:
            self._looked = version


class Hub:
    """All followed runs of this process. `run` ends by cancellation only."""

    def __init__(
        self,
        db: Database,
        log: LogReader,
        connect: Connect,
        metrics: Metrics,
        *,
        prefix: str,
        ring_bytes_max: int,
        linger_s: float,
        check_interval_s: float,
        rings_bytes_max: int = 256 << 20,
    ) -> None:
        self._db, self._log, self._metrics, self._prefix = db, log, metrics, prefix
        self._ring_bytes_max, self._rings_bytes_max = ring_bytes_max, rings_bytes_max
        self._linger_s, self._check_interval_s = linger_s, check_interval_s
        self._channels = connect(self._on_message, self._on_confirmed)
        self._topics: dict[str, Topic] = {}
        self._ring_bytes = 0
        self._away_until = float("-inf")
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)

    @property
    def healthy(self) -> bool:
        return self._channels.healthy

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._channels.run())
            group.create_task(self._check_positions())

    async def follow(self, run_id: str, position: int, until: Until) -> Follower:
        """Join: returns once the subscription is confirmed (or Redis is away)."""
        channel = run_channel(self._prefix, run_id)
        topic = self._topics.get(channel) or self._new_topic(channel, run_id)
        follower = Follower(self, topic, position, until)
        topic.followers.add(follower)
        self._keep(topic)
        try:
            await self._confirmed(channel)
        except BaseException:
            follower.close()
            raise
        return follower

    def leave(self, topic: Topic, follower: Follower) -> None:
        topic.followers.discard(follower)
        if not topic.followers and topic.release is None:
            loop = asyncio.get_running_loop()
            topic.release = loop.call_later(self._linger_s, self._release, topic)

    async def read(self, topic: Topic, after: int, count: int) -> list[Batch]:
        """The log after `after`, one read for all that ask the same at the same version.

        A read that began at an older version does not do: it may have missed what changed.
        """
        key = (topic.version, after, count)
        reading = topic.reads.get(key)
        if reading is None:
            reading = asyncio.create_task(self._read(topic, after, count))
            topic.reads[key] = reading
            reading.add_done_callback(lambda done: _settled(topic, key, done))
        return await asyncio.shield(reading)  # a leaving reader cancels nothing in flight

    async def page(self, run_id: str, after: int, count: int) -> list[Batch]:
        """One look at the log without following it; refuses with HISTORY_EXPIRED."""
        return await self._read(Topic(run_id, 0), after, count)

    async def _read(self, topic: Topic, after: int, count: int) -> list[Batch]:
        async with self._reading:
            batches = await self._read_redis(topic, after, count)
            if batches is None or (batches and batches[0].after > after):
                batches = await self._read_archive(topic.run_id, after, count, bool(batches))
        for batch in batches:
            topic.note(batch)
        return batches

    async def _read_redis(self, topic: Topic, after: int, count: int) -> list[Batch] | None:
        """None: Redis cannot tell, the archive must be asked."""
        if self._redis_away():
            return None
        try:
            batches = await self._log.read(topic.run_id, after, count)
            known = bool(batches) or (
                topic.archived <= after and await self._log.top(topic.run_id) == after
            )
        except Unavailable:
            self._away_until = asyncio.get_running_loop().time() + _AWAY_S
            return None
        self._metrics.fills.labels("redis").inc()
        return batches if known else None

    def _redis_away(self) -> bool:
        return asyncio.get_running_loop().time() < self._away_until

    async def _read_archive(
        self, run_id: str, after: int, count: int, later_known: bool
    ) -> list[Batch]:
        async with self._db.connect() as connection:
            batches = await archive.read(connection, run_id, after, count)
        self._metrics.fills.labels("archive").inc()
        if batches[0].after > after if batches else later_known:
            raise Refused("HISTORY_EXPIRED", "events after this sequence are not kept any more")
        return batches

    async def _confirmed(self, channel: str) -> None:
        if self._channels.healthy:
            confirmed = self._channels.subscribe(channel)
            await asyncio.wait({confirmed}, timeout=_CONFIRM_S)

    def _new_topic(self, channel: str, run_id: str) -> Topic:
        topic = self._topics[channel] = Topic(run_id, self._ring_bytes_max)
        self._channels.subscribe(channel)
        self._metrics.topics.set(len(self._topics))
        return topic

    def _keep(self, topic: Topic) -> None:
        if topic.release is not None:
            topic.release.cancel()
            topic.release = None

    def _release(self, topic: Topic) -> None:
        topic.release = None
        if not topic.followers:
            channel = run_channel(self._prefix, topic.run_id)
            del self._topics[channel]
            self._channels.unsubscribe(channel)
            self._ring_bytes -= topic.ring.bytes
            self._metrics.topics.set(len(self._topics))

    def _on_message(self, channel: str, message: bytes) -> None:
        topic = self._topics.get(channel)
        if topic is None:
            return
        try:
            batch = Batch.decode(message)
        except ValueError:
            logger.warning("a message on a run's channel is not a batch", run_id=topic.run_id)
            return
        self._offer(topic, batch)

    def _offer(self, topic: Topic, batch: Batch) -> None:
        before = topic.ring.bytes
        offered = topic.ring.offer(batch)
        if offered == "known":
            self._metrics.duplicates.inc()
            return
        if offered == "gap":
            self._metrics.gaps.inc()
        topic.note(batch)
        topic.changed()
        self._account(topic, before)

    def _account(self, topic: Topic, before: int) -> None:
        """Bound all rings together: over the limit the one that grew is given up."""
        self._ring_bytes += topic.ring.bytes - before
        if self._ring_bytes > self._rings_bytes_max:
            self._ring_bytes -= topic.ring.bytes
            topic.distrust()
        self._metrics.ring_bytes.set(self._ring_bytes)

    def _on_confirmed(self, channel: str) -> None:
        if (topic := self._topics.get(channel)) is not None:
            self._distrust(topic, "confirmed")

    def _distrust(self, topic: Topic, reason: str) -> None:
        self._ring_bytes -= topic.ring.bytes
        topic.distrust()
        self._metrics.distrusts.labels(reason).inc()

    async def _check_positions(self) -> None:
        """Ask Postgres for a later event or an end that no message told us of."""
        loop = asyncio.get_running_loop()
        tick_s = min(_AWAY_S, self._check_interval_s)
        due = loop.time() + self._check_interval_s
        while True:
            await asyncio.sleep(tick_s * (0.8 + 0.4 * random.random()))
            healthy = self._channels.healthy
            self._metrics.healthy.set(healthy)
            self._metrics.reconnects.set(self._channels.reconnects)
            if healthy and not self._redis_away() and loop.time() < due:
                continue
            due = loop.time() + self._check_interval_s * (0.8 + 0.4 * random.random())
            try:
                await self._compare_positions()
            except Unavailable as error:
                logger.warning("positions cannot be checked", error=str(error))

    async def _compare_positions(self) -> None:
        followed = [topic for topic in self._topics.values() if topic.followers]
        if not followed:
            return
        async with self._db.connect() as connection:
            tops = await archive.tops(connection, [topic.run_id for topic in followed])
        for topic in followed:
            if (known := tops.get(topic.run_id)) is not None:
                self._compare(topic, *known)
            elif topic.followers:
                topic.gone = True
                topic.changed()

    def _compare(self, topic: Topic, top: int, ended: bool) -> None:
        topic.archived = max(topic.archived, top)
        if ended and top:
            topic.ended = top
        if topic.lags(top, ended):
            self._distrust(topic, "position")


def _page_size(page: list[Batch]) -> int:
    """How many batches of this run make a page of `_PAGE_BYTES`."""
    mean = sum(len(batch.frames) for batch in page) // len(page) + 1
    return max(2, min(_PAGE_BYTES // mean, _PAGE_BATCHES_MAX))


def _settled(topic: Topic, key: tuple[int, int, int], done: asyncio.Task[list[Batch]]) -> None:
    topic.reads.pop(key, None)
    if not done.cancelled():
        done.exception()  # looked at, also when all its readers have gone
