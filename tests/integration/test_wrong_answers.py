"""A wrong answer of each kind to each format is refused, and the right one then works, in the same
run (contract §5, step 4, and §8). Over HTTP, with real graphs.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.support.whole import Json, Talk, Whole, whole

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def system(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[Whole]:
    async with whole(database_url, redis_url, redis_prefix) as running:
        yield running


def decision(value: Any, says: str = "") -> tuple[str, Any, str]:
    return "decision", value, says


def value(given: Any, says: str = "") -> tuple[str, Any, str]:
    return "value", given, says


Try = tuple[str, Any, str]

NO_DECISION = [
    decision(None),
    decision(""),
    decision("perhaps"),
    decision(7),
    decision([]),
    decision({}),
    decision({"approve": {}}),
    decision({"edit": {}, "reject": {}}, "one key"),
    decision({"edit": 5}, "takes an object"),
    decision({"fill": "x"}, "takes an object"),
    decision({"reject": "no"}, "an object with 'message'"),
    decision({"reject": {"message": 5}}, "must be a text"),
    decision({"respond": {"message": "x"}}),
]


def edit(name: str = "send_mail", **args: Any) -> Json:
    return {"type": "edit", "edited_action": {"name": name, "args": args}}


APPROVE = {"type": "approve"}
WRONG_DECISIONS_OF_ONE = [
    value(None),
    value("approve"),
    value({}),
    value({"type": "perhaps"}, "whose type is one of"),
    value({"type": "approve", "more": 1}, "unknown key 'more'"),
    value({"type": "edit"}, "'edited_action' must have"),
    value(edit("drop_tables", to="b", text="x"), "must stay 'send_mail'"),
    value(edit(to="b"), "required: text"),
    value(edit(to=5, text="x"), "args.to does not fit"),
    value({"type": "edit", "edited_action": {"name": "send_mail", "args": "x"}}, "an object"),
    value({"type": "respond"}, "needs a message"),
    value({"type": "reject", "message": 5}, "must be a text"),
]
WRONG_BATCHES = [
    value({"decisions": []}, "0 decisions for 2 actions"),
    value({"decisions": [APPROVE]}, "1 decisions for 2 actions"),
    value({"decisions": [APPROVE, APPROVE, APPROVE]}, "3 decisions for 2 actions"),
    value({"decisions": "approve"}, "a list"),
    value({"decision": [APPROVE, APPROVE]}, "the one key 'decisions'"),
    value([APPROVE, APPROVE], "the one key 'decisions'"),
    decision({"edit": {"to": "b", "text": "x"}}, "'edit' is not allowed"),
    *(value({"decisions": [APPROVE, tried]}, says) for _, tried, says in WRONG_DECISIONS_OF_ONE),
]
SELECTS = [decision({"select": "x"}, "allowed are"), decision({"fill": {"a": 1}}, "allowed are")]

CASES: dict[str, tuple[Sequence[Try], Try, Any]] = {
    "plain": (NO_DECISION, value(0), [0]),
    "picky": (
        [value(0, "a positive number, please"), value("3"), decision("approve"), value(True)],
        value(30),
        [30],
    ),
    "typed": (
        [
            value({}, "required: city"),
            value({"city": 5}, "value.city does not fit its schema (type)"),
            value({"city": "Bremen", "nights": "two"}, "value.nights"),
            value("Bremen"),
            value(None),
            decision("approve", "value does not fit"),
            decision({"fill": {"city": "Bremen"}}, "value does not fit"),
        ],
        value({"city": "Bremen", "nights": 2}),
        [{"city": "Bremen", "nights": 2}],
    ),
    "confirm": (
        [
            *NO_DECISION,
            decision({"select": "a"}, "allowed are: approve, edit, reject"),
            decision({"edit": {}}, "required: id"),
            decision({"edit": {"id": 5}}, "args.id does not fit its schema (type)"),
            value(True),
            value({"approved": True}),
            value({"type": "approve", "by": "somebody else"}),
            value({"type": "edit", "args": {"id": 5}}),
        ],
        decision({"edit": {"id": "b"}}),
        [{"approved": True, "args": {"id": "b"}, "by": "ada"}],
    ),
    "select": (
        [
            *NO_DECISION,
            decision("approve", "allowed are: select"),
            decision("reject", "allowed are: select"),
            decision({"select": "live"}, "none of the options"),
            decision({"select": "2"}, "none of the options"),
            decision({"select": 0}, "none of the options"),
            decision({"select": {"value": 2, "label": "live"}}, "none of the options"),
            value("test"),
            value({"type": "select"}),
            value({"type": "select", "value": "prod"}),
        ],
        decision({"select": False}),
        [False],
    ),
    "provide": (
        [
            *NO_DECISION,
            decision("approve", "allowed are: fill"),
            decision({"fill": {}}, "required: port"),
            decision({"fill": {"port": "80"}}, "values.port does not fit its schema (type)"),
            decision({"fill": {"port": 0}}, "values.port does not fit its schema (minimum)"),
            decision({"fill": {"port": 80, "host": None}}, "values.host"),
            value({"port": 80}),
            value({"type": "fill", "values": 80}),
        ],
        decision({"fill": {"port": 80}}),
        [{"port": 80}],
    ),
    "inbox": (
        [
            *NO_DECISION,
            decision("reject", "allowed are: approve, edit, fill"),
            decision({"select": 1}, "allowed are"),
            value({"type": "accept"}, "a list of one"),
            value([], "a list of one"),
            value([{"type": "accept"}, {"type": "accept"}], "a list of one"),
            value([{"type": "ignore"}], "not allowed"),
            value([{"type": "perhaps"}], "not allowed"),
            value([{"type": "edit", "args": {"to": "b"}}], "'action' and 'args'"),
            value([{"type": "edit", "args": {"action": "x", "args": {}}}], "must stay"),
            value([{"type": "edit", "args": {"action": "send_mail", "args": 5}}], "an object"),
            value([{"type": "response"}], "a text or an object"),
            value([{"type": "response", "args": 5}], "a text or an object"),
        ],
        decision({"fill": {"text": "later"}}),
        [{"type": "response", "args": "later"}],
    ),
}


@pytest.mark.parametrize("graph", CASES)
async def test_a_wrong_answer_of_each_kind_is_refused_and_the_right_one_works(
    system: Whole, graph: str
) -> None:
    wrong, right, given = CASES[graph]
    talk = await system.start(graph)
    await refused(talk, wrong)
    await answered(talk, right)
    assert await talk.said() == given


@pytest.mark.parametrize(
    ("graph", "wrong", "right", "told"),
    [
        (
            "batched",
            [*NO_DECISION, *SELECTS, *WRONG_BATCHES],
            value({"decisions": [edit(to="c@example.org", text="x"), {"type": "reject"}]}),
            "sent to c@example.org",
        ),
        (
            "one_call",
            [
                *NO_DECISION,
                *SELECTS,
                decision({"edit": {"to": "b", "text": "x"}}, "not allowed"),
                value({"decisions": [{"type": "respond", "message": "x"}]}, "not among"),
                value({"decisions": [edit(to="b", text="x")]}, "not among"),
            ],
            decision("approve"),
            "sent to a@example.org",
        ),
    ],
    ids=["several", "one"],
)
async def test_a_wrong_answer_to_langchains_approvals_is_refused_and_the_right_one_works(
    system: Whole, graph: str, wrong: Sequence[Try], right: Try, told: str
) -> None:
    talk = await system.start(graph)
    await refused(talk, wrong)
    await answered(talk, right)
    assert (await talk.settled())["status"] == "completed"
    assert told in str(await talk.messages())


async def test_a_wrong_answer_to_one_call_of_several_is_refused_and_the_right_ones_work(
    system: Whole,
) -> None:
    """A map is taken as a whole or not at all: the other call's tool does not run either."""
    talk = await system.start("per_call")
    one, two = await talk.asked()
    await refused(talk, [*NO_DECISION, *SELECTS, *WRONG_DECISIONS_OF_ONE])
    for _, tried, _ in WRONG_DECISIONS_OF_ONE:
        answer = await talk.send({"resume": {one["id"]: APPROVE, two["id"]: tried}})
        assert answer.status_code == 422, (tried, answer.text)
    assert await talk.asked() == [one, two]
    both = {one["id"]: APPROVE, two["id"]: edit(to="c@example.org", text="x")}
    assert (await talk.send({"resume": both})).status_code == 202
    assert (await talk.settled())["status"] == "completed"
    told = str(await talk.messages())
    assert "sent to a@example.org" in told
    assert "sent to c@example.org" in told


async def refused(talk: Talk, wrong: Sequence[Try]) -> None:
    """Each with 422 and the reason; the question stays as it was."""
    before = await talk.asked()
    for kind, tried, says in wrong:
        answer = await _send(talk, kind, tried, before[0])
        assert (answer.status_code, answer.json()["code"]) == (422, "VALIDATION"), (tried, answer)
        assert says in answer.json()["detail"], (tried, answer.text)
    assert await talk.asked() == before
    assert [event["type"] for event in await talk.events()].count("interrupt_resolved") == 0


async def answered(talk: Talk, right: Try) -> None:
    kind, given, _ = right
    [question, *_] = await talk.asked()
    answer = await _send(talk, kind, given, question)
    assert answer.status_code == 202, answer.text
    assert answer.json()["run"]["id"] == talk.id


async def _send(talk: Talk, kind: str, tried: Any, question: Json) -> Any:
    send = talk.decide if kind == "decision" else talk.give
    return await send(tried, question)
