r"""A deployment's own patterns, whose whole match is a secret (`STEADYRUN_MASKING_PATTERNS`).

Python's `re` backtracks, and the texts come from models and tools. Two guards: what can take
exponential time (an unbounded repetition in another) is refused at start, with what to write
instead; and a text is searched in windows, so that what is left (`\w+@acme` on a long word) costs
in proportion to the text. A match longer than half a window may be missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from common.errors import Unusable
from common.masking.found import Span

WINDOW_CHARS = 2_048
_MANY = 32  # a repetition that may go further counts as unbounded


class Own:
    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(_compile(pattern) for pattern in patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def spans(self, text: str) -> Iterator[Span]:
        for pattern in self._patterns:
            for first, last in _windows(len(text)):
                yield from _within(pattern, text, first, last)

    def begins(self, text: str) -> int:
        """Nothing is known of their beginnings: the last run of printable ASCII may be one."""
        return _last_run(text)


def _windows(length: int) -> Iterator[Span]:
    """Each overlaps the next by half."""
    step = WINDOW_CHARS // 2
    for first in range(0, max(length - step, 1), step):
        yield first, min(first + WINDOW_CHARS, length)


def _within(pattern: re.Pattern[str], text: str, first: int, last: int) -> Iterator[Span]:
    for match in pattern.finditer(text, first, last):
        whole = match.end() < last or last == len(text) or match.start() < last - WINDOW_CHARS // 2
        if whole and match.end() > match.start():
            yield match.span()


_RUN = re.compile("[!-~]*")


def _last_run(text: str) -> int:
    """Where the last run of printable ASCII starts."""
    run = _RUN.match(text[::-1])
    return len(text) - (run.end() if run else 0)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _refused(pattern, f"is no regular expression: {error}") from error
    if compiled.match("") is not None:
        raise _refused(pattern, "matches the empty text")
    if _explodes(parsed, False):
        raise _refused(
            pattern,
            "repeats a repetition, which can take for ever; make the inner one possessive: `++`",
        )
    return compiled


def _refused(pattern: str, why: str) -> Unusable:
    return Unusable(f"STEADYRUN_MASKING_PATTERNS: {pattern!r} {why}")


def _explodes(parts: Iterable[tuple[Any, Any]], repeated: bool) -> bool:
    return any(_part_explodes(kind, argument, repeated) for kind, argument in parts)


def _part_explodes(kind: Any, argument: Any, repeated: bool) -> bool:
    """`repeated`: it stands in a repetition that may try it in any number of ways."""
    if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        least, most, inner = argument
        grows = most != least and most > 1
        return (repeated and grows) or _explodes(inner, repeated or most - least > _MANY)
    if kind is _constants.BRANCH:
        return any(_explodes(branch, repeated) for branch in argument[1]) or (
            repeated and _overlap(argument[1])
        )
    if kind is _constants.SUBPATTERN:
        return _explodes(argument[-1], repeated)
    if kind is _constants.POSSESSIVE_REPEAT:
        return _explodes(argument[2], argument[1] > _MANY)
    if kind is _constants.ATOMIC_GROUP:
        return _explodes(argument, False)
    if kind in (_constants.ASSERT, _constants.ASSERT_NOT):
        return _explodes(argument[1], False)
    return False


def _overlap(branches: list[Any]) -> bool:
    """Whether two alternatives may begin alike, unless each begins with a letter of its own."""
    firsts = [branch[0] if len(branch) else None for branch in branches]
    letters = {part[1] for part in firsts if part is not None and part[0] is _constants.LITERAL}
    return len(letters) < len(firsts)
