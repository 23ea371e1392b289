"""Puts a runner together and lives its lives.

A life has one runner id, one lease and connections that carry the id in their name. When the lease
is lost for good everything of that life is dropped and a new one begins under a new id; a stop ends
the life by a drain.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import structlog

from common.bus.client import Bus
from common.bus.fanout import Subscriptions
from common.bus.log import LogConnection
from common.bus.presence import Presence
from common.bus.signals import Signals, read_order, runner_channel, wake_channel
from common.db import revision, runners
from common.db.engine import Database
from common.errors import Misconfigured, Unavailable
from common.ids import new_id
from common.masking import Masker
from common.ownership import OwnerActs
from common.settings import RunnerSettings
from common.starting import when_available
from common.tracing import Tracing
from runner.absence import Absence
from runner.attendance import INTERVAL_S, Attendance
from runner.cleaner import Cleaner, Retention
from runner.expirer import Expirer
from runner.guarding import Threads, task_factory
from runner.kit import Kit
from runner.lease import Lease
from runner.leaving import Leaving, unless
from runner.leftovers import Leftovers
from runner.metrics import Metrics, served
from runner.publisher import Publisher, PublisherLimits
from runner.questions import Questions
from runner.reaper import LastLook, Reaper
from runner.registry import Registry
from runner.renewal import check_renewal
from runner.sessions import Sessions
from runner.sweeper import Sweeper
from runner.worker import Worker

log = structlog.get_logger(__name__)

NEW_LIFE_PAUSE_S = 0.5
MEASURE_INTERVAL_S = 1.0
THREADS_MIN = 64  # they are made as they are needed


async def serve(
    settings: RunnerSettings,
    stop: asyncio.Event,
    metrics: Metrics | None = None,
    tracing: Tracing | None = None,
    hurry: asyncio.Event | None = None,
) -> str | None:
    """Until `stop` is set, or code of a run does not end: then the process must (it is the run
    that this answers). Once `hurry` is set the drain waits for no step boundary. Raises
    Misconfigured, or Unavailable if a server is missing at start."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_factory)
    loop.set_default_executor(Threads(max(THREADS_MIN, 4 * settings.runner_concurrency)))
    check_renewal(settings.lease_ttl_s, settings.lease_renew_interval_s)
    registry = Registry.load(settings.graphs)
    await registry.prepare()
    if not await unless(
        stop, when_available(lambda: _check_servers(settings), settings.start_patience_s)
    ):
        return None
    metrics = metrics or Metrics()
    with served(metrics, settings.metrics_host, settings.metrics_port):
        leaving = Leaving(stop, hurry or asyncio.Event())
        return await _live_until_stuck(settings, registry, leaving, metrics, tracing or Tracing())


async def _live_until_stuck(
    settings: RunnerSettings,
    registry: Registry,
    leaving: Leaving,
    metrics: Metrics,
    tracing: Tracing,
) -> str | None:
    leftovers = Leftovers(settings.stuck_patience_s)
    watching = asyncio.create_task(leftovers.watch())
    watching.add_done_callback(lambda _: leaving.stop.set())
    try:
        await _live_on(settings, registry, leftovers, leaving, metrics, tracing)
        return watching.result() if watching.done() else None
    finally:
        watching.cancel()


async def _live_on(
    settings: RunnerSettings,
    registry: Registry,
    leftovers: Leftovers,
    leaving: Leaving,
    metrics: Metrics,
    tracing: Tracing,
) -> None:
    last_look = LastLook()
    while not leaving.stop.is_set():
        try:
            await _Life(settings, registry, leftovers, leaving, last_look, metrics, tracing).live()
        except Unavailable as error:
            log.warning("life_ended", what=error.what)
            await unless(leaving.stop, asyncio.sleep(NEW_LIFE_PAUSE_S))


async def _check_servers(settings: RunnerSettings) -> None:
    database_url = settings.database_url.get_secret_value()
    db = Database(database_url, application_name="steadyrun:check", pool_size=1)
    bus = Bus(settings.redis_url.get_secret_value())
    try:
        await db.check()
        async with db.connect() as conn:
            if not await revision.is_ready(conn):
                raise Misconfigured("the database is not migrated: run `steadyrun migrate`")
        await bus.ping()
    finally:
        await db.aclose()
        await bus.aclose()


class _Life:
    """From registration to drain or loss."""

    def __init__(
        self,
        settings: RunnerSettings,
        registry: Registry,
        leftovers: Leftovers,
        leaving: Leaving,
        last_look: LastLook,
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        self._metrics, self._tracing = metrics, tracing
        self._last_look = last_look
        self._settings = settings
        self._registry = registry
        self._leftovers = leftovers
        self._leaving = leaving
        self._id = new_id("rnr")
        self._over = asyncio.Event()

    async def live(self) -> None:
        async with AsyncExitStack() as stack:
            await self._assemble(stack)
            log.info("runner_started", runner_id=self._id, graphs=self._registry.names)
            await self._until_over()
            log.info("runner_ended", runner_id=self._id, lost=self._lease.lost)

    async def _assemble(self, stack: AsyncExitStack) -> None:
        settings, name = self._settings, runners.application_name(self._id)
        database_url = settings.database_url.get_secret_value()
        redis_url = settings.redis_url.get_secret_value()
        prefix = settings.redis_prefix

        self._db = Database(
            database_url,
            application_name=name,
            pool_size=settings.runner_pool_size,
            timeout_s=settings.postgres_timeout_s,
        )
        stack.push_async_callback(self._db.aclose)
        sessions = Sessions(database_url, application_name=name, size=settings.checkpoint_pool_size)
        stack.push_async_callback(sessions.close)
        bus = Bus(redis_url, prefix=prefix, timeout_s=settings.redis_timeout_s)
        stack.push_async_callback(bus.aclose)
        bus_log = LogConnection(
            redis_url,
            prefix=prefix,
            ttl_s=settings.log_retention_s,
            ended_ttl_s=settings.ended_log_retention_s,
            timeout_s=settings.redis_timeout_s,
        )
        stack.push_async_callback(bus_log.aclose)

        masker = Masker(settings.masking_patterns)
        signals = Signals(bus)
        self._publisher = Publisher(
            self._db, bus_log, publisher_limits(settings), lambda: self._lease.held, self._metrics
        )
        kit = Kit(
            db=self._db,
            bus_log=bus_log,
            publisher=self._publisher,
            sessions=sessions,
            registry=self._registry,
            masker=masker,
            signals=signals,
            settings=settings,
            questions=Questions(self._registry, masker),
            may_execute=lambda: self._lease.held,
            leftovers=self._leftovers,
            metrics=self._metrics,
            tracing=self._tracing,
        )
        self._worker = Worker(kit, self._id)
        owner = OwnerActs(self._db, bus_log, signals)
        self._sweeper = Sweeper(self._db, owner, metrics=self._metrics)
        self._expirer = Expirer(self._db, owner, signals)
        self._attendance = self._attend(bus)
        self._subscriptions = Subscriptions(
            redis_url,
            bus,
            prefix=prefix,
            on_message=self._on_message,
            on_confirmed=lambda _: self._worker.wake(),
        )
        self._wake_channel = wake_channel(prefix)
        self._subscriptions.subscribe(self._wake_channel)
        self._subscriptions.subscribe(runner_channel(prefix, self._id))
        self._reaper = Reaper(
            database=self._db,
            signals=signals,
            lease_ttl_s=settings.lease_ttl_s,
            reap_interval_s=settings.reap_interval_s,
            reap_grace_s=settings.reap_grace_s,
            last_look=self._last_look,
            metrics=self._metrics,
        )
        self._cleaner = Cleaner(
            self._db, sessions, Retention.of(settings), settings.cleanup_interval_s
        )
        self._lease = await self._take_lease(database_url)

    def _attend(self, bus: Bus) -> Attendance:
        ttl_s, grace_s = self._settings.presence_ttl_s, self._settings.disconnect_grace_s
        absence = Absence(grace_s=grace_s, relearn_s=ttl_s + grace_s)
        presence = Presence(bus, ttl_s=ttl_s)
        return Attendance(
            self._db, presence, self._worker, absence, interval_s=min(INTERVAL_S, grace_s / 4)
        )

    async def _take_lease(self, database_url: str) -> Lease:
        settings = self._settings
        async with self._db.connect() as conn:
            slot = await runners.register(
                conn,
                id=self._id,
                host=socket.gethostname(),
                pid=os.getpid(),
                capacity=settings.runner_concurrency,
                ttl_s=settings.lease_ttl_s,
            )
        loop = asyncio.get_running_loop()

        def on_lost(reason: str) -> None:
            loop.call_soon_threadsafe(self._lose)

        lease = Lease(
            database_url=database_url,
            runner_id=self._id,
            slot=slot,
            ttl_s=settings.lease_ttl_s,
            renew_interval_s=settings.lease_renew_interval_s,
            death_notice=settings.death_notice,
            loop_stall_max_s=settings.loop_stall_max_s,
            on_lost=on_lost,
        )
        lease.start()
        return lease

    async def _until_over(self) -> None:
        """The loops of this life, until it is lost or drained."""
        loops = [
            self._lease.watch(),
            self._subscriptions.run(),
            self._publisher.run(),
            self._reaper.run(),
            self._worker.run(),
            self._attendance.run(),
            self._sweeper.run(),
            self._expirer.run(),
            self._cleaner.run(),
            self._measure(),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_root(loop)) for loop in loops]
                ends = [
                    group.create_task(event.wait()) for event in (self._leaving.stop, self._over)
                ]
                await asyncio.wait(ends, return_when="FIRST_COMPLETED")
                if not self._over.is_set():
                    await self._drain()
                for task in [*tasks, *ends]:
                    task.cancel()
        finally:
            await self._lease.stop()  # the last use of the database under this id

    async def _drain(self) -> None:
        """Hand every run over, tell what is left to tell, then leave. A Postgres that is away for a
        moment stops none of it."""
        log.info("draining", executing=self._worker.executing)
        for step in (
            self._note_drain,
            lambda: self._worker.drain(self._settings.drain_timeout_s, self._leaving.hurry),
            self._publisher.flush,
        ):
            try:
                await step()
            except Unavailable as error:
                log.warning("drain_incomplete", what=error.what)

    async def _note_drain(self) -> None:
        async with self._db.connect() as conn:
            await runners.drain(conn, self._id)

    async def _measure(self) -> None:
        """What only the loop can read; what grows while it stands still is read by scrapes."""
        metrics = self._metrics
        metrics.places.set(self._settings.runner_concurrency)
        while True:
            metrics.executing.set(self._worker.executing)
            metrics.held_bytes.set(self._publisher.held_bytes)
            metrics.redis_up.set(not self._publisher.redis_away)
            metrics.pubsub.set(self._subscriptions.healthy)
            metrics.leftovers.set(len(self._leftovers))
            await asyncio.sleep(MEASURE_INTERVAL_S)

    def _lose(self) -> None:
        self._metrics.leases_lost.inc()
        self._worker.lose_all()
        self._over.set()

    def _on_message(self, channel: str, payload: bytes) -> None:
        if channel == self._wake_channel:
            self._worker.wake()
        elif (order := read_order(payload)) is not None:
            self._worker.order(order)


async def _root(loop: Coroutine[Any, Any, object]) -> None:
    """A loop that fails ends the life loudly, with its traceback in the log."""
    try:
        await loop
    except Exception:
        log.exception("loop_failed")
        raise


def publisher_limits(settings: RunnerSettings) -> PublisherLimits:
    return PublisherLimits(
        window_s=settings.publish_window_s,
        archive_interval_s=settings.archive_interval_s,
        away_interval_s=min(0.25, settings.archive_interval_s),
        buffer_bytes_max=settings.buffer_bytes_max,
        fresh_s=settings.lease_ttl_s / 4,
    )
