"""The client for a program without an event loop: a terminal, line after line.

Each call runs the asynchronous client (`deploy/client`) until it has answered. Between two calls
nothing of it runs, so that Ctrl-C at a prompt is Python's own.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

import httpx

from deploy.client import Client, Patience, RunStream
from deploy.client.calls import Sleep

Json = dict[str, Any]
T = TypeVar("T")


class Wire:
    """Calls one gateway address (or nginx) as one user. Raises what `Client` raises.

    `told` hears why there is a pause, once it is longer than a moment.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        told: Callable[[str], object] | None = None,
        sleep: Sleep = asyncio.sleep,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        def patience(attempts_max: int) -> Patience:
            return Patience(attempts_max, sleep, told)

        self._runner = asyncio.Runner()
        self._client = Client(url, token, patience=patience, transport=transport)

    def close(self) -> None:
        self._wait(self._client.aclose())
        self._runner.close()

    def chat(self, body: Json) -> Iterator[Json]:
        """`POST /api/chat`: the events of the run that it starts, until it waits or has ended."""
        return self._events(self._client.stream("/api/chat", body))

    def follow(self, run_id: str, after: int) -> Iterator[Json]:
        """The events after `after`, until the run waits or has ended."""
        return self._events(self._client.follow(run_id, after=after, until="interrupt"))

    def get(self, path: str) -> Json:
        return self._wait(self._client.get(path))

    def post(self, path: str, body: Json) -> Json:
        """Repeated with its key until it is answered."""
        return self._wait(self._client.post(path, body))

    def _events(self, stream: RunStream) -> Iterator[Json]:
        async def following() -> Json | None:
            return cast(Json | None, await anext(events, None))

        events = aiter(stream)
        try:
            while (event := self._wait(following())) is not None:
                yield event
        finally:
            self._wait(stream.aclose())

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)
