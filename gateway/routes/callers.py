"""What every route asks first: who is it, and what did it say in headers and query."""

import re
from collections.abc import Awaitable, Callable
from typing import Literal

from starlette.requests import Request

from common.errors import Refused
from gateway.auth import Authenticator, Principal
from gateway.services.limits import RequestLimit
from gateway.services.ring import Until

Caller = Callable[[Request], Awaitable[Principal]]

SEQUENCE_MAX = 2**63 - 1
_POSITION = re.compile(r"-1|[0-9]{1,19}", re.ASCII)
_JSON = "application/json"
_STREAM = "text/event-stream"


def caller(authenticator: Authenticator, limit: RequestLimit) -> Caller:
    """The dependency of all routes that need a user."""

    async def principal(request: Request) -> Principal:
        known = await authenticator.principal(request.headers.get("authorization"))
        await limit.check(known.user, request)
        return known

    return principal


def position_of(request: Request) -> int:
    """The sequence after which to go on: the header wins; -1, which LangGraph's clients send, is
    the beginning (contract §3)."""
    query = request.query_params
    given = request.headers.get("last-event-id")
    for name in ("after", "last_event_id", "lastEventId"):
        given = query.get(name) if given is None else given
    if given is None:
        return 0
    if not _POSITION.fullmatch(given) or int(given) > SEQUENCE_MAX:
        raise Refused("BAD_REQUEST", "the sequence to go on after must be a number from -1 on")
    return max(0, int(given))


def until_of(request: Request) -> Until:
    until = request.query_params.get("until", "end")
    if until == "interrupt":
        return "interrupt"
    if until == "end":
        return "end"
    raise Refused("VALIDATION", "until: must be interrupt or end")


def limit_of(request: Request, default: int, most: int) -> int:
    given = request.query_params.get("limit", str(default))
    if not re.fullmatch(r"[0-9]{1,6}", given, re.ASCII) or not 1 <= int(given) <= most:
        raise Refused("VALIDATION", f"limit: must be a number from 1 to {most}")
    return int(given)


def wants(request: Request, default: Literal["json", "stream"]) -> Literal["json", "stream"]:
    """What the `Accept` header prefers; `default` where it prefers neither."""
    accept = request.headers.get("accept", "*/*")
    json, stream = _quality(accept, _JSON), _quality(accept, _STREAM)
    if json == stream:
        return "stream" if _names(accept, _STREAM) else default
    return "json" if json > stream else "stream"


def _names(accept: str, kind: str) -> bool:
    return any(part.split(";")[0].strip().lower() == kind for part in accept.split(","))


def _quality(accept: str, kind: str) -> float:
    """The weight of a kind by its most specific range (RFC 9110, 12.5.1)."""
    ranges = {kind: 3, kind.split("/")[0] + "/*": 2, "*/*": 1}
    best, quality = 0, 0.0
    for part in accept.split(","):
        name, _, parameters = part.strip().partition(";")
        rank = ranges.get(name.strip().lower(), 0)
        if rank > best:
            best, quality = rank, _weight(parameters)
    return quality


def _weight(parameters: str) -> float:
    found = re.search(r"(?:^|;)\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*(?:;|$)", parameters, re.I)
    return float(found[1]) if found else 1.0
