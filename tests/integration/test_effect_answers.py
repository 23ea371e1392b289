"""Answering over HTTP whether an effect has happened: a decision like every other (I4, I5)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.db import audit
from common.db.engine import Database
from tests.acceptance.conftest import GRAPHS
from tests.support.whole import Talk, Whole, whole


@pytest.fixture
async def place(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[Whole]:
    async with whole(database_url, redis_url, redis_prefix, GRAPHS) as running:
        yield running


async def asked(place: Whole, folder: Path, **more: Any) -> Talk:
    """The effect fails after it has happened, once: nobody knows."""
    content = {"file": str(folder / "outside"), "fails": "after", "returns": 1, **more}
    talk = await place.start("effects", json.dumps(content))
    [card] = await talk.asked()
    assert card["type"] == "select_option"
    return talk


def lines(folder: Path) -> int:
    return len((folder / "outside").read_text().split())


@pytest.mark.parametrize(
    ("decision", "said", "times"),
    [
        ({"select": "again"}, [1], 2),
        ({"select": "done"}, [None], 1),
        ({"fill": {"result": {"receipt": 7}}}, [{"receipt": 7}], 1),
    ],
    ids=["again", "done", "done with result"],
)
async def test_a_persons_word_is_followed_and_noted(
    place: Whole, folder: Path, database: Database, decision: Any, said: Any, times: int
) -> None:
    talk = await asked(place, folder)
    [card] = await talk.asked()
    assert (await talk.decide(decision, card)).status_code == 202
    assert await talk.said() == said
    assert lines(folder) == times
    async with database.connect() as conn:
        [effect] = await audit.effects_of(conn, talk.id)
    [noted] = effect.decisions
    assert (noted["interruptId"], noted["decision"]) == (card["id"], decision)
    assert noted["by"]
    told = [e for e in await talk.events() if e["type"] == "interrupt_resolved"]
    assert [e["decision"] for e in told] == [decision]


async def test_giving_up_cancels_the_run_and_performs_nothing(place: Whole, folder: Path) -> None:
    talk = await asked(place, folder)
    assert (await talk.decide("reject")).status_code == 202
    run = await talk.settled()
    assert (run["status"], run["cancelReason"]) == ("cancelled", "rejected")
    assert lines(folder) == 1


async def test_nobody_answering_in_time_is_giving_up(
    place: Whole, folder: Path, database: Database
) -> None:
    talk = await asked(place, folder)
    async with database.connect() as conn:
        await conn.rows(
            "UPDATE interrupts SET expires_at = clock_timestamp() WHERE run_id = $1", talk.id
        )
    while (run := await talk.settled())["status"] == "interrupted":
        await asyncio.sleep(0.05)
    assert (run["status"], run["cancelReason"]) == ("cancelled", "expired")
    assert lines(folder) == 1


async def test_a_wrong_answer_is_refused_and_the_right_one_works_then(
    place: Whole, folder: Path
) -> None:
    talk = await asked(place, folder)
    wrongs: list[Any] = ["approve", {"select": "perhaps"}, {"fill": {"outcome": 1}}, {"edit": {}}]
    for wrong in wrongs:
        assert (await talk.decide(wrong)).status_code == 422
    assert (await talk.give({"type": "select", "value": "maybe"})).status_code == 422
    assert (await talk.give({"type": "select", "value": "done"})).status_code == 202
    assert await talk.said() == [None]


async def test_of_many_answers_at_once_one_is_followed(place: Whole, folder: Path) -> None:
    talk = await asked(place, folder)
    [card] = await talk.asked()
    answers = [{"select": "again"}, {"fill": {"result": "said"}}] * 5
    given = await asyncio.gather(*(talk.decide(answer, card) for answer in answers))
    won = [a for a, told in zip(answers, given, strict=True) if told.status_code == 202]
    assert len(won) == 1
    assert {told.status_code for told in given} == {202, 409}
    again = won == [{"select": "again"}]
    assert await talk.said() == ([1] if again else ["said"])
    assert lines(folder) == (2 if again else 1)


async def test_who_may_answer_is_said_by_the_effect(place: Whole, folder: Path) -> None:
    talk = await asked(place, folder, permission="bank.charge")
    refused = await talk.decide({"select": "done"})
    assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_REVOKED")
