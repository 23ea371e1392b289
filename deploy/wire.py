"""The HTTP side of a terminal client: requests that may be repeated, streams that go on.

A run does not depend on its stream. Whenever a connection breaks, the stream is asked for again
from the last event that arrived whole (`Last-Event-ID`), with growing pauses; and every POST has an
idempotency key that is the same at each attempt, so a lost answer is simply asked for again.
"""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from common.errors import Refused, SteadyrunError
from common.events import TERMINAL
from common.sse import Decoder

Json = dict[str, Any]

_HEARTBEATS_MISSED_S = 35.0  # the gateway sends something every 10 s
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 5.0
_LATER = frozenset({429, 502, 503, 504})
_PAUSES = frozenset({"interrupt", "run_paused"})


class Unreachable(SteadyrunError):
    """Nothing answers, and we have tried for long."""


@dataclass(slots=True)
class Patience:
    """Pauses between attempts that bring nothing: they double, with jitter, until it is enough."""

    attempts_max: int
    sleep: Callable[[float], None] = time.sleep
    attempts: int = 0

    def wait(self, cause: str, at_least_s: float = 0.0) -> None:
        """Raises Unreachable when the last attempt was the last one."""
        self.attempts += 1
        if self.attempts >= self.attempts_max:
            raise Unreachable(cause)
        longest = min(_PAUSE_MAX_S, _PAUSE_MIN_S * 2**self.attempts)
        self.sleep(max(at_least_s, random.uniform(longest / 2, longest)))

    def renew(self) -> None:
        self.attempts = 0


class Wire:
    """Calls one gateway address (or nginx) as one user."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: Callable[[int], Patience] = Patience,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(10.0, read=_HEARTBEATS_MISSED_S),
            transport=transport,
        )
        self._url = url
        self._patience = patience

    def close(self) -> None:
        self._http.close()

    def chat(self, body: Json) -> "EventStream":
        """`POST /api/chat`: the stream of the run that it starts."""
        return self._stream(None, self._keyed("/api/chat", body))

    def follow(self, run_id: str, after: int) -> "EventStream":
        """The events after `after`, until the run waits or has ended."""
        return self._stream(run_id, None, after)

    def get(self, path: str) -> Json:
        return self._answer(self._http.build_request("GET", path))

    def post(self, path: str, body: Json) -> Json:
        """Raises Refused with the problem's code when it is refused (contract §4)."""
        return self._answer(self._keyed(path, body))

    def _keyed(self, path: str, body: Json) -> httpx.Request:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._http.build_request("POST", path, json=body, headers=headers)

    def _stream(
        self, run_id: str | None, first: httpx.Request | None, after: int = 0
    ) -> "EventStream":
        return EventStream(self._http, self._patience(12), run_id, first, after)

    def _answer(self, request: httpx.Request) -> Json:
        patience = self._patience(6)
        while True:
            try:
                response = self._http.send(request)
            except httpx.TransportError as error:
                patience.wait(f"{self._url} does not answer ({type(error).__name__})")
                continue
            if response.status_code not in _LATER:
                return _json(response)
            patience.wait(f"{self._url} answers {response.status_code}", _retry_after_s(response))


class EventStream:
    """The events of one run, each once and in order, over as many connections as it takes.

    Iteration ends when the run waits for a person, is paused, or has ended. `run_id` is known with
    the first response.
    """

    def __init__(
        self,
        http: httpx.Client,
        patience: Patience,
        run_id: str | None,
        first: httpx.Request | None,
        after: int,
    ) -> None:
        self.run_id = run_id
        self._http = http
        self._patience = patience
        self._first = first
        self._cursor = after
        self._last_type = ""

    def __iter__(self) -> Iterator[Json]:
        while True:
            cause, at_least_s = "the stream was cut", 0.0
            try:
                response = self._http.send(self._request(), stream=True)
                try:
                    if response.status_code in _LATER:
                        cause = f"the server answers {response.status_code}"
                        at_least_s = _retry_after_s(response)
                    else:
                        yield from self._events(response)
                        return
                finally:
                    response.close()
            except httpx.TransportError as error:
                cause = f"nothing answers at {self._http.base_url} ({type(error).__name__})"
            if self._is_complete():
                return
            self._patience.wait(cause, at_least_s)

    def _request(self) -> httpx.Request:
        """The POST until it has been answered, then the run's events from the cursor on."""
        if self.run_id is None and self._first is not None:
            self._first.headers["Accept"] = "text/event-stream"
            return self._first
        headers = {"Last-Event-ID": str(self._cursor), "Accept": "text/event-stream"}
        path = f"/api/runs/{self.run_id}/events"
        return self._http.build_request("GET", path, params={"until": "interrupt"}, headers=headers)

    def _events(self, response: httpx.Response) -> Iterator[Json]:
        if response.status_code == 204:
            return
        if response.status_code != 200:
            response.read()
            _json(response)
        self.run_id = self.run_id or _run_id(response)
        decoder = Decoder()
        for count, chunk in enumerate(response.iter_bytes()):
            if count:  # more than the greeting of a connection: it was of use
                self._patience.renew()
            for frame in decoder.feed(chunk):
                yield from self._take(json.loads(frame.data))
        if self._last_type not in TERMINAL | _PAUSES:
            raise httpx.RemoteProtocolError("ended before the run paused or ended")

    def _take(self, event: Json) -> Iterator[Json]:
        """A replay after a cut may begin with what we know already."""
        if event["sequence"] > self._cursor:
            self._cursor, self._last_type = event["sequence"], event["type"]
            self._patience.renew()
            yield event

    def _is_complete(self) -> bool:
        """Whether a cut came after the last event there is for now: then nothing more would come.

        A pause may consist of several events, so only the run itself can tell.
        """
        if self._last_type in TERMINAL:
            return True
        if self._last_type not in _PAUSES:
            return False
        try:
            run = _json(self._http.get(f"/api/runs/{self.run_id}"))
        except (httpx.TransportError, SteadyrunError):
            return False
        return bool(run["status"] == "interrupted" and run["lastSequence"] == self._cursor)


def _json(response: httpx.Response) -> Json:
    """The body, or Refused for a problem (RFC 9457)."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    if response.is_success and isinstance(body, Mapping):
        return dict(body)
    known = {k: v for k, v in body.items() if k not in ("type", "title", "status")}
    code = known.pop("code", "INTERNAL")
    raise Refused(code, known.pop("detail", f"HTTP {response.status_code}"), **known)


def _run_id(response: httpx.Response) -> str:
    """A streaming POST names its run in `Content-Location` (contract §9)."""
    return str(response.headers["Content-Location"]).rstrip("/").rpartition("/")[2]


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return float(response.headers.get("Retry-After", 0))
    except ValueError:
        return 0.0
