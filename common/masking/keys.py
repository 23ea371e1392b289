"""Keys that name secrets."""

import re
from itertools import pairwise

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
ALWAYS = frozenset({"password", "passwd", "passphrase", "pwd", "secret", "secrets", "pin"})
_SECRET_WORDS = ALWAYS | {
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


def names_password(key: str) -> bool:
    """Whether even a number under this key is a secret."""
    return not ALWAYS.isdisjoint(word.lower() for word in _WORDS.findall(key))
