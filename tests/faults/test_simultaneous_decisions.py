"""I4: of any number of simultaneous decisions, on any gateways, by any who may decide, one wins.

Each round asks one question; twenty approvals and rejections with keys of their own arrive at once,
spread over both gateways and nginx, from the owner and from a colleague. STEADYRUN_FAULT_ROUNDS
rounds, drawn from STEADYRUN_FAULT_SEED.
"""

import asyncio
import json
import os
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import Api
from tests.support.cluster import Cluster

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "10"))
SEED = int(os.environ.get("STEADYRUN_FAULT_SEED", "1"))
AT_ONCE = 20
PEOPLE = ("ada", "bob")
Call = Callable[[], Awaitable[httpx.Response]]


@pytest.fixture
async def doors(cluster: Cluster) -> AsyncIterator[dict[str, list[Api]]]:
    """By person: the two gateways and nginx."""
    topology = cluster.topology
    urls = [p.url for p in topology.processes if p.role == "gateway" and p.url] + [topology.url]
    assert len(urls) == 3
    async with AsyncExitStack() as opened:
        made = {
            who: [
                Api(url, topology.jwt_secret, user=who, permissions=("pumps.restart",))
                for url in urls
            ]
            for who in PEOPLE
        }
        for api in (api for apis in made.values() for api in apis):
            await opened.enter_async_context(api)
        yield made


@pytest.mark.timeout(60 + 20 * ROUNDS)
async def test_of_twenty_decisions_at_once_one_takes_effect_and_the_others_are_told_which(
    doors: dict[str, list[Api]], tmp_path: Path
) -> None:
    rng, won = random.Random(SEED), Counter[str]()
    for number in range(ROUNDS):
        won[await decide_at_once(doors, tmp_path / f"{number}", rng)] += 1
    assert won.total() == ROUNDS
    assert set(won) <= {"approve", "reject"}


async def decide_at_once(doors: dict[str, list[Api]], file: Path, rng: random.Random) -> str:
    """One round; how it was decided."""
    policy = rng.choice(["cancel", "continue"])
    order = json.dumps({"file": str(file), "onReject": policy})
    home = rng.choice(doors["ada"])
    run_id = (await home.start(order, graph="decided"))["id"]
    await home.read(run_id, until="interrupt")
    [question] = (await home.run(run_id))["pendingInterrupts"]
    clicks = [click(doors, n, run_id, question["id"], rng) for n in range(AT_ONCE)]
    rng.shuffle(clicks)
    answers = await asyncio.gather(*(send() for _, _, send in clicks))
    [(who, decision, send)] = [
        c for c, a in zip(clicks, answers, strict=True) if a.status_code == 202
    ]
    for answer in answers:
        if answer.status_code != 202:
            assert told(answer) == (409, "INTERRUPT_NOT_PENDING", decision, who), answer.text
    again = await send()
    [first] = [answer for answer in answers if answer.status_code == 202]
    assert (again.status_code, shown(again)) == (202, shown(first))
    await check_end(home, run_id, policy, decision, who)
    assert performed(file) == ([who] if decision == "approve" else [])
    return str(decision)


def click(
    doors: dict[str, list[Api]], number: int, run_id: str, interrupt_id: str, rng: random.Random
) -> tuple[str, str, Call]:
    """Every other one approves; who, and where, is drawn. A gateway that is busy is asked again
    with the same key, as clients do."""
    who, decision = rng.choice(PEOPLE), ("approve", "reject")[number % 2]
    api, key = doors[who][number % 3], uuid.uuid4().hex

    async def send() -> httpx.Response:
        while True:
            answer = await api.resume(
                run_id, interruptId=interrupt_id, decision=decision, idempotencyKey=key
            )
            if answer.status_code != 503:
                return answer
            await asyncio.sleep(0.1)

    return who, decision, send


def performed(file: Path) -> list[str]:
    """Who had approved, for each time that it was done."""
    return file.read_text().split() if file.exists() else []


def told(answer: httpx.Response) -> tuple[int, Any, Any, Any]:
    body = answer.json()
    return answer.status_code, body.get("code"), body.get("decision"), body.get("resolvedBy")


def shown(answer: httpx.Response) -> Any:
    """The answer without its ticket, which is a new one each time."""
    return {name: value for name, value in answer.json().items() if name != "streamUrl"}


async def check_end(home: Api, run_id: str, policy: str, decision: str, who: str) -> None:
    events = (await home.read(run_id)).events
    [resolved] = [e for e in events if e["type"] == "interrupt_resolved"]
    assert (resolved["decision"], resolved["resolvedBy"]) == (decision, who)
    run = await home.run(run_id)
    if decision == "reject" and policy == "cancel":
        assert (run["status"], run["cancelReason"]) == ("cancelled", "rejected")
        assert events[-1]["type"] == "cancelled"
    else:
        assert run["status"] == "completed", run
        assert run["output"]["said"] == [{"approved": decision == "approve", "by": who}]
