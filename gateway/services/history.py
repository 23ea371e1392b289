"""The log of a run from where it is kept: the Redis stream, then the archive.

Redis first: what it does not have any more was archived before it was trimmed. A Redis that cannot
be reached is not asked again for a moment, and few reads are under way at once: after a reconnect
thousands of followers want to read, and pools that time out would look like missing servers. Each
server has places of its own, so that one that answers does not wait for one that is away.
"""

import asyncio
from collections.abc import Sequence

from common.batch import Batch
from common.bus.log import LogReader
from common.db import archive
from common.db.engine import Database
from common.errors import Refused, Unavailable
from gateway.metrics import Metrics

_AWAY_S = 1.0
_READS_AT_ONCE = 4


class History:
    def __init__(self, db: Database, log: LogReader, metrics: Metrics) -> None:
        self._db, self._log, self._metrics = db, log, metrics
        self._away_until = float("-inf")
        self._redis_places = asyncio.Semaphore(_READS_AT_ONCE)
        self._archive_places = asyncio.Semaphore(_READS_AT_ONCE)

    @property
    def redis_away(self) -> bool:
        return asyncio.get_running_loop().time() < self._away_until

    async def read(self, run_id: str, after: int, count: int, archived: int = 0) -> list[Batch]:
        """Up to `count` batches, the first of which follows `after`; empty: nothing newer yet.

        `archived`: what Postgres was seen to have; a Redis that knows less is not believed. Refuses
        with HISTORY_EXPIRED; raises Unavailable when neither server answers.
        """
        async with self._redis_places:
            batches = await self._from_redis(run_id, after, count, archived)
        if batches is None or (batches and batches[0].after > after):
            later_known = bool(batches) or archived > after
            async with self._archive_places:
                batches = await self._from_archive(run_id, after, count, later_known)
        return batches

    async def tops(self, run_ids: Sequence[str]) -> dict[str, tuple[int, bool]]:
        """(archive's top, has ended) of every run that still exists."""
        async with self._db.connect() as connection:
            return await archive.tops(connection, run_ids)

    async def _from_redis(
        self, run_id: str, after: int, count: int, archived: int
    ) -> list[Batch] | None:
        """None: Redis cannot tell, the archive must be asked."""
        if self.redis_away:
            return None
        try:
            batches = await self._log.read(run_id, after, count)
            known = bool(batches) or (archived <= after and await self._log.top(run_id) == after)
        except Unavailable:
            self._away_until = asyncio.get_running_loop().time() + _AWAY_S
            return None
        self._metrics.fills.labels("redis").inc()
        return batches if known else None

    async def _from_archive(
        self, run_id: str, after: int, count: int, later_known: bool
    ) -> list[Batch]:
        """`later_known`: there are, or have been, events after `after`."""
        async with self._db.connect() as connection:
            batches = await archive.read(connection, run_id, after, count)
        self._metrics.fills.labels("archive").inc()
        if batches[0].after > after if batches else later_known:
            raise Refused("HISTORY_EXPIRED", "events after this sequence are not kept any more")
        return batches
