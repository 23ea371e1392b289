"""The log of a run from where it is kept: the Redis stream, then the archive.

Redis first: what it does not have any more was archived before it was trimmed. While Redis is away,
or refuses, the archive alone is asked. Few reads are under way at once: after a reconnect thousands
of followers want to read, and pools that time out would look like missing servers. Each server has
places of its own, so that one that answers does not wait for one that does not. Nobody waits long
for a place: behind readers of a Postgres that stands still the last would wait for minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.batch import Batch
from common.bus.log import LogReader
from common.db import archive
from common.db.engine import Database
from common.errors import Refused, Unavailable
from gateway.metrics import Metrics

_REFUSED_S = 1.0  # how long a Redis that refused to be read is not asked again
_REDIS_READS_AT_ONCE = 32
_ARCHIVE_READS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Page:
    """Batches that follow each other. None of them and not `sure`: Redis has lost the log, so there
    may be more than the archive has yet."""

    batches: list[Batch]
    sure: bool = True


class History:
    """`place_wait_s`: how long a read of the archive waits for its turn, then it is Unavailable."""

    def __init__(
        self, db: Database, log: LogReader, metrics: Metrics, *, place_wait_s: float = 2.0
    ) -> None:
        self._db, self._log, self._metrics = db, log, metrics
        self._place_wait_s = place_wait_s
        self._refused_until = float("-inf")
        self._reading_redis = asyncio.Semaphore(_REDIS_READS_AT_ONCE)
        self._reading_archive = asyncio.Semaphore(_ARCHIVE_READS_AT_ONCE)

    @property
    def redis_away(self) -> bool:
        return self._log.away or asyncio.get_running_loop().time() < self._refused_until

    async def read(self, run_id: str, after: int, count: int, archived: int = 0) -> list[Batch]:
        """The batches of `look`."""
        return (await self.look(run_id, after, count, archived)).batches

    async def look(
        self, run_id: str, after: int, count: int, archived: int = 0, told: int = 0
    ) -> Page:
        """Up to `count` batches, the first of which follows `after`; empty: nothing newer yet.

        `archived`: what Postgres was seen to have; `told`: of what a live message spoke. A Redis
        that knows less of either is not believed. Refuses with HISTORY_EXPIRED; raises Unavailable
        when neither server answers.
        """
        batches = await self._from_redis(run_id, after, count, max(archived, told))
        if batches is not None and (not batches or batches[0].after <= after):
            return Page(batches)
        later_known = bool(batches) or archived > after
        found = await self._from_archive(run_id, after, count, later_known)
        return Page(found, sure=bool(found) or not after)

    async def tops(self, run_ids: Sequence[str]) -> dict[str, tuple[int, bool]]:
        """(archive's top, has ended) of every run that still exists."""
        async with self._db.connect() as connection:
            return await archive.tops(connection, run_ids)

    async def _from_redis(
        self, run_id: str, after: int, count: int, known: int
    ) -> list[Batch] | None:
        """None: Redis cannot tell, the archive must be asked."""
        async with self._reading_redis:
            if self.redis_away:
                return None
            try:
                batches = await self._log.read(run_id, after, count)
                tells = bool(batches) or (known <= after and await self._log.top(run_id) == after)
            except Unavailable:
                self._refused_until = asyncio.get_running_loop().time() + _REFUSED_S
                return None
        self._metrics.fills.labels("redis").inc()
        return batches if tells else None

    async def _from_archive(
        self, run_id: str, after: int, count: int, later_known: bool
    ) -> list[Batch]:
        """`later_known`: there are, or have been, events after `after`."""
        async with self._place_at_archive(), self._db.connect() as connection:
            batches = await archive.read(connection, run_id, after, count)
        self._metrics.fills.labels("archive").inc()
        if batches[0].after > after if batches else later_known:
            raise Refused("HISTORY_EXPIRED", "events after this sequence are not kept any more")
        return batches

    @asynccontextmanager
    async def _place_at_archive(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._place_wait_s):
                await self._reading_archive.acquire()
        except TimeoutError as error:
            raise Unavailable("Postgres") from error
        try:
            yield
        finally:
            self._reading_archive.release()
