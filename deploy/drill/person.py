"""People of a drill: each starts one run, decides what it asks, and perhaps cancels it.

They click as people do: twice, in two tabs at once, again after a timeout. Each act keeps its
idempotency key until it is answered; every attempt is recorded.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from deploy.drill.case import Case, Choice
from deploy.drill.doors import LATER, NO_ANSWER, Doors
from deploy.drill.record import Act, Json, Record, What

Manner = Literal[
    "approve", "reject", "two keys", "one key twice", "two tabs", "impatient", "cancel", "race"
]
_MANNERS: Mapping[Manner, int] = {  # with how often each comes
    "approve": 3,
    "reject": 2,
    "two keys": 3,
    "one key twice": 2,
    "two tabs": 3,
    "impatient": 3,
    "cancel": 1,
    "race": 1,
}

# what is sent at once: the decision, and which of two keys
_CLICKS: Mapping[Manner, Sequence[tuple[str, int]]] = {
    "approve": [("approve", 0)],
    "reject": [("reject", 0)],
    "two keys": [("approve", 0), ("approve", 1)],
    "one key twice": [("approve", 0), ("approve", 0)],
    "two tabs": [("approve", 0), ("reject", 1)],
    "impatient": [("approve", 0)],
    "cancel": [],
    "race": [("approve", 0)],
}
_PAUSE_S = (0.05, 0.4)
_IMPATIENT_S = 0.03
_TRIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent, and again until it is answered."""

    what: What
    path: str
    body: Json
    user: str
    key: str
    run: str | None = None
    interrupt: str | None = None
    decision: Any = None
    first_timeout_s: float | None = None


class Postbox:
    """Sends with patience; `record` gets each attempt."""

    def __init__(self, doors: Doors, record: Record) -> None:
        self._doors, self._record = doors, record

    async def send(self, post: Post, rng: random.Random) -> Act:
        """The act that was answered for good: 2xx, or a refusal that trying again does not heal."""
        timeout_s = post.first_timeout_s
        for _ in range(_TRIES_MAX):
            act = self.begin(post, self._doors.any(rng))
            await self._attempt(act, post, timeout_s)
            if act.status is not None and act.status not in LATER:
                return act
            timeout_s = None
            await asyncio.sleep(rng.uniform(*_PAUSE_S))
        raise TimeoutError(f"{post.path}: no answer after {_TRIES_MAX} attempts")

    def begin(self, post: Post, address: str) -> Act:
        act = Act(
            what=post.what,
            run=post.run,
            user=post.user,
            key=post.key,
            address=address,
            sent_at=time.monotonic(),
            interrupt=post.interrupt,
            decision=post.decision,
        )
        self._record.acts.append(act)
        return act

    def headers(self, post: Post) -> dict[str, str]:
        return {**self._doors.identity(post.user), "Idempotency-Key": post.key}

    async def _attempt(self, act: Act, post: Post, timeout_s: float | None) -> None:
        given: Any = httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        headers = {**self.headers(post), "Accept": "application/json"}
        url = f"{act.address}{post.path}"
        try:
            answer = await self._doors.http.post(
                url, json=post.body, headers=headers, timeout=given
            )
        except NO_ANSWER:
            return
        settle(act, answer)


def settle(act: Act, answer: httpx.Response) -> None:
    act.status, act.answered_at = answer.status_code, time.monotonic()
    try:
        act.answer = answer.json()
    except ValueError:
        act.answer = {"text": answer.text[:200]}


class Person:
    """The one who decides in a case."""

    def __init__(self, postbox: Postbox, rng: random.Random, case: Case) -> None:
        self._postbox, self._rng, self._case = postbox, rng, case

    async def decide_all(self) -> None:
        """Whatever the run asks, until the case is closed."""
        while (asked := await self._case.questions.get()) is not None:
            await asyncio.sleep(self._rng.choice([0.0, self._rng.uniform(0.0, 1.0)]))
            await self.decide(*asked, self._manner())

    def _manner(self) -> Manner:
        return self._rng.choices([*_MANNERS], [*_MANNERS.values()])[0]

    async def cancel_later(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._cancel()

    async def decide(self, interrupt: str, choice: Choice, manner: Manner) -> None:
        """An effect of which nobody knows is not approved: it is done again, or taken as done."""
        keys = (self._key(), self._key())
        words: dict[str, Any] = {}
        if choice == "select":
            words["approve"] = {"select": self._rng.choice(["again", "done"])}
        acts = [
            self._click(
                interrupt,
                words.get(decision, decision),
                keys[n],
                _IMPATIENT_S if manner == "impatient" else None,
            )
            for decision, n in _CLICKS[manner]
        ]
        if manner in ("cancel", "race"):
            acts.append(self._cancel())
        await asyncio.gather(*acts)

    def _click(
        self, interrupt: str, decision: Any, key: str, first_timeout_s: float | None = None
    ) -> Awaitable[Act]:
        post = Post(
            "decide",
            f"/api/runs/{self._case.run}/resume",
            {"interruptId": interrupt, "decision": decision},
            self._case.user,
            key,
            self._case.run,
            interrupt,
            decision,
            first_timeout_s,
        )
        return self._postbox.send(post, self._own_rng())

    def _cancel(self) -> Awaitable[Act]:
        path = f"/api/runs/{self._case.run}/cancel"
        post = Post("cancel", path, {}, self._case.user, self._key(), self._case.run)
        return self._postbox.send(post, self._own_rng())

    def _key(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    def _own_rng(self) -> random.Random:
        """Clicks at once must not share one: their order is not the plan's."""
        return random.Random(self._rng.getrandbits(64))
