"""The approvals of LangChain's middleware: what they ask about, and what they allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from common.hitl.kinds import LANGCHAIN_DECISIONS, Call
from common.hitl.parts import is_action

ACTIONS: Final = "action_requests"


def is_batched(asked: Any) -> bool:
    if not isinstance(asked, Mapping):
        return False
    actions, configs = asked.get(ACTIONS), asked.get("review_configs")
    return (
        isinstance(actions, list)
        and isinstance(configs, list)
        and bool(actions)
        and all(is_action(action, "name") for action in actions)
        and all(_is_review(config) for config in configs)
        and {a["name"] for a in actions} <= {c.get("action_name") for c in configs}
    )


def _is_review(config: Any) -> bool:
    return isinstance(config, Mapping) and isinstance(config.get("allowed_decisions"), list)


def is_per_call(asked: Any) -> bool:
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    return kind == "tool_approval" and is_action(asked, "name")


def calls_of(actions: Sequence[Mapping[str, Any]], calls: Sequence[Call]) -> list[str | None]:
    """The call that each action is about: the same tool and arguments, in order, each once."""
    left, found = list(calls), []
    for action in actions:
        same = (c for c in left if c[1:] == (action["name"], action.get("args", {})))
        if (call := next(same, None)) is not None:
            left.remove(call)
        found.append(None if call is None else call[0])
    return found


def named(
    actions: Sequence[Mapping[str, Any]], key: str, ids: Sequence[str | None]
) -> list[dict[str, Any]]:
    pairs = zip(actions, ids, strict=True)
    return [({} if id_ is None else {key: id_}) | {**action} for action, id_ in pairs]


def allowed_for_all(allowed: Sequence[Sequence[str]]) -> list[str]:
    """What one decision can say about all actions; an edit can only be of one."""
    names = [name for name in LANGCHAIN_DECISIONS if all(name in each for each in allowed)]
    return names if len(allowed) == 1 else [name for name in names if name != "edit"]


def decisions_for(action: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the middleware allows for one action; it lists one config an action, by name."""
    for config in configs:
        if config.get("action_name") == action["name"]:
            return [name for name in LANGCHAIN_DECISIONS if name in config["allowed_decisions"]]
    return []


def decisions_in(schema: Mapping[str, Any] | None) -> list[str]:
    """The decisions that a per-call question's response schema allows; all where it tells none."""
    names = [name for name in LANGCHAIN_DECISIONS if _branch(schema, name) is not None]
    return names or list(LANGCHAIN_DECISIONS)


def args_in(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The tool's argument schema inside the edit branch, with the definitions it refers to."""
    edit = _branch(schema, "edit")
    if schema is None or edit is None:
        return None
    action = _resolved(schema, edit.get("properties", {}).get("edited_action"))
    args = _resolved(schema, (action or {}).get("properties", {}).get("args"))
    return None if args is None else {**args, "$defs": schema.get("$defs", {})}


def _branch(schema: Mapping[str, Any] | None, decision: str) -> Mapping[str, Any] | None:
    if schema is None:
        return None
    for part in schema.get("oneOf") or schema.get("anyOf") or [schema]:
        branch = _resolved(schema, part) or {}
        kind = branch.get("properties", {}).get("type", {})
        if decision in (kind.get("const"), *(kind.get("enum") or ())):
            return branch
    return None


def _resolved(schema: Mapping[str, Any], part: Any) -> Mapping[str, Any] | None:
    if not isinstance(part, Mapping):
        return None
    name = str(part.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name) if "$ref" in part else part
    return found if isinstance(found, Mapping) else None
