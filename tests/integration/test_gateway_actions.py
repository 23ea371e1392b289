"""Steps 6 and 7 of contract §5 for approvals that cannot name a resource: the guard names it."""

from typing import Any

import pytest

from common.db.engine import Database
from tests.support.deciding import PUMP, ask, code, edge, graphs, hooks
from tests.support.edge import Edge
from tests.support.fake_runner import FakeRunner

__all__ = ["edge", "graphs", "hooks"]


def approval(*pumps: str | None, **more: Any) -> dict[str, Any]:
    """A batched approval of LangChain's, of one restart for each pump (None: about none)."""
    args: list[dict[str, Any]] = [{} if pump is None else {"pump": pump} for pump in pumps]
    allowed = ["approve", "edit", "reject"]
    return {
        "format": "langchain-hitl",
        "on_reject": "continue",
        "allowed_decisions": allowed if len(pumps) == 1 else ["approve", "reject"],
        "actions": [{"name": "restart", "args": one} for one in args],
        "answer_schema": {"args": [None] * len(pumps), "allowed": [allowed] * len(pumps)},
        **more,
    }


async def test_a_changed_resource_of_an_action_is_told_by_its_index(
    edge: Edge, runner: FakeRunner, hooks: Any, database: Database
) -> None:
    asked = await ask(edge, runner, approval(None, "p7"))
    hooks.now |= {"version": 2, "by": "bob"}
    refused = await asked.decide()
    assert code(refused) == (409, "RESOURCE_CHANGED")
    told = refused.json()
    change = {"interruptId": asked.id, "action": 1, "field": "version", "was": 1, "is": 2}
    assert told["changed"] == [change]
    now = {**PUMP, "version": 2, "by": "bob"}
    assert (told["resources"], told["resource"]) == ({asked.id: {"1": now}}, now)
    assert await asked.status() == "interrupted"
    confirmed = await asked.decide(confirmVersion=told["confirmVersion"])
    assert confirmed.status_code == 202, confirmed.text
    [row] = await asked.stored(database)
    assert row.answer_value == {"decisions": [{"type": "approve"}] * 2}


async def test_a_confirmation_is_for_the_actions_that_were_shown(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, approval("p7", "p8"))
    approve, reject = {"type": "approve"}, {"type": "reject"}
    hooks.now["version"] = 2
    one = await asked.send({"resume": {asked.id: {"decisions": [approve, reject]}}})
    assert [change["action"] for change in one.json()["changed"]] == [0]
    both = {"resume": {asked.id: {"decisions": [approve, approve]}}}
    version = one.json()["confirmVersion"]
    refused = await asked.send({**both, "confirmVersion": version})
    assert code(refused) == (409, "RESOURCE_CHANGED")
    assert [change["action"] for change in refused.json()["changed"]] == [0, 1]
    version = refused.json()["confirmVersion"]
    assert (await asked.send({**both, "confirmVersion": version})).status_code == 202


async def test_a_resource_that_may_not_be_acted_on_refuses_the_approval_not_the_rejection(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, approval("p7"))
    hooks.permitted["revalidate"] = False
    assert code(await asked.decide()) == (403, "PERMISSION_REVOKED")
    assert "revalidate" in hooks.calls
    hooks.now["version"] = 2
    assert (await asked.decide("reject")).status_code == 202


async def test_an_edited_action_is_about_what_the_person_made_of_it(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, approval("p7"))
    hooks.now["version"] = 2
    refused = await asked.decide({"edit": {"pump": "p8"}})
    assert refused.json()["resource"]["id"] == "p8"
    assert (await asked.decide({"edit": {}})).status_code == 202  # about none


async def test_a_question_that_names_its_resource_is_not_asked_about(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, approval("p8", resource=PUMP))
    hooks.calls.clear()
    assert (await asked.decide()).status_code == 202
    assert "resource" not in hooks.calls


@pytest.mark.parametrize("pump", [["p7"], {"a": "\0"}, 1e300])
async def test_whatever_a_guard_names_is_compared_as_it_is_written(
    edge: Edge, runner: FakeRunner, pump: Any
) -> None:
    asked = await ask(edge, runner, approval(pump))
    assert (await asked.decide()).status_code == 202
