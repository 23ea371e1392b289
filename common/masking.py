"""Secrets never leave: not in an event, a payload, an error, a log line or a label (invariant I9).

Two rules. A **key** that names a secret (`password`, `apiKey`, `Authorization`, …) hides its whole
value. In **text**, the secret part of what is written like one is hidden: private keys, JWTs, keys
with a known prefix, `Bearer …`, passwords in connection strings, `password=…`. Both put `***` in
its place. Masking is a net below careful code, it cannot know every secret; a deployment adds its
own with `STEADYRUN_MASKING_PATTERNS`.

What goes out is bounded as well, in bytes, depth and items, and is always something that JSON,
UTF-8 and a Postgres text can hold: lone surrogates and NUL become U+FFFD.

`TextMask` does the same to a text that arrives in pieces, and gives the same result however it is
cut: a piece is held back while its end may begin a secret.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import Enum
from itertools import pairwise
from typing import Any, TypeVar

from common.errors import Misconfigured

MASK = "***"
DEPTH_MAX = 12
ITEMS_MAX = 500
KEY_CHARS_MAX = 200
HOLD_CHARS_MAX = 8_192
PIECE_CHARS_MAX = 4_096
CONTEXT_CHARS = 256
"""How much of what was shown is looked at again, to see that `password=` stands before a value."""

Span = tuple[int, int]
Scalar = TypeVar("Scalar")


class Masker:
    """`patterns` are further regular expressions whose whole match is a secret."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.own = tuple(_compile(pattern) for pattern in patterns)

    def text(self, text: str, max_bytes: int | None = None) -> str:
        """The text without secrets; cut at `max_bytes` of UTF-8 when given."""
        text = storable(text)
        shown = _without(text, self.secrets(text))
        return shown if max_bytes is None else _cut(shown, max_bytes)

    def value(self, value: Any, max_bytes: int = 32_768) -> Any:
        """A JSON value without secrets whose JSON takes at most `max_bytes` (at least 64)."""
        masked = _Walk(self, max_bytes - min(max_bytes // 4, 300)).of(value, 0)
        if len(_json(masked)) <= max_bytes:
            return masked
        return _cut(_json(masked).decode(), max_bytes)

    def secrets(self, text: str) -> list[Span]:
        """The places of secrets in a text, in order, apart from each other."""
        low = text.lower()
        hinted = _ANY_HINT.search(low) is not None
        found = [span for rule in _RULES for span in rule.whole(text, low)] if hinted else []
        found += [match.span() for own in self.own for match in own.finditer(text)]
        return _merged(found)

    def stream(self) -> TextMask:
        return TextMask(self)


class TextMask:
    """Masks one text that arrives in pieces."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._context = ""
        self._held = ""
        self._inside: _Endless | None = None
        self._hinted = bool(masker.own)
        """Whether what was shown last may be the front of a secret's text."""

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
        return self._show(text, len(text), self._masker.secrets(text))

    def _feed(self, delta: str) -> str:
        if not (self._held or self._hinted or self._inside) and self._is_plain(delta):
            self._context = (self._context + delta)[-CONTEXT_CHARS:]
            return storable(delta)
        text = self._context + self._held + self._after_secret(delta)
        secrets = self._masker.secrets(text)
        held_from = self._held_from(text, secrets)
        if len(text) - held_from > HOLD_CHARS_MAX:
            held_from = len(text)
            self._inside = _Endless.of(text, secrets)
        return self._show(text, held_from, secrets)

    def _is_plain(self, delta: str) -> bool:
        """The cheap look that ordinary text passes: nothing in it or at its end is suspicious."""
        recent = self._context[-_HINT_CHARS:] + delta
        if recent.endswith(_ANY_START) and _begins_at_end(recent):
            return False
        return not _is_half(delta[-1:]) and _ANY_HINT.search(recent.lower()) is None

    def _held_from(self, text: str, secrets: list[Span]) -> int:
        """Where the part of the end starts that may begin a secret; a secret is never cut."""
        start = self._begins(text)
        start = next((first for first, last in secrets if first < start < last), start)
        return max(len(self._context), start)

    def _begins(self, text: str) -> int:
        low = text.lower()
        starts = [start for rule in _RULES for start in rule.begins(text, low)]
        if self._masker.own:
            starts.append(_last_run(text))
        if _is_half(text[-1:]):
            starts.append(len(text) - 1)
        return min(starts, default=len(text))

    def _show(self, text: str, end: int, secrets: list[Span]) -> str:
        shown = _without(text, secrets, len(self._context), end)
        self._held = text[end:]
        self._context = text[max(0, end - CONTEXT_CHARS) : end]
        self._hinted = bool(self._masker.own) or bool(_ANY_HINT.search(self._context.lower()))
        return storable(shown)

    def _after_secret(self, delta: str) -> str:
        if self._inside is None:
            return delta
        rest = self._inside.rest(delta)
        self._inside = self._inside if rest is None else None
        return rest or ""


@dataclasses.dataclass(slots=True)
class _Endless:
    """A secret so long that it was masked before its end came: what belongs to it is dropped."""

    key: bool
    tail: str = ""

    @classmethod
    def of(cls, text: str, secrets: list[Span]) -> _Endless | None:
        """None: what was held back for so long is no secret by now, and is shown."""
        if not secrets or secrets[-1][1] != len(text):
            return None
        return cls(_PEM_BEGIN.search(text) is not None)

    def rest(self, delta: str) -> str | None:
        """What follows the secret, or None if it goes on."""
        text = self.tail + delta
        end = (_PEM_END if self.key else _RUN_END).search(text)
        if end is None:
            self.tail = text[-100:]
            return None
        return text[end.end() if self.key else end.start() :]


class _Rule:
    """How one kind of secret looks: as a whole, and as an unfinished end of a text.

    In both expressions the group `secret` is what is hidden; what stands before it may be shown.
    """

    def __init__(
        self,
        whole: str,
        begins: str,
        *,
        hints: Sequence[str],
        starts: Sequence[str] = (),
        flags: re.RegexFlag = re.NOFLAG,
    ) -> None:
        """`hints`: one of these, in lower case, stands in every such text; looking for them first
        makes ordinary text cheap. `starts`: the beginnings of what itself is hidden.
        """
        self._whole = re.compile(whole, flags)
        self._begins = re.compile(rf"(?:{begins})\Z", flags)
        self.hints = tuple(hints)
        self.starts = tuple(starts)
        self._reach = max(map(len, starts), default=0)

    def whole(self, text: str, low: str) -> Iterable[Span]:
        if not self._hinted(low):
            return ()
        return (match.span("secret") for match in self._whole.finditer(text))

    def begins(self, text: str, low: str) -> Iterable[int]:
        if self._hinted(low):
            match = self._begins.search(text)
        elif text.endswith(self.starts):
            match = self._begins.search(text, max(0, len(text) - self._reach))
        else:
            return ()
        return () if match is None else (match.start("secret"),)

    def _hinted(self, low: str) -> bool:
        return any(hint in low for hint in self.hints)


def _beginnings(*literals: str) -> list[str]:
    """Every proper beginning of the literals."""
    return [literal[:n] for literal in literals for n in range(1, len(literal))]


def _token(literals: Sequence[str], rest: str, needs: str) -> _Rule:
    """A key that is known by its prefix. `rest`: its characters; `needs`: what makes it one."""
    whole = "|".join(map(re.escape, literals))
    starts = _beginnings(*literals)
    short = "|".join(map(re.escape, starts))
    return _Rule(
        rf"(?<![A-Za-z0-9_-])(?P<secret>(?:{whole}){needs}{rest}*)",
        rf"(?<![A-Za-z0-9_-])(?P<secret>(?:{whole}){rest}*|{short})",
        hints=[literal.lower() for literal in literals],
        starts=starts,
    )


_NAMES = (
    r"passw(?:or)?d|passphrase|pwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|token"
    r"|credentials?|authorization"
)
_HINTS = (
    *("passwd", "password", "passphrase", "pwd", "secret", "key", "token", "credential"),
    "authorization",
)
_BARE = r"[^\s\"',;&<>(){}\[\]]"
_RULES = (
    _Rule(
        r"(?P<secret>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z))",
        r"(?P<secret>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
        r"(?:(?!-----END [A-Z ]{0,40}PRIVATE KEY-----).)*"
        rf"|-----BEGIN [A-Z ]{{0,60}}-{{0,4}}|{'|'.join(_beginnings('-----BEGIN '))})",
        hints=["-----begin "],
        starts=_beginnings("-----BEGIN "),
        flags=re.DOTALL,
    ),
    _token(["eyJ"], r"[A-Za-z0-9_.-]", r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    _token(["sk-", "sk_", "pk_", "rk_"], r"[A-Za-z0-9_-]", r"(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16}"),
    _token(["AKIA", "ASIA"], r"[A-Z0-9]", r"[A-Z0-9]{16}"),
    _token(["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"[A-Za-z0-9]", r"[A-Za-z0-9]{20}"),
    _token(["github_pat_", "glpat-"], r"[A-Za-z0-9_-]", r"[A-Za-z0-9_-]{16}"),
    _token(["xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-"], r"[A-Za-z0-9-]", r"[A-Za-z0-9-]{10}"),
    _token(["AIza"], r"[A-Za-z0-9_-]", r"[A-Za-z0-9_-]{30}"),
    _Rule(
        r"(?i:\b(?:bearer|basic)\s{1,8})(?P<secret>(?=[A-Za-z._~+/-]*[\d=])[A-Za-z0-9._~+/=-]{12,})",
        r"(?i:\b(?:bearer|basic)\s{1,8})(?P<secret>[A-Za-z0-9._~+/=-]+)",
        hints=["bearer", "basic"],
    ),
    _Rule(
        r"://[^\s/:@\"']{0,100}:(?P<secret>(?!\d{1,5}[/?#])[^\s\"'<>]{1,512})@",
        r"://[^\s/:@\"']{0,100}:(?P<secret>(?!\d{1,5}[/?#])[^\s\"'<>]+)",
        hints=["://"],
    ),
    _Rule(  # name="value", name: 'value', {"name": "value"}
        rf"(?:{_NAMES})[\"']?\s{{0,8}}[=:]\s{{0,8}}(?P<q>[\"'])(?P<secret>[^\"'\n]+)",
        rf"(?:{_NAMES})[\"']?\s{{0,8}}[=:]\s{{0,8}}[\"'](?P<secret>[^\"'\n]+)",
        hints=_HINTS,
        flags=re.IGNORECASE,
    ),
    _Rule(  # name=value
        rf"(?:{_NAMES})\s{{0,8}}=\s{{0,8}}(?P<secret>{_BARE}+)",
        rf"(?:{_NAMES})\s{{0,8}}=\s{{0,8}}(?P<secret>{_BARE}+)",
        hints=_HINTS,
        flags=re.IGNORECASE,
    ),
    _Rule(  # name: value, where the value does not look like a word of a sentence
        rf"(?:{_NAMES})\s{{0,8}}:\s{{0,8}}(?P<secret>(?={_BARE}{{0,200}}[\d$!#%^*+/]){_BARE}{{5,}})",
        rf"(?:{_NAMES})\s{{0,8}}:\s{{0,8}}(?P<secret>{_BARE}+)",
        hints=_HINTS,
        flags=re.IGNORECASE,
    ),
)
_ANY_HINT = re.compile("|".join({re.escape(hint) for rule in _RULES for hint in rule.hints}))
_HINT_CHARS = max(len(hint) for rule in _RULES for hint in rule.hints)
_ANY_START = tuple({start for rule in _RULES for start in rule.starts})
_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_PEM_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_RUN_END = re.compile(r"[\s\"'<>,;&]")

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = frozenset({"password", "passwd", "passphrase", "pwd", "secret", "secrets", "pin"})
_SECRET_WORDS = _ALWAYS | {
    "token", "jwt", "authorization", "credential", "credentials", "cookie", "cookies", "dsn",
    "apikey", "bearer",
}  # fmt: skip
_SECRET_PAIRS = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("signing", "key")}
    | {("encryption", "key"), ("connection", "string"), ("database", "url"), ("redis", "url")}
)
_SECRET_ENDS = ("password", "passwd", "secret", "apikey", "accesskey", "privatekey", "token")


def names_secret(key: str) -> bool:
    """Whether a key says that its value is a secret: `db_password`, `apiKey`, `X-Auth-Token`."""
    words = [word.lower() for word in _WORDS.findall(key)]
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or any(pair in _SECRET_PAIRS for pair in pairwise(words))
        or any(word.endswith(_SECRET_ENDS) for word in words)
    )


def storable(text: str) -> str:
    """A text that UTF-8, JSON and Postgres can hold."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class _Walk:
    """Makes one bounded JSON value. The budget is what may still be written, in bytes; a reserve
    beside it is for what tells that something was left out.
    """

    def __init__(self, masker: Masker, budget: int) -> None:
        self._masker = masker
        self._budget = budget

    def of(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, int | float):
            return self._counted(_number(value))
        if depth >= DEPTH_MAX or self._budget <= 0:
            return "…"
        return self._container(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        self._budget -= 2
        if (fields := _fields(value)) is not None:
            return self._object(fields, depth)
        if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray):
            return self._list(value, depth)
        return self._text(_described(value))

    def _object(self, fields: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        names_a_secret = any(_is_secret_name(fields.get(key)) for key in ("name", "key"))
        for count, (key, value) in enumerate(fields.items()):
            if count >= ITEMS_MAX or self._budget <= 0:
                made["…"] = f"{len(fields) - count} more"
                break
            name = storable(str(key))[:KEY_CHARS_MAX]
            self._budget -= len(_json(name)) + 2
            hidden = _hides(name, value) or (names_a_secret and name == "value")
            made[name] = self._counted(MASK) if hidden else self.of(value, depth + 1)
        return made

    def _list(self, items: Iterable[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        for item in items:
            if len(made) >= ITEMS_MAX or self._budget <= 0:
                made.append("…")
                break
            self._budget -= 1
            made.append(self.of(item, depth + 1))
        return made

    def _text(self, text: str) -> str:
        room = max(self._budget, 16)
        return self._counted(_cut(self._masker.text(text[: room + 1024]), room))

    def _counted(self, value: Scalar) -> Scalar:
        self._budget -= len(_json(value))
        return value


def _is_secret_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= KEY_CHARS_MAX and names_secret(value)


def _hides(name: str, value: Any) -> bool:
    """Counts like `max_token: 5` are no secrets; a numeric password is one."""
    if value is None or isinstance(value, bool) or not names_secret(name):
        return False
    if isinstance(value, int | float):
        return not _ALWAYS.isdisjoint(word.lower() for word in _WORDS.findall(name))
    return True


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a mapping, dataclass or pydantic model, so that keys are seen."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name, None) for part in dataclasses.fields(value)}
    names = getattr(type(value), "model_fields", None)
    if isinstance(names, Mapping):
        return {name: getattr(value, name, None) for name in names}
    return None


def _described(value: Any) -> str:
    """Text for what JSON has no word for. An object of unknown kind is named, not printed."""
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    if isinstance(value, Enum):
        return str(value.value)
    kind = type(value)
    known = kind.__module__ in ("datetime", "uuid", "decimal", "fractions", "pathlib")
    return str(value) if known else f"<{kind.__qualname__}>"


def _number(value: float | None) -> Any:
    """JSON numbers of clients are doubles and orjson's integers have 64 bits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else str(int(value))
    return float(value) if value == value and abs(value) != float("inf") else None


def _without(text: str, secrets: Iterable[Span], start: int = 0, end: int | None = None) -> str:
    """text[start:end] with a mask for each secret that begins in it."""
    end = len(text) if end is None else end
    parts, at = [], start
    for first, last in secrets:
        first, last = max(first, at), min(last, end)
        if first < last:
            parts += [text[at:first], MASK]
            at = last
    return "".join([*parts, text[at:end]])


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _cut(text: str, max_bytes: int) -> str:
    """At most `max_bytes` as JSON or UTF-8, on a character's border, with an ellipsis."""
    if len(text) <= max_bytes and len(_json(text)) <= max_bytes:
        return text
    text = text[:max_bytes]
    while len(_json(text)) > max(max_bytes - 3, 2):
        over = len(_json(text)) - max_bytes + 3
        text = text[: -max(1, over // 6)]
    return text + "…"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _begins_at_end(text: str) -> bool:
    return any(list(rule.begins(text, "")) for rule in _RULES)


def _is_half(letter: str) -> bool:
    """Whether it is the first half of a character whose second half follows."""
    return "\ud800" <= letter <= "\udbff"


def _last_run(text: str) -> int:
    """Where the last run of printable ASCII starts."""
    at = len(text)
    while at and "!" <= text[at - 1] <= "~":
        at -= 1
    return at


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise Misconfigured(f"masking pattern {pattern!r} is no regular expression") from error
