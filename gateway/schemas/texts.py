"""Kinds of fields: what a client may have chosen freely is checked here, once.

No character that cannot be stored gets in, and JSON is bounded in depth and in its numbers, so that
nothing behind the edge has to ask again.
"""

import math
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, StringConstraints

from common import facts
from common.db.values import is_storable
from common.events import utc_text

_JSON_DEPTH_MAX = 48
INTEGER_MAX = 2**63 - 1


def storable_text(text: str) -> str:
    """Postgres stores neither NUL nor half a surrogate pair."""
    if not is_storable(text):
        raise ValueError("holds a character that cannot be stored")
    return text


def storable_json(value: Any) -> Any:
    _check_json(value, _JSON_DEPTH_MAX)
    return value


def _check_json(value: Any, depth: int) -> None:
    """Iterating over what Python's parser lets through: NaN, endless numbers, deep nesting."""
    if isinstance(value, str):
        storable_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("holds a number that is not finite")
    elif isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            raise ValueError("holds an integer of more than 64 bits")
    elif isinstance(value, dict | list):
        _check_nested(value, depth - 1)


def _check_nested(value: dict[str, Any] | list[Any], depth: int) -> None:
    if depth < 0:
        raise ValueError("is nested too deeply")
    if isinstance(value, dict):
        for key in value:
            storable_text(key)
    for item in value.values() if isinstance(value, dict) else value:
        _check_json(item, depth)


def _facts(value: dict[str, Any]) -> dict[str, Any]:
    facts.check(value)
    return value


def _fact_key(key: str) -> str:
    facts.check_keys([key])
    return key


Text = Annotated[str, AfterValidator(storable_text)]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=255), AfterValidator(storable_text)
]
Title = Annotated[str, StringConstraints(max_length=200), AfterValidator(storable_text)]
Json = Annotated[Any, AfterValidator(storable_json)]
Object = Annotated[dict[str, Any], AfterValidator(storable_json)]
Facts = Annotated[dict[str, Any], AfterValidator(storable_json), AfterValidator(_facts)]
FactKey = Annotated[str, AfterValidator(_fact_key)]
Moment = Annotated[datetime, PlainSerializer(utc_text, return_type=str)]
