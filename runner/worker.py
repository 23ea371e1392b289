"""Claims runs and executes several at once; keeps what it executes and what Postgres says equal.

A wake-up over Redis makes claiming quick, a poll makes it safe to lose. At each heartbeat one query
tells what this runner holds: what it executes but does not hold was taken over, what it holds but
does not execute (the answer to a claim was lost) is given back, and cancellations are seen.
"""

import asyncio
import random
from dataclasses import dataclass

import structlog

from common.bus.signals import Order
from common.db import runs
from common.db.runs import ClaimedRun
from common.errors import Unavailable
from common.runs import CancelReason
from runner.execution import Execution
from runner.kit import Kit
from runner.leaving import unless

log = structlog.get_logger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
HAND_OVER_LIMIT_S = 5.0  # for the grace of a graph that is cancelled, and for Postgres


_Held = tuple[str, int]
"""Run and epoch: one run can be here twice, while an older execution of it still leaves."""


@dataclass(slots=True)
class _Slot:
    execution: Execution
    task: "asyncio.Task[None]"


class Worker:
    """One life of a runner: `run` until cancelled, or `drain` first."""

    def __init__(self, kit: Kit, runner_id: str) -> None:
        self._kit = kit
        self._runner_id = runner_id
        self._slots: dict[_Held, _Slot] = {}
        self._unheld_once: set[_Held] = set()
        self._crashed: set[_Held] = set()
        self._wake = asyncio.Event()
        self._wake_heartbeat = asyncio.Event()
        self._freed = asyncio.Event()
        self._draining = False

    @property
    def executing(self) -> int:
        return len(self._slots)

    @property
    def executed(self) -> list[ClaimedRun]:
        """As of their claims."""
        return [slot.execution.claimed for slot in self._slots.values()]

    def wake(self) -> None:
        """Something was queued."""
        self._wake.set()

    def order(self, order: Order) -> None:
        """A signal about one of our runs; the heartbeat would see the same a little later."""
        if order.act == "cancel":
            self._wake_heartbeat.set()
            return
        for (run_id, _), slot in self._slots.items():
            if run_id == order.run_id:
                slot.execution.decided()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._claiming = group.create_task(self._claim_forever())
                group.create_task(self._heartbeat_forever())
        finally:
            self._slots.clear()

    def lose_all(self) -> None:
        """The lease is over: nothing that runs here may go on."""
        for slot in self._slots.values():
            slot.execution.lose()

    async def drain(self, timeout_s: float, hurry: asyncio.Event) -> None:
        """Claim nothing more; hand every run over, at a step boundary if it comes in time and
        before `hurry` is set."""
        self._draining = True
        self._wake.set()
        self._freed.set()
        await asyncio.wait({self._claiming}, timeout=timeout_s)  # a claim may be under way
        for slot in self._slots.values():
            slot.execution.drain()
        await unless(hurry, self._wait_until_idle(timeout_s))
        for slot in self._slots.values():
            slot.execution.hand_over()
        await self._wait_until_idle(HAND_OVER_LIMIT_S)
        await self._return_all(HAND_OVER_LIMIT_S)

    async def _return_all(self, within_s: float) -> None:
        """What could not be handed over: not charged. Raises Unavailable when that lasts."""
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            try:
                async with self._kit.db.connect() as conn:
                    held = await runs.owned(conn, self._runner_id)
                for run_id, (epoch, _) in held.items():
                    await self._return(run_id, epoch)
                return
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.2)

    async def _wait_until_idle(self, timeout_s: float) -> None:
        tasks = [slot.task for slot in self._slots.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    # claiming

    async def _claim_forever(self) -> None:
        while not self._draining:
            self._wake.clear()
            self._freed.clear()
            if await self._claim() == 0:
                await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        """For a wake-up while there is room, else for room; the poll serves both."""
        event = self._wake if self._room() else self._freed
        poll_s = self._kit.settings.claim_poll_s * random.uniform(0.8, 1.2)
        try:
            async with asyncio.timeout(poll_s):
                await event.wait()
        except TimeoutError:
            return

    def _room(self) -> int:
        return self._kit.settings.runner_concurrency - len(self._slots)

    async def _claim(self) -> int:
        """How many runs were claimed. Postgres away: none, and a pause."""
        room = self._room()
        if room <= 0:
            return 0
        try:
            claimed = await self._claimed(room)
        except Unavailable:
            await asyncio.sleep(0.2)
            return 0
        for run in claimed:
            self._execute(run)
        return len(claimed)

    async def _claimed(self, room: int) -> list[ClaimedRun]:
        kit = self._kit
        async with kit.db.connect() as conn:
            return await runs.claim(
                conn,
                self._runner_id,
                graphs=list(kit.registry.names),
                limit=room,
                reserve=kit.settings.sequence_block,
                redis_identity=kit.bus_log.identity or None,
                timeouts_s={name: kit.timeout_s(name) for name in kit.registry.names},
                attempts_max=kit.settings.attempts_max,
            )

    def _execute(self, run: ClaimedRun) -> None:
        self._kit.metrics.claimed(run.resume_reason, run.updated_at - run.queued_at)
        execution = Execution(self._kit, run)
        if run.cancel_requested is not None:
            execution.cancel(run.cancel_requested)  # nothing of it is executed any more
        elif self._draining:
            execution.hand_over()
        task = self._group.create_task(execution.run())
        self._slots[run.id, run.epoch] = _Slot(execution, task)
        task.add_done_callback(lambda _: self._free(execution))

    def _free(self, execution: Execution) -> None:
        held = execution.claimed.id, execution.claimed.epoch
        self._slots.pop(held, None)
        if execution.crashed:
            self._crashed.add(held)
        self._freed.set()

    # the heartbeat

    async def _heartbeat_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._wake_heartbeat.wait()
            except TimeoutError:
                pass
            self._wake_heartbeat.clear()
            try:
                await self._heartbeat()
            except Unavailable:
                log.warning("heartbeat_failed")

    async def _heartbeat(self) -> None:
        executing = list(self._slots.items())
        async with self._kit.db.connect() as conn:
            held = await runs.owned(conn, self._runner_id)
        for (run_id, _), slot in executing:
            self._compare(slot.execution, held.get(run_id))
        await self._give_back({(run_id, epoch) for run_id, (epoch, _) in held.items()})

    def _compare(self, execution: Execution, held: tuple[int, CancelReason | None] | None) -> None:
        if held is None or held[0] != execution.claimed.epoch:
            execution.lose()  # or it has just ended by itself, then this says nothing
        elif held[1] is not None:
            execution.cancel(held[1])

    async def _give_back(self, held: set[_Held]) -> None:
        """Runs that are ours but executed by nobody, seen twice: a claim whose answer was lost, or
        an execution that left its run because Postgres was away."""
        unexecuted = held - self._slots.keys()
        again, self._unheld_once = unexecuted & self._unheld_once, unexecuted
        self._crashed &= held
        for run_id, epoch in again:
            await self._return(run_id, epoch)

    async def _return(self, run_id: str, epoch: int) -> None:
        charged = (run_id, epoch) in self._crashed
        log.warning("run_given_back", run_id=run_id, epoch=epoch, charged=charged)
        async with self._kit.db.connect() as conn:
            await runs.give_back(conn, run_id, epoch, charged=charged)
        await self._kit.signals.wake(run_id)
