"""A runner without graphs: what tests of the edge need to be told by one.

It claims, opens the log and writes events exactly as a runner does (common.ownership, the log's
connection, the archive), but only when a test says so.
"""

from collections.abc import Sequence
from typing import Any

from common.batch import Batch
from common.bus.log import Append, LogConnection
from common.db import archive, interrupts, messages, runs
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.db.messages import NewMessage
from common.db.runs import ClaimedRun, Ended
from common.events import Event, encode_frame, ends_of, utc_text
from common.ids import new_id
from common.ownership import open_log
from tests.support import rows

BLOCK = 1000
_ENDS = {
    "completed": Event("done", {"messageId": "m"}),
    "failed": Event("error", {"code": "GRAPH_ERROR", "message": "m", "retryable": False}),
    "cancelled": Event("cancelled", {"reason": "user"}),
}


class FakeRun:
    """A held run. `told` is all that was written, `buffer` what is not archived yet."""

    def __init__(self, db: Database, log: LogConnection, run: ClaimedRun, top: int) -> None:
        self.row = run
        self.top = top
        self.told: list[Batch] = []
        self.buffer: list[Batch] = []
        self._db, self._log = db, log

    @property
    def id(self) -> str:
        return self.row.id

    async def say(self, *texts: str) -> Batch:
        """One batch of `text_delta`s: log and live, not archived."""
        return await self.tell([Event("text_delta", {"messageId": "m", "delta": t}) for t in texts])

    async def tell(self, events: Sequence[Event]) -> Batch:
        batch = self.number(events)
        await self.publish(batch)
        return batch

    def number(self, events: Sequence[Event], jump: int = 0) -> Batch:
        """The next batch; it is in the buffer and nobody has heard of it."""
        first, at = self.top + 1 + jump, utc_text()
        frames = b"".join(
            encode_frame(event, run_id=self.id, sequence=n, epoch=self.row.epoch, at=at)
            for n, event in enumerate(events, first)
        )
        last = first + len(events) - 1
        batch = Batch(self.top, first, last, self.row.epoch, ends_of(list(events)), frames)
        self.top = last
        self.told.append(batch)
        self.buffer.append(batch)
        return batch

    async def publish(self, batch: Batch) -> None:
        [(answer, _)] = await self._log.append([Append(self.id, batch)])
        assert answer == "OK", answer

    async def archive(self) -> None:
        async with self._db.begin() as connection:
            assert await archive.append(connection, self.id, self.row.epoch, self.buffer)
        self.buffer.clear()

    async def ask(self, *questions: Any, publish: bool = True) -> list[Interrupt]:
        """Pause with these questions: rows, events and status in one transaction, then told."""
        async with self._db.begin() as connection:
            assert await runs.hold(connection, self.id, self.row.epoch)
            new = list(questions) or [rows.question()]
            stored = await interrupts.insert(connection, self.id, self.row.epoch, new)
            assert stored is not None
            batch = self.number([_asking(row) for row in stored])
            await self._store(connection)
            assert await runs.pause(
                connection, self.id, self.row.epoch, last_sequence=batch.last, next_nodes=["tools"]
            )
        await self._after(batch, publish=publish)
        return stored

    async def pause(self) -> None:
        """A static breakpoint."""
        async with self._db.begin() as connection:
            batch = self.number([Event("run_paused", {"reason": "breakpoint", "next": ["act"]})])
            await self._store(connection)
            assert await runs.pause(
                connection, self.id, self.row.epoch, last_sequence=batch.last, next_nodes=["act"]
            )
        await self._after(batch, publish=True)

    async def finish(self, *, publish: bool = True, said: Sequence[str] = (), **how: Any) -> Ended:
        """`said`: the assistant's messages, of which the last one is the answer; `how` is stored
        with the end (runs.finish)."""
        epoch = self.row.epoch
        new = [NewMessage(new_id("msg"), "assistant", text) for text in said]
        how = {"status": "completed", "message_id": new[-1].id if new else None} | how
        async with self._db.begin() as connection:
            batch = self.number([_ENDS[how["status"]]])
            await self._store(connection)
            assert await messages.replace(connection, self.id, epoch, new)
            ended = await runs.finish(connection, self.id, epoch, last_sequence=batch.last, **how)
            assert ended is not None
        await self._after(batch, publish=publish)
        return ended

    async def _store(self, connection: Any) -> None:
        assert await archive.append(connection, self.id, self.row.epoch, self.buffer)
        assert await runs.reserve(connection, self.id, self.row.epoch, self.top + BLOCK)

    async def _after(self, batch: Batch, *, publish: bool) -> None:
        self.buffer.clear()
        if publish:
            await self.publish(batch)


class FakeRunner:
    """One runner; `log` is its appending connection."""

    def __init__(self, db: Database, log: LogConnection) -> None:
        self.db, self.log = db, log
        self.id = new_id("rnr")

    async def take(self, run_id: str | None = None) -> FakeRun:
        """Claim the run that waits (the named one) and begin or go on with its log."""
        await self.log.connect()
        async with self.db.begin() as connection:
            self.id = await rows.runner(connection)
            claimed = await runs.claim(
                connection, self.id, [rows.GRAPH], 1, BLOCK, self.log.identity
            )
        [run] = [run for run in claimed if run_id in (None, run.id)]
        opened = await open_log(self.db, self.log, run, BLOCK)
        return FakeRun(self.db, self.log, run, opened.top)

    async def start(self, run_id: str | None = None) -> FakeRun:
        """The same, and `run_started` or `run_resumed` is told."""
        run = await self.take(run_id)
        if run.top == 0:
            began = {"conversationId": run.row.conversation_id, "graph": rows.GRAPH}
            await run.tell([Event("run_started", began)])
        else:
            await run.tell([Event("run_resumed", {"reason": "decision", "discard": []})])
        return run


def _asking(row: Interrupt) -> Event:
    return Event(
        "interrupt",
        {"interruptId": row.id, "interruptType": row.type, "payload": row.payload},
    )
