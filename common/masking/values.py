"""JSON values without secrets, bounded in bytes, depth and items."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from typing import Any, TypeVar

from common.masking.keys import names_password, names_secret
from common.masking.patterns import MASK
from common.masking.texts import as_json, storable

DEPTH_MAX = 12
ITEMS_MAX = 500
KEY_CHARS_MAX = 200
BITS_MAX = 4096  # of an integer that is written out; Python refuses to much larger ones
Scalar = TypeVar("Scalar")
_NAME = re.compile(
    r"--?[A-Za-z][A-Za-z0-9-]{0,60}|[Aa]uthorization|[A-Za-z]{1,20}(?:-[A-Za-z]{1,20}){1,4}|[Cc]ookie"
)


class Walk:
    """Makes one bounded JSON value. The budget is what may still be written, in bytes; a reserve
    beside it is for what tells that something was left out.
    """

    def __init__(self, mask: Callable[[str, int], str], budget: int) -> None:
        self._mask = mask
        self._budget = budget

    def of(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, int | float):
            return self._counted(_number(value))
        if depth >= DEPTH_MAX or self._budget <= 0:
            return "…"
        return self._container(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        self._budget -= 2
        if (fields := _fields(value)) is not None:
            return self._object(fields, depth)
        if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray):
            return self._list(value, depth)
        return self._text(_described(value))

    def _object(self, fields: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        names_a_secret = any(_is_secret_name(fields.get(key)) for key in ("name", "key"))
        for count, (key, value) in enumerate(fields.items()):
            if count >= ITEMS_MAX or self._budget <= 0:
                made["…"] = f"{len(fields) - count} more"
                break
            name = storable(str(key))[:KEY_CHARS_MAX]
            hidden = _hides(name, value) or (names_a_secret and name == "value")
            name = _apart(self._mask(str(key), 4 * KEY_CHARS_MAX)[:KEY_CHARS_MAX], made)
            self._budget -= len(as_json(name)) + 2
            made[name] = self._counted(MASK) if hidden else self.of(value, depth + 1)
        return made

    def _list(self, items: Iterable[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        before: Any = None
        for item in items:
            if len(made) >= ITEMS_MAX or self._budget <= 0:
                made.append("…")
                break
            self._budget -= 1
            hidden = isinstance(item, str) and _announces(before)
            made.append(self._counted(MASK) if hidden else self.of(item, depth + 1))
            before = item
        return made

    def _text(self, text: str) -> str:
        room = max(self._budget, 16)
        return self._counted(self._mask(text, room))

    def _counted(self, value: Scalar) -> Scalar:
        self._budget -= len(as_json(value))
        return value


def _announces(item: Any) -> bool:
    """`["--password", "x"]`, `["Authorization", "x"]`: arguments, headers as pairs."""
    return isinstance(item, str) and _NAME.fullmatch(item) is not None and names_secret(item)


def _is_secret_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= KEY_CHARS_MAX and names_secret(value)


def _hides(name: str, value: Any) -> bool:
    """Counts like `max_token: 5` are no secrets; a numeric password is one."""
    if value is None or isinstance(value, bool) or not names_secret(name):
        return False
    if isinstance(value, int | float):
        return names_password(name)
    return True


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a mapping, dataclass or pydantic model, so that keys are seen."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name, None) for part in dataclasses.fields(value)}
    names = getattr(type(value), "model_fields", None)
    if isinstance(names, Mapping):
        return {name: getattr(value, name, None) for name in names}
    return None


def _described(value: Any) -> str:
    """Text for what JSON has no word for. An object of unknown kind is named, not printed."""
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    if isinstance(value, Enum):
        return str(value.value)
    kind = type(value)
    known = kind.__module__ in ("datetime", "uuid", "decimal", "fractions", "pathlib")
    return str(value) if known else f"<{kind.__qualname__}>"


def _apart(name: str, made: Mapping[str, Any]) -> str:
    """Two keys that look the same once masked stay two."""
    if name not in made:
        return name
    return next(f"{name}{n}" for n in range(2, len(made) + 3) if f"{name}{n}" not in made)


def _number(value: float | None) -> Any:
    """JSON numbers of clients are doubles and orjson's integers have 64 bits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return int(value)
        bits = int(value).bit_length()
        return str(int(value)) if bits <= BITS_MAX else f"<integer of {bits} bits>"
    return float(value) if value == value and abs(value) != float("inf") else None
