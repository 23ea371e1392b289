"""Errors on the wire: RFC 9457 problem documents (contract §4). The one table of HTTP statuses.

Whatever goes wrong, the client gets `application/problem+json` with a stable `code`; nothing of a
driver, a stack or a request's values is ever in it (I9).
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from common.errors import Code, Refused, Unavailable

STATUS: Mapping[Code, int] = {
    "BAD_REQUEST": 400,
    "CONVERSATION_BUSY": 409,
    "FORBIDDEN": 403,
    "HISTORY_EXPIRED": 410,
    "IDEMPOTENCY_MISMATCH": 422,
    "INTERNAL": 500,
    "INTERRUPT_EXPIRED": 410,
    "INTERRUPT_NOT_PENDING": 409,
    "METHOD_NOT_ALLOWED": 405,
    "NOT_FOUND": 404,
    "PAYLOAD_TOO_LARGE": 413,
    "PERMISSION_REVOKED": 403,
    "RATE_LIMITED": 429,
    "RESOURCE_CHANGED": 409,
    "RUN_NOT_RESUMABLE": 409,
    "UNAUTHENTICATED": 401,
    "UNAVAILABLE": 503,
    "VALIDATION": 422,
    "VERSION_CONFLICT": 409,
}
# what a status of the framework means in our words; every other 4xx is a bad request
_CODE: Mapping[int, Code] = {
    401: "UNAUTHENTICATED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "PAYLOAD_TOO_LARGE",
    422: "VALIDATION",
    429: "RATE_LIMITED",
    503: "UNAVAILABLE",
}
RETRY_AFTER_S = 1
_ERRORS_MAX = 20  # of one validation: a body of a megabyte can be wrong in very many places


def install(app: FastAPI) -> None:
    """Make every error that leaves a route a problem document."""
    for kind in (Refused, Unavailable, HTTPException):
        app.add_exception_handler(kind, _expected)
    app.add_exception_handler(RequestValidationError, _invalid)


def problem(
    code: Code,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    status = STATUS[code]
    document = {
        **(extra or {}),
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
    }
    return Response(
        orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS),
        status,
        {**_standing_headers(code), **(headers or {})},
        media_type="application/problem+json",
    )


def timed_out(after_s: float) -> bytes:
    """The whole HTTP/1.1 answer to a request whose rest does not come: there is no app to ask."""
    status = HTTPStatus.REQUEST_TIMEOUT
    body = orjson.dumps(
        {
            "type": "about:blank",
            "title": status.phrase,
            "status": status.value,
            "code": "BAD_REQUEST",
            "detail": f"the rest of the request did not come within {after_s:g} s",
        }
    )
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def _standing_headers(code: Code) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if code == "UNAUTHENTICATED":
        headers["WWW-Authenticate"] = "Bearer"
    if code in ("UNAVAILABLE", "RATE_LIMITED"):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return headers


def of(error: Refused | Unavailable | HTTPException) -> Response:
    """The answer to an expected error."""
    if isinstance(error, Refused):
        return problem(error.code, error.detail, headers=_headers(error), extra=error.extra)
    if isinstance(error, Unavailable):
        return problem("UNAVAILABLE", f"{error}; try again")
    return _framework(error)


def _headers(error: Refused) -> Mapping[str, str]:
    after = error.extra.get("retryAfterS")
    return {} if after is None else {"Retry-After": str(after)}


async def _expected(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused | Unavailable | HTTPException)
    return of(error)


def _framework(error: HTTPException) -> Response:
    code = _CODE.get(error.status_code, "INTERNAL" if error.status_code >= 500 else "BAD_REQUEST")
    kept = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
    return problem(code, HTTPStatus(error.status_code).phrase, headers=kept)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    causes = error.errors()
    if any(cause["type"] == "json_invalid" for cause in causes):
        return problem("BAD_REQUEST", "the body is not JSON")
    fields = [_field(cause) for cause in causes[:_ERRORS_MAX]]
    summary = "; ".join(f"{f['path']}: {f['message']}" for f in fields[:3])
    return problem("VALIDATION", summary, extra={"errors": fields})


def _field(cause: Mapping[str, Any]) -> dict[str, str]:
    """Where and why, never what was sent: it may be a secret."""
    return {"path": _path(cause["loc"]), "message": str(cause["msg"]).removeprefix("Value error, ")}


def _path(loc: Sequence[str | int]) -> str:
    """`message.content`, `query.limit`; the parts that come from the client are cut short."""
    parts = [str(part)[:64] for part in loc]
    return ".".join(parts[1:] if parts[0] == "body" and len(parts) > 1 else parts)
