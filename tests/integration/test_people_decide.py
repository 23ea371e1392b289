"""What a LangGraph user may expect of pausing, asking and going on: one line each, over HTTP, with
real graphs on a real runner. Wrong answers stand in test_wrong_answers.py, answers that a graph
cannot use in test_poisoned_answers.py, expiry under races in test_expiry.py.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.db.engine import Database
from tests.support.edge import bearer
from tests.support.until import until
from tests.support.whole import Json, Talk, Whole, whole

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def system(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[Whole]:
    async with whole(database_url, redis_url, redis_prefix) as running:
        yield running


def types(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def answer_all(talk: Talk, *values: Any) -> None:
    """One question after the other."""
    for value in values:
        assert (await talk.give(value)).status_code == 202


# values


@pytest.mark.timeout(300)
async def test_scalar_falsy_list_and_object_answers_arrive_as_they_are(system: Whole) -> None:
    values: list[Any] = [
        *("text", "", 0, 1.5, False, True, None, [], {}, [1, [2]], {"a": {"b": None}}),
        {"0123456789abcdef0123456789abcdef": "looks like an id of LangGraph"},
    ]
    talks = [await system.start("plain") for _ in values]
    for talk, value in zip(talks, values, strict=True):
        assert (await talk.give(value)).status_code == 202
    assert [await talk.said() for talk in talks] == [[value] for value in values]


# several questions


@pytest.mark.parametrize("graph", ["in_turn", "the_same_twice"])
async def test_two_questions_of_one_node_are_asked_in_turn(system: Whole, graph: str) -> None:
    talk = await system.start(graph)
    [first] = await talk.asked()
    assert (await talk.give("one", first)).status_code == 202
    [second] = await talk.asked()
    assert second["id"] != first["id"]
    assert (await talk.give("two", second)).status_code == 202
    assert await talk.said() == ["one", "two"]


async def test_a_double_click_is_not_taken_for_the_next_questions_answer(system: Whole) -> None:
    talk = await system.start("the_same_twice")
    [first] = await talk.asked()
    assert (await talk.give("one", first)).status_code == 202
    await talk.asked()
    assert code(await talk.give("one", first)) == (409, "INTERRUPT_NOT_PENDING")
    await answer_all(talk, "two")
    assert await talk.said() == ["one", "two"]


async def test_parallel_questions_are_answered_at_once_or_one_by_one(system: Whole) -> None:
    at_once, one_by_one = await system.start("both"), await system.start("both")
    asked = {q["id"]: q["payload"]["n"] for q in await at_once.asked()}
    assert (await at_once.send({"resume": asked})).status_code == 202
    assert sorted(await at_once.said()) == [1, 2]
    one, two = await one_by_one.asked()
    assert (await one_by_one.give("b", two)).status_code == 202
    assert (await one_by_one.asked()) == [one]
    assert types(await one_by_one.events())[-1] == "run_paused"
    assert (await one_by_one.events())[-1]["reason"] == "pending_interrupts"
    refused = await one_by_one.send({"continue": True})
    assert code(refused) == (409, "RUN_NOT_RESUMABLE")
    assert refused.json()["pendingInterrupts"] == [one["id"]]
    assert (await one_by_one.give("a", one)).status_code == 202
    assert sorted(await one_by_one.said()) == ["a", "b"]
    assert types(await one_by_one.events()).count("interrupt") == 2


async def test_a_map_is_taken_as_a_whole_or_not_at_all(system: Whole) -> None:
    talk = await system.start("both")
    one, two = await talk.asked()
    assert (await talk.give("x", two)).status_code == 202
    await talk.asked()
    stale = await talk.send({"resume": {one["id"]: "a", two["id"]: "b"}})
    assert code(stale) == (409, "INTERRUPT_NOT_PENDING")
    unknown = await talk.send({"resume": {one["id"]: "a", "int_unknown": "b"}})
    assert code(unknown) == (404, "NOT_FOUND")
    assert await talk.asked() == [one]
    assert (await talk.send({"resume": {}})).status_code == 422
    assert (await talk.give("a", one)).status_code == 202
    assert sorted(await talk.said()) == ["a", "x"]


async def test_questions_of_a_fan_out_keep_their_own_answers(system: Whole) -> None:
    talk = await system.start("fan")
    asked = {q["payload"]["item"]: q for q in await talk.asked()}
    assert (await talk.give("one", asked[1])).status_code == 202
    left = {q["payload"]["item"]: q["id"] for q in await talk.asked()}
    assert sorted(left) == [0, 2]
    both = {left[0]: "zero", left[2]: "two"}
    assert (await talk.send({"resume": both})).status_code == 202
    assert sorted(await talk.said()) == [[0, "zero"], [1, "one"], [2, "two"]]


# nested graphs


async def test_questions_of_nested_graphs_are_asked_and_answered(system: Whole) -> None:
    talk = await system.start("nested")
    await answer_all(talk, "one", "two")
    assert await talk.said() == ["one", "two", "after"]


async def test_questions_of_parallel_subgraphs_keep_their_own_answers(system: Whole) -> None:
    talk = await system.start("nested_side_by_side")
    for question in reversed(await talk.asked()):
        assert (await talk.give(question["payload"]["n"], question)).status_code == 202
    assert sorted(await talk.said()) == ["left", "right"]


# our questions


async def test_a_rejection_ends_the_run_or_comes_back_as_not_approved(system: Whole) -> None:
    kept, ended = await system.start("confirm"), await system.start("expires_late")
    assert (await kept.decide("reject")).status_code == 202
    assert (await kept.said())[0]["approved"] is False
    assert (await ended.decide({"reject": {"message": "no"}})).status_code == 202
    run = await ended.settled()
    assert (run["status"], run["cancelReason"]) == ("cancelled", "rejected")


async def test_a_question_can_require_a_permission(system: Whole) -> None:
    talk = await system.start("permitted")
    [question] = await talk.asked()
    assert question["requiredPermission"] == "ops.restart"
    asked = next(e for e in await talk.events() if e["type"] == "interrupt")
    assert asked["requiredPermission"] == "ops.restart"
    body = {"interruptId": question["id"], "decision": "approve"}
    assert code(await talk.send(body)) == (403, "PERMISSION_REVOKED")
    assert code(await talk.send(body, **bearer("eve"))) == (404, "NOT_FOUND")
    assert (await talk.send(body, **bearer("bea", "ops.restart"))).status_code == 202
    assert await talk.said() == [True]


async def test_a_question_expires_by_itself(system: Whole) -> None:
    """The run goes on with a rejection, or ends; nobody has to ask for it."""
    rejects, cancels = await system.start("expires", "reject"), await system.start("expires")
    asked = next(e for e in await _until_ended(rejects) if e["type"] == "interrupt")
    assert asked["expiresAt"]
    assert await rejects.said() == [False]
    await _until_ended(cancels)
    run = await cancels.run()
    assert (run["status"], run["cancelReason"]) == ("cancelled", "expired")


async def _until_ended(talk: Talk) -> list[Json]:
    async with talk.edge.read(talk.id, 0) as reading:
        await reading.until(lambda r: r.ended or r.cut, within_s=60)
    return reading.json()


# approvals of tools


async def test_an_approval_names_the_tool_calls_that_the_client_knows(system: Whole) -> None:
    batched, per_call = await system.start("batched"), await system.start("per_call")
    [question] = await batched.asked()
    calls = [action["toolCallId"] for action in question["actions"]]
    assert len(set(calls)) == 2
    asked = next(e for e in await batched.events() if e["type"] == "interrupt")
    assert [a["tool_call_id"] for a in asked["payload"]["action_requests"]] == calls
    one, two = await per_call.asked()
    assert {q["actions"][0]["toolCallId"] for q in (one, two)} == set(calls)


async def test_approve_edit_reject_and_respond_do_what_they_say(system: Whole) -> None:
    decisions = [
        {"type": "approve"},
        {"type": "edit", "edited_action": {"name": "send_mail", "args": {"to": "c", "text": "x"}}},
        {"type": "reject", "message": "not this one"},
        {"type": "respond", "message": "done by hand"},
    ]
    talks = [await system.start("batched") for _ in decisions]
    for talk, decision in zip(talks, decisions, strict=True):
        both = {"decisions": [decision, {"type": "reject"}]}
        assert (await talk.give(both)).status_code == 202
    told = [await _tools(talk) for talk in talks]
    assert "sent to a@example.org" in told[0]
    assert any(text.endswith("sent to c") for text in told[1])
    assert any("not this one" in text for text in told[2])
    assert "done by hand" in told[3]
    assert [sum("sent to" in text for text in each) for each in told] == [1, 1, 0, 0]


async def _tools(talk: Talk) -> list[str]:
    assert (await talk.settled())["status"] == "completed"
    return [m["content"] for m in await talk.messages() if m["role"] == "tool"]


async def test_of_two_calls_one_is_decided_and_the_other_waits(system: Whole) -> None:
    talk = await system.start("per_call")
    one, two = await talk.asked()
    assert (await talk.decide("approve", one)).status_code == 202
    assert await talk.asked() == [two]
    assert (await talk.decide({"reject": {"message": "no"}}, two)).status_code == 202
    told = await _tools(talk)
    assert sorted(text.startswith("sent") for text in told) == [False, True]


# breakpoints


async def test_breakpoints_before_and_behind_a_node_pause_and_continue(system: Whole) -> None:
    talk = await system.start("steps", interruptBefore=["one"], interruptAfter=["one"])
    for following in (["one"], ["two"]):
        run = await talk.settled()
        assert (run["status"], run["next"]) == ("interrupted", following)
        paused = (await talk.events())[-1]
        assert (paused["type"], paused["reason"]) == ("run_paused", "breakpoint")
        assert paused["next"] == following
        assert (await talk.send({"continue": True})).status_code == 202
        await _until_not(talk, following)
    assert await talk.said() == ["one", "two"]


async def _until_not(talk: Talk, following: list[str]) -> None:
    async def moved() -> bool:
        run = await talk.run()
        return run["status"] == "completed" or run["next"] not in ([], following)

    await until(moved, within_s=60)


async def test_a_breakpoint_behind_the_last_node_is_the_end(system: Whole) -> None:
    talk = await system.start("steps", interruptAfter=["two"])
    assert await talk.said() == ["one", "two"]
    assert "run_paused" not in types(await talk.events())


async def test_an_answer_cannot_pass_a_breakpoint(system: Whole) -> None:
    talk = await system.start("plain", interruptBefore=["ask"])
    await talk.settled()
    assert code(await talk.send({"resume": {"int_none": 1}})) == (404, "NOT_FOUND")
    assert (await talk.send({"continue": True})).status_code == 202
    await until(lambda: _asks(talk), within_s=60)
    await answer_all(talk, 5)
    assert await talk.said() == [5]


async def _asks(talk: Talk) -> bool:
    return bool((await talk.run())["pendingInterrupts"])


# what comes in between


async def test_cancelled_between_the_question_and_the_answer(system: Whole) -> None:
    talk = await system.start("plain")
    [question] = await talk.asked()
    url = f"/api/runs/{talk.id}/cancel"
    assert (await talk.edge.client.post(url)).status_code == 202
    assert code(await talk.give(1, question)) == (409, "INTERRUPT_NOT_PENDING")
    assert code(await talk.send({"continue": True})) == (409, "RUN_NOT_RESUMABLE")
    assert types(await talk.events())[-2:] == ["interrupt_resolved", "cancelled"]


async def test_a_branch_that_fails_beside_a_question_ends_the_run_and_its_question(
    system: Whole,
) -> None:
    talk = await system.start("asks_and_fails")
    run = await talk.settled()
    assert (run["status"], run["pendingInterrupts"]) == ("failed", [])
    assert types(await talk.events())[-1] == "error"
    assert (await (await talk.again()).settled())["status"] == "failed"


async def test_a_run_whose_state_cannot_be_read_after_its_failure_fails_at_once(
    system: Whole,
) -> None:
    """Two nodes wrote what only one may write; reading the state raises that again."""
    talk = await system.start("conflicting")
    run = await talk.settled()
    assert (run["status"], run["epoch"]) == ("failed", 1)
    assert run["error"]["message"] == "The agent failed (InvalidUpdateError)."


async def test_a_node_that_is_tried_again_keeps_its_answer(system: Whole) -> None:
    talk = await system.start("retried")
    await answer_all(talk, "x")
    assert await talk.said() == ["x"]
    events = await talk.events()
    assert types(events).count("interrupt") == 1
    assert "step_retried" in types(events)


async def test_a_question_outlives_a_restart_of_everything(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    async with whole(database_url, redis_url, redis_prefix) as system:
        before = await system.start("in_turn")
        asked = await before.asked()
    async with whole(database_url, redis_url, redis_prefix) as system:
        talk = Talk(system.edge, before.id, before.conversation)
        assert await talk.asked() == asked
        await answer_all(talk, "one")
    async with whole(database_url, redis_url, redis_prefix) as system:
        talk = Talk(system.edge, before.id, before.conversation)
        await answer_all(talk, "two")
        assert await talk.said() == ["one", "two"]


async def test_looking_changes_nothing(system: Whole, database: Database) -> None:
    talk = await system.start("both")
    await talk.asked()

    async def rows() -> list[Any]:
        async with database.connect() as connection:
            found = await connection.rows("SELECT to_jsonb(r) FROM runs r")
            found += await connection.rows("SELECT to_jsonb(i) FROM interrupts i")
            return found + await connection.rows("SELECT checkpoint_id FROM checkpoints")

    before = await rows()
    for path in (
        f"conversations/{talk.conversation}/resume-state",
        f"runs/{talk.id}",
        "interrupts",
    ):
        assert (await talk.edge.client.get(f"/api/{path}")).status_code == 200
    assert await rows() == before


@pytest.mark.parametrize(
    ("graph", "word"),
    [("clashing", "twice"), ("clashing", "no list"), ("nested_clashing", "twice")],
)
async def test_a_conversation_goes_on_after_a_step_that_could_not_be_put_together(
    system: Whole, graph: str, word: str
) -> None:
    """What it wrote is saved before it is found not to fit; reading it fails as it did then."""
    first = await system.start(graph, word)
    assert (await first.settled())["status"] == "failed"
    second = await first.again("fine")
    assert await second.said() == ["fine", "fine"]
