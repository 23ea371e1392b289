"""Keys and names that say that their value is a secret."""

import re
from itertools import pairwise

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
ALWAYS = frozenset({"password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets"}) | {
    "pin", "otp", "cvv", "cvc",
}  # fmt: skip
_NOT_IN_TEXT = frozenset({"pin", "otp", "cvv", "cvc", "cookie", "cookies"})
_ADDRESSES = frozenset({"dsn"})
_ADDRESS_PAIRS = frozenset({("connection", "string"), ("database", "url"), ("redis", "url")})
_SECRET_WORDS = ALWAYS | {
    "token", "jwt", "authorization", "credential", "credentials", "cookie", "cookies",
    "apikey", "bearer", "passwords",
}  # fmt: skip
_KINDS_OF_KEY = frozenset(
    {"api", "access", "private", "secret", "signing", "encryption", "account", "subscription"}
    | {"shared", "master", "auth", "service"}
)
_SECRET_PAIRS = frozenset((kind, "key") for kind in _KINDS_OF_KEY) | {("webhook", "url")}
_SECRET_ENDS = ("password", "passwd", "secret", "apikey", "accesskey", "privatekey", "token")
_ABOUT = frozenset(
    {"usage", "count", "counts", "limit", "limits", "budget", "details", "length", "policy"}
    | {"type", "ttl", "expiry", "expires", "name", "file", "path", "endpoint"}
)
"""A name that ends so speaks about a secret: `token_usage`, `secret_name`, `passwordLength`."""
CHINESE = ("密码", "口令", "密钥", "秘钥", "令牌", "私钥", "凭证", "密碼", "密鑰")


def names_secret(key: str) -> bool:
    """Whether a key says that its value is a secret: `db_password`, `apiKey`, `X-Auth-Token`."""
    words = _words(key)
    return _is_secret(key, words) or (
        not _ADDRESSES.isdisjoint(words) or any(pair in _ADDRESS_PAIRS for pair in pairwise(words))
    )


def names_secret_in_text(name: str) -> bool:
    """The same of a name in a text: other rules know addresses and cookies, and `pin: ` is also
    what stands in many a list.
    """
    words = [word for word in _words(name) if word not in _NOT_IN_TEXT]
    return _is_secret(name, words)


def names_password(key: str) -> bool:
    """Whether even a number under this key is a secret."""
    return not ALWAYS.isdisjoint(_words(key)) or any(name in key for name in CHINESE[:2])


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(key)]


def _is_secret(key: str, words: list[str]) -> bool:
    if any(name in key for name in CHINESE):
        return True
    if words and words[-1] in _ABOUT:
        return False
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or any(pair in _SECRET_PAIRS for pair in pairwise(words))
        or any(word.endswith(_SECRET_ENDS) for word in words)
    )
