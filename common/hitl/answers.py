"""Checking answers and turning decisions into what the graph gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from common.hitl.kinds import LANGCHAIN_DECISIONS, Answer, Asked, CancelRun, Invalid
from common.hitl.schemas import mismatch
from common.masking import MASK

NOBODY_DECIDED = "Nobody decided in time; this was not done."


def answer(
    interrupt: Asked, decision: Any, *, by: str | None = None
) -> Answer | CancelRun | Invalid:
    """Turn a decision of contract §5 into what the graph gets. `by`: the user who decides."""
    read = _read(decision)
    if isinstance(read, Invalid):
        return read
    if read.name not in interrupt.allowed_decisions:
        allowed = ", ".join(interrupt.allowed_decisions) or "none"
        return Invalid(f"{read.name!r} is not allowed here; allowed are: {allowed}")
    if read.name == "reject" and interrupt.on_reject == "cancel":
        return CancelRun(read.message)
    made = _formed(interrupt, read)
    if isinstance(made, Answer) and interrupt.format == "steadyrun" and by is not None:
        return Answer({**made.value, "by": by})
    return made


def accepted(interrupt: Asked, value: Any, resource: Any) -> Any:
    """The graph's value once the decision is accepted: an answer of ours tells what `resource` was
    then, since what the graph has seen may be older."""
    if interrupt.format != "steadyrun" or resource is None or not isinstance(value, Mapping):
        return value
    return {**value, "resource": resource}


def validate_raw(interrupt: Asked, value: Any) -> Invalid | None:
    """Check the graph's own resume value (`resume: {id: value}`) as far as the format tells."""
    check = _RAW.get(interrupt.format)
    return None if check is None else check(interrupt, value)


def rejection(interrupt: Asked) -> Answer | None:
    """What the graph gets where nobody has decided in time and the run goes on. None: a rejection
    cannot be said here. Our own questions can say it even if people may not decline.
    """
    rejected = _Decision("reject", message=NOBODY_DECIDED)
    if interrupt.format != "steadyrun" and rejected.name not in interrupt.allowed_decisions:
        return None
    made = _formed(interrupt, rejected)
    return made if isinstance(made, Answer) else None


def _formed(interrupt: Asked, decision: _Decision) -> Answer | Invalid:
    return _FORMATS.get(interrupt.format, _for_opaque)(interrupt, decision)


@dataclass(frozen=True, slots=True)
class _Decision:
    name: str
    value: Any = None
    message: str | None = None


def _read(decision: Any) -> _Decision | Invalid:
    if decision in ("approve", "reject"):
        return _Decision(decision)
    if not isinstance(decision, Mapping) or len(decision) != 1:
        return Invalid("a decision is 'approve', 'reject' or an object with one key")
    name, value = next(iter(decision.items()))
    if name == "reject":
        return _rejected(value)
    if name in ("edit", "fill") and not isinstance(value, Mapping):
        return Invalid(f"{name!r} takes an object")
    if name not in ("edit", "select", "fill"):
        return Invalid(f"unknown decision {str(name)[:40]!r}")
    return _Decision(name, dict(value) if isinstance(value, Mapping) else value)


def _rejected(value: Any) -> _Decision | Invalid:
    message = value.get("message") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or value.keys() - {"message"}:
        return Invalid("'reject' takes an object with 'message'")
    if message is not None and not isinstance(message, str):
        return Invalid("the message of a reject must be a text")
    return _Decision("reject", message=message)


def _said(decision: _Decision) -> dict[str, str]:
    return {} if decision.message is None else {"message": decision.message}


def _for_opaque(interrupt: Asked, decision: _Decision) -> Answer | Invalid:
    """Opaque questions and our own three."""
    given = _GIVEN.get(decision.name)
    fields = {} if given is None else {given: decision.value}
    value = {"type": decision.name, **fields, **_said(decision)}
    invalid = _wrong_for_ours(interrupt, decision) or _raw_opaque(interrupt, value)
    return invalid or Answer(value)


_GIVEN = {"edit": "args", "select": "value", "fill": "values"}


def _wrong_for_ours(interrupt: Asked, decision: _Decision) -> Invalid | None:
    known = interrupt.answer_schema or {}
    if decision.name == "edit":
        return _wrong_args(interrupt, 0, decision.value)
    if decision.name == "fill" and not isinstance(decision.value, Mapping):
        return Invalid("the values must be an object")
    if decision.name == "fill":
        return mismatch(known.get("values"), decision.value, "values")
    options = known.get("options") if decision.name == "select" else None
    if options is not None and not any(_same(decision.value, option) for option in options):
        return Invalid("the selected value is none of the options")
    return None


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: `1` is not `true`."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _for_langchain(interrupt: Asked, decision: _Decision) -> Answer | Invalid:
    if decision.name == "edit" and len(interrupt.actions) != 1:
        return Invalid("'edit' changes one action; send a 'resume' map for several")
    made = [_langchain_decision(action, decision) for action in interrupt.actions]
    value: Any = made[0] if _is_per_call(interrupt) else {"decisions": made}
    return validate_raw(interrupt, value) or Answer(value)


def _langchain_decision(action: Mapping[str, Any], decision: _Decision) -> dict[str, Any]:
    if decision.name == "edit":
        edited = {"name": action["name"], "args": decision.value}
        return {"type": "edit", "edited_action": edited}
    return {"type": decision.name, **_said(decision)}


def _for_inbox(interrupt: Asked, decision: _Decision) -> Answer | Invalid:
    given: dict[str, Any] = {"type": _INBOX_TYPES[decision.name], "args": None}
    if decision.name == "edit":
        given["args"] = {"action": interrupt.actions[0]["name"], "args": decision.value}
    elif decision.name == "fill":
        given["args"] = _only_text(decision.value)
    return validate_raw(interrupt, [given]) or Answer([given])


def _only_text(values: Mapping[str, Any]) -> Any:
    """Agent Inbox's response is a text: the one text of the object, else the object."""
    texts = list(values.values())
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else dict(values)


_INBOX_TYPES = {"approve": "accept", "edit": "edit", "fill": "response", "reject": "ignore"}
_FORMATS: Mapping[str, Callable[[Asked, _Decision], Answer | Invalid]] = {
    "langchain-hitl": _for_langchain,
    "agent-inbox": _for_inbox,
}


# the graph's own resume values


def _raw_opaque(interrupt: Asked, value: Any) -> Invalid | None:
    """LangGraph's `interrupt(…, response_schema=…)`; without one any value will do."""
    return mismatch((interrupt.answer_schema or {}).get("value"), value, "value")


def _raw_ours(interrupt: Asked, value: Any) -> Invalid | None:
    """Our helpers rely on the shape that `answer` makes."""
    name = value.get("type") if isinstance(value, Mapping) else None
    if name not in interrupt.allowed_decisions:
        return Invalid("the value must be an object whose 'type' is one of the allowed decisions")
    if name == "reject" and interrupt.on_reject == "cancel":
        return Invalid("a reject ends the run here; send the decision 'reject'")
    keys = {"type", "message"} if name == "reject" else {"type", *filter(None, [_GIVEN.get(name)])}
    if value.keys() - keys or (name in _GIVEN and _GIVEN[name] not in value):
        return Invalid(f"a value of type {name!r} has the keys {sorted(keys)}")
    if not isinstance(value.get("message", ""), str):
        return Invalid("the message of a reject must be a text")
    return _wrong_for_ours(interrupt, _Decision(name, value.get(_GIVEN.get(name, ""))))


def _raw_langchain(interrupt: Asked, value: Any) -> Invalid | None:
    if _is_per_call(interrupt):
        return _wrong_langchain(interrupt, 0, value)
    decisions = value.get("decisions") if isinstance(value, Mapping) else None
    if not isinstance(decisions, list) or set(value) != {"decisions"}:
        return Invalid("the value must be an object with the one key 'decisions', a list")
    if len(decisions) != len(interrupt.actions):
        return Invalid(f"{len(decisions)} decisions for {len(interrupt.actions)} actions")
    wrong = (_wrong_langchain(interrupt, i, decision) for i, decision in enumerate(decisions))
    return next((invalid for invalid in wrong if invalid is not None), None)


def _is_per_call(interrupt: Asked) -> bool:
    return bool((interrupt.answer_schema or {}).get("per_call"))


def _wrong_langchain(interrupt: Asked, index: int, decision: Any) -> Invalid | None:
    """One decision of LangChain's middleware, for the action at `index`."""
    if not isinstance(decision, Mapping) or decision.get("type") not in LANGCHAIN_DECISIONS:
        return Invalid(
            f"decision {index + 1} must be an object whose type is one of {LANGCHAIN_DECISIONS}"
        )
    allowed = _allowed_at(interrupt, index)
    if decision["type"] not in allowed:
        return Invalid(f"decision {index + 1}: {decision['type']!r} is not among {allowed}")
    if unknown := decision.keys() - _KEYS_OF[decision["type"]]:
        return Invalid(f"decision {index + 1}: unknown key {sorted(unknown)[0]!r}")
    if decision["type"] == "edit":
        return _wrong_edit(interrupt, index, decision.get("edited_action"))
    return _wrong_message(index, decision)


_KEYS_OF: Mapping[str, frozenset[str]] = {
    "approve": frozenset({"type"}),
    "edit": frozenset({"type", "edited_action"}),
    "reject": frozenset({"type", "message"}),
    "respond": frozenset({"type", "message"}),
}


def _allowed_at(interrupt: Asked, index: int) -> list[str]:
    each = (interrupt.answer_schema or {}).get("allowed")
    return each[index] if each else interrupt.allowed_decisions


def _wrong_message(index: int, decision: Mapping[str, Any]) -> Invalid | None:
    message = decision.get("message")
    if message is None and decision["type"] == "respond":
        return Invalid(f"decision {index + 1}: 'respond' needs a message")
    if message is not None and not isinstance(message, str):
        return Invalid(f"decision {index + 1}: the message must be a text")
    return None


def _wrong_edit(interrupt: Asked, index: int, edited: Any) -> Invalid | None:
    if not isinstance(edited, Mapping) or edited.keys() != {"name", "args"}:
        return Invalid(f"decision {index + 1}: 'edited_action' must have 'name' and 'args'")
    name = interrupt.actions[index]["name"]
    if edited["name"] != name:
        return Invalid(f"decision {index + 1}: the action's name must stay {name!r}")
    return _wrong_args(interrupt, index, edited["args"])


def _raw_inbox(interrupt: Asked, value: Any) -> Invalid | None:
    given = value[0] if isinstance(value, list) and len(value) == 1 else None
    if not isinstance(given, Mapping) or given.keys() - {"type", "args"}:
        return Invalid("the value must be a list of one object with 'type' and 'args'")
    decision = {ours: name for name, ours in _INBOX_TYPES.items()}.get(str(given.get("type")))
    if decision is None or decision not in interrupt.allowed_decisions:
        return Invalid(f"the type {str(given.get('type'))[:40]!r} is not allowed here")
    return _wrong_inbox_args(interrupt, decision, given.get("args"))


def _wrong_inbox_args(interrupt: Asked, decision: str, args: Any) -> Invalid | None:
    if decision == "fill" and not isinstance(args, str | Mapping):
        return Invalid("a response's 'args' must be a text or an object")
    if decision != "edit":
        return None
    if not isinstance(args, Mapping) or args.keys() != {"action", "args"}:
        return Invalid("an edit's 'args' must have 'action' and 'args'")
    if args["action"] != interrupt.actions[0]["name"]:
        return Invalid(f"the action's name must stay {interrupt.actions[0]['name']!r}")
    return _wrong_args(interrupt, 0, args["args"])


_RAW: Mapping[str, Callable[[Asked, Any], Invalid | None]] = {
    "opaque": _raw_opaque,
    "steadyrun": _raw_ours,
    "langchain-hitl": _raw_langchain,
    "agent-inbox": _raw_inbox,
}


def _wrong_args(interrupt: Asked, index: int, args: Any) -> Invalid | None:
    if not isinstance(args, Mapping):
        return Invalid("the arguments must be an object")
    if hidden := next(_still_hidden(args, interrupt.actions[index : index + 1]), None):
        return Invalid(f"args.{hidden} was hidden from view; give its value, or leave it out")
    known = (interrupt.answer_schema or {}).get("args") or []
    return mismatch(known[index] if index < len(known) else None, args, "args")


def _still_hidden(args: Mapping[str, Any], actions: list[dict[str, Any]]) -> Iterator[str]:
    """Arguments that came back as the mask they were shown as: the graph must not take it."""
    shown = actions[0].get("args") if actions else None
    for name, value in args.items():
        before = shown.get(name) if isinstance(shown, Mapping) else None
        if MASK in str(before) and MASK in str(value):
            yield name
