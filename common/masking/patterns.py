"""What secrets look like in a text: all rules together, and a deployment's own patterns."""

from __future__ import annotations

from collections.abc import Iterable

from common.masking.found import Found, Rule, Span, merged
from common.masking.named import Arguments, Assigned
from common.masking.own import Own
from common.masking.places import Addresses, Beside, Headers, Tags
from common.masking.vendors import Keys, PrivateKeys

MASK = "***"
_RULES: tuple[Rule, ...] = (
    PrivateKeys(), Keys(), Addresses(), Headers(), Assigned(), Arguments(), Tags(), Beside(),
)  # fmt: skip
_HINTS = tuple({hint for rule in _RULES for hint in rule.hints})
HINT_CHARS = max(map(len, _HINTS))
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

    def may_stand_in(self, text: str) -> bool:
        """The cheap look that ordinary text passes: False if no secret is in it or begins in it."""
        return bool(self._own) or _has_hint(text.lower())

    def may_begin_at_end(self, text: str) -> bool:
        if self._own:
            return True
        return text.endswith(_STARTS) and any(rule.begun(text) is not None for rule in _RULES)


def _hinted(text: str) -> list[Rule]:
    low = text.lower()
    if not _has_hint(low):
        return []
    return [rule for rule in _RULES if any(hint in low for hint in rule.hints)]


def _has_hint(low: str) -> bool:
    """One look for each is several times as fast as one pattern of all of them."""
    return any(hint in low for hint in _HINTS)
