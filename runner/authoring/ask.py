"""Questions to a person: one call each, in a node or in a tool (contract, last paragraph).

Each is LangGraph's `interrupt()` with a payload that Steadyrun knows how to show, check and answer
(the convention stands in `common/hitl.py`). So the same rules hold as for `interrupt()`: the node
or tool is executed from its beginning when the answer comes, what stands before the call has to
bear that, and the questions of one node come in the same order each time. Without Steadyrun the
graph works as well: resume it with the answers that the convention names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from langgraph.types import interrupt


class Terms(TypedDict, total=False):
    """What every question may have besides its own part."""

    title: str
    description: str
    risk: str
    """What may go wrong; shown."""
    resource: Any
    """What the question is about: an object with what identifies it and what must not have changed
    (say its version), as seen now. The graph's guard reads it anew before a decision is accepted;
    if a field of these differs, the person has to accept that first."""
    required_permission: str
    """Who holds it may decide; without one the owner of the conversation decides."""
    expires_in_s: float | None
    """Seconds; None: never. Default: the graph file's `interruptTtlS`."""
    on_reject: Literal["cancel", "continue"]
    on_expire: Literal["cancel", "reject"]
    call_id: str
    """The tool call that the question is about."""


@dataclass(frozen=True, slots=True)
class Approval:
    """`args` are those to act with: what was asked, or what the person made of it. `by` is the
    user who decided, where that is known. `resource` is what the question named, as it was when the
    decision was accepted: act on this one, it may be newer than what was asked about."""

    approved: bool
    args: dict[str, Any]
    by: str | None = None
    resource: Any = None


def confirm_action(
    action: str,
    args: Mapping[str, Any] | None = None,
    *,
    editable: bool = False,
    schema: Mapping[str, Any] | None = None,
    **terms: Unpack[Terms],
) -> Approval:
    """Ask whether `action` may be done with `args`, before anything is done.

    A rejection ends the run unless `on_reject="continue"`; then it comes back as not approved.
    With `editable`, or a JSON schema of the arguments, the person may change them. An answer that
    is none of the known ones is no approval.
    """
    asked = dict(args or {})
    more = {"editable": editable or None, "schema": schema}
    answer = interrupt(_payload("confirm_action", terms, action=action, args=asked, **more))
    given: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
    approved = answer is True or given.get("type") in ("approve", "accept", "edit")
    edited = given.get("args") if given.get("type") == "edit" else None
    made = asked if edited is None else dict(edited)
    return Approval(approved, made, given.get("by"), given.get("resource"))


def select_option(
    options: Sequence[Any], *, rejectable: bool = False, **terms: Unpack[Terms]
) -> Any:
    """Let a person choose one of `options`: JSON values, or `{"value": …, "label": …}`.

    Returns the value; None when the person declined, which only `rejectable` allows.
    """
    payload = _payload("select_option", terms, options=list(options), rejectable=rejectable)
    return _given(interrupt(payload), "select", "value")


def provide_input(
    schema: Mapping[str, Any] | None = None,
    *,
    rejectable: bool = False,
    **terms: Unpack[Terms],
) -> Any:
    """Let a person fill in an object that fits the JSON schema.

    Returns the object; None when the person declined, which only `rejectable` allows.
    """
    payload = _payload("provide_input", terms, schema=schema, rejectable=rejectable)
    return _given(interrupt(payload), "fill", "values")


_WIRE = {
    "required_permission": "requiredPermission",
    "expires_in_s": "expiresInS",
    "on_reject": "onReject",
    "on_expire": "onExpire",
    "call_id": "callId",
}


def _payload(kind: str, terms: Terms, **own: Any) -> dict[str, Any]:
    """Own parts that are None are left out; terms are kept, since None may mean something there."""
    named = {_WIRE.get(name, name): value for name, value in terms.items()}
    return {"steadyrun": kind} | {n: v for n, v in own.items() if v is not None} | named


def _given(answer: Any, kind: str, part: str) -> Any:
    """What a decision carries; a resume value of the client's own is taken as it is."""
    if not isinstance(answer, Mapping):
        return answer
    if answer.get("type") == "reject":
        return None
    return answer[part] if answer.get("type") == kind and part in answer else dict(answer)
