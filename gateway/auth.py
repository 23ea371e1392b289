"""Who is asking: bearer tokens (JWT) and tickets for one stream (contract §4).

Identity comes from the token of this very request alone. Each key is bound to its algorithms before
a token is looked at: a shared secret verifies HS256 only, published keys RS256 and ES256 only, so a
token cannot choose to have a public key used as a secret.
"""

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import httpx
import jwt
from anyio import Path

from common.db.values import is_storable
from common.errors import Refused, Unavailable

_TICKET_AUDIENCE = "steadyrun:ticket"
_SUBJECT_CHARACTERS_MAX = 255
_LEEWAY_S = 5


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller and what it may do, as its token says."""

    user: str
    permissions: frozenset[str]

    def holds(self, permission: str | None) -> bool:
        return permission is None or permission in self.permissions

    def stored(self) -> dict[str, Any]:
        """As `runs.principal` keeps it for the graph's context."""
        return {"user": self.user, "permissions": sorted(self.permissions)}


class Keys(Protocol):
    """Where the key of a token comes from."""

    @property
    def algorithms(self) -> tuple[str, ...]: ...

    async def find(self, key_id: str | None) -> jwt.PyJWK | str | None: ...


class SharedSecret:
    algorithms = ("HS256",)

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def find(self, key_id: str | None) -> str:
        return self._secret


class PublishedKeys:
    """A JWKS behind a URL or in a file, read when first needed and when a key id is unknown.

    Unknown key ids come from anybody, so they cause at most one read in `refresh_min_s`. Keys are
    read anew after `age_max_s`, so that one which was withdrawn stops being good; while the server
    is away the old ones serve.
    """

    algorithms = ("RS256", "ES256")

    def __init__(
        self,
        url: str,
        *,
        refresh_min_s: float = 10,
        age_max_s: float = 600,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._refresh_min_s, self._age_max_s, self._clock = refresh_min_s, age_max_s, clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._read_at, self._tried_at = float("-inf"), float("-inf")
        self._lock = asyncio.Lock()

    async def find(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key, or None when the set does not have it; Unavailable without any set."""
        if not self._knows(key_id):
            async with self._lock:
                if not self._knows(key_id) and self._may_try():
                    await self._refresh()
        if not self._keys:
            raise Unavailable("the key server")
        return self._keys.get(key_id)

    def _knows(self, key_id: str | None) -> bool:
        return key_id in self._keys and self._clock() - self._read_at <= self._age_max_s

    def _may_try(self) -> bool:
        wait_s = self._refresh_min_s if self._keys else 1
        return self._clock() - self._tried_at >= wait_s

    async def _refresh(self) -> None:
        self._tried_at = self._clock()
        try:
            self._keys = _usable(await self._read(), self.algorithms)
        except (httpx.HTTPError, OSError, ValueError):
            return
        self._read_at = self._tried_at

    async def _read(self) -> Any:
        if self._url.startswith("file://"):
            return json.loads(await Path(self._url.removeprefix("file://")).read_bytes())
        async with httpx.AsyncClient(timeout=5, follow_redirects=False) as client:
            response = await client.get(self._url)
        response.raise_for_status()
        return json.loads(response.content)


def _usable(document: Any, algorithms: tuple[str, ...]) -> dict[str | None, jwt.PyJWK]:
    """The keys by id; those for encryption or of other algorithms are left out."""
    keys: dict[str | None, jwt.PyJWK] = {}
    for entry in document["keys"] if isinstance(document, Mapping) else ():
        try:
            key = jwt.PyJWK(entry)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in algorithms and key.public_key_use in (None, "sig"):
            keys[key.key_id] = key
    return keys


class Authenticator:
    """Turns an `Authorization` header into a principal, or refuses with 401."""

    def __init__(self, keys: Keys, *, audience: str | None, issuer: str | None) -> None:
        self._keys, self._audience, self._issuer = keys, audience, issuer

    async def principal(self, authorization: str | None) -> Principal:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused("UNAUTHENTICATED", "a bearer token is needed")
        return principal_of(await self._claims(token.strip()))

    async def _claims(self, token: str) -> dict[str, Any]:
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = await self._keys.find(key_id)
            if key is None:
                raise jwt.InvalidKeyError("no such key")
            return jwt.decode(
                token,
                key,
                algorithms=list(self._keys.algorithms),
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "sub"], "verify_aud": self._audience is not None},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Refused("UNAUTHENTICATED", _why(error)) from error


def _why(error: Exception) -> str:
    if isinstance(error, jwt.ExpiredSignatureError):
        return "the token has expired"
    return "the token is not valid"


def principal_of(claims: Mapping[str, Any]) -> Principal:
    """`sub` and `permissions` (a list), else the words of `scope` (contract §4)."""
    user = claims.get("sub")
    if not isinstance(user, str) or not 0 < len(user) <= _SUBJECT_CHARACTERS_MAX:
        raise Refused("UNAUTHENTICATED", "the token names no user")
    granted = claims.get("permissions")
    if granted is None:
        scope = claims.get("scope", "")
        granted = scope.split() if isinstance(scope, str) else scope
    if isinstance(granted, str):
        granted = granted.split()
    if not isinstance(granted, list) or not all(isinstance(p, str) for p in granted):
        raise Refused("UNAUTHENTICATED", "the token's permissions are not a list of texts")
    if not is_storable([user, *granted]):
        raise Refused("UNAUTHENTICATED", "the token holds a character that cannot be stored")
    return Principal(user, frozenset(granted))


@dataclass(frozen=True, slots=True)
class Ticket:
    text: str
    expires_at: datetime


class Tickets:
    """Short-lived permission to open one run's stream as one user (`?ticket=`).

    Signed with a key derived from the secret, for an audience of their own: a ticket is never a
    bearer token and a bearer token never a ticket.
    """

    def __init__(self, secret: str, ttl_s: float) -> None:
        self._key = hmac.digest(secret.encode(), b"steadyrun ticket", "sha256")
        self._ttl_s = ttl_s

    def issue(self, run_id: str, principal: Principal) -> Ticket:
        expires_at = datetime.now(UTC) + timedelta(seconds=self._ttl_s)
        claims = {
            "aud": _TICKET_AUDIENCE,
            "run": run_id,
            "sub": principal.user,
            "permissions": sorted(principal.permissions),
            "exp": expires_at,
        }
        return Ticket(jwt.encode(claims, self._key, algorithm="HS256"), expires_at)

    def principal(self, text: str, run_id: str) -> Principal:
        """Who may open this run with it; 401 for any other run, and when it has expired."""
        try:
            claims = jwt.decode(
                text,
                self._key,
                algorithms=["HS256"],
                audience=_TICKET_AUDIENCE,
                options={"require": ["exp", "sub", "run"]},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise Refused("UNAUTHENTICATED", "the ticket is not valid any more") from error
        if claims["run"] != run_id:
            raise Refused("UNAUTHENTICATED", "the ticket is for another run")
        return principal_of(claims)
