"""Opaque cursors of lists (contract §9). A cursor is what the last row of a page was sorted by."""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import orjson

from common.errors import Refused

LIMIT_MAX = 1000
_BIGINT_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Item = TypeVar("Item")


def page(
    rows: Sequence[Item], limit: int, key: Callable[[Item], Sequence[Any]]
) -> tuple[list[Item], str | None]:
    """The page out of at most `limit + 1` rows, and the next cursor if there are more."""
    items = list(rows[:limit])
    return items, encode(key(items[-1])) if len(rows) > limit else None


def at_position(cursor: str | None) -> int | None:
    """The position of a cursor over one number; raises Refused BAD_REQUEST for anything else."""
    if cursor is None:
        return None
    parts = _decode(cursor)
    if len(parts) != 1 or not _is_bigint(parts[0]):
        raise _bad_cursor()
    return int(parts[0])


def at_moment(cursor: str | None) -> tuple[datetime, str] | None:
    """The (moment, id) of a cursor over these two; raises Refused BAD_REQUEST likewise."""
    if cursor is None:
        return None
    parts = _decode(cursor)
    if len(parts) != 2 or not _is_bigint(parts[0]) or not isinstance(parts[1], str):
        raise _bad_cursor()
    try:
        return _EPOCH + timedelta(microseconds=parts[0]), parts[1].replace("\x00", "")
    except OverflowError as error:
        raise _bad_cursor() from error


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def encode(parts: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(list(parts))).decode().rstrip("=")


def _decode(cursor: str) -> list[Any]:
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        parts = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise _bad_cursor() from error
    return parts if isinstance(parts, list) else []


def _is_bigint(value: object) -> bool:
    return type(value) is int and 0 <= value <= _BIGINT_MAX


def _bad_cursor() -> Refused:
    return Refused("BAD_REQUEST", "the cursor is not one that a list of this kind gave out")
