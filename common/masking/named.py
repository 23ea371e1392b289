"""Secrets that are known by what stands before them: `password=…`, `"apiKey": "…"`, `--token …`.

A head is found first, bounded in length; then what follows it is read and judged. A value that is
long is always taken for a secret, so little is ever read twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from common.masking.found import RUN_END, Found, Shown
from common.masking.keys import CHINESE, names_password, names_secret_in_text
from common.masking.words import is_call, is_code, is_placeholder, is_prose, looks_random

_CJK_STOPS = "\u3000-\u303f\uff00-\uffef\u2018-\u201f\u2026"
_PLAIN = rf"[^\s\"'`,;&<>(){{}}\[\]\\{_CJK_STOPS}]"
# brackets belong to a value that goes on behind them; the closing ones of a call do not
BARE = re.compile(
    rf"\{{[^{{}}\s]{{1,200}}\}}(?=[;\s]|\Z)|{_PLAIN}++(?:[(){{}}\[\]]+(?={_PLAIN}){_PLAIN}++)*+"
)
_BEGUN_IN_BRACES = re.compile(r"(?:\{[^{}\s]{0,200})?\Z")
_BRACKETS_AT_END = re.compile(r"[(){}\[\]]*\Z")
_QUOTED = {
    '"': re.compile(r'(?:[^"\\\n]|\\(?:.|\Z))++'),
    "'": re.compile(r"(?:[^'\\\n]|\\(?:.|\Z))++"),
    "`": re.compile(r"[^`\n]++"),
}
_ESCAPED = re.compile(r"(?:[^\"'\\\n]|\\(?!\\*[\"']))++")
_QUOTED_END = {q: re.compile(rf"[{q}\n]") for q in _QUOTED}
_WORDS_BEFORE = (
    r"(?:(?:api|access|secret|private|account|signing|encryption|auth|security|session|client"
    r"|service)[ ]){0,3}"
)
_NAME = rf"(?P<name>(?<![A-Za-z0-9_-]){_WORDS_BEFORE}[A-Za-z0-9_-]++)"
_CHINESE_NAME = rf"(?P<name>(?:{'|'.join(CHINESE)}))"
_OPEN = r"(?P<open>\\{0,7}[\"'`])?"
_LINE_BEGIN = re.compile(r"[ \t>*-]*[\"'\w.-]*")
_LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)?")
_NUMBERS = re.compile(r"\d{1,11}|[\d.:]{1,30}(?:/[a-z]{3})?")
HINTS = (
    *("pass", "pwd", "secret", "key", "token", "credential", "auth", "jwt", "bearer", "webhook"),
    *("signature", "sig=", "sessid", "sessionid", *CHINESE),
)
HINT = rf"(?:{'|'.join(h for h in HINTS if h != 'sig=')})"
_LETTER = "[A-Za-z0-9_-]"
_OF_NAME = f"{_LETTER}*"
_REST = f"{_LETTER}*+"  # a name is read once, however many hints are in it
_EQUALS_NAMES = frozenset(
    {"pass", "auth", "_auth", "sig", "signature", "phpsessid", "jsessionid"}
    | {"x-amz-signature", "x-goog-signature"}
)
_JUDGED = 256  # characters of a value that are looked at to judge it


class Value(NamedTuple):
    """What stands at a place where a secret may stand. `judged`: its text, None where that is too
    long for a word or a reference."""

    first: int
    last: int
    judged: str | None
    stop: re.Pattern[str]


def value_at(text: str, first: int, opening: str | None) -> Value:
    expression, stop = _expression(opening)
    match = expression.match(text, first, first + _JUDGED)
    last = first if match is None else match.end()
    if last - first < _JUDGED - 10:
        return Value(first, last, text[first:last], stop)
    if opening is None and is_call(text[first:last]):
        return Value(first, first, "", stop)
    full = expression.match(text, first)
    return Value(first, last if full is None else full.end(), None, stop)


def _expression(opening: str | None) -> tuple[re.Pattern[str], re.Pattern[str]]:
    if opening is None:
        return BARE, RUN_END
    if opening.startswith("\\"):
        return _ESCAPED, RUN_END
    return _QUOTED[opening], _QUOTED_END[opening]


class Assigned(Shown):
    """`name=value`, `name: value`, `"name": "value"`, `name is value`, in English and Chinese."""

    _heads = (
        re.compile(
            rf"{_NAME}\\{{0,7}}[\"'`]?\]?"
            r"(?P<sep>\s{0,8}(?::\s?[A-Za-z_][\w.\[\]|]{0,30}\s?)?(?::=|==?|=>)\s{0,8}"
            rf"|\s{{0,8}}[:\uff1a]\s{{0,8}}|[ ]{{1,3}}(?:is|was)[ ]{{1,3}}){_OPEN}",
            re.IGNORECASE | re.ASCII,
        ),
        re.compile(rf"{_CHINESE_NAME}(?P<sep>\s{{0,8}}(?:[=:\uff1a]|是|为|為)\s{{0,8}}){_OPEN}"),
    )
    hints = HINTS
    # the rest of the name, or the words that end it, and what may close it
    _front = (
        rf"(?:(?<!{_LETTER})(?:(?>{_LETTER}*?(?:secret|auth)){_REST}(?:[ ]{_REST}){{0,3}}"
        rf"|(?>{_LETTER}*?{HINT}){_REST}|-*+sig)|(?:{'|'.join(CHINESE)}){_REST})\\{{0,7}}[\"'`]?\]?"
    )
    sign = re.compile(
        rf"{_front}(?:\s{{0,8}}(?:[:=\uff1a是为為]|\Z)"
        r"|[ ]{1,3}(?:(?:is|was)[ ]|(?:is?|w|was?)\Z))",
        re.IGNORECASE,
    )
    waits = re.compile(
        rf"{_front}(?:\s{{0,8}}(?::\s?[\w.\[\]|]{{0,31}}\s?)?[:=>\uff1a是为為]{{0,2}}\s{{0,8}}"
        r"|[ ]{1,3}(?:is?|w|was?)[ ]{0,3})\\{0,7}[\"'`]?\Z",
        re.IGNORECASE,
    )

    def find(self, text: str) -> Iterator[Found]:
        for head in self._heads:
            at = 0
            while (match := head.search(text, at)) is not None:
                at = match.end("name")
                found = self._read(text, match) if _is_name(text, match) else None
                if found is not None:
                    yield found
                    at = max(at, found.last) if found.sure else at

    def _read(self, text: str, match: re.Match[str]) -> Found | None:
        value = value_at(text, match.end(), match["open"])
        if value.last == value.first:
            begins = _BEGUN_IN_BRACES.match(text, value.first)
            return Found(value.first, len(text), sure=False) if begins else None
        looked = _looked(
            text, value.last, match["open"], ":" in match["sep"] or "\uff1a" in match["sep"]
        )
        sure = value.judged is None or _is_value(text, match, value.judged, value.last)
        return Found(value.first, value.last, sure=sure, looked=looked, stop=value.stop)


def _looked(text: str, last: int, opening: str | None, to_line_end: bool) -> int:
    """How far the decision about a value has looked: at brackets, at the line's end."""
    if opening is not None:
        return last
    if _BRACKETS_AT_END.match(text, last):
        return len(text)
    end = _LINE_END.match(text, last)
    return end.end() if end is not None and to_line_end else last


def _is_name(text: str, match: re.Match[str]) -> bool:
    name = match["name"]
    if names_secret_in_text(name):
        return True
    assigned = match["sep"] == "=" and text[match.end("name")] == "="
    return assigned and name.lower().strip("-") in _EQUALS_NAMES


def _is_value(text: str, match: re.Match[str], value: str, last: int) -> bool:
    name, sep = match["name"], match["sep"].strip()
    if value.startswith("{") and text[last : last + 1] == ";":  # as ODBC quotes
        return True
    if is_placeholder(name, value):
        return False
    if not names_password(name) and value.isdigit() and len(value) < 6:
        return False
    if match["open"] is not None:
        return True
    if is_code(value, text[last : last + 1]) or (name == "PWD" and value.startswith("/")):
        return False
    if sep in ("=", ":="):
        return True
    return looks_random(value, 5) or _stands_alone(text, match, value, last)


def _stands_alone(text: str, match: re.Match[str], value: str, last: int) -> bool:
    """`password: letmein` as a line of its own, as YAML and forms have it."""
    if match["sep"].strip() not in (":", "\uff1a"):
        return False
    before = text[max(0, match.start() - 80) : match.start()].rpartition("\n")[2]
    end = _LINE_END.match(text, last)
    ends = end is not None and (end.end() == len(text) or text[end.end() - 1] == "\n")
    alone = ends and _LINE_BEGIN.fullmatch(before) is not None
    return alone and len(value) >= 5 and value.isascii() and not is_prose(value)


class Arguments(Shown):
    """`--password x`, `mysql -p x`, `curl -u user:x`, `openssl … pass:x`, .netrc."""

    _flag = re.compile(rf"(?<![A-Za-z0-9_-])--?(?P<name>[A-Za-z][A-Za-z0-9-]*+)[ \t]{{1,4}}{_OPEN}")
    _heads = (
        re.compile(
            r"(?<![A-Za-z0-9_])(?:mysql|mariadb|mongo|sshpass)[a-z]{0,9}(?:[ \t][^\n|;]{0,250}?)??"
            rf"[ \t]-p[ \t]{{0,4}}{_OPEN}"
        ),
        re.compile(
            rf"(?<![A-Za-z0-9_-])-[uU][ \t]{{0,4}}[\w.@-]{{1,60}}[ \t]{{1,4}}"
            rf"-[pP][ \t]{{0,4}}{_OPEN}"
        ),
        re.compile(rf"redis-cli(?:[ \t][^\n|;]{{0,250}}?)??[ \t]-a[ \t]{{1,4}}{_OPEN}"),
        re.compile(
            r"(?<![A-Za-z0-9_-])(?:-u|--user|--proxy-user)[ =\t]{0,4}[\"']?"
            r"[A-Za-z0-9_.@-]{1,80}:(?P<open>(?!))?(?![/\s])"
        ),
        re.compile(rf"(?<![A-Za-z0-9_])-pass(?:in|out)?[ \t]{{1,4}}pass:{_OPEN}"),
        re.compile(rf"(?<![A-Za-z0-9_])login\s{{1,4}}\S{{1,80}}\s{{1,4}}password\s{{1,4}}{_OPEN}"),
        re.compile(
            r"(?<![A-Za-z0-9_])(?:thin|oci):[\w$#]{1,60}/(?P<open>(?!))?(?=[^\s@]{1,100}(?:@|\Z))"
        ),
    )
    hints = (*HINTS, " -p", "\t-p", "-u", " -a", "\t-a", "thin:", "oci:")
    sign = re.compile(
        rf"(?:(?<!{_LETTER})-|\A){_OF_NAME}{HINT}|[ \t]-p|[ \t]-a(?:[ \t]|\Z)"
        rf"|(?<!{_LETTER})-(?:u|-user|-proxy-user)"
        r"|login\s{1,4}\S{1,80}\s{1,4}pass|(?:thin|oci):",
        re.IGNORECASE,
    )
    waits = sign

    def find(self, text: str) -> Iterator[Found]:
        for match in self._flag.finditer(text):
            name = match["name"].lower()
            if names_secret_in_text(name) or name in ("pass", "passin"):
                yield from self._read(text, match)
        for head in self._heads:
            for match in head.finditer(text):
                yield from self._read(text, match)

    def _read(self, text: str, match: re.Match[str]) -> Iterator[Found]:
        value = value_at(text, match.end(), match["open"])
        if value.last == value.first < len(text):
            return
        looked = _looked(text, value.last, match["open"], False)
        sure = value.judged is None or _is_argument(value.judged, text[value.last : value.last + 1])
        yield Found(value.first, value.last, sure=sure, looked=looked, stop=value.stop)


def _is_argument(value: str, following: str) -> bool:
    return not (
        value.startswith("-")
        or _NUMBERS.fullmatch(value)
        or is_prose(value)
        or is_placeholder("", value)
        or is_code(value, following)
    )
