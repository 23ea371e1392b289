"""Our own three questions: whether a payload is one, and what may be answered to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from common.hitl.parts import text_of
from common.hitl.schemas import validator_of

KINDS: Final = ("confirm_action", "select_option", "provide_input")


def is_ours(asked: Any) -> bool:
    """Whether it has the marker, and keeps to the convention of the package's text."""
    if not isinstance(asked, Mapping) or asked.get("steadyrun") not in KINDS:
        return False
    needs = {
        "confirm_action": isinstance(asked.get("action"), str),
        "select_option": isinstance(asked.get("options"), list) and bool(asked["options"]),
        "provide_input": True,
    }
    return needs[asked["steadyrun"]] and all(
        asked.get(key) is None or fits(asked[key]) for key, fits in _FITS.items()
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "args": lambda value: isinstance(value, Mapping),
    "schema": lambda value: isinstance(value, Mapping) and validator_of(value) is not None,
    "requiredPermission": lambda value: isinstance(value, str),
    "expiresInS": _is_positive,
    "onReject": lambda value: value in ("cancel", "continue"),
    "onExpire": lambda value: value in ("cancel", "reject"),
    "editable": lambda value: isinstance(value, bool),
    "rejectable": lambda value: isinstance(value, bool),
}


def allowed(asked: Mapping[str, Any]) -> list[str]:
    kind = asked["steadyrun"]
    answers = {"confirm_action": ["approve"], "select_option": ["select"]}.get(kind, ["fill"])
    if kind == "confirm_action" and (asked.get("editable") or asked.get("schema")):
        answers = [*answers, "edit"]
    return answers + (["reject"] if asked.get("rejectable", True) else [])


def actions(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    if asked["steadyrun"] != "confirm_action":
        return []
    call = {} if asked.get("callId") is None else {"toolCallId": asked["callId"]}
    action = {"name": asked["action"], "args": dict(asked.get("args") or {})}
    return [call | action | text_of(asked, "description")]


def schema(asked: Mapping[str, Any]) -> dict[str, Any]:
    schema = asked.get("schema")
    if asked["steadyrun"] == "select_option":
        return {"options": [_option(option) for option in asked["options"]]}
    return {"args": [schema]} if asked["steadyrun"] == "confirm_action" else {"values": schema}


def _option(option: Any) -> Any:
    return option["value"] if isinstance(option, Mapping) and "value" in option else option
