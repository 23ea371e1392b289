"""Removes what is older than the settings want to keep (I8; the acts are common/db/retention).

Every runner cleans, in small portions and passing over what another one works on.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from common.db import retention
from common.db.engine import Connection, Database
from common.settings import RunnerSettings
from runner.housekeeping import keep_house
from runner.session_saver import prune
from runner.sessions import Sessions

_PORTION = 100
_THREADS_MAX = 200  # a look: the other acts shall have their turn


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds; None keeps for ever. `events` and `runs` count from a run's end, the others from
    the last use of the conversation."""

    events_s: float | None = None
    runs_s: float | None = None
    conversations_s: float | None = None
    checkpoints_s: float | None = None

    @classmethod
    def of(cls, settings: RunnerSettings) -> "Retention":
        return cls(
            settings.events_retention_s,
            settings.runs_retention_s,
            settings.conversations_retention_s,
            settings.checkpoints_retention_s,
        )


class Cleaner:
    def __init__(
        self, db: Database, sessions: Sessions, keep: Retention, interval_s: float
    ) -> None:
        self._db, self._sessions, self._keep, self._interval_s = db, sessions, keep, interval_s

    async def run(self) -> None:
        """Ends by cancellation."""
        await keep_house("clean", self.clean, self._interval_s, spread=0.5)

    async def clean(self) -> None:
        """All that is too old by now."""
        keep = self._keep
        if keep.conversations_s is not None:
            await self._each(keep.conversations_s, self._drop_conversation)
        if keep.runs_s is not None:
            await self._portions(keep.runs_s, retention.drop_runs)
        if keep.events_s is not None:
            await self._portions(keep.events_s, retention.drop_events)
        if keep.checkpoints_s is not None:
            await self._each(keep.checkpoints_s, self._prune_one)

    async def _portions(
        self, keep_s: float, drop: Callable[[Connection, float, int], Awaitable[int]]
    ) -> None:
        dropped = _PORTION
        while dropped == _PORTION:
            async with self._db.connect() as connection:
                dropped = await drop(connection, keep_s, _PORTION)

    async def _each(self, keep_s: float, act: Callable[[float], Awaitable[bool]]) -> None:
        for _ in range(_THREADS_MAX):
            if not await act(keep_s):
                return

    async def _drop_conversation(self, keep_s: float) -> bool:
        async with self._db.begin() as connection:
            return await retention.drop_conversation(connection, keep_s)

    async def _prune_one(self, keep_s: float) -> bool:
        """Of one thread all but the newest checkpoints, while no run can begin there. One that
        somebody else changes meanwhile is left to a later look."""
        async with self._db.begin() as connection:
            thread_id = await retention.lock_to_prune(connection, keep_s)
            if thread_id is None or not await prune(self._sessions, thread_id):
                return False
            await retention.note_pruned(connection, thread_id)
        return True
