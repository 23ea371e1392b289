"""What people are asked and what graphs get (contract §8); a wrong answer never reaches a graph."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.graphfile import GraphSpec, Reference
from common.hitl import (
    Answer,
    CancelRun,
    Invalid,
    Question,
    answer,
    question,
    rejection,
    response_types,
    validate_raw,
)
from common.masking import MASK, Masker
from runner.questions import expires_at

SPEC = GraphSpec("agent", Reference(Path("agent.py"), "graph"))
MAIL_SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "copies": {"type": "integer"}},
    "required": ["to"],
}


@dataclass
class Stored:
    """The parts of an interrupt's row that answers are checked against."""

    format: str
    allowed_decisions: list[str]
    actions: list[dict[str, Any]] = field(default_factory=list)
    on_reject: Any = "continue"
    answer_schema: Any = None


def asked(value: Any, spec: GraphSpec = SPEC, **more: Any) -> Question:
    return question(value, spec, Masker(), **more)


def batched(*names: str, allowed: Any = ("approve", "edit", "reject", "respond")) -> dict[str, Any]:
    return {
        "action_requests": [{"name": n, "args": {"to": "a"}, "description": "d"} for n in names],
        "review_configs": [{"action_name": n, "allowed_decisions": [*allowed]} for n in names],
    }


PER_CALL = {
    "type": "tool_approval",
    "tool_call_id": "c1",
    "name": "mail",
    "args": {"to": "a"},
    "description": "d",
}
INBOX = {
    "action_request": {"action": "mail", "args": {"to": "a"}},
    "config": {
        "allow_accept": True,
        "allow_edit": True,
        "allow_respond": True,
        "allow_ignore": True,
    },
    "description": "d",
}
CONFIRM = {"steadyrun": "confirm_action", "action": "restart", "args": {"id": "i-1"}}
SELECT = {"steadyrun": "select_option", "options": ["a", {"value": 2, "label": "two"}]}
PROVIDE = {"steadyrun": "provide_input", "schema": MAIL_SCHEMA}


# recognising


@pytest.mark.parametrize(
    ("value", "format_", "type_"),
    [
        (batched("mail"), "langchain-hitl", "confirm_action"),
        (PER_CALL, "langchain-hitl", "confirm_action"),
        (INBOX, "agent-inbox", "confirm_action"),
        ([INBOX], "agent-inbox", "confirm_action"),
        (CONFIRM, "steadyrun", "confirm_action"),
        (SELECT, "steadyrun", "select_option"),
        (PROVIDE, "steadyrun", "provide_input"),
        ("How old are you?", "opaque", "provide_input"),
        (None, "opaque", "provide_input"),
        ({"question": "?"}, "opaque", "provide_input"),
        ({"action_requests": [], "review_configs": []}, "opaque", "provide_input"),
        ({"action_requests": [1], "review_configs": [2]}, "opaque", "provide_input"),
        ({**batched("mail"), "review_configs": []}, "opaque", "provide_input"),
        ([INBOX, INBOX], "opaque", "provide_input"),
        ({"steadyrun": "confirm_action"}, "opaque", "provide_input"),
        ({"steadyrun": "unheard_of"}, "opaque", "provide_input"),
        ({**SELECT, "options": []}, "opaque", "provide_input"),
        ({**CONFIRM, "expiresInS": -1}, "opaque", "provide_input"),
        ({**CONFIRM, "schema": {"type": 5}}, "opaque", "provide_input"),
    ],
)
def test_auto_recognises_what_a_graph_asks(value: Any, format_: str, type_: str) -> None:
    found = asked(value)
    assert (found.format, found.type) == (format_, type_)


def test_a_configured_format_recognises_nothing_else() -> None:
    assert asked(batched("mail"), replace(SPEC, interrupt_format="opaque")).format == "opaque"
    assert asked(INBOX, replace(SPEC, interrupt_format="langchain-hitl")).format == "opaque"
    assert asked(PER_CALL, replace(SPEC, interrupt_format="langchain-hitl")).actions != []


def test_the_actions_of_an_approval_are_told() -> None:
    call = {"name": "mail", "args": {"to": "a"}, "description": "d"}
    assert asked(batched("mail")).actions == [call]
    assert asked(PER_CALL).actions == [{"toolCallId": "c1", **call}]
    assert asked(INBOX).actions == [call]
    assert asked({**CONFIRM, "callId": "c9"}).actions == [
        {"toolCallId": "c9", "name": "restart", "args": {"id": "i-1"}}
    ]


def test_each_action_of_a_batched_approval_tells_its_call() -> None:
    """LangChain names none: the same tool and arguments in the model's message, each once."""
    calls = [("c1", "mail", {"to": "x"}), ("c2", "mail", {"to": "a"}), ("c3", "mail", {"to": "a"})]
    found = asked(batched("mail", "mail", "call"), calls=calls)
    assert [action.get("toolCallId") for action in found.actions] == ["c2", "c3", None]
    told = [action.get("tool_call_id") for action in found.payload["action_requests"]]
    assert told == ["c2", "c3", None]


def test_what_is_shown_is_masked_and_what_is_validated_is_not() -> None:
    value = {**CONFIRM, "args": {"password": "x"}, "resource": {"token_of": "r-1"}}
    found = asked(value)
    assert found.payload["args"] == {"password": MASK}
    assert found.actions[0]["args"] == {"password": MASK}
    assert found.resource == {"token_of": "r-1"}


def test_defaults_come_from_the_format_the_file_and_the_question_in_this_order() -> None:
    stops = replace(SPEC, on_reject="cancel", on_expire="reject", interrupt_ttl_s=5)
    assert asked(batched("mail")).on_reject == "continue"
    assert asked("?").on_reject == "continue"
    assert asked(CONFIRM).on_reject == "cancel"
    assert asked(SELECT).on_reject == "continue"
    assert asked("?", stops).on_reject == "cancel"
    assert (asked("?", stops).on_expire, asked("?", stops).expires_in_s) == ("reject", 5)
    own = {**CONFIRM, "onReject": "continue", "onExpire": "cancel", "expiresInS": 9}
    found = asked(own, stops)
    assert (found.on_reject, found.on_expire, found.expires_in_s) == ("continue", "cancel", 9)
    assert asked({**CONFIRM, "expiresInS": None}, stops).expires_in_s is None
    assert asked({**CONFIRM, "requiredPermission": "ops"}).required_permission == "ops"


def test_only_what_all_actions_allow_can_be_decided_at_once() -> None:
    value = batched("mail", "call")
    value["review_configs"][1]["allowed_decisions"] = ["approve", "edit"]
    assert asked(value).allowed_decisions == ["approve"]
    assert asked(batched("mail")).allowed_decisions == ["approve", "edit", "reject", "respond"]


def test_a_question_is_json_even_if_the_graph_asked_with_other_objects() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    found = asked({**SELECT, "options": [moment], "resource": {"at": moment}})
    assert json.dumps([found.payload, found.answer_schema, found.resource])


# deciding


ALL_OPAQUE = [
    ("approve", {"type": "approve"}),
    ("reject", {"type": "reject"}),
    ({"reject": {"message": "no"}}, {"type": "reject", "message": "no"}),
    ({"reject": {}}, {"type": "reject"}),
    ({"edit": {"a": 1}}, {"type": "edit", "args": {"a": 1}}),
    ({"select": "x"}, {"type": "select", "value": "x"}),
    ({"select": None}, {"type": "select", "value": None}),
    ({"fill": {"a": 1}}, {"type": "fill", "values": {"a": 1}}),
]


@pytest.mark.parametrize(("decision", "value"), ALL_OPAQUE)
def test_an_opaque_question_gets_the_decision_as_an_object(decision: Any, value: Any) -> None:
    assert answer(asked("?"), decision) == Answer(value)


def edit(**args: Any) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": "mail", "args": args}}


@pytest.mark.parametrize(
    ("decision", "each"),
    [
        ("approve", {"type": "approve"}),
        ("reject", {"type": "reject"}),
        ({"reject": {"message": "no"}}, {"type": "reject", "message": "no"}),
        ({"edit": {"to": "b"}}, edit(to="b")),
    ],
)
def test_langchains_middleware_gets_its_own_words(decision: Any, each: dict[str, Any]) -> None:
    assert answer(asked(batched("mail")), decision) == Answer({"decisions": [each]})
    assert answer(asked(PER_CALL), decision) == Answer(each)


def test_one_decision_answers_for_every_action() -> None:
    two = answer(asked(batched("mail", "call")), "approve")
    assert two == Answer({"decisions": [{"type": "approve"}, {"type": "approve"}]})


@pytest.mark.parametrize(
    ("decision", "value"),
    [
        ("approve", {"type": "accept", "args": None}),
        ("reject", {"type": "ignore", "args": None}),
        ({"edit": {"to": "b"}}, {"type": "edit", "args": {"action": "mail", "args": {"to": "b"}}}),
        ({"fill": {"text": "hm"}}, {"type": "response", "args": "hm"}),
        ({"fill": {"a": "x", "b": 1}}, {"type": "response", "args": {"a": "x", "b": 1}}),
    ],
)
def test_agent_inbox_gets_a_list_of_one(decision: Any, value: Any) -> None:
    assert answer(asked([INBOX]), decision) == Answer([value])


def test_our_questions_are_answered_with_who_decided() -> None:
    assert answer(asked(CONFIRM), "approve", by="ann") == Answer({"type": "approve", "by": "ann"})
    assert answer(asked(SELECT), {"select": 2}) == Answer({"type": "select", "value": 2})
    filled = answer(asked(PROVIDE), {"fill": {"to": "x"}}, by="ann")
    assert filled == Answer({"type": "fill", "values": {"to": "x"}, "by": "ann"})
    editable = asked({**CONFIRM, "editable": True})
    assert answer(editable, {"edit": {"id": "2"}}) == Answer({"type": "edit", "args": {"id": "2"}})
    assert answer(asked("?"), "approve", by="ann") == Answer({"type": "approve"})


def test_a_reject_under_the_cancel_policy_gives_the_graph_nothing() -> None:
    assert answer(asked(CONFIRM), "reject") == CancelRun(None)
    assert answer(asked(CONFIRM), {"reject": {"message": "no"}}) == CancelRun("no")
    kept = asked({**CONFIRM, "onReject": "continue"})
    assert answer(kept, "reject") == Answer({"type": "reject"})


@pytest.mark.parametrize(
    "decision",
    [
        None,
        "",
        "yes",
        "edit",
        7,
        [],
        {},
        {"approve": {}},
        {"approve": True},
        {"edit": 5},
        {"edit": {}, "reject": {}},
        {"fill": "x"},
        {"reject": "no"},
        {"reject": {"message": 5}},
        {"reject": {"reason": "x"}},
        {"respond": {"message": "x"}},
    ],
)
@pytest.mark.parametrize("value", ["?", batched("mail"), PER_CALL, INBOX, CONFIRM, SELECT, PROVIDE])
def test_what_is_no_decision_is_refused(decision: Any, value: Any) -> None:
    assert isinstance(answer(asked(value), decision), Invalid)


@pytest.mark.parametrize(
    ("found", "decision", "words"),
    [
        (asked(batched("mail")), {"select": 1}, "allowed are: approve, edit, reject, respond"),
        (asked(batched("mail", allowed=["approve"])), "reject", "allowed are: approve"),
        (asked(batched("a", "b")), {"edit": {"x": 1}}, "'edit' is not allowed"),
        (asked({**INBOX, "config": {"allow_accept": True}}), {"edit": {}}, "allowed are: approve"),
        (asked({**INBOX, "config": {}}), "approve", "allowed are: reject"),
        (asked(SELECT), {"select": "c"}, "none of the options"),
        (asked(SELECT), {"select": True}, "none of the options"),
        (asked(SELECT), {"select": {"value": 2, "label": "two"}}, "none of the options"),
        (asked(PROVIDE), {"fill": {}}, "values does not fit its schema (required: to)"),
        (asked(PROVIDE), {"fill": {"to": 5}}, "values.to does not fit its schema (type)"),
        (asked(CONFIRM), {"edit": {"id": 1}}, "'edit' is not allowed"),
        (asked({**CONFIRM, "schema": MAIL_SCHEMA}), {"edit": {"to": 1}}, "args.to does not fit"),
        (asked({**CONFIRM, "rejectable": False}), "reject", "'reject' is not allowed"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    found: Question, decision: Any, words: str
) -> None:
    refused = answer(found, decision)
    assert isinstance(refused, Invalid)
    assert words in refused.detail


def test_edited_arguments_are_checked_against_the_tools_schema() -> None:
    schemas = {"mail": MAIL_SCHEMA}
    for value in (batched("mail"), PER_CALL, INBOX):
        found = asked(value, schemas=schemas)
        assert isinstance(answer(found, {"edit": {"to": "b", "copies": 2}}), Answer)
        refused = answer(found, {"edit": {"to": "secret value", "copies": "two"}})
        assert isinstance(refused, Invalid)
        assert "copies" in refused.detail
        assert "two" not in refused.detail


def test_an_edit_that_sends_the_mask_back_is_refused() -> None:
    value = batched("mail")
    value["action_requests"][0]["args"] = {"to": "a", "password": "hunter2"}
    found = asked(value)
    refused = answer(found, {"edit": {"to": "b", "password": MASK}})
    assert refused == Invalid("args.password was hidden from view; give its value, or leave it out")
    assert isinstance(answer(found, {"edit": {"to": "b", "password": "new"}}), Answer)


def test_a_broken_schema_does_not_stop_anybody() -> None:
    for schema in ({"type": 5}, {"$ref": "#/nowhere"}, {"$ref": "https://example.invalid/x"}):
        found = asked(batched("mail"), schemas={"mail": schema})
        assert isinstance(answer(found, {"edit": {"to": "b"}}), Answer)


# raw resume values: the poisoned answers of the middleware among them

POISON = [
    {"decisions": []},
    {"decisions": [{"type": "approve"}, {"type": "approve"}]},
    {"decisions": [{"type": "unheard"}]},
    {"decisions": "approve"},
    {"decisions": ["approve"]},
    {"decisions": [None]},
    {"decision": [{"type": "approve"}]},
    {"decisions": [{"type": "approve"}], "extra": 1},
    {},
    None,
    "approve",
    [{"type": "approve"}],
    {"decisions": [{"type": "edit"}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "other", "args": {}}}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "mail"}}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "mail", "args": "x"}}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "mail", "args": {"to": 1}}}]},
    {"decisions": [{"type": "respond"}]},
    {"decisions": [{"type": "respond", "message": 5}]},
    {"decisions": [{"type": "reject", "message": 5}]},
    {"decisions": [{"type": "approve", "message": "?"}]},
]


@pytest.mark.parametrize("value", POISON)
def test_an_answer_that_would_poison_the_thread_is_refused(value: Any) -> None:
    found = asked(batched("mail"), schemas={"mail": MAIL_SCHEMA})
    assert isinstance(validate_raw(found, value), Invalid)


@pytest.mark.parametrize(
    "decision",
    [
        {"type": "approve"},
        {"type": "reject"},
        {"type": "reject", "message": "no"},
        {"type": "respond", "message": "done by hand"},
        edit(to="b"),
    ],
)
def test_a_good_raw_answer_passes(decision: Any) -> None:
    assert validate_raw(asked(batched("mail")), {"decisions": [decision]}) is None
    assert validate_raw(asked(PER_CALL), decision) is None


def test_decisions_of_several_actions_are_checked_one_by_one() -> None:
    value = batched("mail", "call")
    value["review_configs"][1]["allowed_decisions"] = ["approve"]
    found = asked(value)
    good = {"decisions": [edit(to="b"), {"type": "approve"}]}
    bad = {"decisions": [{"type": "approve"}, {"type": "reject"}]}
    assert validate_raw(found, good) is None
    assert validate_raw(found, bad) == Invalid("decision 2: 'reject' is not among ['approve']")


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        {"type": "accept", "args": None},
        [{"type": "accept"}, {"type": "accept"}],
        [{"type": "unheard"}],
        [{"type": "edit", "args": {"to": "b"}}],
        [{"type": "edit", "args": {"action": "other", "args": {}}}],
        [{"type": "edit", "args": {"action": "mail", "args": 5}}],
    ],
)
def test_a_wrong_raw_answer_of_agent_inbox_is_refused(value: Any) -> None:
    assert isinstance(validate_raw(asked(INBOX), value), Invalid)


def test_a_good_raw_answer_of_agent_inbox_passes() -> None:
    assert validate_raw(asked(INBOX), [{"type": "accept", "args": None}]) is None
    assert validate_raw(asked(INBOX), [{"type": "response", "args": "text"}]) is None


@pytest.mark.parametrize(
    ("found", "value", "passes"),
    [
        (asked(CONFIRM), {"type": "approve"}, True),
        (asked(CONFIRM), {"type": "approve", "by": "somebody else"}, False),
        (asked(CONFIRM), {"type": "reject"}, False),
        (asked({**CONFIRM, "onReject": "continue"}), {"type": "reject", "message": "x"}, True),
        (asked(CONFIRM), True, False),
        (asked(CONFIRM), {"approved": True}, False),
        (asked(SELECT), {"type": "select", "value": "a"}, True),
        (asked(SELECT), {"type": "select", "value": "c"}, False),
        (asked(SELECT), {"type": "select"}, False),
        (asked(PROVIDE), {"type": "fill", "values": {"to": "x"}}, True),
        (asked(PROVIDE), {"type": "fill", "values": {}}, False),
        (asked({"steadyrun": "provide_input"}), {"type": "fill", "values": {"a": 1}}, True),
        (asked({"steadyrun": "provide_input"}), {"type": "fill", "values": 5}, False),
        (asked(SELECT), {"type": "reject", "message": 5}, False),
    ],
)
def test_raw_answers_to_our_questions_keep_to_their_shape(
    found: Question, value: Any, passes: bool
) -> None:
    assert (validate_raw(found, value) is None) == passes


def test_an_opaque_question_with_a_schema_takes_what_fits_it() -> None:
    found = asked("?", response_schema={"type": "integer"})
    assert validate_raw(found, 0) is None
    assert validate_raw(found, "0") == Invalid("value does not fit its schema (type)")
    assert isinstance(answer(found, "approve"), Invalid)
    assert rejection(found) is None


LATE = {"type": "reject", "message": "Nobody decided in time; this was not done."}


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ("?", LATE),
        (CONFIRM, LATE),
        ({**SELECT, "rejectable": False}, LATE),
        (batched("mail", "call"), {"decisions": [LATE, LATE]}),
        (batched("mail", allowed=["approve"]), None),
        (PER_CALL, LATE),
        ([INBOX], [{"type": "ignore", "args": None}]),
        ({**INBOX, "config": {"allow_accept": True}}, None),
    ],
)
def test_each_format_has_its_own_word_for_a_rejection_that_nobody_made(
    value: Any, given: Any
) -> None:
    assert rejection(asked(value)) == (None if given is None else Answer(given))


def test_where_people_may_not_decline_only_the_question_itself_can_expire_as_declined() -> None:
    rejects = replace(SPEC, on_expire="reject")
    firm = {**SELECT, "rejectable": False}
    assert asked(SELECT, rejects).on_expire == "reject"
    assert asked(firm, rejects).on_expire == "cancel"
    assert asked({**firm, "onExpire": "reject"}).on_expire == "reject"


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, {"a": 1}, "text"])
def test_an_opaque_question_takes_any_raw_value(value: Any) -> None:
    assert validate_raw(asked("?"), value) is None


def test_a_row_without_a_stored_schema_is_answered_all_the_same() -> None:
    row = Stored("langchain-hitl", ["approve", "edit"], [{"name": "mail", "args": {}}])
    assert answer(row, {"edit": {"to": "b"}}) == Answer({"decisions": [edit(to="b")]})


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.sampled_from(["approve", "reject", "edit", "mail", "type", "decisions", "args"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["decisions", "type", "edited_action", "name", "args", "message", "x"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)
@given(ANY)
def test_no_answer_makes_the_checks_fail(value: Any) -> None:
    for found in map(asked, (batched("mail"), PER_CALL, [INBOX], CONFIRM, SELECT, PROVIDE, "?")):
        assert isinstance(answer(found, value), Answer | CancelRun | Invalid)
        assert isinstance(validate_raw(found, value), Invalid | None)
        assert isinstance(rejection(found), Answer | None)


@settings(deadline=None)
@given(ANY)
def test_no_question_makes_the_reading_fail(value: Any) -> None:
    assert asked(value).format


@pytest.mark.parametrize("seconds", [1e12, float("inf")])
def test_a_question_that_waits_longer_than_any_calendar_waits_for_ever(seconds: float) -> None:
    found = asked({"steadyrun": "provide_input", "expiresInS": seconds})
    assert found.format == "steadyrun"
    assert expires_at(datetime.now(UTC), found.expires_in_s) is None


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [
        {"steadyrun": "select_option", "options": [{(1, 2): 3}]},
        {"steadyrun": "select_option", "options": [ENDLESS]},
        {"steadyrun": "provide_input", "schema": {"properties": {(1, 2): {}}}},
        {"steadyrun": "provide_input", "schema": {"$schema": []}},
        {
            "action_requests": [{"name": "a"}],
            "review_configs": [{"action_name": ["a"], "allowed_decisions": []}],
        },
    ],
)
def test_a_question_of_unforeseen_parts_is_opaque(value: Any) -> None:
    assert asked(value).format == "opaque"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", (1,): 2},
        {"oneOf": [{"properties": []}, 5, {"properties": {"type": 5}}]},
    ],
)
def test_a_response_schema_of_unforeseen_parts_stops_nobody(schema: Any) -> None:
    assert asked("?", response_schema=schema).format == "opaque"
    assert asked(PER_CALL, response_schema=schema).allowed_decisions


@pytest.mark.parametrize("more", [{"expiresInS": 0}, {"schema": 5}, {"onReject": []}])
def test_a_question_of_ours_that_cannot_be_read_keeps_its_permission(more: Any) -> None:
    value = {"steadyrun": "confirm_action", "action": "a", "requiredPermission": "ops.restart"}
    found = asked({**value, **more})
    assert (found.format, found.required_permission) == ("opaque", "ops.restart")


def test_an_action_of_which_there_is_too_much_keeps_its_name() -> None:
    request = {"description": "d" * 200_000, "name": "mail", "args": {}}
    configs = [{"action_name": "mail", "allowed_decisions": ["approve", "edit"]}]
    found = asked({"action_requests": [request], "review_configs": configs})
    assert isinstance(answer(found, {"edit": {"to": "b"}}), Answer)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/required/x", "required": ["a"]},
        {"$id": "http://[bad", "$ref": "x"},
        {"$schema": []},
    ],
)
def test_a_schema_that_leads_nowhere_does_not_stop_anybody(schema: Any) -> None:
    found = replace(asked(PROVIDE), answer_schema={"values": schema})
    assert isinstance(answer(found, {"fill": {"a": "1"}}), Answer)


@pytest.mark.parametrize(
    "value",
    [
        batched("mail", allowed=()),
        batched("mail", allowed=("shrug",)),
        {
            **batched("mail", "call"),
            "review_configs": [
                {"action_name": "mail", "allowed_decisions": ["approve", "reject"]},
                {"action_name": "call", "allowed_decisions": []},
            ],
        },
        {**INBOX, "config": {}},
        {**INBOX, "config": {"allow_accept": False, "allow_ignore": False}},
    ],
)
def test_a_question_that_allows_no_decision_can_still_be_rejected_which_ends_the_run(
    value: Any,
) -> None:
    """Its graph refuses every answer, so it gets none."""
    made = asked(value, replace(SPEC, on_reject="continue"))
    assert made.allowed_decisions == ["reject"]
    assert answer(made, "reject") == CancelRun(None)
    assert isinstance(answer(made, "approve"), Invalid)
    assert made.on_expire == "cancel"
    assert response_types(made.allowed_decisions) == ["reject"]


@pytest.mark.parametrize("permission", ["", None])
@pytest.mark.parametrize("more", [{}, {"args": 5}])
def test_no_permission_is_required_where_none_is_named(permission: Any, more: Any) -> None:
    value = {"steadyrun": "confirm_action", "action": "pay", "requiredPermission": permission}
    assert asked({**value, **more}).required_permission is None
