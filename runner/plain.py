"""Which values of a checkpoint stay in its JSON, where anybody can read them."""

import re
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Primitive values stay in the checkpoint's JSON, the others become blobs. As upstream, but
    for primitives that Postgres' JSON refuses or changes."""
    inline: dict[str, Any] = {}
    blobs: dict[str, Any] = {}
    for name, value in values.items():
        if _is_plain(value):
            inline[name] = value
            continue
        blobs[name] = value
        if isinstance(value, _DeltaSnapshot):
            inline[name] = True
    return inline, blobs


def _is_plain(value: Any) -> bool:
    """`jsonb` takes no NUL, no half of a surrogate pair, no NaN and no infinity, and gives 1e+20
    back as a whole number."""
    if isinstance(value, str):
        return "\0" not in value and not _SURROGATES.search(value)
    if isinstance(value, float):
        return not _UNLIKE_JSON.search(float.__repr__(value))
    return value is None or isinstance(value, int)


_SURROGATES = re.compile("[\ud800-\udfff]")
_UNLIKE_JSON = re.compile("[a-z]")  # nan, inf, 1e+20
