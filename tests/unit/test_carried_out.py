"""Which actions of an approval an answer carries out (common/hitl/actions)."""

from typing import Any

import pytest

from common.hitl import carried_out
from tests.unit.test_hitl import Stored

MAIL, CALL = {"name": "mail", "args": {"to": "a"}}, {"name": "call", "args": {}}
APPROVE, REJECT = {"type": "approve"}, {"type": "reject", "message": "no"}
EDIT = {"type": "edit", "edited_action": {"name": "call", "args": {"to": "b"}}}


@pytest.mark.parametrize(
    ("value", "done"),
    [
        ({"decisions": [APPROVE, APPROVE]}, [(0, MAIL), (1, CALL)]),
        ({"decisions": [REJECT, APPROVE]}, [(1, CALL)]),
        ({"decisions": [{"type": "respond", "message": "x"}, REJECT]}, []),
        ({"decisions": [APPROVE, EDIT]}, [(0, MAIL), (1, {"name": "call", "args": {"to": "b"}})]),
    ],
)
def test_of_a_batched_approval_each_action_counts_by_itself(value: Any, done: Any) -> None:
    asked = Stored("langchain-hitl", ["approve"], [MAIL, CALL])
    assert carried_out(asked, value) == done


@pytest.mark.parametrize(
    ("format_", "value", "done"),
    [
        ("langchain-hitl", APPROVE, [(0, CALL)]),
        ("langchain-hitl", REJECT, []),
        ("langchain-hitl", EDIT, [(0, {"name": "call", "args": {"to": "b"}})]),
        ("agent-inbox", [{"type": "accept", "args": None}], [(0, CALL)]),
        ("agent-inbox", [{"type": "ignore", "args": None}], []),
        ("agent-inbox", [{"type": "response", "args": "no"}], []),
        (
            "agent-inbox",
            [{"type": "edit", "args": {"action": "call", "args": {"to": "b"}}}],
            [(0, {"name": "call", "args": {"to": "b"}})],
        ),
        ("steadyrun", APPROVE, []),
        ("opaque", "anything", []),
    ],
)
def test_an_approval_of_one_action(format_: str, value: Any, done: Any) -> None:
    assert carried_out(Stored(format_, [], [CALL]), value) == done
