"""The console: a page and its modules, read once at start and served from memory.

Nothing of it may come from elsewhere or stand in the page itself: the policy allows scripts, styles
and pictures of this origin only, no inline code, no frames, no forms that leave, no HTML made from
text.

While an upgrade rolls, gateways of two versions answer one page. So that its parts are never mixed
their paths name the version, a hash over all of them: `/console/<version>/app.js`, from where
modules import each other by relative names, is kept by browsers for good, and is 404 at a gateway
of another version. nginx then asks the next one; else `boot.js`, which every version can serve,
loads the page again. A path without a version leads to this gateway's own. The page and `boot.js`
are `no-cache` with an entity tag: asked for every time, 304 unless they have changed.

The page is told whether there is a demo user, so that it need not ask and be refused.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
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
_FIRST = "boot.js"  # serves pages of every version
_ASK, _KEEP = "no-cache", "public, max-age=31536000, immutable"
_HEADERS = {
    "Cache-Control": _ASK,
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
    found = read(_FOLDER)
    index = found.pop("index.html")
    ours = version_of(found)
    first = _page(index, ours, demo=demo)

    def named(request: Request) -> _File:
        file = found.get(request.path_params["name"])
        if file is None or request.path_params.get("version", ours) != ours:
            raise HTTPException(404)
        return file

    async def page(request: Request) -> Response:
        return _answer(request, first)

    async def part(request: Request) -> Response:
        return _answer(request, named(request), cache=_KEEP)

    async def current(request: Request) -> Response:
        file, name = named(request), request.path_params["name"]
        if name == _FIRST:
            return _answer(request, file)
        return RedirectResponse(f"/console/{ours}/{name}", 307, _HEADERS)

    return [
        Route("/", page, methods=["GET"]),
        Route("/console/{name}", current, methods=["GET"]),
        Route("/console/{version}/{name}", part, methods=["GET"]),
    ]


def read(folder: Path) -> dict[str, _File]:
    return {path.name: _read(path) for path in folder.iterdir() if path.suffix in _KINDS}


def version_of(parts: Mapping[str, _File]) -> str:
    """The same on every gateway that has the same files."""
    content = blake2b(digest_size=8)
    for name, file in sorted(parts.items()):
        content.update(f"{name} {file.tag}\n".encode())
    return content.hexdigest()


def _page(file: _File, version: str, *, demo: bool) -> _File:
    plain = file.plain.replace(b"/VERSION/", f"/{version}/".encode())
    return _file(file.kind, plain.replace(_NO_DEMO, _DEMO) if demo else plain)


def _read(path: Path) -> _File:
    return _file(_KINDS[path.suffix], path.read_bytes())


def _file(kind: str, plain: bytes) -> _File:
    tag = f'W/"{blake2b(plain, digest_size=12).hexdigest()}"'
    return _File(kind, tag, plain, gzip.compress(plain, mtime=0))


def _answer(request: Request, file: _File, *, cache: str = _ASK) -> Response:
    headers = _HEADERS | {"ETag": file.tag, "Cache-Control": cache}
    asked = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in asked:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, 200, headers, file.kind)
    return Response(file.plain, 200, headers, file.kind)
