"""A client that follows one run to its end, over as many connections as it takes.

Raw HTTP, since a client library that repairs something would hide it; but for one kind, which is
that library, so that it is tried as well. A watcher goes by the
contract alone: it sends the last sequence that it has, takes 204 and a terminal event for the end,
and nothing else. It tries again for ever, with short pauses; whoever runs it bounds its patience.
"""

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import httpx
import orjson

from common.events import TERMINAL
from deploy.client import Client, Patience, Refused
from deploy.drill.case import Case
from deploy.drill.doors import NO_ANSWER, Doors
from deploy.drill.frames import UNREADABLE, Cut, Splitter, body, framed
from deploy.drill.record import Frame, Json, Link, Look, Record, Seen, Until, Way

_PAUSE_S = (0.02, 0.3)
_LOOK_TIMEOUT_S = 5.0
_LOOKED_AT = TERMINAL | {"run_started", "interrupt", "interrupt_resolved", "run_paused"}


def _for_ever(_: int) -> Patience:
    return Patience(1_000_000)


@dataclass(frozen=True, slots=True)
class Habit:
    """How a client behaves. `cut`: it hangs up after so many events, fewest and most; None: never.

    `pages`: it reads pages of JSON. `library`: it is the Python client, which hides its connections
    and must give the same. `slow_s`: pause after each piece that it takes. `late_s`: it
    comes so much later, `from_now`: and does not ask for what was before. `looks`: it reads the run
    at each event that announces a state.
    """

    name: str
    cut: tuple[int, int] | None = None
    pages: bool = False
    library: bool = False
    until: Until = "end"
    slow_s: float = 0.0
    late_s: float = 0.0
    from_now: bool = False
    looks: bool = False


class Watcher:
    def __init__(
        self,
        doors: Doors,
        rng: random.Random,
        record: Record,
        case: Case,
        habit: Habit,
        seen: Seen,
    ) -> None:
        self._doors, self._rng, self._record = doors, rng, record
        self._case, self._habit, self._seen = case, habit, seen

    async def run(self) -> None:
        """Returns when the run has ended for this client, or when it was turned away for good."""
        await asyncio.sleep(self._habit.late_s)
        if self._habit.from_now and not self._seen.links:
            self._seen.start = self._case.sequence
        if self._habit.library:
            return await self._by_library()
        while not self._seen.finished:
            link = self._link()
            await (self._page(link) if self._habit.pages else self._stream(link))
            link.ended_at = time.monotonic()
            if link.status is not None and 400 <= link.status < 500 and link.status != 429:
                return
            if not self._seen.finished and not self._progressed(link):
                await asyncio.sleep(self._rng.uniform(*_PAUSE_S))

    async def _by_library(self) -> None:
        """One connection in the record, over however many it went."""
        link = self._link()
        identity = self._doors.identity(self._case.user)
        token = identity["Authorization"].removeprefix("Bearer ")
        async with Client(link.address, token, patience=_for_ever) as client:
            try:
                async for event in client.follow(self._case.run, after=link.after):
                    link.status = 200
                    await self._got(framed(cast(Json, event)), link)
                link.ended = "clean"
            except Refused as refusal:
                link.ended, link.detail = "refused", refusal.code
        link.ended_at = time.monotonic()
        self._seen.finished = self._at_end

    def _link(self) -> Link:
        habit, seen = self._habit, self._seen
        way: Way = "page" if habit.pages else "stream"
        address = self._doors.any(self._rng)
        link = Link(address, way, habit.until, seen.cursor, time.monotonic())
        seen.links.append(link)
        return link

    def _progressed(self, link: Link) -> bool:
        return link.status == 200 and self._seen.cursor > link.after

    async def _stream(self, link: Link) -> None:
        headers = {
            **self._doors.identity(self._case.user),
            "Accept": "text/event-stream",
            "Last-Event-ID": str(link.after),
        }
        url = f"{link.address}/api/runs/{self._case.run}/events"
        try:
            async with self._doors.http.stream(
                "GET", url, headers=headers, params={"until": link.until}
            ) as response:
                await self.take(response, link)
        except NO_ANSWER as error:
            link.ended = "refused" if link.status is None else "cut"
            link.detail = type(error).__name__

    async def take(self, response: httpx.Response, link: Link) -> None:
        """Read a response that streams, also that of a POST. Raises what httpx raises on a cut."""
        link.status = response.status_code
        if response.status_code == 204:
            link.ended, self._seen.finished = "clean", True
        elif response.status_code != 200:
            link.ended, link.detail = "refused", _code(await response.aread())
        elif await self._read(response, link):
            link.ended = "clean"
            self._seen.finished = self._at_end
        else:
            link.ended = "left"

    @property
    def _at_end(self) -> bool:
        return bool(self._seen.frames) and self._seen.frames[-1].type in TERMINAL

    async def _read(self, response: httpx.Response, link: Link) -> bool:
        """False: we hung up."""
        splitter, cut = Splitter(), self._habit.cut
        left = self._rng.randint(*cut) if cut else None
        async for chunk in response.aiter_raw():
            for frame in splitter.feed(chunk):
                await self._got(frame, link)
                left = None if left is None else left - 1
                if left == 0 and frame.type not in TERMINAL:
                    return False
            if self._habit.slow_s:
                await asyncio.sleep(self._habit.slow_s)
        return True

    async def _got(self, frame: Cut, link: Link) -> None:
        seen, at = self._seen, time.monotonic()
        seen.frames.append(Frame(frame.sequence, frame.type, frame.raw, at, len(seen.links) - 1))
        if frame.sequence != UNREADABLE:
            self._case.see(frame)
        if self._habit.looks and frame.type in _LOOKED_AT:
            await self._look(frame, link)

    async def _look(self, frame: Cut, link: Link) -> None:
        """What the run's page says now; without an answer there is nothing to compare."""
        url = f"{self._doors.any(self._rng)}/api/runs/{self._case.run}"
        with suppress(*NO_ANSWER):
            answer = await self._doors.http.get(
                url, headers=self._doors.identity(self._case.user), timeout=_LOOK_TIMEOUT_S
            )
            if answer.status_code == 200:
                look = Look(
                    self._seen.client,
                    self._case.run,
                    frame.sequence,
                    frame.type,
                    body(frame.raw),
                    answer.json(),
                    time.monotonic(),
                )
                self._record.looks.append(look)

    async def _page(self, link: Link) -> None:
        headers = {**self._doors.identity(self._case.user), "Accept": "application/json"}
        params = {"after": link.after, "limit": self._rng.randint(1, 40)}
        url = f"{link.address}/api/runs/{self._case.run}/events"
        try:
            answer = await self._doors.http.get(url, headers=headers, params=params)
        except NO_ANSWER as error:
            link.ended, link.detail = "refused", type(error).__name__
            return
        link.status, link.ended = answer.status_code, "clean"
        if answer.status_code == 200:
            await self._turn(orjson.loads(answer.content), link)
        else:
            link.ended, link.detail = "refused", _code(answer.content)

    async def _turn(self, page: Json, link: Link) -> None:
        for event in page["events"]:
            await self._got(framed(event), link)
        link.complete = self._seen.finished = bool(page["complete"])


def _code(content: bytes) -> str:
    """The problem's code, or the beginning of whatever it is."""
    try:
        return str(orjson.loads(content).get("code"))
    except (orjson.JSONDecodeError, AttributeError):
        return content[:80].decode("utf-8", "replace")
