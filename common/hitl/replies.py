"""The session facade's four words for an answer, by format (contract §6, §8). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from common.hitl.kinds import Asked, Invalid

ResponseType = Literal["accept", "edit", "response", "reject"]

# which decisions of contract §5 make a word possible
_WORDS: Mapping[ResponseType, frozenset[str]] = {
    "accept": frozenset({"approve"}),
    "edit": frozenset({"edit"}),
    "response": frozenset({"select", "fill", "respond"}),
    "reject": frozenset({"reject"}),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client of the facade sends; `given`: it sent `args`, which may be null."""

    type: ResponseType
    args: Any = None
    given: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision of contract §5."""

    decision: Any


@dataclass(frozen=True, slots=True)
class Given:
    """The graph's own resume value."""

    value: Any


def response_types(allowed_decisions: Sequence[str]) -> list[ResponseType]:
    """The words that a client may offer to the person."""
    return [word for word, names in _WORDS.items() if names & set(allowed_decisions)]


def replied(interrupt: Asked, reply: Reply) -> Decided | Given | Invalid:
    """What a word amounts to; whether it fits is checked like any other decision or value."""
    allowed = response_types(interrupt.allowed_decisions)
    if reply.type not in allowed:
        return Invalid(f"{reply.type!r} is not allowed here; allowed are: {', '.join(allowed)}")
    if reply.type in ("edit", "response") and not reply.given:
        return Invalid(f"{reply.type!r} needs args")
    if reply.type == "reject" and interrupt.on_reject == "cancel":
        return _rejected(interrupt, reply)  # the graph gets nothing
    if interrupt.format == "opaque":
        return _opaque(reply)
    return _MADE[reply.type](interrupt, reply)


def _opaque(reply: Reply) -> Given:
    """As the graphs of the facade's clients expect it: {"type": …, "args"?: …}."""
    needed = reply.type in ("edit", "response")
    args = {"args": reply.args} if needed or reply.args is not None else {}
    return Given({"type": reply.type, **args})


def _accepted(interrupt: Asked, reply: Reply) -> Decided | Invalid:
    return Invalid("'accept' takes no args here") if reply.args is not None else Decided("approve")


def _edited(interrupt: Asked, reply: Reply) -> Decided:
    return Decided({"edit": reply.args})


def _rejected(interrupt: Asked, reply: Reply) -> Decided | Invalid:
    if reply.args is None:
        return Decided("reject")
    message = _message(reply.args)
    if message is None:
        return Invalid("the args of 'reject' are a text, or an object with 'message'")
    return Decided({"reject": {"message": message}})


def _responded(interrupt: Asked, reply: Reply) -> Decided | Given | Invalid:
    if interrupt.format == "langchain-hitl":
        return _for_langchain(interrupt, reply)
    if "select" in interrupt.allowed_decisions:
        return Decided({"select": reply.args})
    text = isinstance(reply.args, str) and interrupt.format == "agent-inbox"
    return Decided({"fill": {"response": reply.args} if text else reply.args})


def _for_langchain(interrupt: Asked, reply: Reply) -> Given | Invalid:
    """The person answers in the tools' place."""
    message = _message(reply.args)
    if message is None:
        return Invalid("the args of 'response' are a text, or an object with 'message'")
    each = {"type": "respond", "message": message}
    if (interrupt.answer_schema or {}).get("per_call"):
        return Given(each)
    return Given({"decisions": [dict(each) for _ in interrupt.actions]})


def _message(args: Any) -> str | None:
    found = (
        args.get("message") if isinstance(args, Mapping) and args.keys() == {"message"} else args
    )
    return found if isinstance(found, str) else None


_MADE: Mapping[ResponseType, Callable[[Asked, Reply], Decided | Given | Invalid]] = {
    "accept": _accepted,
    "edit": _edited,
    "response": _responded,
    "reject": _rejected,
}
