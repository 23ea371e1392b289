"""The facade's words become what each format expects (contract §8)."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from common import hitl
from common.hitl import Decided, Given, Invalid, Reply

ALL = ["approve", "reject", "edit", "select", "fill"]
LANGCHAIN = ["approve", "edit", "reject", "respond"]
ACTIONS = [{"name": "pay", "args": {"eur": 5}}]


@dataclass
class Question:
    format: str = "opaque"
    allowed_decisions: list[str] = field(default_factory=lambda: list(ALL))
    actions: list[dict[str, Any]] = field(default_factory=lambda: list(ACTIONS))
    on_reject: Any = "continue"
    answer_schema: Any = None


def said(word: Any, *args: Any) -> Reply:
    return Reply(word, args[0], True) if args else Reply(word)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (said("accept"), {"type": "accept"}),
        (said("accept", None), {"type": "accept"}),
        (said("accept", {"note": 1}), {"type": "accept", "args": {"note": 1}}),
        (said("reject"), {"type": "reject"}),
        (said("edit", {"eur": 4}), {"type": "edit", "args": {"eur": 4}}),
        (said("response", "later"), {"type": "response", "args": "later"}),
        (said("response", 0), {"type": "response", "args": 0}),
        (said("response", None), {"type": "response", "args": None}),
    ],
)
def test_an_opaque_question_gets_the_word_itself(reply: Reply, value: Any) -> None:
    assert hitl.replied(Question(), reply) == Given(value)


@pytest.mark.parametrize(
    ("format_", "allowed", "reply", "decision"),
    [
        ("steadyrun", ["approve", "reject"], said("accept"), "approve"),
        ("steadyrun", ["approve", "edit"], said("edit", {"a": 1}), {"edit": {"a": 1}}),
        ("steadyrun", ["select"], said("response", "b"), {"select": "b"}),
        ("steadyrun", ["fill"], said("response", {"a": 1}), {"fill": {"a": 1}}),
        ("steadyrun", ["reject"], said("reject", "no"), {"reject": {"message": "no"}}),
        ("agent-inbox", ["fill"], said("response", "no"), {"fill": {"response": "no"}}),
        ("agent-inbox", ["fill"], said("response", {"a": 1}), {"fill": {"a": 1}}),
        ("agent-inbox", ["reject"], said("reject"), "reject"),
        ("langchain-hitl", LANGCHAIN, said("accept"), "approve"),
        ("langchain-hitl", LANGCHAIN, said("edit", {"a": 1}), {"edit": {"a": 1}}),
        (
            "langchain-hitl",
            LANGCHAIN,
            said("reject", {"message": "no"}),
            {"reject": {"message": "no"}},
        ),
    ],
)
def test_other_formats_get_the_decision_that_the_word_means(
    format_: str, allowed: list[str], reply: Reply, decision: Any
) -> None:
    assert hitl.replied(Question(format_, allowed), reply) == Decided(decision)


def test_a_response_answers_in_the_place_of_each_gated_tool() -> None:
    each = {"type": "respond", "message": "it is paid"}
    two = Question("langchain-hitl", LANGCHAIN, ACTIONS * 2)
    one = Question("langchain-hitl", LANGCHAIN, answer_schema={"per_call": True})
    for args in ("it is paid", {"message": "it is paid"}):
        assert hitl.replied(two, said("response", args)) == Given({"decisions": [each, each]})
        assert hitl.replied(one, said("response", args)) == Given(each)


def test_a_reject_under_the_cancel_policy_is_a_decision_in_every_format() -> None:
    for format_ in ("opaque", "steadyrun", "langchain-hitl", "agent-inbox"):
        question = Question(format_, on_reject="cancel")
        assert hitl.replied(question, said("reject")) == Decided("reject")


@pytest.mark.parametrize(
    ("question", "reply", "cause"),
    [
        (Question(), said("edit"), "'edit' needs args"),
        (Question(), said("response"), "'response' needs args"),
        (Question("steadyrun", ["select"]), said("accept"), "allowed are: response"),
        (Question("steadyrun", ["approve"]), said("accept", 1), "takes no args"),
        (Question("steadyrun", ["reject"]), said("reject", 1), "a text"),
        (Question("langchain-hitl", LANGCHAIN), said("response", 5), "a text"),
    ],
)
def test_a_word_that_does_not_fit_is_invalid_and_says_why(
    question: Question, reply: Reply, cause: str
) -> None:
    found = hitl.replied(question, reply)
    assert isinstance(found, Invalid)
    assert cause in found.detail


def test_a_client_is_told_the_words_that_are_possible() -> None:
    assert hitl.response_types(ALL) == ["accept", "edit", "response", "reject"]
    assert hitl.response_types(["respond", "approve"]) == ["accept", "response"]
    assert hitl.response_types([]) == []
