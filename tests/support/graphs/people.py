"""Graphs that ask people, one for each format and kind of question, and some that cannot bear it.

`said` in the state is what the questions returned, so that a test sees what a graph was given.
"""

import operator
from typing import Annotated, Any, Literal, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.runtime import get_runtime
from langgraph.types import RetryPolicy, Send, interrupt
from pydantic import BaseModel, field_validator

from runner.authoring import confirm_action, guarded_sync, provide_input, select_option
from tests.support.graphs.agents import Script, send_mail


class State(TypedDict, total=False):
    input: Any
    said: Annotated[list[Any], operator.add]


def _graph(**nodes: Any) -> Any:
    """The nodes in turn."""
    builder, last = StateGraph(State), START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(last, name)
        last = name
    return builder.compile()


def _side_by_side(**nodes: Any) -> Any:
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder.compile()


def _asks(question: Any) -> Any:
    return lambda state: {"said": [interrupt(question)]}


# opaque


class Wish(BaseModel):
    city: str
    nights: int = 1


def _wish(state: State) -> State:
    wish = interrupt("Where to?", response_schema=Wish)
    return {"said": [wish.model_dump()]}


class _Said(TypedDict):
    said: Annotated[list[Any], operator.add]


def _child(name: str) -> Any:
    """It gives back nothing but what was said: two may not both write the input."""
    child = StateGraph(State, output_schema=_Said)
    return child.add_node("ask", _asks({"n": name})).add_edge(START, "ask").compile()


def _in_turn(state: State) -> State:
    return {"said": [interrupt({"n": 1}), interrupt({"n": 2})]}


def _the_same_twice(state: State) -> State:
    return {"said": [interrupt("again?"), interrupt("again?")]}


def _each(state: State) -> State:
    return {"said": [[state["input"], interrupt({"item": state["input"]})]]}


_fan = StateGraph(State)
_fan.add_node("each", _each)
_fan.add_conditional_edges(START, lambda state: [Send("each", {"input": n}) for n in range(3)])

plain = _graph(ask=_asks("How many?"))
picky = _graph(ask=_asks("How many?"))
typed = _graph(ask=_wish)
in_turn = _graph(ask=_in_turn)
the_same_twice = _graph(ask=_the_same_twice)
fan = _fan.compile()
both = _side_by_side(one=_asks({"n": 1}), two=_asks({"n": 2}))
nested = _graph(outer=_graph(inner=_graph(ask=_in_turn)), after=lambda state: {"said": ["after"]})
nested_side_by_side = _side_by_side(left=_child("left"), right=_child("right"))


# ours

PORT = {
    "type": "object",
    "properties": {"port": {"type": "integer", "minimum": 1}, "host": {"type": "string"}},
    "required": ["port"],
}


def _confirm(state: State) -> State:
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    found = confirm_action("restart", {"id": "a"}, schema=schema, on_reject="continue")
    return {"said": [{"approved": found.approved, "args": found.args, "by": found.by}]}


def _select(state: State) -> State:
    return {"said": [select_option(["test", {"value": 2, "label": "live"}, False, None])]}


def _provide(state: State) -> State:
    return {"said": [provide_input(PORT)]}


def _permitted(state: State) -> State:
    return {"said": [confirm_action("restart", required_permission="ops.restart").approved]}


def _expires(state: State) -> State:
    on_expire: Literal["cancel", "reject"] = "reject" if state["input"] == "reject" else "cancel"
    found = confirm_action("restart", expires_in_s=0.2, on_expire=on_expire)
    return {"said": [found.approved]}


confirm = _graph(ask=_confirm)
select = _graph(ask=_select)
provide = _graph(ask=_provide)
permitted = _graph(ask=_permitted)
expires = _graph(ask=_expires)


# approvals of LangChain's middleware, and Agent Inbox

_CALLS = [
    {"name": "send_mail", "args": {"to": "a@example.org", "text": "hi"}},
    {"name": "send_mail", "args": {"to": "b@example.org", "text": "ho"}},
]


def _approving(calls: list[dict[str, Any]], **options: Any) -> Any:
    allowed = options.pop("allowed", True)
    gate = HumanInTheLoopMiddleware(interrupt_on={"send_mail": allowed}, **options)
    return create_agent(Script(calls=calls), [send_mail], middleware=[gate])


def _inbox(state: State) -> State:
    asked = {
        "action_request": {"action": "send_mail", "args": {"to": "a"}},
        "config": {
            "allow_accept": True,
            "allow_edit": True,
            "allow_respond": True,
            "allow_ignore": False,
        },
        "description": "A mail",
    }
    return {"said": interrupt([asked])}


batched = _approving(_CALLS)
one_call = _approving(_CALLS[:1], allowed={"allowed_decisions": ["approve", "reject"]})
per_call = _approving(_CALLS, interrupt_mode="per_call")
unread = _approving(_CALLS[:1])  # its format is opaque in the file: nothing is checked
inbox = _graph(ask=_inbox)


# what comes in between


def _expires_late(state: State) -> State:
    return {"said": [confirm_action("restart", expires_in_s=3600).approved]}


def _fails(state: State) -> State:
    raise ConnectionError("the host does not answer")


def _retried(state: State) -> State:
    found, execution = interrupt("?"), get_runtime().execution_info
    if execution is not None and execution.node_attempt == 1:
        raise ConnectionError("the host does not answer")
    return {"said": [found]}


def _writes(state: State) -> State:
    return {"input": "x"}


def _writes_what_is_said(state: State) -> State:
    """What two that do this at once give cannot be put together, but for `fine`."""
    by_word: dict[str, Any] = {"twice": {"input": "x"}, "no list": {"said": 5}}
    given: State = by_word.get(state["input"], {"said": [state["input"]]})
    return given


conflicting = _side_by_side(one=_writes, two=_writes)
clashing = _side_by_side(one=_writes_what_is_said, two=_writes_what_is_said)
nested_clashing = _graph(child=clashing)
expires_late = _graph(ask=_expires_late)
steps = _graph(one=lambda state: {"said": ["one"]}, two=lambda state: {"said": ["two"]})
asks_and_fails = _side_by_side(ask=_asks("?"), fail=_fails)
_retrying = StateGraph(State)
_retrying.add_node(
    "ask", _retried, retry_policy=RetryPolicy(initial_interval=0.01, retry_on=ConnectionError)
)
_retrying.add_edge(START, "ask")
retried = _retrying.compile()


# answers that a graph cannot use


def _number(state: State) -> State:
    return {"said": [int(interrupt("A number?"))]}


def _second_number(state: State) -> State:
    return {"said": [interrupt("Anything?"), int(interrupt("A number?"))]}


@tool
def ask_number() -> int:
    """Ask a person for a number."""
    return int(interrupt("A number?"))


def _breaks(state: State) -> State:
    """Permitted by a person, and then fails for a reason of its own."""
    confirm_action("restart", on_reject="continue")
    raise ConnectionError("the host does not answer")


def _pays_and_breaks(state: State) -> State:
    amount = interrupt("How much?")
    guarded_sync(f"pay/{amount}", lambda: "paid")
    raise ConnectionError("the host does not answer")


def _fails_at_first(state: State) -> State:
    """Not when it asks, but when it is executed again."""
    if _asked_before.get(state["input"]):
        raise ConnectionError("the host does not answer")
    _asked_before[state["input"]] = True
    return {"said": [interrupt("A number?")]}


_asked_before: dict[str, bool] = {}


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def is_even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n


def _even(state: State) -> State:
    return {"said": [interrupt("An even number?", response_schema=Even).n]}


number = _graph(ask=_number)
fails_at_first = _graph(ask=_fails_at_first)
even = _graph(ask=_even)
second_number = _graph(ask=_second_number)
nested_number = _graph(outer=_graph(inner=_graph(ask=_number)))
numbers = _side_by_side(one=_number, two=_number)
number_in_a_tool = create_agent(Script(calls=[{"name": "ask_number", "args": {}}]), [ask_number])
breaks = _graph(ask=_breaks)
pays_and_breaks = _graph(ask=_pays_and_breaks)
