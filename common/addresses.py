"""Addresses of servers, looked at before a driver does: its own words would hold the password."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

POSTGRES: Final = ("postgresql://", "postgres://")
REDIS: Final = ("redis://", "rediss://", "unix://")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^:\[\]]*)(?::(\d+))?")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PORT_MAX: Final = 65_535
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_HINT: Final = "in a password write / @ : ? # % as %2F %40 %3A %3F %23 %25"


def wrong_postgres(url: str) -> str | None:
    """Why it cannot be meant, without any part of it; None: it can."""
    if not url.startswith(POSTGRES):
        return "must begin with postgresql://"
    if (wrong := _wrong(url)) is not None:
        return wrong
    options = parse_qs(url.partition("?")[2])
    if any(mode not in _SSL_MODES for mode in options.get("sslmode", [])):
        return f"sslmode must be one of {', '.join(_SSL_MODES)}"
    for name in ("sslrootcert", "sslcert", "sslkey"):
        if any(file != "system" and not Path(file).is_file() for file in options.get(name, [])):
            return f"{name} names no file that is there"
    return None


def wrong_redis(url: str) -> str | None:
    """The same for Redis, whose database is a number."""
    if not url.startswith(REDIS):
        return "must begin with redis:// or rediss://"
    if url.startswith("unix://"):
        return None
    if (wrong := _wrong(url)) is not None:
        return wrong
    _, tail = _parts(url)
    database = re.match(r"/?([^?#]*)", tail)
    if database and database[1] and not database[1].isdecimal():
        return "the database must be a number, as in redis://host:6379/0"
    return None


def _wrong(url: str) -> str | None:
    """Several hosts may be named."""
    authority, tail = _parts(url)
    hosts = authority.rpartition("@")[2].split(",")
    if "@" in tail.partition("?")[0] or _ESCAPE.search(authority):
        return f"cannot be read; {_HINT}"
    for host in hosts:
        found = _HOST.fullmatch(host)
        if found is None or (found[1] and not 0 < int(found[1]) <= _PORT_MAX):
            return f"host and port cannot be read; {_HINT}"
    return None


def _parts(url: str) -> tuple[str, str]:
    """What names user and hosts, and all that follows."""
    rest = url.partition("://")[2]
    end = min((at for sign in "/?#" if (at := rest.find(sign)) >= 0), default=len(rest))
    return rest[:end], rest[end:]
