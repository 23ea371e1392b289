"""Parts that several formats have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_action(action: Any, name: str) -> bool:
    return (
        isinstance(action, Mapping)
        and isinstance(action.get(name), str)
        and isinstance(action.get("args", {}), Mapping)
    )


def args_of(action: Mapping[str, Any]) -> dict[str, Any]:
    return {"args": dict(action.get("args") or {})}


def text_of(asked: Mapping[str, Any], key: str) -> dict[str, str]:
    return {key: asked[key]} if isinstance(asked.get(key), str) else {}
