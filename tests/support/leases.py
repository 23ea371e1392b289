"""Processes that hold leases, and a witness who sees in the database what became of them."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from common.db.engine import Connection, Database
from common.db.runners import LOCK_CLASS, application_name
from common.ids import new_id

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0  # generous: the machine is shared

Seen = TypeVar("Seen")


async def until(look: Callable[[], Awaitable[Seen]], patience_s: float = PATIENCE_S) -> Seen:
    """The first answer of `look` that is true."""
    async with asyncio.timeout(patience_s):
        while True:
            if seen := await look():
                return seen
            await asyncio.sleep(0.02)


@dataclass
class LeaseProcess:
    """tests/support/lease_process.py, as a child. `runner` and `slot` are of its newest life."""

    process: asyncio.subprocess.Process
    runner: str = ""
    slot: int = 0
    said: list[str] = field(default_factory=list)

    async def hears(self, event: str) -> dict[str, Any]:
        """Reads on until the process says `event`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := await self.process.stdout.readline():
                said: dict[str, Any] = json.loads(line)
                self.said.append(said["event"])
                if said["event"] == "held":
                    self.runner, self.slot = said["runner"], said["slot"]
                if said["event"] == event:
                    return said
        raise AssertionError(f"the process ended before it said {event!r}")

    def order(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n".encode())

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def unblock(self) -> None:
        self.process.send_signal(signal.SIGUSR1)


@asynccontextmanager
async def lease_process(database_url: str, **settings: Any) -> AsyncIterator[LeaseProcess]:
    """A process that holds its lease already, by default of 6 s."""
    defaults = {"ttl_s": 6.0, "renew_interval_s": 0.5, "death_notice": "lock"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.lease_process"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    child = LeaseProcess(process)
    try:
        child.order(json.dumps({"database_url": database_url, **defaults, **settings}))
        await child.hears("held")
        yield child
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # closes the pipes


class Witness:
    """What another session sees."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def runner(self, runner_id: str) -> Any:
        """The row, with `over`: the lease alone would end it; `expired_first`: it did."""
        return await self._connection.row(
            "SELECT *, lease_until < clock_timestamp() AS over, dead_at >= lease_until AS"
            " expired_first FROM runners WHERE id = $1",
            runner_id,
        )

    async def is_dead(self, runner_id: str) -> bool:
        return (await self.runner(runner_id))["dead_at"] is not None

    async def lock_pid(self, slot: int) -> int | None:
        """The backend that holds the lock of this slot."""
        pid: int | None = await self._connection.value(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND classid::bigint = $1 AND objid::bigint = $2",
            LOCK_CLASS,
            slot,
        )
        return pid

    async def sessions(self, runner_id: str) -> int:
        count: int = await self._connection.value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1",
            application_name(runner_id),
        )
        return count

    async def terminate(self, pid: int) -> None:
        await self._connection.rows("SELECT pg_terminate_backend($1)", pid)

    async def execute(self, statement: str, *values: Any) -> None:
        await self._connection.rows(statement, *values)

    async def give_run(self, runner_id: str) -> str:
        """A run that this runner executes."""
        run_id, conversation_id = new_id("run"), new_id("conv")
        await self._connection.rows(
            "INSERT INTO conversations (id, user_id, title, graph) VALUES ($1, 'ann', 't', 'g')",
            conversation_id,
        )
        await self._connection.rows(
            "INSERT INTO runs (id, conversation_id, user_id, user_message_id, graph, status, epoch,"
            " runner_id, input, principal, on_disconnect) VALUES ($1, $2, 'ann', $3, 'g',"
            " 'running', 1, $4, '{}', '{}', 'continue')",
            *(run_id, conversation_id, new_id("msg"), runner_id),
        )
        return run_id

    async def run(self, run_id: str) -> Any:
        return await self._connection.row("SELECT * FROM runs WHERE id = $1", run_id)

    async def is_handed_back(self, run_id: str) -> bool:
        run = await self.run(run_id)
        return (run["status"], run["runner_id"]) == ("queued", None)


@asynccontextmanager
async def witness(database_url: str) -> AsyncIterator[Witness]:
    database = Database(database_url, application_name="witness", pool_size=1)
    try:
        async with database.connect() as connection:
            yield Witness(connection)
    finally:
        await database.aclose()


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
