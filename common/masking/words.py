"""Whether what stands where a secret could stand is a word, code, or something random."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode

_SPECIAL = re.compile(r"[\d$!#%^*+/@=~|?]")
_MIXED = re.compile(r"[a-z][A-Z]")
_LONG = 40
_PROSE = frozenset(
    """
    a an and any are argument arguments as be been before but by can cannot changed
    correct empty every expired field file flag for from given has have hidden if in
    incorrect invalid is it its made may missing must my new no none not null of on one
    only option optional options or our parameter please prompt provided redacted
    required reset see set should string switch that the then this to unknown unset use
    used valid value was were when which will with without wrong yes you your bearer
    basic true false header headers
    """.split()  # noqa: SIM905
)
_CONSTANTS = frozenset(
    {"none", "null", "nil", "true", "false", "undefined", "str", "string", "bytes", "optional"}
    | {"required", "secretstr", "any", "bool", "int", "..."}
)
_REFERENCE = re.compile(
    r"(?:self|this|settings|config|cfg|conf|os|process|env|args|opts|options|ctx|context|request"
    r"|req|params|credentials|secrets|var|local|data|values|event|props|state)"
    r"(?:\.[A-Za-z_]\w*)+[.)]*",
    re.ASCII,
)
_CALLEE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]+", re.ASCII)
_PLACEHOLDER = re.compile(
    r"\$\{?[A-Za-z_][\w.:-]*\}?|\$\{\{[^}]*\}\}|\$\(.*|\{\{?[ \w.]*\}?\}?|%\(?\w*\)?s|\*+\.?"
    r"|%[A-Z_]+%|<[^<>]*>|\.{3}|…|x{3,}",
    re.ASCII,
)
_URL = re.compile(r"(?:https?|wss?|file)://")
_GOES_ON = re.compile(r"[)\]][A-Za-z0-9_]")
_CALL = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]+[(\[]", re.ASCII)


def looks_random(value: str, least: int) -> bool:
    """No word of a sentence: it has a digit, a sign, changing case, or is very long."""
    if len(value) < least or (_URL.match(value) and "@" not in value):
        return False
    return (
        len(value) > _LONG or _SPECIAL.search(value) is not None or _MIXED.search(value) is not None
    )


def is_prose(value: str) -> bool:
    return value.lower().strip(".,:;!?") in _PROSE


def is_placeholder(name: str, value: str) -> bool:
    """What stands for a secret: a constant, a template's variable, the name once more."""
    low = value.lower().rstrip(".")
    return (
        low in _CONSTANTS
        or (bool(name) and low == name.lower().strip("-"))
        or _PLACEHOLDER.fullmatch(value) is not None
    )


def is_code(value: str, following: str) -> bool:
    """An expression that gives a secret: `settings.token`, `os.environ[…]`, `read_token()`."""
    called = following in ("(", "[") and _CALLEE.fullmatch(value) is not None
    return called or is_call(value) or _REFERENCE.fullmatch(value) is not None


def is_call(value: str) -> bool:
    return _CALL.match(value) is not None and _GOES_ON.search(value) is None


def is_basic(value: str) -> bool:
    """Whether it is base64 of `user:password`."""
    try:
        return b":" in b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return False
