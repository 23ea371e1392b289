"""The addresses by which a drill's clients reach the system, and who they say they are."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from deploy.signing import sign
from deploy.topology import Topology

_TOKEN_TTL_S = 12 * 3600.0
_TIMEOUT = httpx.Timeout(10.0, connect=2.0, read=30.0, pool=None)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=2.0)

NO_ANSWER = (httpx.TransportError, OSError)
LATER = frozenset({429, 502, 503, 504})
"""Statuses after which the same is tried again."""


class Doors:
    """nginx and every gateway that was ever seen: one that is dead right now refuses, as it does
    to a client that knows it only by its address."""

    def __init__(self, topology: Callable[[], Topology], http: httpx.AsyncClient) -> None:
        self.http = http
        self._topology = topology
        self._gateways: dict[str, str] = {}
        self._tokens: dict[str, str] = {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, topology: Callable[[], Topology]) -> AsyncIterator["Doors"]:
        async with httpx.AsyncClient(timeout=_TIMEOUT, limits=_LIMITS, trust_env=False) as http:
            yield cls(topology, http)

    def any(self, rng: random.Random) -> str:
        """Half of the time the way that users come: nginx."""
        now = self._topology()
        self._gateways |= {p.name: p.url for p in now.of("gateway") if p.url}
        gateways = [self._gateways[name] for name in sorted(self._gateways)]
        choice = rng.random()
        return rng.choice(gateways) if gateways and choice < 0.5 else now.url

    def identity(self, user: str) -> dict[str, str]:
        """The headers of this user."""
        if user not in self._tokens:
            secret = self._topology().jwt_secret
            self._tokens[user] = sign(secret, user, [], ttl_s=_TOKEN_TTL_S)
        return {"Authorization": f"Bearer {self._tokens[user]}"}
