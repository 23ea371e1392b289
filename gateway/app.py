"""The composition root of a gateway: everything is made here once and handed down.

Nothing connects before the lifespan begins; whatever is opened there is closed in reverse order.
"""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from common.bus.client import Bus
from common.bus.fanout import Subscriptions
from common.bus.log import LogConnection, LogReader
from common.bus.presence import Presence
from common.bus.roster import Roster
from common.bus.signals import Signals
from common.bus.usage import Places, Rate
from common.db import revision
from common.db.engine import Database
from common.errors import Misconfigured, Unavailable, Unusable
from common.graphfile import GraphFile
from common.masking import Masker
from common.ownership import OwnerActs
from common.settings import DEMO_PERMISSIONS, GatewaySettings
from common.tracing import Tracing
from gateway import openapi, problems
from gateway.auth import Authenticator, Keys, PublishedKeys, SharedSecret, Tickets
from gateway.front import Front
from gateway.metrics import Metrics
from gateway.middleware import BodyLimit, Requests
from gateway.routes import (
    agent,
    console,
    conversations,
    health,
    interrupts,
    operations,
    runs,
)
from gateway.routes.callers import caller
from gateway.routes.events import Events
from gateway.services.conversations import Conversations
from gateway.services.fleet import FleetLook
from gateway.services.follow import Channels, Hub
from gateway.services.history import History
from gateway.services.hooks import Hooks
from gateway.services.idempotency import Forgetting
from gateway.services.inbox import Inbox
from gateway.services.limits import RequestLimit, StreamPlaces
from gateway.services.operations import Operations
from gateway.services.resume import Resume
from gateway.services.roll import INTERVAL_S, Roll
from gateway.services.runs import Runs
from gateway.services.sessions import Sessions
from gateway.services.streams import Streams
from gateway.services.waiting import Waits
from gateway.services.watching import Watching
from gateway.sse import Drain, Pace, Slots

logger = structlog.get_logger(__name__)


class Gateway:
    """The parts of one gateway process, by what lives as long as it does."""

    def __init__(
        self, settings: GatewaySettings, graphs: GraphFile, tracing: Tracing | None = None
    ) -> None:
        self.tracing = tracing or Tracing()
        self.settings, self.graphs = settings, graphs
        self.metrics = Metrics()
        self.drain = Drain(settings.drain_window_s, settings.drain_delay_s)
        self.db = _database(settings)
        self.bus = _bus(settings)
        self.log = _log(settings)
        self.reader = LogReader(self.bus)
        self.history = History(
            self.db, self.reader, self.metrics, place_wait_s=settings.postgres_wait_s
        )
        self.hub = self._hub()
        self.slots = Slots(settings.streams_max, settings.streams_per_user_max, self.metrics)
        self.places = self._places()
        self.watching = self._watching()
        self.roster = Roster(self.bus, ttl_s=5 * INTERVAL_S)
        self.roll = Roll(self.roster, self.hub, self.metrics)
        self._following: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raises Misconfigured or Unavailable unless Postgres and Redis answer."""
        await self.db.check()
        async with self.db.connect() as connection:
            if not await revision.is_ready(connection):
                raise Misconfigured("the database is not migrated: run `steadyrun migrate`")
        await self.bus.ping()

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._following = asyncio.create_task(self._work())
        self._following.add_done_callback(_report)
        try:
            yield
        finally:
            self._following.cancel()
            await asyncio.wait({self._following})
            await self.log.aclose()
            await self.bus.aclose()
            await self.db.aclose()

    async def _work(self) -> None:
        """What runs beside the requests, until it is cancelled."""
        settings = self.settings
        forgetting = Forgetting(
            self.db, settings.idempotency_retention_s, settings.cleanup_interval_s
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self.hub.run())
            group.create_task(forgetting.run())
            group.create_task(self.watching.beat.run())
            group.create_task(self.roll.run())
            group.create_task(self.places.beat.run())

    def checks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {"postgres": self.db.ping, "redis": self.bus.ping, "gateway": self._serving}

    def leaving(self) -> bool:
        return self.drain.leaving

    async def _serving(self) -> None:
        if self.drain.leaving or self._following is None or self._following.done():
            raise Unavailable("the gateway")

    def _hub(self) -> Hub:
        settings = self.settings
        return Hub(
            self.history,
            self._channels,
            self.metrics,
            prefix=settings.redis_prefix,
            ring_bytes_max=settings.ring_bytes_max,
            linger_s=settings.follow_linger_s,
            check_interval_s=settings.heartbeat_interval_s,
        )

    def _places(self) -> StreamPlaces:
        ttl_s = self.settings.presence_ttl_s
        return StreamPlaces(
            self.slots,
            Places(self.bus, uuid.uuid4().hex, ttl_s=ttl_s),
            self.settings.user_streams_max,
            self.metrics,
            beat_interval_s=ttl_s / 3,
        )

    def request_limit(self) -> RequestLimit:
        most = self.settings.user_requests_per_minute_max
        return RequestLimit(Rate(self.bus, most) if most else None, self.db, self.metrics)

    def _watching(self) -> Watching:
        ttl_s, grace_s = self.settings.presence_ttl_s, self.settings.disconnect_grace_s
        presence = Presence(self.bus, ttl_s=ttl_s)
        # well within both: a Redis that forgot has it again before anybody misses it
        return Watching(presence, beat_interval_s=min(ttl_s / 3, grace_s / 2))

    def _channels(
        self, on_message: Callable[[str, bytes], None], on_confirmed: Callable[[str], None]
    ) -> Channels:
        return Subscriptions(
            self.settings.redis_url.get_secret_value(),
            self.bus,
            prefix=self.settings.redis_prefix,
            on_message=on_message,
            on_confirmed=on_confirmed,
            timeout_s=self.settings.redis_timeout_s,
        )


def create_app(
    settings: GatewaySettings, graphs: GraphFile, tracing: Tracing | None = None
) -> FastAPI:
    gateway = Gateway(settings, graphs, tracing)
    app = FastAPI(
        title="Steadyrun",
        version="1",
        summary="Runs LangGraph agents; streams what happens exactly.",
        lifespan=gateway.lifespan,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False},
        middleware=_middleware(gateway),
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.gateway = gateway
    problems.install(app)
    events = _add_routes(app, gateway)
    openapi.install(app)
    app.state.front = Front(app, events.get, events.route(), _around_streams(gateway))
    return app


def _add_routes(app: FastAPI, gateway: Gateway) -> Events:
    settings, db = gateway.settings, gateway.db
    secret = _secret(settings)
    authenticator = _authenticator(settings, secret)
    tickets = Tickets(secret, settings.ticket_ttl_s)
    limit = gateway.request_limit()
    asks = caller(authenticator, limit)
    signals = Signals(gateway.bus)
    owner = OwnerActs(db, gateway.log, signals)
    acts = Runs(
        db,
        gateway.reader,
        signals,
        owner,
        gateway.graphs,
        settings.content_bytes_max,
        gateway.metrics,
        settings.user_runs_max,
    )
    masker = Masker(settings.masking_patterns)
    hooks = Hooks(gateway.graphs, settings.guard_timeout_s, masker)
    places = max(1, settings.gateway_pool_size // 2)
    resume = Resume(db, owner, signals, hooks, masker, gateway.graphs, concurrency=places)
    pace = Pace(settings.heartbeat_interval_s, settings.send_timeout_s)
    streams = Streams(
        gateway.hub, gateway.places, gateway.drain, pace, gateway.metrics, gateway.watching
    )
    events = Events(acts, gateway.history, streams, authenticator, tickets, gateway.metrics, limit)
    demo = health.Demo(secret if settings.demo else None, list(DEMO_PERMISSIONS))
    app.router.routes += [events.route(), *console.routes(demo=settings.demo)]
    app.include_router(runs.router(acts, resume, streams, tickets, asks))
    app.include_router(conversations.router(Conversations(db, acts, gateway.graphs), asks))
    app.include_router(interrupts.router(Inbox(db, hooks), asks))
    sessions = Sessions(db, acts, resume, owner, gateway.graphs)
    waits = Waits(db, gateway.hub, gateway.places, gateway.drain, settings.sync_wait_s)
    app.include_router(agent.router(sessions, waits, asks))
    fleet = FleetLook(db, gateway.bus.ping, gateway.metrics)
    looks = Operations(db, gateway.roster, gateway.roll)
    app.include_router(operations.router(looks, asks))
    app.include_router(health.router(gateway.checks(), gateway.metrics, fleet, demo))
    return events


def _around_streams(gateway: Gateway) -> Callable[[ASGIApp], ASGIApp]:
    """What is around every request, less the limit of bodies: a stream's request has none."""

    def around(streams: ASGIApp) -> ASGIApp:
        app: ASGIApp = Requests(streams, gateway.metrics, gateway.leaving)
        if origins := gateway.settings.cors_origins:
            app = CORSMiddleware(app, **_cors(origins))
        return app

    return around


def _middleware(gateway: Gateway) -> list[Middleware]:
    settings = gateway.settings
    found: list[Middleware] = []
    if settings.cors_origins:
        found.append(Middleware(CORSMiddleware, **_cors(settings.cors_origins)))
    around: dict[str, Any] = {"metrics": gateway.metrics, "leaving": gateway.leaving}
    found.append(Middleware(Requests, tracing=gateway.tracing, **around))
    found.append(Middleware(BodyLimit, bytes_max=settings.body_bytes_max))
    return found


def _cors(origins: list[str]) -> dict[str, Any]:
    """Tokens travel in a header, so no credentials are allowed and `*` is harmless."""
    return {
        "allow_origins": origins,
        "allow_methods": ["GET", "POST", "PATCH", "DELETE"],
        "allow_headers": ["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
        "expose_headers": ["Location", "Content-Location", "Retry-After"],
    }


def _secret(settings: GatewaySettings) -> str:
    if settings.jwt_secret is None:
        raise Unusable(
            "STEADYRUN_JWT_SECRET is not set: it signs stream tickets, and tokens unless "
            "STEADYRUN_JWKS_URL is set; give every gateway the same 32 bytes or more"
        )
    return settings.jwt_secret.get_secret_value()


def _authenticator(settings: GatewaySettings, secret: str) -> Authenticator:
    """Published keys, when they are set, are the only ones: nobody signs with the secret then."""
    url = settings.jwks_url
    keys: Keys = PublishedKeys(url) if url else SharedSecret(secret)
    return Authenticator(keys, audience=settings.jwt_audience, issuer=settings.jwt_issuer)


def _database(settings: GatewaySettings) -> Database:
    return Database(
        settings.database_url.get_secret_value(),
        application_name="steadyrun:gateway",
        pool_size=settings.gateway_pool_size,
        timeout_s=settings.postgres_timeout_s,
        pool_timeout_s=settings.postgres_wait_s,
    )


def _bus(settings: GatewaySettings) -> Bus:
    return Bus(
        settings.redis_url.get_secret_value(),
        prefix=settings.redis_prefix,
        timeout_s=settings.redis_timeout_s,
    )


def _log(settings: GatewaySettings) -> LogConnection:
    return LogConnection(
        settings.redis_url.get_secret_value(),
        prefix=settings.redis_prefix,
        ttl_s=settings.log_retention_s,
        ended_ttl_s=settings.ended_log_retention_s,
        timeout_s=settings.redis_timeout_s,
    )


def _report(following: asyncio.Task[None]) -> None:
    """Without it streams would live on and say nothing: leave as on SIGTERM, so they are cut."""
    if not following.cancelled() and (error := following.exception()) is not None:
        logger.error("what runs beside the requests has ended", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)
