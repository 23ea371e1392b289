"""Answers that passed every check and that the graph cannot use all the same: LangGraph alone would
keep them, and fail with every later answer (langgraph-facts §1). Real graphs, over HTTP.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.db import interrupts, runs
from common.db.engine import Database
from tests.support.until import until
from tests.support.whole import Json, Talk, Whole, whole

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def system(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[Whole]:
    async with whole(database_url, redis_url, redis_prefix) as running:
        yield running


async def given(talk: Talk, value: Any) -> Json:
    """The answer is taken by the gateway; what is asked when the run has settled again."""
    before = (await talk.asked())[0]
    answer = await talk.give(value, before)
    assert answer.status_code == 202, answer.text
    asked = await talk.asked()
    assert before["id"] not in [question["id"] for question in asked]
    return asked[0]


def types(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_question_whose_answer_the_graph_cannot_use_is_asked_again(system: Whole) -> None:
    talk = await system.start("number")
    [first] = await talk.asked()
    second = await given(talk, "many")
    assert second["payload"] == first["payload"]
    assert (await talk.give(7)).status_code == 202
    assert await talk.said() == [7]
    events = await talk.events()
    asked = [e["interruptId"] for e in events if e["type"] == "interrupt"]
    resolved = [e["interruptId"] for e in events if e["type"] == "interrupt_resolved"]
    assert asked == resolved == [first["id"], second["id"]]
    assert types(events)[-1] == "done"
    assert types(events).count("error") == 0


async def test_an_old_card_cannot_answer_the_question_that_is_asked_again(system: Whole) -> None:
    talk = await system.start("number")
    [first] = await talk.asked()
    await given(talk, "many")
    late = await talk.give(5, first)
    assert (late.status_code, late.json()["code"]) == (409, "INTERRUPT_NOT_PENDING")
    assert (await talk.settled())["status"] == "interrupted"


async def test_after_three_answers_of_no_use_the_run_fails_and_the_conversation_goes_on(
    system: Whole,
) -> None:
    talk = await system.start("number")
    await given(talk, "many")
    await given(talk, None)
    assert (await talk.give([])).status_code == 202
    run = await talk.settled()
    assert (run["status"], run["error"]["code"]) == ("failed", "GRAPH_ERROR")
    assert types(await talk.events())[-1] == "error"
    again = await talk.again()
    assert (await again.give(7)).status_code == 202
    assert (await again.said())[-1] == 7


async def test_an_earlier_answer_of_the_same_node_is_kept(system: Whole) -> None:
    talk = await system.start("second_number")
    await given(talk, "x")
    await given(talk, "many")
    assert (await talk.give(7)).status_code == 202
    assert await talk.said() == ["x", 7]


@pytest.mark.parametrize("graph", ["nested_number", "number_in_a_tool"])
async def test_inside_a_subgraph_and_a_tool_it_is_asked_again_as_well(
    system: Whole, graph: str
) -> None:
    talk = await system.start(graph)
    await given(talk, "many")
    await given(talk, {})
    assert (await talk.give(7)).status_code == 202
    run = await talk.settled()
    assert run["status"] == "completed", run
    shown = str(await talk.messages()) if graph == "number_in_a_tool" else str(run["output"])
    assert "7" in shown
    check_tools(await talk.events())


def check_tools(events: list[Json]) -> None:
    """One end for each beginning that was not discarded (contract §3)."""
    shown: list[Json] = []
    for event in events:
        gone = event["discard"] if event["type"] == "run_resumed" else []
        shown = [*(e for e in shown if e.get("stepId") not in gone), event]
    started = [e["callId"] for e in shown if e["type"] == "tool_started"]
    finished = [e["callId"] for e in shown if e["type"] == "tool_finished"]
    assert started == finished


async def test_of_parallel_questions_only_the_one_with_the_useless_answer_is_asked_again(
    system: Whole,
) -> None:
    talk = await system.start("numbers")
    one, two = await talk.asked()
    both = {one["id"]: "many", two["id"]: 5}
    assert (await talk.send({"resume": both})).status_code == 202
    [again] = await talk.asked()
    assert (await talk.give(6, again)).status_code == 202
    assert sorted(await talk.said()) == [5, 6]


async def test_both_of_two_parallel_questions_can_be_asked_again(system: Whole) -> None:
    talk = await system.start("numbers")
    first = {question["id"]: "many" for question in await talk.asked()}
    assert (await talk.send({"resume": first})).status_code == 202
    while (await talk.settled())["status"] == "interrupted":
        again = {question["id"]: 5 for question in await talk.asked()}
        assert not first.keys() & again.keys()
        assert (await talk.send({"resume": again})).status_code == 202
    assert await talk.said() == [5, 5]


APPROVE = {"type": "approve"}
POISON = [
    {"decisions": []},
    {"decisions": [APPROVE, APPROVE]},
    {"decisions": [{"type": "unheard of"}]},
    {"decision": APPROVE},
    "approve",
    None,
]


async def test_langchains_middleware_is_asked_again_where_nothing_was_checked(
    system: Whole,
) -> None:
    """With the format `opaque` values are passed through."""
    talks = [await system.start("unread") for _ in POISON]
    for talk, poison in zip(talks, POISON, strict=True):
        await given(talk, poison)
        assert (await talk.give({"decisions": [APPROVE]})).status_code == 202
        assert (await talk.settled())["status"] == "completed", poison
        told = [m["content"] for m in await talk.messages() if m["role"] == "tool"]
        assert told == ["sent to a@example.org"]


async def test_an_approval_that_got_in_without_its_check_is_asked_for_again(
    system: Whole, database: Database
) -> None:
    """As an older gateway might have stored it."""
    talk = await system.start("batched")
    [question] = await talk.asked()
    async with database.begin() as connection:
        run = await runs.lock(connection, talk.id)
        assert run is not None
        await interrupts.decide(
            *(connection, question["id"]),
            decision="approve",
            answer={"value": {"decisions": [APPROVE]}},
            by="ada",
        )
        await runs.queue_unheld(
            *(connection, run.id, run.epoch, "decision", run.last_sequence, None)
        )

    async def is_asked_again() -> bool:
        pending = (await talk.run())["pendingInterrupts"]
        return bool(pending) and pending[0]["id"] != question["id"]

    await until(is_asked_again, within_s=30)
    assert (await talk.decide("approve")).status_code == 202
    assert (await talk.settled())["status"] == "completed"


async def test_an_act_that_a_person_permitted_and_that_failed_is_not_asked_for_again(
    system: Whole,
) -> None:
    talk = await system.start("breaks")
    assert (await talk.decide("approve")).status_code == 202
    run = await talk.settled()
    assert (run["status"], run["error"]["code"]) == ("failed", "GRAPH_ERROR")
    assert types(await talk.events()).count("interrupt") == 1
    assert await (await talk.again()).asked()


async def test_a_rejection_that_a_node_fails_with_is_not_asked_for_again(system: Whole) -> None:
    talk = await system.start("number")
    assert (await talk.decide("reject")).status_code == 202
    assert (await talk.settled())["status"] == "failed"
    assert types(await talk.events()).count("interrupt") == 1


async def test_a_rejection_in_the_graphs_own_words_is_not_asked_for_again(system: Whole) -> None:
    talk = await system.start("number")
    assert (await talk.give({"type": "reject"})).status_code == 202
    assert (await talk.settled())["status"] == "failed"
    assert types(await talk.events()).count("interrupt") == 1


async def test_what_was_paid_is_not_asked_for_again(system: Whole) -> None:
    talk = await system.start("pays_and_breaks")
    assert (await talk.give(5)).status_code == 202
    assert (await talk.settled())["status"] == "failed"
    assert types(await talk.events()).count("interrupt") == 1


async def test_a_node_that_failed_before_it_came_to_the_answer_fails_its_run(
    system: Whole,
) -> None:
    talk = await system.start("fails_at_first")
    assert (await talk.give(5)).status_code == 202
    assert (await talk.settled())["status"] == "failed"
    assert types(await talk.events()).count("interrupt") == 1


async def test_what_langgraph_itself_calls_an_invalid_answer_is_asked_again(
    system: Whole,
) -> None:
    """A rule that no JSON schema says."""
    talk = await system.start("even")
    await given(talk, {"n": 3})
    assert (await talk.give({"n": 4})).status_code == 202
    assert await talk.said() == [4]
