"""Arguments of commands that their types let pass and that nobody can mean."""

import os
import re
from pathlib import Path

import httpx

from common.errors import Unusable

_HOST = re.compile(r"[\w.:-]+")


def address(url: str, name: str = "--url") -> str:
    """A URL that requests can be sent to."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    is_port = parsed.port is None or 0 < parsed.port <= 65_535
    if parsed.scheme not in ("http", "https") or not _HOST.fullmatch(parsed.host) or not is_port:
        raise Unusable(f"{name} {url}: give an address such as http://127.0.0.1:8080")
    return url


def user(name: str) -> str:
    """No token is valid without somebody."""
    if not name.strip():
        raise Unusable("--user must name somebody")
    return name


def bearer(token: str) -> str:
    """What fits into a header; never shown, it may be almost right."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Unusable("STEADYRUN_TOKEN is no token: take what `steadyrun token` prints, as it is")
    return token


def writable(file: Path | None, option: str) -> None:
    """Looked at before the work whose outcome is to be written there, lest it be lost."""
    if file is None:
        return
    held_by = file if file.exists() else file.absolute().parent
    if file.is_dir() or not held_by.exists() or not os.access(held_by, os.W_OK):
        raise Unusable(f"{option} {file}: cannot be written; name a file in a folder that is there")
