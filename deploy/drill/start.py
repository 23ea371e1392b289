"""How runs of a drill are begun: the ways of contract §4, each until it is acknowledged."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import httpx

from deploy.drill.case import Case
from deploy.drill.doors import LATER, NO_ANSWER, Doors
from deploy.drill.person import Post, Postbox, settle
from deploy.drill.record import Act, Link, Ordered, Record, Seen
from deploy.drill.watcher import Habit, Watcher
from runner.graphs.drill.order import Order

_PAUSE_S = (0.05, 0.4)
_POSTER = Habit("poster", until="interrupt")


class TurnedAway(Exception):
    """The start was refused for good; the record holds by what."""


class Start:
    """One order's start. `case` is known with the first answer; see it by `begun`."""

    def __init__(
        self,
        doors: Doors,
        postbox: Postbox,
        record: Record,
        rng: random.Random,
        user: str,
        order: Order,
    ) -> None:
        self._doors, self._postbox, self._record = doors, postbox, record
        self._rng, self._user, self._order = rng, user, order
        self._key = f"{rng.getrandbits(64):016x}"
        self._case: Case | None = None

    async def plainly(self, *, twice: bool) -> Case:
        """A conversation, then its run; `twice`: at once, by the same key. Raises TurnedAway."""
        path, body = "/api/conversations", {"graph": "drill"}
        made = await self._sent(Post("open", path, body, self._user, f"{self._key}-c"))
        path = f"/api/conversations/{made.answer['id']}/runs"
        post = Post("create", path, self._body(), self._user, self._key)
        acts = await asyncio.gather(*(self._sent(post) for _ in range(2 if twice else 1)))
        return self._acknowledged(str(acts[0].answer["run"]["id"]))

    async def streaming(self, begun: Callable[[Case], object]) -> None:
        """By a POST whose answer is the stream; goes on to read to the end. Raises TurnedAway.

        `begun` is called as soon as the run is known.
        """
        body = {"graph": "drill", **self._body()}
        post = Post("create", "/api/chat", body, self._user, self._key)
        seen = Seen("poster", "")
        while not seen.run:
            act, link = self._attempt(post, seen)
            try:
                await self._post(post, act, link, seen, begun)
            except NO_ANSWER as error:
                link.ended = "refused" if link.status is None else "cut"
                link.detail = type(error).__name__
            link.ended_at = time.monotonic()
            if not seen.run:
                _raise_if_final(act)
                await asyncio.sleep(self._rng.uniform(*_PAUSE_S))
        await self._watcher(seen).run()

    def _attempt(self, post: Post, seen: Seen) -> tuple[Act, Link]:
        act = self._postbox.begin(post, self._doors.any(self._rng))
        link = Link(act.address, "post", "interrupt", 0, act.sent_at)
        seen.links.append(link)
        return act, link

    async def _post(
        self, post: Post, act: Act, link: Link, seen: Seen, begun: Callable[[Case], object]
    ) -> None:
        headers = {**self._postbox.headers(post), "Accept": "text/event-stream"}
        url = f"{act.address}{post.path}"
        async with self._doors.http.stream("POST", url, json=post.body, headers=headers) as answer:
            link.status = answer.status_code
            if answer.status_code != 200:
                await answer.aread()
                settle(act, answer)
                link.ended = "refused"
                return
            act.status, act.answered_at = answer.status_code, time.monotonic()
            act.run = seen.run = _named(answer)
            act.answer = {"run": {"id": seen.run}}
            begun(self._acknowledged(seen.run))
            self._record.clients.append(seen)
            await self._watcher(seen).take(answer, link)

    def _watcher(self, seen: Seen) -> Watcher:
        assert self._case is not None
        return Watcher(self._doors, self._rng, self._record, self._case, _POSTER, seen)

    async def _sent(self, post: Post) -> Act:
        act = await self._postbox.send(post, random.Random(self._rng.getrandbits(64)))
        _raise_if_final(act)
        return act

    def _body(self) -> dict[str, Any]:
        return {"message": {"content": self._order.content()}}

    def _acknowledged(self, run: str) -> Case:
        if self._case is None:
            self._case = Case(run, self._user)
            ordered = Ordered(run, self._user, self._order, time.monotonic())
            self._record.ordered[run] = ordered
        return self._case


def _raise_if_final(act: Act) -> None:
    if act.status is not None and act.status not in LATER and not 200 <= act.status < 300:
        raise TurnedAway(f"{act.what}: {act.status} {act.answer.get('code', '')}")


def _named(answer: httpx.Response) -> str:
    """The run that a streaming POST has started."""
    return str(answer.headers["content-location"]).rstrip("/").rpartition("/")[2]
