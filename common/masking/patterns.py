"""What secrets look like in a text, as a whole and as the unfinished end of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from common.errors import Misconfigured

MASK = "***"
Span = tuple[int, int]


class Patterns:
    """The known kinds of secrets and a deployment's own, whose whole match is a secret."""

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own = tuple(_compile(pattern) for pattern in own)

    @property
    def has_own(self) -> bool:
        return bool(self._own)

    def spans(self, text: str) -> list[Span]:
        """The places of secrets in a text, in order, apart from each other."""
        low = text.lower()
        hinted = _ANY_HINT.search(low) is not None
        found = [span for rule in _RULES for span in rule.whole(text, low)] if hinted else []
        found += [match.span() for own in self._own for match in own.finditer(text)]
        return _merged(found)

    def begins(self, text: str) -> int:
        """Where the part of the end starts that may begin a secret; len(text) if none does.

        Nothing is known of the beginnings of a deployment's own: they are looked for in the last
        run of printable ASCII.
        """
        low = text.lower()
        starts = [start for rule in _RULES for start in rule.begins(text, low)]
        if self._own:
            starts.append(_last_run(text))
        return min(starts, default=len(text))

    def may_stand_in(self, text: str) -> bool:
        """The cheap look that ordinary text passes: False if no secret is in it or begins in it."""
        return bool(self._own) or _ANY_HINT.search(text.lower()) is not None

    def may_begin_at_end(self, text: str) -> bool:
        if self._own:
            return True
        return text.endswith(_ANY_START) and any(rule.is_begun_in(text) for rule in _RULES)


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
        after_hint: str = "",
        needs: str = "",
        flags: re.RegexFlag = re.NOFLAG,
    ) -> None:
        """`hints`: one of these, in lower case, stands in every such text; looking for them first
        makes ordinary text cheap. `after_hint`: what follows it there, so that a text that merely
        speaks of passwords is cheap too. `needs`: what stands in every whole one. `starts`: the
        beginnings of what itself is hidden.
        """
        self._whole = re.compile(whole, flags)
        self._begins = re.compile(rf"(?:{begins})\Z", flags)
        self.hints = tuple(hints)
        self.starts = tuple(starts)
        self._needs = needs
        self._hint = re.compile(f"(?:{'|'.join(map(re.escape, hints))}){after_hint}")
        self._reach = max(map(len, starts), default=0)

    def whole(self, text: str, low: str) -> Iterable[Span]:
        if self._needs not in text or not self._hinted(low):
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

    def is_begun_in(self, text: str) -> bool:
        """Whether the end of a text without a hint may begin this secret."""
        if not text.endswith(self.starts):
            return False
        return self._begins.search(text, max(0, len(text) - self._reach)) is not None

    def _hinted(self, low: str) -> bool:
        return self._hint.search(low) is not None


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
        needs="@",
    ),
    _Rule(  # name="value", name: 'value', {"name": "value"}
        rf"(?:{_NAMES})[\"']?\s{{0,8}}[=:]\s{{0,8}}(?P<q>[\"'])(?P<secret>[^\"'\n]+)",
        rf"(?:{_NAMES})[\"']?\s{{0,8}}[=:]\s{{0,8}}[\"'](?P<secret>[^\"'\n]+)",
        hints=_HINTS,
        after_hint=r"s?[\"']?\s{0,8}[=:]\s{0,8}[\"']",
        flags=re.IGNORECASE,
    ),
    _Rule(  # name=value
        rf"(?:{_NAMES})\s{{0,8}}=\s{{0,8}}(?P<secret>{_BARE}+)",
        rf"(?:{_NAMES})\s{{0,8}}=\s{{0,8}}(?P<secret>{_BARE}+)",
        hints=_HINTS,
        after_hint=r"s?\s{0,8}=",
        flags=re.IGNORECASE,
    ),
    _Rule(  # name: value, where the value does not look like a word of a sentence
        rf"(?:{_NAMES})\s{{0,8}}:\s{{0,8}}(?P<secret>(?={_BARE}{{0,200}}[\d$!#%^*+/]){_BARE}{{5,}})",
        rf"(?:{_NAMES})\s{{0,8}}:\s{{0,8}}(?P<secret>{_BARE}+)",
        hints=_HINTS,
        after_hint=r"s?\s{0,8}:",
        flags=re.IGNORECASE,
    ),
)
_ANY_HINT = re.compile("|".join({re.escape(hint) for rule in _RULES for hint in rule.hints}))
HINT_CHARS = max(len(hint) for rule in _RULES for hint in rule.hints)
_ANY_START = tuple({start for rule in _RULES for start in rule.starts})


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


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
