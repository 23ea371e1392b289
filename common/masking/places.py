"""Secrets that are known by where they stand: in URLs, headers, tags, beside an AWS key id."""

from __future__ import annotations

import re
from collections.abc import Iterator

from common.masking.found import Found, Shown
from common.masking.keys import names_secret_in_text
from common.masking.named import HINT, HINTS, value_at
from common.masking.words import is_basic, is_placeholder, looks_random

_URL_STOP = re.compile(r"[\s\"'<>`\u3000-\u303f\uff00-\uffef\u2018-\u201f]")
_PASSWORD_CHARS_MAX = 512


class Addresses(Shown):
    """The password in `scheme://user:password@host`, or the token in `scheme://token@host`."""

    _head = re.compile(r"://(?P<user>[^\s/:@\"'\[<>]{0,100}:)?")
    _port = re.compile(r"\d{1,5}(?:[/?#]|\Z)")
    hints = ("://",)
    sign = re.compile("://")
    waits = re.compile(rf"://{_URL_STOP.pattern.replace('[', '[^', 1)}*\Z")

    def find(self, text: str) -> Iterator[Found]:
        at, run_end = 0, 0
        while (match := self._head.search(text, at)) is not None:
            at = first = match.end()
            if run_end < first:  # looked for once a run, however many heads it has
                stop = _URL_STOP.search(text, first)
                run_end = len(text) if stop is None else stop.start()
            end = min(run_end, first + _PASSWORD_CHARS_MAX)
            read = self._password if match["user"] else self._token
            for found in read(text, first, end):
                yield found
                at = max(at, found.last) if found.sure else at

    def _password(self, text: str, first: int, end: int) -> Iterator[Found]:
        """Up to the last @: a password may hold one."""
        last = text.rfind("@", first, end)
        is_port = self._port.match(text, first, end) is not None
        if last > first and not is_port:
            yield Found(first, last, looked=end)
        elif end == len(text):
            yield Found(first, end, sure=False)

    def _token(self, text: str, first: int, end: int) -> Iterator[Found]:
        slash = text.find("/", first, end)
        end = end if slash < 0 else slash
        last = text.find("@", first, end)
        if last > first and looks_random(text[first:last], 20):
            yield Found(first, last)
        elif last < 0 and end == len(text):
            yield Found(first, end, sure=False)


class Headers(Shown):
    """`Authorization: <scheme> <credentials>`, `Cookie: …`, `Set-Cookie: …`."""

    _scheme = re.compile(
        r"(?<![A-Za-z0-9_])(?P<header>authorization\\?[\"']?\s{0,8}[=:]\s{0,8}\\?[\"']?)?"
        r"(?P<scheme>bearer|basic|token|digest|negotiate|ntlm|apikey|splunk|bot)\s{1,8}",
        re.IGNORECASE | re.ASCII,
    )
    _credentials = re.compile(r"[A-Za-z0-9._~+/=:|-]+")
    _cookie = re.compile(
        r"(?<![A-Za-z0-9])(?:set-)?cookies?2?\\?[\"']?\s{0,8}[=:]\s{0,8}\\?[\"']?", re.IGNORECASE
    )
    _cookies = re.compile(
        r"(?:=\"[^\"\r\n]{0,4096}(?:\"|\Z)|[^\"'\r\n\\\u3000-\u303f\uff00-\uffef])++"
    )
    _first_cookie = re.compile(r"[A-Za-z0-9_.!#$%&*+^|~-]{1,100}(?:=|\Z)")
    _line_end = re.compile(r"[\r\n\"']")
    hints = ("bearer", "basic", "authorization", "cookie")
    sign = re.compile(
        r"(?:bearer|basic)(?:\s|\Z)"
        r"|(?:authorization|cookies?2?)\\?[\"']?\s{0,8}(?:[=:]|\Z)",
        re.IGNORECASE,
    )
    waits = re.compile(
        r"(?:(?:bearer|basic)\s{0,8}"
        r"|(?:authorization|cookies?2?)\\?[\"']?\s{0,8}(?:[=:]\s{0,8}\\?[\"']?(?:[a-z]+\s{0,8})?)?)\Z",
        re.IGNORECASE,
    )

    def find(self, text: str) -> Iterator[Found]:
        for match in self._scheme.finditer(text):
            run = self._credentials.match(text, match.end())
            if run is None:
                if match.end() == len(text):
                    yield Found(match.end(), match.end(), sure=False)
                continue
            yield Found(*run.span(), sure=_is_credential(match, run.group()))
        yield from self._find_cookies(text)

    def _find_cookies(self, text: str) -> Iterator[Found]:
        at = 0
        while (head := self._cookie.search(text, at)) is not None:
            at = head.end()
            begins, pairs = self._first_cookie.match(text, at), self._cookies.match(text, at)
            if begins is not None and pairs is not None:
                sure = begins.group().endswith("=")
                yield Found(at, pairs.end(), sure=sure, stop=self._line_end)
                at = pairs.end() if sure else at
            elif at == len(text):
                yield Found(at, at, sure=False)


def _is_credential(match: re.Match[str], value: str) -> bool:
    scheme = match["scheme"].lower()
    if scheme == "basic" and len(value) >= 4 and is_basic(value):
        return True
    if match["header"] is not None:
        return looks_random(value, 4) or len(value) >= 16
    return scheme in ("bearer", "basic") and looks_random(value, 12) and not _is_phrase(value)


def _is_phrase(value: str) -> bool:
    """Words joined by strokes: `Basic understanding/knowledge`."""
    return all(
        part.isalpha() and (part.islower() or part.istitle())
        for part in re.split("[/-]", value)
        if part
    )


class Tags(Shown):
    """`<password>…</password>`, and `name="X-Api-Key", value="…"`."""

    _tag = re.compile(r"<(?P<name>[A-Za-z][\w:.-]{0,60})(?:\s[^<>]{0,100})?>")
    _text = re.compile(r"[^<\n]{1,4096}")
    _pair = re.compile(
        r"(?:name|key|field)\\?[\"']?\s{0,4}[=:]\s{0,4}\\?[\"'](?P<name>[\w .-]{1,80})\\?[\"']"
        r"\s{0,4},?\s{0,8}\\?[\"']?value\\?[\"']?\s{0,4}[=:]\s{0,4}(?P<open>\\{0,7}[\"'])",
        re.IGNORECASE | re.ASCII,
    )
    hints = HINTS
    sign = re.compile(
        rf"<(?=[A-Za-z])[\w:.-]*?{HINT}"
        r"|(?:name|key|field)\\?[\"']?\s{0,4}[=:]\s{0,4}\\?[\"'][\w .-]*?" + HINT,
        re.IGNORECASE,
    )
    waits = sign

    def find(self, text: str) -> Iterator[Found]:
        for match in self._tag.finditer(text):
            if names_secret_in_text(match["name"]) and (found := self._content(text, match.end())):
                yield found
        for match in self._pair.finditer(text):
            if names_secret_in_text(match["name"]):
                value = value_at(text, match.end(), match["open"])
                yield Found(value.first, value.last, stop=value.stop)

    def _content(self, text: str, first: int) -> Found | None:
        content = self._text.match(text, first)
        if content is None:
            return Found(first, first, sure=False) if first == len(text) else None
        last = content.end()
        closes = text.startswith("</", last) and not is_placeholder("", content.group())
        return Found(first, last, sure=closes, looked=last + 1)


class Beside(Shown):
    """What has no name of its own: an AWS secret beside its key id, a Twilio token, web hooks."""

    _heads = (
        re.compile(
            r"(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{16}[\s,:;|\"'/]{1,8}(?P<secret>[A-Za-z0-9+/]{1,40})"
            r"(?![A-Za-z0-9+/])"
        ),
        re.compile(r"(?<![A-Za-z0-9])AC[0-9a-f]{32}[\s,:;|\"']{1,8}(?P<secret>[0-9a-f]{1,32})"),
        re.compile(
            r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[A-Za-z0-9/_-]+)"
        ),
        re.compile(r"discord(?:app)?\.com/api/webhooks/\d{1,20}/(?P<secret>[A-Za-z0-9_-]+)"),
        re.compile(r"(?<!\d)\d{8,10}:(?P<secret>AA[A-Za-z0-9_-]{0,40})"),
    )
    _least = (40, 32, 9, 20, 32)
    hints = ("AKIA", "ASIA", "AC", "hooks.slack.com", "/webhooks/", ":AA")
    sign = re.compile(
        r"(?<![A-Za-z0-9])(?:A[KS]IA|AC(?:[0-9a-f]|\Z))|hooks\.slack\.com|/webhooks/|\d:AA"
    )
    waits = sign

    def find(self, text: str) -> Iterator[Found]:
        for head, least in zip(self._heads, self._least, strict=True):
            for match in head.finditer(text):
                first, last = match.span("secret")
                yield Found(first, last, sure=last - first >= least)
