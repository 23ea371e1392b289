"""Which of a question's actions an answer carries out, and with which arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common.hitl.kinds import Asked

Action = Mapping[str, Any]


def carried_out(interrupt: Asked, value: Any) -> list[tuple[int, Action]]:
    """The actions that the graph does after `value`, its valid resume value, by their index: as
    they were shown (masked and bounded), or with the arguments that a person has given them. Only
    of formats that cannot name a resource themselves."""
    return [
        (index, _edited(action, edited))
        for index, (action, (kind, edited)) in enumerate(
            zip(interrupt.actions, _decided(interrupt, value), strict=False)
        )
        if kind in ("approve", "accept", "edit")
    ]


def _edited(action: Action, edited: Any) -> Action:
    args = edited.get("args") if isinstance(edited, Mapping) else None
    return action if args is None else {**action, "args": args}


def _decided(interrupt: Asked, value: Any) -> Iterator[tuple[str, Any]]:
    """Kind of the decision and the edited action, for each action."""
    if interrupt.format == "langchain-hitl":
        each = value.get("decisions", [value])
        yield from ((one["type"], one.get("edited_action")) for one in each)
    elif interrupt.format == "agent-inbox":
        yield from (_of_inbox(one) for one in _list(value))


def _of_inbox(given: Mapping[str, Any]) -> tuple[str, Any]:
    return given["type"], given.get("args") if given["type"] == "edit" else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]
