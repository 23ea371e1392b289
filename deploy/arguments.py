"""Arguments of commands that their types let pass and that nobody can mean."""

import httpx

from common.errors import Unusable


def address(url: str, name: str = "--url") -> str:
    """A URL that requests can be sent to."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
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
