"""The three questions: what Steadyrun reads in them, and what comes back to the graph."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from common import hitl
from common.graphfile import GraphSpec
from common.loading import Reference
from common.masking import Masker
from runner.authoring import Approval, confirm_action, provide_input, select_option

CONFIG: Any = {"configurable": {"thread_id": "t"}}
PORT = {"type": "object", "properties": {"port": {"type": "integer"}}, "required": ["port"]}


SPEC = GraphSpec("g", Reference(Path("g.py"), "graph"))


class State(TypedDict, total=False):
    asked: bool


class Dialogue:
    """A graph of one node that asks; `asked` is what it asked, as Steadyrun reads it."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        def node(state: State) -> State:
            self._got = ask()
            return {"asked": True}

        builder = StateGraph(State)
        builder.add_node("ask", node)
        builder.add_edge(START, "ask")
        self._graph = builder.compile(checkpointer=InMemorySaver())
        (native,) = self._graph.invoke({}, CONFIG)["__interrupt__"]
        self._id = native.id
        self.asked = hitl.question(native.value, SPEC, Masker())

    def decide(self, decision: Any) -> Any:
        answer = hitl.answer(self.asked, decision)
        return self.resume(answer.value) if isinstance(answer, hitl.Answer) else answer

    def resume(self, value: Any) -> Any:
        self._graph.invoke(Command(resume={self._id: value}), CONFIG)
        return self._got


def restart(**more: Any) -> Dialogue:
    return Dialogue(lambda: confirm_action("restart", {"port": 80}, **more))


def test_a_confirmation_names_action_arguments_and_terms() -> None:
    asked = restart(
        risk="cuts requests", required_permission="ops", expires_in_s=60, call_id="c1",
        resource={"id": "i-1"}, description="why",
    ).asked  # fmt: skip
    assert (asked.type, asked.format) == ("confirm_action", "steadyrun")
    assert asked.actions == [
        {"toolCallId": "c1", "name": "restart", "args": {"port": 80}, "description": "why"}
    ]
    assert asked.payload["risk"] == "cuts requests"
    assert (asked.required_permission, asked.expires_in_s) == ("ops", 60)
    assert asked.resource == {"id": "i-1"}
    assert asked.allowed_decisions == ["approve", "reject"]


def test_an_approval_comes_back_with_the_arguments_that_were_asked() -> None:
    assert restart().decide("approve") == Approval(True, {"port": 80})


def test_an_edit_is_an_approval_with_other_arguments_where_it_is_allowed() -> None:
    assert restart(editable=True).decide({"edit": {"port": 81}}) == Approval(True, {"port": 81})
    assert isinstance(restart().decide({"edit": {"port": 81}}), hitl.Invalid)
    assert isinstance(restart(schema=PORT).decide({"edit": {"port": "x"}}), hitl.Invalid)


def test_a_rejection_ends_the_run_unless_the_graph_wants_to_know() -> None:
    assert restart().decide("reject") == hitl.CancelRun(None)
    assert restart(on_reject="continue").decide("reject") == Approval(False, {"port": 80})


@pytest.mark.parametrize("value", [False, None, "yes", {}, {"type": "select"}, 1])
def test_what_is_no_clear_approval_is_none(value: Any) -> None:
    assert restart().resume(value).approved is False


def test_a_plain_true_approves_and_who_decided_is_kept() -> None:
    assert restart().resume(True).approved
    assert restart().resume({"type": "approve", "by": "ann"}).by == "ann"


def test_an_option_comes_back_as_its_value() -> None:
    options = ["test", {"value": 2, "label": "production"}]
    assert Dialogue(lambda: select_option(options)).decide({"select": 2}) == 2
    refused = Dialogue(lambda: select_option(options)).decide({"select": "production"})
    assert isinstance(refused, hitl.Invalid)


def test_an_input_comes_back_as_the_object_that_fits() -> None:
    assert Dialogue(lambda: provide_input(PORT)).decide({"fill": {"port": 1}}) == {"port": 1}
    wrong = Dialogue(lambda: provide_input(PORT)).decide({"fill": {"port": "x"}})
    assert isinstance(wrong, hitl.Invalid)


@pytest.mark.parametrize("ask", [lambda **m: select_option([1], **m), provide_input])
def test_declining_gives_none_and_only_where_it_is_offered(ask: Callable[..., Any]) -> None:
    assert Dialogue(lambda: ask(rejectable=True)).decide("reject") is None
    assert isinstance(Dialogue(ask).decide("reject"), hitl.Invalid)


def test_a_value_of_the_clients_own_is_taken_as_it_is() -> None:
    assert Dialogue(lambda: select_option([1, 2])).resume(2) == 2
    assert Dialogue(provide_input).resume({"type": "car"}) == {"type": "car"}
