"""What the terminal client keeps and shows of a run, and how it asks."""

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.graphfile import GraphSpec, Reference
from common.masking import Masker
from deploy.card import decide, describe
from deploy.chat import ask_at
from deploy.client.transcript import Transcript, Voided
from deploy.paper import Paper, brief, clean
from runner import effectcard
from runner.asking import Unknown

Event = dict[str, Any]


def numbered(*events: Event, after: int = 0) -> Iterator[Event]:
    for sequence, event in enumerate(events, after + 1):
        yield {"runId": "run_1", "epoch": 1, "at": "…", "sequence": sequence} | event


def said(delta: str, step: str = "s1", message: str = "m1") -> Event:
    return {"type": "text_delta", "messageId": message, "delta": delta, "stepId": step}


def tool(kind: str, step: str = "s2", **fields: Any) -> Event:
    return {"type": f"tool_{kind}", "callId": "c1", "tool": "list", "stepId": step} | fields


def resumed(*discard: str, reason: str = "failover") -> Event:
    return {"type": "run_resumed", "reason": reason, "discard": list(discard)}


def played(*events: Event) -> Transcript:
    transcript = Transcript()
    for event in numbered(*events):
        transcript.apply(event)
    return transcript


def drawn(*events: Event, styled: bool = False) -> str:
    out = io.StringIO()
    paper, transcript = Paper(out, styled=styled), Transcript()
    for event in numbered(*events):
        for change in transcript.apply(event):
            paper.draw(change)
    return out.getvalue()


def answers(*lines: str) -> Callable[[str], str]:
    given = iter(lines)

    def ask(prompt: str) -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    return ask


def test_deltas_of_a_message_are_one_text() -> None:
    assert played(said("Hel"), said("lo")).text == "Hello"


def test_an_event_that_comes_again_changes_nothing() -> None:
    transcript = Transcript()
    first, second = numbered(said("Hel"), said("lo"))
    changes = [len(transcript.apply(event)) for event in (first, second, first, second)]
    assert changes == [1, 1, 0, 0]
    assert transcript.text == "Hello"


def test_what_stands_under_a_discarded_step_is_taken_off_and_nothing_else() -> None:
    transcript = played(
        said("one ", "s1"), said("two ", "s2"), tool("started", "s2"), said("three ", "s3", "m2"),
        resumed("s2", "unknown"), said("TWO ", "s2", "m3"),
    )  # fmt: skip
    assert transcript.text == "one three TWO "
    assert [piece.kind for piece in transcript.pieces] == ["text", "text", "text"]


def test_a_retried_step_is_taken_off_too() -> None:
    retried = {"type": "step_retried", "stepId": "s1", "attempt": 2}
    assert played(said("half"), retried, said("whole")).text == "whole"


def test_a_resume_that_discards_nothing_shown_voids_nothing() -> None:
    transcript = Transcript()
    *before, resume = numbered(said("one"), resumed("s9"))
    for event in before:
        transcript.apply(event)
    assert not any(isinstance(change, Voided) for change in transcript.apply(resume))


def test_unknown_events_move_the_cursor_and_change_nothing() -> None:
    transcript = played(said("a"), {"type": "from_the_future", "x": 1})
    assert (transcript.sequence, transcript.text) == (2, "a")


def test_a_run_waits_at_a_question_until_it_is_taken_up_and_ends_once() -> None:
    question = {"type": "interrupt", "interruptId": "int_1", "payload": {}}
    assert played(question).waiting
    assert not played(question, resumed(reason="decision")).waiting
    done = played(question, resumed(), {"type": "done", "messageId": "m"})
    assert done.end is not None
    assert done.end["type"] == "done"


STEPS = st.sampled_from(["s1", "s2", "s3"])
EVENTS = st.one_of(
    st.builds(said, st.text("ab", min_size=1, max_size=3), STEPS, st.sampled_from(["m1", "m2"])),
    st.builds(lambda steps: resumed(*steps), st.sets(STEPS)),
)


@given(st.lists(EVENTS, max_size=30))
def test_the_text_is_that_of_the_events_that_were_not_discarded(events: list[Event]) -> None:
    kept: list[Event] = []
    for event in events:
        discarded = event.get("discard", ())
        kept = [one for one in kept if one["stepId"] not in discarded]
        kept += [event] if event["type"] == "text_delta" else []
    assert played(*events).text == "".join(event["delta"] for event in kept)


def test_text_streams_on_one_line_and_tools_stand_on_their_own() -> None:
    page = drawn(
        said("Looking "), said("now."), tool("started", input={"service": "payment-api"}),
        tool("finished", status="success", summary="3 instances"), said("Done.", "s3", "m2"),
        {"type": "done"},
    )  # fmt: skip
    assert page == ("Looking now.\n  → list service=payment-api\n  ✓ list 3 instances\nDone.")


def test_void_text_is_named_and_what_still_stands_is_shown_again() -> None:
    page = drawn(
        said("half a", "s1"), tool("started", "s2"), tool("finished", "s2", status="error"),
        resumed("s1"), said("whole", "s1", "m2"),
    )  # fmt: skip
    _, _, again = page.partition("void")
    assert "half a" in again
    assert "→ list\n  ✗ list\nwhole" in again


def test_a_tool_that_only_begins_anew_is_not_called_void() -> None:
    page = drawn(tool("started"), resumed("s2", reason="decision"), tool("started"))
    assert page == "  → list\n  → list\n"


def test_what_the_server_sends_cannot_steer_the_terminal() -> None:
    page = drawn(
        said("a\x1b[2Jb\x9bc\u202ed\re\x07"),
        tool("started", input="\x1b]0;title\x07"),
        tool("finished", status="success", summary="\x1b[31mred"),
    )
    assert "\x1b" not in page
    assert clean("行\t\n👩\u200d🔧\x00") == "行\t\n👩\u200d🔧"


def test_styles_are_written_only_where_they_are_wanted() -> None:
    assert "\x1b[2m" in drawn(tool("started"), styled=True)


def test_long_values_are_cut_to_one_short_line() -> None:
    assert len(brief({"a": "x\n" * 1000})) <= 120
    assert "\n" not in brief("a\nb")


CONFIRM: dict[str, Any] = {
    "id": "int_1",
    "type": "confirm_action",
    "format": "steadyrun",
    "payload": {"steadyrun": "confirm_action", "risk": "cuts requests"},
    "allowedDecisions": ["approve", "reject", "edit"],
    "actions": [{"name": "restart", "args": {"instance": "payment-api-2", "version": 7}}],
    "expiresAt": "2030-01-01T00:00:00Z",
}


def test_the_card_names_action_target_risk_and_deadline() -> None:
    card = "\n".join(describe(CONFIRM | {"requiredPermission": "ops.restart"}))
    for word in ("restart", "payment-api-2", "cuts requests", "2030", "ops.restart"):
        assert word in card


@pytest.mark.parametrize(
    ("lines", "decision"),
    [
        (["y"], "approve"),
        (["?", "", "Yes"], "approve"),
        (["n", ""], "reject"),
        (["n", "not now"], {"reject": {"message": "not now"}}),
        (["e", "", "8"], {"edit": {"instance": "payment-api-2", "version": 8}}),
    ],
)
def test_a_confirmation_is_decided_by_a_letter(lines: list[str], decision: Any) -> None:
    assert decide(CONFIRM, answers(*lines), yes=False) == {
        "interruptId": "int_1", "decision": decision,
    }  # fmt: skip


@pytest.mark.parametrize("lines", [["l"], []])
def test_a_confirmation_may_wait(lines: list[str]) -> None:
    assert decide(CONFIRM, answers(*lines), yes=False) is None


def test_what_is_not_allowed_is_not_offered() -> None:
    fixed = CONFIRM | {"allowedDecisions": ["approve", "reject"]}
    assert decide(fixed, answers("e", "y"), yes=False) == {
        "interruptId": "int_1", "decision": "approve",
    }  # fmt: skip


def test_yes_approves_without_a_question() -> None:
    decided = decide(CONFIRM, answers(), yes=True)
    assert decided == {"interruptId": "int_1", "decision": "approve"}


@pytest.mark.parametrize(("line", "value"), [("2", "prod"), ("prod", "prod"), ("1", "test")])
def test_an_option_is_chosen_by_number_or_name(line: str, value: str) -> None:
    choice = CONFIRM | {
        "type": "select_option",
        "allowedDecisions": ["select"],
        "payload": {"steadyrun": "select_option", "options": ["test", {"value": "prod"}]},
    }
    decided = decide(choice, answers("7", line), yes=False)
    assert decided == {"interruptId": "int_1", "decision": {"select": value}}


def test_fields_are_filled_with_the_types_of_the_schema() -> None:
    properties = {"host": {"type": "string"}, "port": {"type": "integer", "default": 80},
                  "force": {"type": "boolean"}}  # fmt: skip
    form = CONFIRM | {
        "type": "provide_input",
        "allowedDecisions": ["fill"],
        "payload": {"steadyrun": "provide_input", "schema": {"properties": properties}},
    }
    decided = decide(form, answers("7", "", "true"), yes=False)
    assert decided == {
        "interruptId": "int_1",
        "decision": {"fill": {"host": "7", "port": 80, "force": True}},
    }


@pytest.mark.parametrize(("line", "value"), [('{"a": 1}', {"a": 1}), ("some text", "some text")])
def test_a_question_of_the_graphs_own_gets_what_is_typed(line: str, value: Any) -> None:
    own = CONFIRM | {"type": "provide_input", "format": "opaque", "payload": "how many?"}
    assert decide(own, answers(line), yes=False) == {"resume": {"int_1": value}}


class Prompts:
    """Answers the same to each, and keeps them."""

    def __init__(self, answer: str) -> None:
        self.seen: list[str] = []
        self._answer = answer

    def __call__(self, prompt: str) -> str:
        self.seen.append(prompt)
        return self._answer


STARTED_AT = datetime(2026, 1, 2, tzinfo=UTC)


def unknown_effect() -> dict[str, Any]:
    """The card as a client gets it."""
    spec = GraphSpec("g", Reference(Path("g.py"), "graph", ()))
    unknown = Unknown("charge/7", 2, "rnr_1", STARTED_AT, None)
    asked = effectcard.question(unknown, spec, Masker([]))
    return {
        "id": "int_1",
        "type": asked.type,
        "format": asked.format,
        "payload": asked.payload,
        "allowedDecisions": asked.allowed_decisions,
        "actions": asked.actions,
    }


@pytest.mark.parametrize(
    ("lines", "decision"),
    [
        (["1"], {"select": "again"}),
        (["done"], {"select": "done"}),
        (["f", '{"receipt": 7}'], {"fill": {"result": {"receipt": 7}}}),
        (["x", "n", ""], "reject"),
        (["n", "the bank says no"], {"reject": {"message": "the bank says no"}}),
    ],
)
def test_all_that_may_be_said_of_an_unknown_effect_can_be_said_here(
    lines: list[str], decision: Any
) -> None:
    decided = decide(unknown_effect(), answers(*lines), yes=False)
    assert decided == {"interruptId": "int_1", "decision": decision}


def test_what_each_answer_about_an_unknown_effect_means_is_shown_once() -> None:
    asked, prompts = unknown_effect(), Prompts("l")
    assert decide(asked, prompts, yes=False) is None
    page = "\n".join([*describe(asked), *prompts.seen])
    assert set(asked["allowedDecisions"]) == {"select", "fill", "reject"}, "all are looked for here"
    labels = [option["label"] for option in asked["payload"]["options"]]
    for text in (*labels, asked["payload"]["fill"], asked["payload"]["reject"]):
        assert page.count(text) == 1


@pytest.mark.parametrize("type_", ["select_option", "provide_input"])
@pytest.mark.parametrize(("lines", "decided"), [(["n", ""], "reject"), (["l"], None), ([], None)])
def test_a_question_that_may_be_declined_can_be_declined_or_left(
    type_: str, lines: list[str], decided: Any
) -> None:
    payload = {"options": ["a"], "schema": {"properties": {"x": {}}}}
    asked = CONFIRM | {"type": type_, "payload": payload, "allowedDecisions": ["reject"]}
    expected = decided and {"interruptId": "int_1", "decision": decided}
    assert decide(asked, answers(*lines), yes=False) == expected


def test_an_option_called_like_a_letter_is_the_option() -> None:
    asked = CONFIRM | {"type": "select_option", "payload": {"options": ["y", "n"]}}
    decided = decide(asked, answers("n"), yes=False)
    assert decided == {"interruptId": "int_1", "decision": {"select": "n"}}


def test_a_prompt_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts("x")
    monkeypatch.setattr("builtins.input", prompts)
    assert ask_at(io.StringIO())("\x1b[2Jwhich? > ") == "x"
    assert prompts.seen == ["[2Jwhich? > "]


def test_a_question_is_shown_whole_though_tools_are_cut_short() -> None:
    long = "It was begun, and how it ended was never noted. " * 5
    asked = {"type": "select_option", "payload": {"description": long}, "actions": []}
    assert any(long.strip() in line for line in describe(asked))
    assert len(brief(long)) == 120
