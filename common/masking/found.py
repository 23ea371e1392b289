"""What a rule finds in a text, and the places of all that was found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

Span = tuple[int, int]

SIGN_CHARS = 160
RUN_END = re.compile(r"[\s\"'<>,;&]")


class Found(NamedTuple):
    """A place that is a secret (`sure`), or becomes one or not by what follows `last`.

    It is undecided while it reaches the end of the text: a longer text may make it longer, or no
    secret. `looked`: how far the decision has looked, where that is beyond `last`.
    """

    first: int
    last: int
    sure: bool = True
    looked: int = 0
    stop: re.Pattern[str] = RUN_END
    """What ends it where it is so long that it is masked before its end has come."""

    def is_open(self, text: str) -> bool:
        return max(self.last, self.looked) >= len(text)


class Rule(Protocol):
    """How some kinds of secrets look. `find` takes time in proportion to the text, whatever is in
    it: what it looks at again is bounded.

    `hints`: one of these stands in every text that has one; in lower case, where the rule ignores
    the case, else as it is written. `sign`: less is needed
    to know that ordinary text has none. It matches as soon as a hint has come, at the end of the
    text too, and until the secret begins; what it matches is at most SIGN_CHARS long. `waits`:
    where that is so in a text of which nothing is held back, a secret may still follow. `starts`:
    beginnings of what itself is hidden; only for rules that hide from their first letter on.
    """

    @property
    def hints(self) -> tuple[str, ...]: ...
    @property
    def sign(self) -> re.Pattern[str]: ...
    @property
    def waits(self) -> re.Pattern[str]: ...
    @property
    def starts(self) -> tuple[str, ...]: ...
    def find(self, text: str) -> Iterator[Found]: ...
    def begun(self, text: str) -> int | None:
        """Where a beginning of `starts` stands at the end of the text."""


class Hidden:
    """A rule that holds back from the first letter on what may become a secret."""

    waits = re.compile(r"(?!)")


class Shown:
    """A rule whose secrets follow something that may be shown."""

    starts: tuple[str, ...] = ()

    def begun(self, text: str) -> int | None:
        return None


def merged(spans: Iterable[Span]) -> list[Span]:
    """In order, apart from each other."""
    made: list[Span] = []
    for first, last in sorted(spans):
        if made and first < made[-1][1]:
            made[-1] = (made[-1][0], max(last, made[-1][1]))
        elif first < last:
            made.append((first, last))
    return made


def beginnings(*literals: str) -> tuple[str, ...]:
    """Every proper beginning of the literals."""
    return tuple({literal[:n] for literal in literals for n in range(1, len(literal))})
