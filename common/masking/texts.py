"""Texts without secrets, whole and in pieces."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

from common.masking.found import SIGN_CHARS, Found, Span
from common.masking.patterns import MASK, Patterns

HOLD_CHARS_MAX = 8_192
PIECE_CHARS_MAX = 4_096
CONTEXT_CHARS = 640
"""How much of what was shown is looked at again, to see that `password=` stands before a value."""


class TextMask:
    """Masks one text that arrives in pieces."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._context = ""
        self._held = ""
        self._inside: _Endless | None = None
        self._hinted = patterns.has_own
        """Whether a secret may follow what was shown last."""

    def feed(self, delta: str) -> str:
        """What may be shown now; the rest is held back."""
        parts = range(0, len(delta), PIECE_CHARS_MAX)
        return "".join([self._feed(delta[at : at + PIECE_CHARS_MAX]) for at in parts])

    @property
    def holds(self) -> bool:
        """Whether something is held back now."""
        return bool(self._held)

    def flush(self) -> str:
        """The end of the text: nothing more can complete a secret."""
        text = self._context + self._held
        return self._show(text, len(text), self._patterns.spans(text))

    def _feed(self, delta: str) -> str:
        if not (self._held or self._hinted or self._inside) and self._is_plain(delta):
            self._context = (self._context + delta)[-CONTEXT_CHARS:]
            return storable(delta)
        text = self._context + self._held + self._after_secret(delta)
        secrets, begins, endless = self._patterns.read(text)
        held_from = self._held_from(text, secrets, begins)
        if len(text) - held_from > HOLD_CHARS_MAX:
            held_from = len(text)
            self._inside = None if endless is None else _Endless(endless)
        return self._show(text, held_from, secrets)

    def _is_plain(self, delta: str) -> bool:
        """The cheap look that ordinary text passes: nothing in it or at its end is suspicious."""
        recent = self._context[-SIGN_CHARS:] + delta
        return not (
            _is_half(delta[-1:])
            or self._patterns.may_begin_at_end(recent)
            or self._patterns.may_stand_in(recent, len(delta))
        )

    def _held_from(self, text: str, secrets: list[Span], begins: int) -> int:
        """Where the part of the end starts that may begin a secret; a secret is never cut."""
        start = min(begins, len(text) - 1 if _is_half(text[-1:]) else len(text))
        start = next((first for first, last in secrets if first < start < last), start)
        return max(len(self._context), start)

    def _show(self, text: str, end: int, secrets: list[Span]) -> str:
        shown = without(text, secrets, len(self._context), end)
        self._held = text[end:]
        self._context = text[max(0, end - CONTEXT_CHARS) : end]
        self._hinted = self._patterns.waits(self._context)
        return storable(shown)

    def _after_secret(self, delta: str) -> str:
        if self._inside is None:
            return delta
        rest = self._inside.rest(delta)
        self._inside = self._inside if rest is None else None
        return rest or ""


@dataclasses.dataclass(slots=True)
class _Endless:
    """A secret so long that it was masked before its end came: what belongs to it is dropped.
    What was held back for so long and is no secret by then is shown."""

    secret: Found
    tail: str = ""

    def rest(self, delta: str) -> str | None:
        """What follows the secret, or None if it goes on."""
        text = self.tail + delta
        end = self.secret.stop.search(text)
        if end is None:
            self.tail = text[-100:]
            return None
        return text[end.start() if end.end() - end.start() == 1 else end.end() :]


def without(text: str, secrets: Iterable[Span], start: int = 0, end: int | None = None) -> str:
    """text[start:end] with a mask for each secret that begins in it."""
    end = len(text) if end is None else end
    parts, at = [], start
    for first, last in secrets:
        first, last = max(first, at), min(last, end)
        if first < last:
            parts += [text[at:first], MASK]
            at = last
    return "".join([*parts, text[at:end]])


def cut(text: str, max_bytes: int) -> str:
    """At most `max_bytes` as JSON or UTF-8, on a character's border, with an ellipsis."""
    if len(text) <= max_bytes and len(as_json(text)) <= max_bytes:
        return text
    text = text[:max_bytes]
    while len(as_json(text)) > max(max_bytes - 3, 2):
        over = len(as_json(text)) - max_bytes + 3
        text = text[: -max(1, over // 6)]
    return text + "…"


def as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def storable(text: str) -> str:
    """A text that UTF-8, JSON and Postgres can hold."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _is_half(letter: str) -> bool:
    """Whether it is the first half of a character whose second half follows."""
    return "\ud800" <= letter <= "\udbff"
