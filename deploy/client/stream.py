"""The events of one run, each once and in order, over as many connections as it takes.

A run does not depend on its stream. Whenever a connection breaks, or ends before the event that was
asked for, the stream is asked for again from the last event that arrived whole (`Last-Event-ID`).
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Literal

import httpx

from common.events import TERMINAL
from common.sse import Decoder
from deploy.client.calls import LATER, Caller, read, retry_after_s
from deploy.client.events import Event

Until = Literal["interrupt", "end"]

ATTEMPTS_MAX = 12
_PAUSES = frozenset({"interrupt", "run_paused"})
_LOST = (httpx.TransportError, httpx.StreamError)


class RunStream:
    """An asynchronous iterator of events.

    It ends when the run has ended; with `until="interrupt"` also when the run waits for a person or
    at a breakpoint. `run_id` is known with the first response, `cursor` is the sequence of the last
    event that was given. Raises Refused (contract §4; 404, 410, …) or Unreachable.
    Leaving the loop early harms nothing; `aclose` then closes the connection at once.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        run_id: str | None = None,
        first: httpx.Request | None = None,
        after: int = 0,
        until: Until = "end",
    ) -> None:
        self.run_id = run_id
        self.cursor = after
        self._caller = caller
        self._first = first
        self._until = until
        self._patience = caller.patience(ATTEMPTS_MAX)
        self._last_type = ""
        self._events = self._follow()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def aclose(self) -> None:
        await self._events.aclose()

    async def _follow(self) -> AsyncGenerator[Event]:
        while True:
            cause, at_least_s = "the stream was cut", 0.0
            try:
                with self._patience.attempt(self._caller.url):
                    response = await self._caller.send(self._request(), stream=True)
                try:
                    if response.status_code not in LATER:
                        async for event in self._read(response):
                            yield event
                        return
                    cause = f"the server answers {response.status_code}"
                    at_least_s = retry_after_s(response)
                finally:
                    await response.aclose()
            except _LOST as error:
                cause = f"nothing answers at {self._caller.url} ({type(error).__name__})"
            if await self._is_complete():
                return
            await self._patience.wait(cause, at_least_s)

    def _request(self) -> httpx.Request:
        """The POST until it has been answered, then the run's events from the cursor on."""
        if self.run_id is None and self._first is not None:
            return self._first
        headers = {"Last-Event-ID": str(self.cursor), "Accept": "text/event-stream"}
        path, params = f"/api/runs/{self.run_id}/events", {"until": self._until}
        return self._caller.request("GET", path, params=params, headers=headers)

    async def _read(self, response: httpx.Response) -> AsyncGenerator[Event]:
        if response.status_code == 204:
            return
        if response.status_code != 200:
            await response.aread()
            read(response)
        if self.run_id is None:
            self.run_id = _run_id(response)
        decoder, greeted = Decoder(), False
        async for chunk in response.aiter_bytes():
            if greeted:  # more than the greeting of a connection: it was of use
                self._patience.renew()
            greeted = True
            for frame in decoder.feed(chunk):
                for event in self._take(json.loads(frame.data)):
                    yield event
        if not self._is_at_its_end:
            raise httpx.RemoteProtocolError("ended before the event that was asked for")

    def _take(self, event: Event) -> Iterator[Event]:
        """A replay after a cut may begin with what we know already."""
        if event["sequence"] > self.cursor:
            self.cursor, self._last_type = event["sequence"], event["type"]
            self._patience.renew()
            yield event

    @property
    def _is_at_its_end(self) -> bool:
        pauses = self._until == "interrupt" and self._last_type in _PAUSES
        return pauses or self._last_type in TERMINAL

    async def _is_complete(self) -> bool:
        """Whether a cut came after the last event there is for now: then nothing more would come.

        A pause may consist of several events, so only the run itself can tell; and it has to be
        asked until it answers, since a stream from the end of a pause waits for what follows it.
        """
        if self._last_type in TERMINAL or not self._is_at_its_end:
            return self._last_type in TERMINAL
        run = await self._caller.answered(self._caller.request("GET", f"/api/runs/{self.run_id}"))
        return bool(run["status"] == "interrupted" and run["lastSequence"] == self.cursor)


def _run_id(response: httpx.Response) -> str:
    """A streaming POST names its run in `Content-Location` (contract §9)."""
    return response.headers["Content-Location"].rstrip("/").rpartition("/")[2]
