"""Keys that are known by how they begin, whoever names them: of vendors, JWTs, private keys."""

from __future__ import annotations

import re
from collections.abc import Iterator

from common.masking.found import Found, Hidden, beginnings

_WORD = r"[A-Za-z0-9_-]"
_ALNUM = r"[A-Za-z0-9]"
_NOT_A_WORD = r"(?=[A-Za-z_-]*\d)"
"""Names in code and prose begin like keys (`sk-learn-based`); keys have digits."""

# beginnings → what follows in each such key
_KEYS: tuple[tuple[str, str], ...] = (
    ("sk-", rf"{_NOT_A_WORD}{_WORD}{{16,}}"),  # OpenAI, Anthropic and others
    ("sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_", rf"{_ALNUM}{{10,}}"),  # Stripe
    ("sk_ rk_ pk_", rf"{_NOT_A_WORD}{_ALNUM}{{16,}}"),
    ("whsec_", r"[A-Za-z0-9+/=]{16,}"),
    ("AKIA ASIA ABIA ACCA", r"[A-Z0-9]{16,}"),  # AWS
    ("IQoJb3JpZ2lu FwoGZXIvYXdz", r"[A-Za-z0-9+/=]{40,}"),  # AWS session tokens
    ("ghp_ gho_ ghu_ ghs_ ghr_", rf"{_ALNUM}{{20,}}"),  # GitHub
    ("github_pat_", rf"{_WORD}{{16,}}"),
    (
        "glpat- gldt- glrt- glcbt- glptt- glft- glagent- gloas- glsoat- glimt- glffct-",
        r"[A-Za-z0-9_.-]{16,}",
    ),  # GitLab
    ("xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- xoxe.", r"[A-Za-z0-9.-]{10,}"),
    ("AIza", rf"{_WORD}{{30,}}"),  # Google
    ("ya29.", r"[A-Za-z0-9_.-]{16,}"),
    ("GOCSPX-", rf"{_WORD}{{16,}}"),
    ("npm_", rf"{_ALNUM}{{30,}}"),
    ("pypi-AgE", rf"{_WORD}{{16,}}"),
    ("SG.", rf"{_WORD}{{16,}}\.{_WORD}{{16,}}"),  # SendGrid
    ("SK", r"[0-9a-f]{32}(?![A-Za-z0-9])"),  # Twilio
    ("key-", r"[0-9a-f]{32}(?![A-Za-z0-9])"),  # Mailgun
    ("dapi", r"[0-9a-f]{32}(?:-\d)?(?![A-Za-z0-9])"),  # Databricks
    ("hf_ gsk_ r8_ lin_api_ ntn_ sbp_ rubygems_ pul- dckr_pat_ dckr_oat_", rf"{_WORD}{{24,}}"),
    ("xai- pplx- nvapi- tskey- PMAK- sntrys_ sntryu_ pscale_tkn_", rf"{_WORD}{{24,}}"),
    ("dop_v1_ doo_v1_ dor_v1_ shpat_ shpss_ shpca_ shppa_ lsv2_pt_ lsv2_sk_", rf"{_WORD}{{24,}}"),
    ("glsa_ glc_ ATATT3x sq0atp- sq0csp- AGE-SECRET-KEY-1", r"[A-Za-z0-9_=-]{16,}"),
    ("hvs. hvb. dp.pt. dp.st.", r"[A-Za-z0-9_.-]{16,}"),  # Vault, Doppler
    ("LTAI AKID", rf"{_NOT_A_WORD}{_ALNUM}{{12,}}"),  # Alibaba, Tencent
    ("eyJ", rf"{_WORD}{{8,}}(?:\.{_WORD}{{8,}}|\.\.{_WORD}{{8,}})(?:\.{_WORD}*){{0,3}}"),  # JWT
)


class Keys(Hidden):
    """All of the table at once."""

    def __init__(self) -> None:
        literals = [literal for names, _ in _KEYS for literal in names.split()]
        branches = [
            rf"(?:{'|'.join(map(re.escape, names.split()))})(?:{rest})" for names, rest in _KEYS
        ]
        self._whole = re.compile(rf"(?<!{_WORD})(?:{'|'.join(branches)})")
        self._open = re.compile(
            rf"(?<!{_WORD})(?:{'|'.join(map(re.escape, literals))})[A-Za-z0-9_.+/=-]*\Z"
        )
        self.hints = tuple(literals)
        self.sign = re.compile(rf"(?<!{_WORD})(?:{'|'.join(map(re.escape, literals))})")
        self.starts = beginnings(*literals)
        self._reach = max(map(len, literals))
        self._begun = re.compile(rf"(?<!{_WORD})(?:{'|'.join(map(re.escape, self.starts))})\Z")

    def find(self, text: str) -> Iterator[Found]:
        for match in self._whole.finditer(text):
            yield Found(*match.span())
        if (unfinished := self._open.search(text, _run_at_end(text))) is not None:
            yield Found(unfinished.start(), len(text), sure=False)

    def begun(self, text: str) -> int | None:
        if not text.endswith(self.starts):
            return None
        match = self._begun.search(text, max(0, len(text) - self._reach))
        return None if match is None else match.start()


class PrivateKeys(Hidden):
    """Blocks between BEGIN and END; without an END, all that follows."""

    _begin = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
    _end = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
    starts = beginnings("-----BEGIN ")
    _begun = re.compile(
        rf"(?:-----BEGIN [A-Z0-9 ]{{0,60}}-{{0,4}}|{'|'.join(sorted(starts, reverse=True))})\Z"
    )
    hints = ("-----BEGIN ",)
    sign = re.compile("-----BEGIN ")

    def find(self, text: str) -> Iterator[Found]:
        at = 0
        while (begin := self._begin.search(text, at)) is not None:
            end = self._end.search(text, begin.end())
            at = len(text) if end is None else end.end()
            yield Found(begin.start(), at, stop=self._end)
            if end is not None and at == len(text):
                return
        if (begun := self._begun.search(text, max(at, len(text) - 80))) is not None:
            yield Found(begun.start(), len(text), sure=False)

    def begun(self, text: str) -> int | None:
        if not text.endswith(self.starts):
            return None
        match = self._begun.search(text, max(0, len(text) - 80))
        return None if match is None else match.start()


_OF_A_KEY = re.compile(r"[A-Za-z0-9_.+/=-]*")


def _run_at_end(text: str) -> int:
    """Where the run of letters that keys are made of begins with which the text ends."""
    run = _OF_A_KEY.match(text[::-1])
    return len(text) - (run.end() if run else 0)
