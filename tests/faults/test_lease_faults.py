"""Runners are killed, stopped, cut off and blocked; who is called dead, and when (I3, I6).

Lock and lease are two defences, and so are the local deadline and the dead row: each test says
which of them works alone. Where the lock works, the lease is a minute long and proves nothing.
"""

import asyncio
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from common.bus.client import Bus
from common.bus.signals import Signals
from common.db.engine import Database
from common.db.migrate import migrate
from common.errors import Unavailable
from deploy.embedded import PostgresServer
from deploy.process import spawn
from deploy.state import StateFolder
from runner.lease import LOOP_STALLED, NOT_RENEWED
from runner.reaper import LastLook, Reaper
from tests.support.leases import LeaseProcess, Witness, end, lease_process, until, witness
from tests.support.proxy import Proxy

FAR_S = 60.0
SHORT_S = 4.0


@pytest.fixture
async def seen(database_url: str) -> AsyncIterator[Witness]:
    async with witness(database_url) as found:
        yield found


@pytest.fixture
async def signals(redis_url: str, redis_prefix: str) -> AsyncIterator[Signals]:
    bus = Bus(redis_url, prefix=redis_prefix)
    yield Signals(bus)
    await bus.aclose()


@asynccontextmanager
async def a_reaper(
    url: str, signals: Signals, *, grace_s: float = 0.3, ttl_s: float = 0.0
) -> AsyncIterator[Reaper]:
    """`ttl_s`: how long after a start of Postgres free locks do not count."""
    database = Database(url, application_name="reaper", pool_size=1)
    reaper = Reaper(
        database=database,
        signals=signals,
        lease_ttl_s=ttl_s,
        reap_interval_s=0.1,
        reap_grace_s=grace_s,
        last_look=LastLook(lambda: 0.0),  # it never misses a look, however slow the machine is
    )
    try:
        yield reaper
    finally:
        await database.aclose()


@asynccontextmanager
async def reaping(url: str, signals: Signals) -> AsyncIterator[None]:
    """Somebody looks for dead runners all the time."""
    async with a_reaper(url, signals) as reaper:
        running = asyncio.create_task(reaper.run())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


# --- the lock alone


async def test_a_killed_runner_is_handed_back_while_its_lease_still_lasts(
    database_url: str, seen: Witness, signals: Signals
) -> None:
    async with lease_process(database_url, ttl_s=FAR_S) as child, reaping(database_url, signals):
        run_id = await seen.give_run(child.runner)
        child.kill()
        await until(lambda: seen.is_handed_back(run_id))
        assert not (await seen.runner(child.runner))["over"]
        run = await seen.run(run_id)
        assert (run["attempts"], run["resume_reason"]) == (1, "failover")


async def test_a_living_runner_whose_session_is_terminated_again_and_again_is_not_dead(
    database_url: str, seen: Witness, signals: Signals
) -> None:
    async with (
        lease_process(database_url, ttl_s=FAR_S) as child,
        a_reaper(database_url, signals, grace_s=5.0) as reaper,
    ):
        run_id = await seen.give_run(child.runner)
        for _ in range(8):
            pid = await seen.lock_pid(child.slot)
            assert pid is not None
            await seen.terminate(pid)
            await until(partial(has_other_lock, seen, reaper, child, pid))
        assert not await seen.is_dead(child.runner)
        assert (await seen.run(run_id))["runner_id"] == child.runner


async def has_other_lock(
    seen: Witness, reaper: Reaper, child: LeaseProcess, former: int | None
) -> bool:
    """While a reaper looks, all the time."""
    await reaper.look()
    return await seen.lock_pid(child.slot) not in (None, former)


# --- the lease alone


async def test_a_stopped_runner_is_handed_back_when_its_lease_is_over(
    database_url: str, seen: Witness, signals: Signals
) -> None:
    """Its lock stays held; continued, it learns that it is lost and begins a new life."""
    async with lease_process(database_url, ttl_s=SHORT_S) as child, reaping(database_url, signals):
        former = child.runner
        run_id = await seen.give_run(former)
        child.stop()
        await until(lambda: seen.is_handed_back(run_id))
        assert (await seen.runner(former))["expired_first"]
        await until(lambda: has_no_session(seen, former))
        child.go_on()
        assert (await child.hears("lost"))["runner"] == former
        assert (await child.hears("held"))["runner"] != former
        assert await seen.is_handed_back(run_id)


async def has_no_session(seen: Witness, runner_id: str) -> bool:
    return await seen.sessions(runner_id) == 0


async def test_a_killed_runner_without_a_lock_is_handed_back_when_its_lease_is_over(
    database_url: str, seen: Witness, signals: Signals
) -> None:
    async with (
        lease_process(database_url, ttl_s=SHORT_S, death_notice="lease") as child,
        reaping(database_url, signals),
    ):
        run_id = await seen.give_run(child.runner)
        child.kill()
        await until(lambda: seen.is_handed_back(run_id))
        assert (await seen.runner(child.runner))["expired_first"]


async def test_a_killed_runner_whose_child_keeps_the_lock_is_handed_back_after_its_lease(
    database_url: str, seen: Witness, signals: Signals
) -> None:
    async with lease_process(database_url, ttl_s=SHORT_S) as child, reaping(database_url, signals):
        run_id = await seen.give_run(child.runner)
        child.order("fork")
        heir = (await child.hears("forked"))["pid"]
        try:
            child.kill()
            await child.process.wait()
            assert await seen.lock_pid(child.slot) is not None
            await until(lambda: seen.is_handed_back(run_id))
            assert (await seen.runner(child.runner))["expired_first"]
        finally:
            end(heir)


# --- the event loop


async def test_a_graph_that_blocks_the_loop_longer_than_a_lease_keeps_it(
    database_url: str, seen: Witness, signals: Signals
) -> None:
    async with lease_process(database_url, ttl_s=SHORT_S) as child, reaping(database_url, signals):
        run_id = await seen.give_run(child.runner)
        child.order("block")
        await child.hears("blocked")
        first = (await seen.runner(child.runner))["lease_until"]

        async def is_renewed_beyond() -> bool:
            row = await seen.runner(child.runner)
            return bool(row["lease_until"] > first + timedelta(seconds=SHORT_S + 1))

        await until(is_renewed_beyond)
        child.unblock()
        await child.hears("unblocked")
        assert "lost" not in child.said
        assert (await seen.run(run_id))["runner_id"] == child.runner


async def test_a_loop_that_stands_still_too_long_gives_its_runs_away(
    database_url: str, seen: Witness, signals: Signals
) -> None:
    """Though thread, lock and session are all well."""
    async with (
        lease_process(database_url, ttl_s=SHORT_S, loop_stall_max_s=1.0) as child,
        reaping(database_url, signals),
    ):
        former = child.runner
        run_id = await seen.give_run(former)
        child.order("block")
        assert (await child.hears("lost"))["reason"] == LOOP_STALLED
        await until(lambda: seen.is_handed_back(run_id))
        child.unblock()
        assert (await child.hears("held"))["runner"] != former


# --- the local deadline alone: nobody reaps


async def test_a_runner_that_is_cut_off_stops_by_itself_before_its_lease_is_over(
    database_url: str, seen: Witness
) -> None:
    """The thread hangs in the driver meanwhile."""
    async with Proxy(database_url) as network, lease_process(network.url, ttl_s=8.0) as child:
        former = child.runner
        network.stall()
        assert (await child.hears("lost"))["reason"] == NOT_RENEWED
        row = await seen.runner(former)
        assert (row["dead_at"], row["over"]) == (None, False)
        network.resume()
        assert (await child.hears("held"))["runner"] != former


async def test_a_short_absence_of_postgres_changes_nothing(
    database_url: str, seen: Witness
) -> None:
    async with Proxy(database_url) as network, lease_process(network.url, ttl_s=FAR_S) as child:
        tried = network.accepted
        network.refusing = True
        await network.cut()

        async def has_tried() -> bool:
            return network.accepted > tried + 5

        await until(has_tried)
        network.refusing = False

        async def has_lock() -> bool:
            return await seen.lock_pid(child.slot) is not None

        await until(has_lock)
        assert "lost" not in child.said
        child.order("stop")
        await child.hears("ended")
        assert await seen.is_dead(child.runner)


async def test_a_runner_can_end_while_postgres_does_not_answer(
    database_url: str, seen: Witness
) -> None:
    """Its lease runs out by itself then."""
    async with Proxy(database_url) as network, lease_process(network.url, ttl_s=FAR_S) as child:
        network.stall()
        child.order("stop")
        await child.hears("ended")
        await child.process.wait()
        assert "lost" not in child.said
        assert not await seen.is_dead(child.runner)


# --- Postgres restarts


@contextmanager
def private_postgres() -> Iterator["Restartable"]:
    folder = Path(tempfile.mkdtemp(prefix="steadyrun-test-"))
    folder.chmod(0o755)  # when we are root, Postgres runs as somebody else
    with StateFolder.open(folder) as state:
        server = Restartable(PostgresServer(state, durable=False))
        server.start()
        try:
            yield server
        finally:
            server.end()
            shutil.rmtree(folder, ignore_errors=True)


class Restartable:
    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        self._server = server
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        self._server.prepare()
        self._process = spawn(self._server.command())
        while not self._server.is_ready(self._process.pid):
            assert self._process.poll() is None, "Postgres does not start"

    def end(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


@pytest.mark.parametrize(
    ("grace_s", "ttl_s"),
    [pytest.param(10.0, 0.0, id="the grace alone"), pytest.param(0.0, 30.0, id="the start alone")],
)
@pytest.mark.timeout(120)
async def test_nobody_is_dead_after_a_restart_of_postgres(
    grace_s: float, ttl_s: float, signals: Signals
) -> None:
    """All locks are free for a moment, and a reaper looks at just that moment."""
    with private_postgres() as postgres:
        migrate(postgres.url)
        async with (
            lease_process(postgres.url, ttl_s=FAR_S) as one,
            lease_process(postgres.url, ttl_s=FAR_S) as other,
            a_reaper(postgres.url, signals, grace_s=grace_s, ttl_s=ttl_s) as reaper,
        ):
            await reaper.look()
            postgres.end()
            postgres.start()
            async with witness(postgres.url) as seen:
                await until(lambda: all_locked(seen, reaper, one, other))
                for child in (one, other):
                    assert not await seen.is_dead(child.runner)


async def all_locked(seen: Witness, reaper: Reaper, *children: LeaseProcess) -> bool:
    """While a reaper looks, as soon as it can."""
    with suppress(Unavailable):
        await reaper.look()
    return all([await seen.lock_pid(child.slot) for child in children])
