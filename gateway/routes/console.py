"""The console: a page and its modules, read once at start and served from memory.

Nothing of it may come from elsewhere or stand in the page itself: the policy allows scripts, styles
and pictures of this origin only, no inline code, no frames, no forms that leave, no HTML made from
text. `no-cache` with an entity tag: a browser asks every time, and gets 304 unless it has changed.

The page is told whether there is a demo user, so that it need not ask and be refused.
"""

import gzip
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(str(files("gateway"))) / "console"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NO_DEMO, _DEMO = (b'name="steadyrun-demo" content="%s"' % word for word in (b"no", b"yes"))
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    kind: str
    tag: str
    plain: bytes
    packed: bytes


def routes(*, demo: bool) -> list[Route]:
    """`/` is the page; its parts stand under `/console/`, `client.js` for others as well."""
    found = {path.name: _read(path) for path in _FOLDER.iterdir() if path.suffix in _KINDS}
    first = _page(found.pop("index.html"), demo=demo)

    async def page(request: Request) -> Response:
        return _answer(request, first)

    async def part(request: Request) -> Response:
        file = found.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return _answer(request, file)

    return [Route("/", page, methods=["GET"]), Route("/console/{name}", part, methods=["GET"])]


def _page(file: _File, *, demo: bool) -> _File:
    return _file(file.kind, file.plain.replace(_NO_DEMO, _DEMO) if demo else file.plain)


def _read(path: Path) -> _File:
    return _file(_KINDS[path.suffix], path.read_bytes())


def _file(kind: str, plain: bytes) -> _File:
    tag = f'W/"{blake2b(plain, digest_size=12).hexdigest()}"'
    return _File(kind, tag, plain, gzip.compress(plain, mtime=0))


def _answer(request: Request, file: _File) -> Response:
    headers = _HEADERS | {"ETag": file.tag}
    asked = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in asked:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, 200, headers, file.kind)
    return Response(file.plain, 200, headers, file.kind)
