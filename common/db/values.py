"""What Postgres cannot store: NUL in text and jsonb, and lone surrogates anywhere.

Two answers, by where the value comes from. A person's text is refused (`refuse_unstorable`, 422),
because silently changing it would be wrong. A graph's output is repaired, because losing a run for
one character of a tool's output would be worse: each bad character becomes U+FFFD.
"""

import re
from typing import Any

import orjson

from common.errors import Refused

_BAD = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def refuse_unstorable(**fields: Any) -> None:
    """Raises Refused VALIDATION with the first field that holds such a character."""
    for name, value in fields.items():
        if not is_storable(value):
            raise Refused("VALIDATION", f"{name} holds a character that cannot be stored")


def is_storable(value: Any) -> bool:
    """Whether text, or every text inside a JSON value, keys too, can be stored as it is."""
    if isinstance(value, str):
        return (value.isascii() and "\x00" not in value) or not _BAD.search(value)
    if isinstance(value, dict):
        return all(is_storable(key) and is_storable(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(is_storable, value))


def repair_text(text: str) -> str:
    return text if is_storable(text) else _BAD.sub(_REPLACEMENT, text)


def repair(value: Any) -> Any:
    """The JSON value with every bad character replaced."""
    if isinstance(value, str):
        return repair_text(value)
    if isinstance(value, dict):
        return {repair(key): repair(item) for key, item in value.items()}
    return [repair(item) for item in value] if isinstance(value, list | tuple) else value


def encode_jsonb(value: Any) -> bytes:
    """The binary form of jsonb: version 1, then the text. Repairs only what has to be."""
    try:
        encoded = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate, or a type that JSON does not know: raised again
        return b"\x01" + orjson.dumps(repair(value), option=orjson.OPT_NON_STR_KEYS)
    if b"\\u0000" in encoded:
        encoded = orjson.dumps(repair(value), option=orjson.OPT_NON_STR_KEYS)
    return b"\x01" + encoded


def decode_jsonb(encoded: bytes) -> Any:
    return orjson.loads(encoded[1:])
