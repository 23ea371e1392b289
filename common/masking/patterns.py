"""What secrets look like in a text: all rules together, and a deployment's own patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from common.masking.found import Found, Rule, Span, merged
from common.masking.named import Arguments, Assigned
from common.masking.own import Own
from common.masking.places import Addresses, Beside, Headers, Tags
from common.masking.vendors import Keys, PrivateKeys

MASK = "***"
_RULES: tuple[Rule, ...] = (
    PrivateKeys(), Keys(), Addresses(), Headers(), Assigned(), Arguments(), Tags(), Beside(),
)  # fmt: skip
_CASES = tuple((rule, bool(rule.sign.flags & re.IGNORECASE)) for rule in _RULES)
"""Each with whether it ignores the case."""
_HINTS = frozenset(hint for rule in _RULES for hint in rule.hints)
_HINT_CHARS = max(map(len, _HINTS))
_SHORT_HINTS = tuple(hint for hint in _HINTS if len(hint) < 3)
_HINTS_BEGIN = frozenset(hint[:3] for hint in _HINTS)
_SHORT_CHARS = 64  # what begins in a longer text tells nothing
_STARTS = tuple({start for rule in _RULES for start in rule.starts})


class Patterns:
    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own = Own(own)

    @property
    def has_own(self) -> bool:
        return bool(self._own)

    def spans(self, text: str) -> list[Span]:
        """The places of secrets in a text, in order, apart from each other."""
        return self.read(text)[0]

    def read(self, text: str) -> tuple[list[Span], int, Found | None]:
        """The places of secrets, where the part of the end starts that may begin one (len(text) if
        none does), and the secret that reaches the end."""
        found = [one for rule in _hinted(text) for one in rule.find(text)]
        spans = merged([*((f.first, f.last) for f in found if f.sure), *self._own.spans(text)])
        begins = min((f.first for f in found if f.is_open(text)), default=len(text))
        begun = [at for rule in _RULES if (at := rule.begun(text)) is not None]
        begins = min([begins, *begun, *([self._own.begins(text)] if self._own else [])])
        endless = next((f for f in found if f.sure and f.last == len(text)), None)
        return spans, begins, endless

    def may_stand_in(self, text: str, news: int) -> bool:
        """The cheap look that ordinary text passes: False if no secret is in it or begins in it.

        The last `news` letters are new; what stands before them was looked at when it came.
        """
        return bool(self._own) or any(
            rule.sign.search(text) for rule in _hinted(text[-news - _HINT_CHARS :])
        )

    def waits(self, text: str) -> bool:
        """Whether a secret may follow a text of which nothing is held back."""
        return bool(self._own) or any(rule.waits.search(text) for rule in _hinted(text))

    def may_begin_at_end(self, text: str) -> bool:
        if self._own:
            return True
        return text.endswith(_STARTS) and any(rule.begun(text) is not None for rule in _RULES)


def _hinted(text: str) -> list[Rule]:
    low = text.lower()
    if not _may_have_hint(text, low):
        return []
    return [rule for rule, folds in _CASES if _has_one(low if folds else text, rule.hints)]


def _has_one(text: str, hints: tuple[str, ...]) -> bool:
    return any(hint in text for hint in hints)


def _may_have_hint(text: str, low: str) -> bool:
    """A look at all beginnings at once is several times as fast as one pattern of all hints."""
    if len(text) > _SHORT_CHARS or _has_one(text, _SHORT_HINTS):
        return True
    return not (_HINTS_BEGIN.isdisjoint(_threes(low)) and _HINTS_BEGIN.isdisjoint(_threes(text)))


def _threes(text: str) -> Iterator[str]:
    return map("".join, zip(text, text[1:], text[2:], strict=False))
