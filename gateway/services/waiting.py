"""Calls that wait for a run: until it has stopped, or there is no use in waiting (contract §6).

A call waits like a stream reads: a follower of the run's log, up to the end of a pause or of the
run. Postgres is asked once before and once after; no connection to it is held meanwhile. A client
that has left, a drain and the time limit end the waiting, never the run.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from starlette.types import Receive

from common.db import runs
from common.db.engine import Database
from common.db.runs import Run
from common.errors import Refused
from gateway.services.answers import STATUS
from gateway.services.follow import Hub
from gateway.services.limits import StreamPlaces
from gateway.sse import Drain

Outcome = Literal["stopped", "late", "left", "drained"]


class Wait:
    """One waiting call. `over` is set by what ends it before the run has stopped."""

    def __init__(self, db: Database, hub: Hub) -> None:
        self._db, self._hub = db, hub
        self._over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def end(self, outcome: Outcome) -> None:
        if not self._over.done():
            self._over.set_result(outcome)

    def drain(self) -> None:
        self.end("drained")

    async def watch(self, receive: Receive) -> None:
        """Returns when the client has left."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end("left")

    async def until_stopped(self, run_id: str) -> Outcome:
        """The run waits for a person or has ended, by its row; or why we do not wait for that.

        Its row comes first, and its log is followed from what the row knows: whoever resumes the
        run meanwhile makes us wait for the next stop. Raises Refused when the run was deleted.
        """
        while STATUS[(run := await self._find(run_id)).status] == "running":
            if self._over.done():
                return self._over.result()
            await self._follow(run)
        return "stopped"

    async def _find(self, run_id: str) -> Run:
        async with self._db.connect() as connection:
            run = await runs.find(connection, run_id)
        if run is None:
            raise Refused("NOT_FOUND", "the run has been deleted")
        return run

    async def _follow(self, run: Run) -> None:
        """Up to the end of the next pause or of the run, or until this call is over."""
        known = run.last_sequence
        follower = await self._hub.follow(run.id, known, "interrupt", archived=known)
        self._over.add_done_callback(lambda _: follower.interrupt())
        try:
            while not self._over.done() and not (await follower.next()).ends:
                pass
        finally:
            follower.close()


class Waits:
    """Places for calls that wait: they count as the user's open streams."""

    def __init__(
        self, db: Database, hub: Hub, places: StreamPlaces, drain: Drain, wait_s: float
    ) -> None:
        self._db, self._hub, self._places, self._drain = db, hub, places, drain
        self.wait_s = wait_s

    @asynccontextmanager
    async def place(
        self, user: str, receive: Receive, within_s: float | None = None
    ) -> AsyncIterator[Wait]:
        """Taken before anything is done: a full house (429) or a drain (503) does nothing."""
        self._drain.refuse_new()
        slot = await self._places.take(user)
        wait, loop = Wait(self._db, self._hub), asyncio.get_running_loop()
        watcher = loop.create_task(wait.watch(receive))
        timer = loop.call_later(min(within_s or self.wait_s, self.wait_s), wait.end, "late")
        self._drain.enter(wait)
        try:
            yield wait
        finally:
            self._drain.leave(wait)
            timer.cancel()
            watcher.cancel()
            slot.free()
