"""The one object that the rest of the program masks with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from common.masking.patterns import Patterns
from common.masking.texts import TextMask, as_json, cut, storable, without
from common.masking.values import Walk

LOOK_AHEAD_CHARS = 1_024
"""So much more than can be shown is read of a long text: what is masked makes room."""


WHOLE_CHARS_MAX = 65_536
"""A longer text is read in pieces: a search holds the lock of the interpreter, and whoever renews a
lease waits for it."""


class Masker:
    """`patterns` are further regular expressions whose whole match is a secret."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = Patterns(patterns)

    def text(self, text: str, max_bytes: int | None = None) -> str:
        """The text without secrets; cut when its JSON takes more than `max_bytes`."""
        if max_bytes is not None and len(text) > max_bytes + LOOK_AHEAD_CHARS:
            return cut(self._beginning(text[: max_bytes + LOOK_AHEAD_CHARS]) + "…", max_bytes)
        shown = self._long(text) if len(text) > WHOLE_CHARS_MAX else self._whole(storable(text))
        return shown if max_bytes is None else cut(shown, max_bytes)

    def _whole(self, text: str) -> str:
        return without(text, self._patterns.spans(text))

    def _long(self, text: str) -> str:
        pieces = self.stream()
        return pieces.feed(storable(text)) + pieces.flush()

    def _beginning(self, text: str) -> str:
        """Of a text that goes on: without what may be the cut beginning of a secret."""
        return TextMask(self._patterns).feed(storable(text))

    def value(self, value: Any, max_bytes: int = 32_768) -> Any:
        """A JSON value without secrets whose JSON takes at most `max_bytes` (at least 64)."""
        masked = Walk(self.text, max_bytes - min(max_bytes // 4, 300)).of(value, 0)
        if len(as_json(masked)) <= max_bytes:
            return masked
        return cut(as_json(masked).decode(), max_bytes)

    def stream(self) -> TextMask:
        """For a text that arrives in pieces."""
        return TextMask(self._patterns)
