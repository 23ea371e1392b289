"""Two conversations, their runs, the processes that own them, and every fault, one at a time.

All acts are the product's own code on real servers (owners_process.py for what a runner does).
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from common.batch import Batch
from common.bus.log import LogReader
from common.bus.names import head_key, log_key
from common.bus.signals import Signals
from common.db import archive, interrupts, runners, runs
from common.db.runs import ClaimedRun
from common.errors import LeaseLost
from common.ownership import Act, OwnerActs, open_log
from common.runs import TERMINAL_STATUSES, CancelReason, OnConflict
from gateway.metrics import Metrics
from gateway.services.history import History
from tests.integration.owners_process import (
    BLOCK,
    Died,
    Dies,
    End,
    Incarnated,
    Owner,
    Process,
    Servers,
    Watched,
    dies_at_commit,
)
from tests.integration.owners_truth import Sight, Truth, Violation, follow, frames_of, look, take
from tests.support.rows import GRAPH, conversation, new_run, runner

PROCESSES, READERS = 3, 3


@dataclass
class World:
    servers: Servers
    truth: Truth = field(default_factory=Truth)
    conversations: list[str] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    runner_ids: list[str] = field(default_factory=list)
    cursors: dict[tuple[int, str], int] = field(default_factory=dict)
    said: int = 0
    incarnation: int = 1
    copied: dict[str, bytes | None] = field(default_factory=dict)

    async def begin(self) -> None:
        servers = self.servers
        async with servers.eye.connect() as connection:
            await connection.rows("DELETE FROM conversations")  # of earlier histories
            await connection.rows("DELETE FROM runners")
            self.conversations = [await conversation(connection) for _ in range(2)]
        self.gateway_log = self._log()
        self.acts = OwnerActs(servers.gateway, self.gateway_log, Signals(servers.bus))
        self.history = History(servers.eye, LogReader(servers.bus), Metrics())
        self.processes = [self._process(pool) for pool in servers.pools]

    async def aclose(self) -> None:
        for log in self._logs():
            await log.aclose()

    def _logs(self) -> list[Incarnated]:
        return [self.gateway_log, *(process.log for process in self.processes)]

    def _log(self) -> Incarnated:
        log = Incarnated(self.servers.redis_url, prefix=self.servers.bus.prefix)
        log.incarnation = self.incarnation
        return log

    def _process(self, db: Watched) -> Process:
        return Process.start(db, self._log(), self.servers.bus, self.servers.settings)

    async def look(self) -> Sight:
        async with self.servers.eye.connect() as connection:
            sight = await look(connection, self.servers.bus)
        self.truth.check(sight)
        for owner in self.owners:
            if owner.outlet.is_lost and not owner.dead and sight.holds(*owner.key):
                raise Violation(f"{owner.key} was stopped though it holds its run")
        return sight

    # from outside

    async def create(self, which: int, how: OnConflict) -> None:
        async with self.servers.gateway.begin() as connection:
            await runs.create(connection, new_run(self.conversations[which], on_conflict=how))

    async def cancel(self, run_id: str, reason: CancelReason, dies: Dies = "no") -> None:
        """`storing` and `stored`: the process dies before and after the commit."""
        async with self.servers.eye.connect() as connection:
            run = await runs.find(connection, run_id)
        assert run is not None
        if dies == "no":
            await self.acts.cancel(run, reason)
            return
        with suppress(Died):
            async with self.servers.gateway.begin() as connection:
                await runs.request_cancel(connection, run.id, reason)
                locked = await runs.lock(connection, run.id)
                assert locked is not None
                await self.acts.end(connection, locked, locked.cancel_requested or reason)
                if dies == "storing":
                    raise Died

    async def sweep(self) -> None:
        """What any process does from time to time for those who died in between."""
        async with self.servers.eye.connect() as connection:
            found = await runs.to_cancel(connection, 0)
        for run in found:
            assert run.cancel_requested is not None
            await self.acts.cancel(run, run.cancel_requested)

    async def decide(self, interrupt_id: str, by: str, *, rejects: bool, told: bool) -> None:
        act: Act | None = None
        async with self.servers.gateway.begin() as connection:
            row = await interrupts.find(connection, interrupt_id)
            assert row is not None
            run = await runs.lock(connection, row.run_id)
            assert run is not None
            answer = None if rejects else {"value": by}
            won = await interrupts.decide(
                connection, row.id, decision={"by": by}, answer=answer, by=by
            )
            if won is not None and not rejects:
                act = await self.acts.resolve(connection, run)
            elif won is not None:
                act = await self.acts.end(connection, run, "rejected")
                if act is None:
                    await runs.request_cancel(connection, run.id, "rejected")
        if won is not None:
            self.truth.wins(interrupt_id, by)
        if act is not None and told:
            await self.acts.tell(act)

    async def expire_question(self, interrupt_id: str) -> None:
        async with self.servers.eye.connect() as connection:
            await connection.rows(
                "UPDATE interrupts SET expires_at = clock_timestamp() - interval '1 second'"
                " WHERE id = $1 AND status = 'pending'",
                interrupt_id,
            )
            row = await interrupts.find(connection, interrupt_id)
        if row is not None and row.status == "pending":
            await self.cancel(row.run_id, "expired")

    async def go_on(self, run_id: str) -> None:
        """From a breakpoint."""
        async with self.servers.gateway.begin() as connection:
            run = await runs.lock(connection, run_id)
            pending = await interrupts.of_run(connection, run_id, "pending")
            act = None if pending or run is None else await self.acts.resolve(connection, run)
        if act is not None:
            await self.acts.tell(act)

    # runners

    async def expire(self, runner_id: str | None) -> None:
        async with self.servers.eye.connect() as connection:
            await connection.rows(
                "UPDATE runners SET lease_until = now() - interval '1 second'"
                " WHERE id = $1 AND dead_at IS NULL",
                runner_id,
            )

    async def renew(self, process: Process) -> None:
        if process.runner_id is not None:
            async with process.db.connect() as connection:
                await runners.renew(connection, process.runner_id, 60.0)

    async def reap(self) -> None:
        async with self.servers.eye.connect() as connection:
            await runners.reap(connection, 3600.0, 3600.0)

    async def die(self, number: int) -> None:
        """Nothing of it acts any more; its lease stands."""
        process = self.processes[number]
        await process.log.aclose()
        process.db.at_commit = None
        self.processes[number] = self._process(process.db)
        self._end(process)

    def _end(self, process: Process) -> None:
        for owner in self.owners:
            if owner.process is process and not owner.dead:
                owner.dead = True
                owner.outlet.lose()

    async def lose(self, number: int) -> None:
        """Its lease is over and others know it; it does not know."""
        await self.expire(self.processes[number].runner_id)
        await self.reap()

    async def claim(self, number: int, limit: int, dies: Dies) -> None:
        process = self.processes[number]
        await self._enlist(process)
        await process.log.connect()
        async with process.db.begin() as connection:
            claimed = await runs.claim(
                connection, process.runner_id or "", [GRAPH], limit, BLOCK, process.log.identity
            )
        for run in claimed if dies != "claimed" else ():
            if dies == "opened" and run.epoch > 1:
                await open_log(process.db, process.log, run)
            elif dies != "opened":
                await self._open(process, run, dies)
        if dies != "no":
            await self.die(number)

    async def _enlist(self, process: Process) -> None:
        """Under a new id if the last one is dead; what it held then is no longer its business."""
        async with self.servers.eye.connect() as connection:
            living = await connection.rows(
                "SELECT 1 FROM runners WHERE id = $1 AND dead_at IS NULL"
                " AND lease_until > clock_timestamp()",
                process.runner_id,
            )
            if not living:
                self._end(process)
                process.runner_id = await runner(connection)
                self.runner_ids.append(process.runner_id)

    async def _open(self, process: Process, run: ClaimedRun, dies: Dies) -> None:
        if dies in ("opening", "storing"):
            process.db.at_commit = dies_at_commit(1 if dies == "opening" else 2)
        with suppress(Died):
            self.owners.append(await process.open(run))
        process.db.at_commit = None

    def say(self, owner: Owner, count: int) -> None:
        owner.say(*range(self.said, self.said + count))
        self.said += count

    async def tell_decisions(self, owner: Owner) -> None:
        with suppress(LeaseLost):
            await owner.storing.tell_decisions()

    async def settle(self, owner: Owner, end: End, dies: Dies = "no") -> bool:
        """While its transaction is open, the process sends and everybody looks."""

        async def at_commit() -> None:
            if owner.outlet.generation == owner.process.log.generation:
                await owner.process.send(rounds=1)
            await self.look()
            if dies == "storing":
                raise Died

        row = self.truth.last.rows[owner.run.id]
        reason = cast(CancelReason, row.cancel_requested or "user")
        owner.process.db.at_commit = at_commit
        try:
            return await owner.settle("cancelled" if row.rollback else end, reason)
        except (LeaseLost, Died):
            return False
        finally:
            owner.process.db.at_commit = None

    async def try_everything(self, owner: Owner) -> None:
        stored = self.truth.last.archives[owner.run.id]
        top = stored[-1].last if stored else 0
        if any(let := await owner.try_everything(top, self._asked(owner.run.id))):
            raise Violation(f"{owner.key} was let: {let}")

    def _asked(self, run_id: str) -> list[str]:
        return [one.id for one in self.truth.last.questions.values() if one.run_id == run_id]

    # faults of Redis

    def _keys(self) -> list[str]:
        prefix = self.servers.bus.prefix
        return [key(prefix, one) for one in self.truth.last.rows for key in (log_key, head_key)]

    async def flush(self) -> None:
        if keys := self._keys():
            await self.servers.bus.call("DEL", *keys)
        self.copied = {}

    async def copy(self) -> None:
        """What a replica has got so far."""
        keys = self._keys()
        dumps = await self.servers.bus.batch(*(("DUMP", key) for key in keys))
        self.copied = dict(zip(keys, dumps, strict=True))

    async def fail_over(self) -> None:
        """To the replica, which lacks what came since."""
        kept = {key: dump for key, dump in self.copied.items() if dump is not None}
        if keys := self._keys():
            await self.servers.bus.call("DEL", *keys)
        for key, dump in kept.items():
            await self.servers.bus.call("RESTORE", key, 0, dump)
        self.incarnation += 1
        for log in self._logs():
            log.incarnation = self.incarnation
            await log.aclose()

    # readers

    async def read(self, reader: int, run_id: str, source: str) -> None:
        """Until it leads on no more."""
        cursor = self.cursors.get((reader, run_id), 0)
        while batches := await self._batches(run_id, cursor, source):
            before = cursor
            for one in batches:
                if one.takes(cursor):
                    for frame in frames_of(one, cursor):
                        self.truth.read(run_id, frame)
                    cursor = take(cursor, one)
            if cursor == before:
                break
        self.cursors[reader, run_id] = cursor

    async def _batches(self, run_id: str, cursor: int, source: str) -> list[Batch]:
        if source == "redis":
            return await LogReader(self.servers.bus).read(run_id, cursor, 3)
        async with self.servers.eye.connect() as connection:
            if source == "archive":
                return await archive.read(connection, run_id, cursor, 3)
            top = await archive.top(connection, run_id)
        return await self.history.read(run_id, cursor, 3, top)

    # the end

    async def finish(self) -> None:
        """All that is left comes to its end, and so do all who read it."""
        for runner_id in self.runner_ids:
            await self.expire(runner_id)
        await self.reap()
        for _ in range(40):
            sight = await self.look()
            if all(row.status in TERMINAL_STATUSES for row in sight.rows.values()):
                return await self._finish_readers(sight)
            await self._finish_some(sight)
        raise Violation(f"runs do not end: {sight.rows}")

    async def _finish_some(self, sight: Sight) -> None:
        await self.sweep()
        for one in sight.questions.values():
            if one.status == "pending":
                await self.decide(one.id, "late", rejects=False, told=True)
        for run_id in sight.rows:
            await self.go_on(run_id)
        await self.look()
        await self.claim(0, 99, "no")
        sight = await self.look()
        for owner in self.owners:
            if not owner.dead and sight.holds(*owner.key):
                await owner.take_answers()
                await self.settle(owner, "done")
        await self.processes[0].send()

    async def _finish_readers(self, sight: Sight) -> None:
        for run_id, stored in sight.archives.items():
            for reader in range(READERS):
                await self.read(reader, run_id, "both")
            ends = {self.cursors[reader, run_id] for reader in range(READERS)}
            if ends != {follow(0, stored)}:
                raise Violation(f"readers of {run_id} ended at {ends}, the run at {stored[-1]}")
