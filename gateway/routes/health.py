"""Alive, ready, counted; and a token for the demo (contract §4)."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import jwt
from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from common.errors import Refused, Unavailable
from gateway.metrics import Metrics
from gateway.problems import problem
from gateway.schemas import TokenOut
from gateway.services.fleet import FleetLook

_CHECK_TIMEOUT_S = 2.0
_DISPENSABLE = {"redis"}
_DEMO_TTL = timedelta(hours=12)
DEMO_USER = "demo"

Checks = dict[str, Callable[[], Awaitable[None]]]


def router(checks: Checks, metrics: Metrics, fleet: FleetLook, demo: "Demo") -> APIRouter:
    routes = APIRouter(tags=["operation"])

    @routes.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz")
    async def readyz() -> Response:
        """503 with what is missing; a draining gateway is not ready.

        Without Redis a gateway serves from the archive. It says so and stays ready: else all of
        them would be taken away at once, and with them what still works.
        """
        states = await asyncio.gather(*map(_checked, checks.values()))
        found = dict(zip(checks, states, strict=True))
        missing = {name for name, state in found.items() if state != "ok"}
        if missing <= _DISPENSABLE:
            status = "degraded" if missing else "ready"
            return JSONResponse({"status": status, "checks": found})
        return problem("UNAVAILABLE", "not ready", extra={"checks": found})

    @routes.get("/metrics", include_in_schema=False)
    async def scrape() -> Response:
        await fleet.refresh()
        return Response(metrics.render(), media_type=metrics.content_type)

    @routes.post("/api/demo-token")
    async def demo_token() -> TokenOut:
        return demo.token()

    return routes


async def _checked(check: Callable[[], Awaitable[None]]) -> str:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            await check()
    except (Unavailable, TimeoutError):
        return "unavailable"
    return "ok"


class Demo:
    """A token for the demo user, only while the secret is the one that `up` generated."""

    def __init__(self, secret: str | None, permissions: list[str]) -> None:
        self._secret, self._permissions = secret, permissions

    def token(self) -> TokenOut:
        if self._secret is None:
            raise Refused("NOT_FOUND", "this installation hands out no demo tokens")
        expires_at = datetime.now(UTC) + _DEMO_TTL
        claims = {"sub": DEMO_USER, "permissions": self._permissions, "exp": expires_at}
        token = jwt.encode(claims, self._secret, algorithm="HS256")
        return TokenOut(token=token, user=DEMO_USER, expires_at=expires_at)
