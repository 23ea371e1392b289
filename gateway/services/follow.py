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
followers read it. The same question at each heartbeat heals a lost last publish and a FLUSHALL. It
is asked often while anything is wrong (Redis is away, live messages do not come, a log has gone, a
position was behind) and for some seconds after, because gateways and runners do not lose and find
Redis at the same moment.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

import structlog

from common.batch import Batch
from common.bus.names import run_channel
from common.errors import Unavailable
from gateway.metrics import Metrics
from gateway.services.follower import Follower, Read, Topic
from gateway.services.history import History
from gateway.services.ring import Until

logger = structlog.get_logger(__name__)

_WATCHFUL_S = 5.0  # how long after the last trouble positions are compared often
_CONFIRM_S = 1.0  # a join goes on after this without a confirmation; the later one reads again


class Channels(Protocol):
    """The pub/sub connection (common.bus.fanout.Subscriptions)."""

    @property
    def healthy(self) -> bool: ...
    @property
    def reconnects(self) -> int: ...
    @property
    def trip_s(self) -> float | None: ...
    def subscribe(self, channel: str) -> "asyncio.Future[None]": ...
    def unsubscribe(self, channel: str) -> None: ...
    async def run(self) -> None: ...


Connect = Callable[[Callable[[str, bytes], None], Callable[[str], None]], Channels]


class Hub:
    """All followed runs of this process. `run` ends by cancellation only."""

    def __init__(
        self,
        history: History,
        connect: Connect,
        metrics: Metrics,
        *,
        prefix: str,
        ring_bytes_max: int,
        linger_s: float,
        check_interval_s: float,
        watch_interval_s: float = 0.5,
        rings_bytes_max: int = 256 << 20,
    ) -> None:
        self._history, self._metrics, self._prefix = history, metrics, prefix
        self._ring_bytes_max, self._rings_bytes_max = ring_bytes_max, rings_bytes_max
        self._linger_s, self._check_interval_s = linger_s, check_interval_s
        self._watch_interval_s, self._watchful_until = watch_interval_s, float("-inf")
        self._channels = connect(self._on_message, self._on_confirmed)
        self._topics: dict[str, Topic] = {}
        self._ring_bytes = 0
        self._reconnects = 0  # those that the metrics have

    @property
    def healthy(self) -> bool:
        return self._channels.healthy

    @property
    def trip_s(self) -> float | None:
        """How long a message takes from here through Redis and back, as last seen."""
        return self._channels.trip_s

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._channels.run())
            group.create_task(self._check_positions())

    async def follow(self, run_id: str, position: int, until: Until, archived: int = 0) -> Follower:
        """Join: returns once the subscription is confirmed (or Redis is away).

        `archived`: what the run's row says is settled, and so is in the archive whatever Redis has.
        """
        channel = run_channel(self._prefix, run_id)
        topic = self._topics.get(channel) or self._new_topic(channel, run_id)
        topic.archived = max(topic.archived, archived)
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

    def read(self, topic: Topic, after: int, count: int) -> "asyncio.Task[list[Batch]]":
        """The log after `after`, one read for all that ask the same at the same version.

        A read that began at an older version does not do: it may have missed what changed. It is
        shared: whoever waits for it must not cancel it.
        """
        key = (topic.version, topic.archived, topic.told, after, count)
        reading = topic.reads.get(key)
        if reading is None:
            reading = asyncio.create_task(self._read(topic, after, count))
            topic.reads[key] = reading
            reading.add_done_callback(lambda done: _settled(topic, key, done))
        return reading

    async def _read(self, topic: Topic, after: int, count: int) -> list[Batch]:
        page = await self._history.look(topic.run_id, after, count, topic.archived, topic.told)
        if not page.sure:
            self._be_watchful()
        for batch in page.batches:
            topic.note(batch)
        return page.batches

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
            self._weigh(-topic.ring.bytes)
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
        topic.told = max(topic.told, batch.last)
        topic.changed()
        self._account(topic, before)

    def _account(self, topic: Topic, before: int) -> None:
        """Bound all rings together: over the limit the one that grew is given up."""
        self._weigh(topic.ring.bytes - before)
        if self._ring_bytes > self._rings_bytes_max:
            self._weigh(-topic.ring.bytes)
            topic.distrust()

    def _weigh(self, change: int) -> None:
        self._ring_bytes += change
        self._metrics.ring_bytes.set(self._ring_bytes)

    def _on_confirmed(self, channel: str) -> None:
        if (topic := self._topics.get(channel)) is not None:
            self._distrust(topic, "confirmed")

    def _distrust(self, topic: Topic, reason: str) -> None:
        self._weigh(-topic.ring.bytes)
        topic.distrust()
        self._metrics.distrusts.labels(reason).inc()

    async def _check_positions(self) -> None:
        """Ask Postgres for a later event or an end that no message told us of."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._check_interval_s
        while True:
            tick_s = min(self._watch_interval_s, self._check_interval_s)
            await asyncio.sleep(tick_s * (0.8 + 0.4 * random.random()))
            self._look_after_channels()
            if loop.time() < due and not self._is_watchful():
                continue
            due = loop.time() + self._check_interval_s * (0.8 + 0.4 * random.random())
            try:
                await self._compare_positions()
            except Unavailable as error:
                logger.warning("positions cannot be checked", error=str(error))

    def _look_after_channels(self) -> None:
        """Live messages that do not come are read in the log, as long as Redis has one."""
        deaf = not self._channels.healthy
        self._metrics.healthy.set(not deaf)
        self._metrics.reconnects.inc(self._channels.reconnects - self._reconnects)
        self._reconnects = self._channels.reconnects
        if deaf or self._history.redis_away:
            self._be_watchful()
        if deaf and not self._history.redis_away:
            for topic in self._topics.values():
                if topic.waited_for:
                    self._distrust(topic, "deaf")

    def _is_watchful(self) -> bool:
        return asyncio.get_running_loop().time() < self._watchful_until

    def _be_watchful(self) -> None:
        self._watchful_until = asyncio.get_running_loop().time() + _WATCHFUL_S

    async def _compare_positions(self) -> None:
        followed = [topic for topic in self._topics.values() if topic.followers]
        if not followed:
            return
        self._metrics.checks.inc()
        tops = await self._history.tops([topic.run_id for topic in followed])
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
            self._be_watchful()
            self._distrust(topic, "position")


def _settled(topic: Topic, key: Read, done: asyncio.Task[list[Batch]]) -> None:
    topic.reads.pop(key, None)
    if not done.cancelled():
        done.exception()  # looked at, also when all its readers have gone
