"""What may be a fact of a conversation, and who may see it (contract §4, §8). Pure.

Facts go into every prompt and every answer about a conversation, so they are few, small and flat,
and their names are names: a key can be a model's variable, a label on a page, a line of a log.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

FACTS_MAX: Final = 100
FACTS_BYTES_MAX: Final = 16 << 10
DEPTH_MAX: Final = 6
STORED_BYTES_MAX: Final = 64 << 10
"""What the table bears: a graph that goes on adding to its facts meets this, not a full disk."""

_KEY = re.compile(r"[^\W\d_][\w.\-]{0,63}")
_KEY_RULE = "1 to 64 letters, digits, '_', '.', '-', beginning with a letter"
_PATTERN = re.compile(rf"{_KEY.pattern}\*?|\*")

Rules = Mapping[str, str]
"""Key of a fact, or the beginning of keys and `*` → the permission that seeing it needs."""


def check_keys(keys: Iterable[Any]) -> None:
    """Raises ValueError."""
    for key in keys:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"{str(key)[:70]!r} is no name for a fact: {_KEY_RULE}")


def check(facts: Mapping[str, Any]) -> None:
    """Raises ValueError, saying what is too much."""
    check_keys(facts)
    if len(facts) > FACTS_MAX:
        raise ValueError(f"there may be {FACTS_MAX} facts, not {len(facts)}")
    for key, value in facts.items():
        if _depth(value) > DEPTH_MAX:
            raise ValueError(f"{key} is nested deeper than {DEPTH_MAX} levels")
    _check_size(_size(facts))


def check_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Whether facts may be changed to `after`, of which each new value was checked. Raises
    ValueError. A graph may have put more than fits: whoever takes some of it away need not take
    all that is too much at once."""
    size, was = _size(after), _size(before)
    if size < was and len(after) <= len(before):
        return
    if len(after) > FACTS_MAX:
        raise ValueError(f"there may be {FACTS_MAX} facts, not {len(after)}")
    _check_size(size)


def _size(facts: Mapping[str, Any]) -> int:
    return len(orjson.dumps(facts))


def _check_size(size: int) -> None:
    if size > FACTS_BYTES_MAX:
        raise ValueError(f"facts may take {FACTS_BYTES_MAX} bytes of JSON, not {size}")


def changed(facts: Mapping[str, Any], set: Mapping[str, Any], unset: Iterable[str]) -> Any:
    """The facts after a change, as the database makes it."""
    gone = {*unset}
    return {key: value for key, value in {**facts, **set}.items() if key not in gone}


def is_pattern(text: Any) -> bool:
    return isinstance(text, str) and _PATTERN.fullmatch(text) is not None


def may_see(key: str, rules: Rules, permissions: Iterable[str]) -> bool:
    """Every rule that names the key counts."""
    needed = {permission for pattern, permission in rules.items() if _names(pattern, key)}
    return needed <= {*permissions}


def visible(facts: Mapping[str, Any], rules: Rules, permissions: Iterable[str]) -> dict[str, Any]:
    held = {*permissions}
    return {key: value for key, value in facts.items() if may_see(key, rules, held)}


def _names(pattern: str, key: str) -> bool:
    return key.startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern


def _depth(value: Any) -> int:
    """Levels of objects and lists; without recursion, since the depth is not known yet."""
    level, deepest = [value], 0
    while nested := [v for v in level if isinstance(v, dict | list | tuple)]:
        deepest += 1
        if deepest > DEPTH_MAX:
            break
        level = [item for v in nested for item in (v.values() if isinstance(v, dict) else v)]
    return deepest
