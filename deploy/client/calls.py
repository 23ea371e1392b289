"""Requests that may be repeated: the part of the client that speaks HTTP.

Every POST has an idempotency key that is the same at each attempt, so a lost answer is simply asked
for again (contract §4). Where a server says "later" (429, 502, 503, 504 with `Retry-After`) or none
answers, it is tried again with growing pauses; everything else is an answer.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from common.errors import Refused, SteadyrunError

Json = dict[str, Any]
TokenSource = Callable[[], Awaitable[str]]
Sleep = Callable[[float], Awaitable[None]]

LATER = frozenset({429, 502, 503, 504})
HEARTBEATS_MISSED_S = 35.0  # the gateway sends something every 10 s
ATTEMPTS_MAX = 6
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 5.0
_NEWS_AFTER, _NEWS_S = 3, 1.0  # attempts in vain, which are about a second; or one that lasts


class Unreachable(SteadyrunError):
    """Nothing answers, and we have tried for long."""


@dataclass(slots=True)
class Patience:
    """Pauses between attempts that bring nothing: they double, with jitter, until it is enough.

    `told` hears the cause once, when it is no short break any more: several attempts, or one that
    is not answered.
    """

    attempts_max: int
    sleep: Sleep = asyncio.sleep
    told: Callable[[str], object] | None = None
    attempts: int = 0
    has_told: bool = False

    @contextmanager
    def attempt(self, url: str) -> Iterator[None]:
        """Around one attempt, until it is answered."""
        late = asyncio.get_running_loop().call_later(
            _NEWS_S, self._tell, f"no answer yet from {url}"
        )
        try:
            yield
        finally:
            late.cancel()

    async def wait(self, cause: str, at_least_s: float = 0.0) -> None:
        """Raises Unreachable when the last attempt was the last one."""
        self.attempts += 1
        if self.attempts >= self.attempts_max:
            raise Unreachable(cause)
        if self.attempts >= _NEWS_AFTER:
            self._tell(cause)
        longest = min(_PAUSE_MAX_S, _PAUSE_MIN_S * 2**self.attempts)
        await self.sleep(max(at_least_s, random.uniform(longest / 2, longest)))

    def renew(self) -> None:
        self.attempts, self.has_told = 0, False

    def _tell(self, cause: str) -> None:
        if self.told and not self.has_told:
            self.has_told = True
            self.told(cause)


class Caller:
    """One address, one user. `token` is the bearer's, or gives it anew once it is refused."""

    def __init__(
        self,
        url: str,
        token: str | TokenSource,
        *,
        patience: Callable[[int], Patience] = Patience,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url
        self.patience = patience
        self._source = token if callable(token) else None
        self._token = None if callable(token) else token
        self._signing = asyncio.Lock()
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(10.0, read=HEARTBEATS_MISSED_S),
            limits=httpx.Limits(max_connections=None),  # a stream holds one for as long as it lasts
            transport=transport,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        """`key` None: a POST gets one of its own, kept at every attempt."""
        sent = {"Accept": "application/json"} | dict(headers or {})
        if method == "POST":
            sent["Idempotency-Key"] = key or uuid.uuid4().hex
        known = {name: value for name, value in (params or {}).items() if value is not None}
        return self._http.build_request(method, path, json=body, params=known, headers=sent)

    async def answered(self, request: httpx.Request) -> Json:
        """The body of a success. Raises Refused with the problem's code and what it carries, or
        Unreachable."""
        patience = self.patience(ATTEMPTS_MAX)
        while True:
            try:
                with patience.attempt(self.url):
                    response = await self.send(request)
            except httpx.TransportError as error:
                await patience.wait(f"{self.url} does not answer ({type(error).__name__})")
                continue
            if response.status_code not in LATER:
                return read(response)
            cause = f"{self.url} answers {response.status_code}"
            await patience.wait(cause, retry_after_s(response))

    async def send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """One attempt; a second one with a new token where the old one is refused."""
        used = await self._sign(request)
        response = await self._http.send(request, stream=stream)
        if response.status_code == 401 and self._source is not None:
            await response.aclose()
            await self._sign(request, refused=used)
            response = await self._http.send(request, stream=stream)
        return response

    async def _sign(self, request: httpx.Request, refused: str | None = None) -> str | None:
        """The token, made anew once for all whose old one was refused."""
        async with self._signing:
            if self._token == refused and self._source is not None:
                self._token = await self._source()
        request.headers["Authorization"] = f"Bearer {self._token}"
        return self._token


def read(response: httpx.Response) -> Json:
    """The body, or Refused for a problem (RFC 9457); an answer without a body is empty."""
    try:
        body = response.json() if response.content else {}
    except ValueError:
        body = None
    if response.is_success and isinstance(body, Mapping):
        return dict(body)
    known = dict(body) if isinstance(body, Mapping) else {}
    extra = {name: known[name] for name in known if name not in ("type", "title", "status")}
    code = extra.pop("code", "INTERNAL")
    raise Refused(code, extra.pop("detail", f"HTTP {response.status_code}"), **extra)


def retry_after_s(response: httpx.Response) -> float:
    try:
        return float(response.headers.get("Retry-After", 0))
    except ValueError:
        return 0.0
