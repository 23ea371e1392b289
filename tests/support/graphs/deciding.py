"""Asks before it acts, once; what it did stands in a file, a line for each time."""

import json
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from runner.authoring import confirm_action


class State(TypedDict, total=False):
    input: Any
    said: Annotated[list[Any], operator.add]


def _act(state: State) -> State:
    """The order is JSON: `file`, and `onReject`."""
    order = json.loads(state["input"])
    approval = confirm_action(
        "append",
        {"file": order["file"]},
        on_reject=order["onReject"],
        required_permission="pumps.restart",
        resource={"id": order["file"]},
    )
    if approval.approved:
        with Path(order["file"]).open("a") as file:
            file.write(f"{approval.by}\n")
    return {"said": [{"approved": approval.approved, "by": approval.by}]}


decided = StateGraph(State).add_node("act", _act).add_edge(START, "act").compile()
