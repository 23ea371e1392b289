"""What an author's code gives, as JSON holds it.

What a question notes of its resource and what a guard reads anew are compared, so both go through
this one function: a moment must not look changed because it was written in another way.
"""

import json
from dataclasses import asdict, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """A copy of JSON's own kinds; what JSON has no word for becomes text.

    Raises TypeError, ValueError or RecursionError for what cannot be written at all.
    """
    return json.loads(json.dumps(value, default=_readable))


def _readable(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
