"""Asks one question, of the kind that its input names, and tells the answer."""

from typing import Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from runner.authoring import confirm_action, provide_input, select_option

_BILL = {"id": "bill-7", "version": 1}
_SCHEMA = {
    "type": "object",
    "properties": {
        "ticket": {"type": "string", "title": "Ticket"},
        "minutes": {"type": "integer", "title": "Minutes", "default": 15},
        "urgent": {"type": "boolean", "title": "Urgent"},
        "team": {"enum": ["day", "night"], "title": "Team"},
    },
    "required": ["ticket"],
}


class State(TypedDict, total=False):
    input: str
    answer: Any


def _ask(kind: str) -> Any:
    if kind == "choose":
        return select_option(["left", {"value": 2, "label": "The right one"}], title="Which way?")
    if kind == "fill":
        return provide_input(_SCHEMA, title="Maintenance window")
    if kind == "opaque":
        return interrupt({"question": "Which colour?"})
    terms: dict[str, Any] = {"resource": _BILL, "editable": True, "risk": "The money is gone."}
    if kind == "locked":
        terms["required_permission"] = "ops.pay"
    if kind == "brief":
        terms["expires_in_s"] = 2
    approval = confirm_action("pay", {"amount": 10}, title="Pay the bill", **terms)
    return {"approved": approval.approved, "args": approval.args}


def ask(state: State) -> State:
    answer = _ask(state["input"])
    get_stream_writer()({"answer": answer})
    return {"answer": answer}


graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
