"""The dashboard's files: ES modules, styles and one page, served as they are.

Law: the page loads nothing from other hosts and runs nothing inline. Its policy says so to the
browser. The files need no login: what they show comes from the REST API, which asks for one.
"""

from __future__ import annotations

import asyncio
import gzip
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

PATH = "/dashboard/{file:.*}"
INDEX = "index.html"
_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "json": "application/json",
    "txt": "text/plain",
}
# Scripts, styles and requests of this host alone; nothing inline; in nobody's frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class _DashboardFile(NamedTuple):
    data: bytes
    packed: bytes
    etag: str
    content_type: str


def add_dashboard(app: web.Application) -> None:
    """Serves the files below `/dashboard/`."""
    app.router.add_get("/dashboard", _to_folder)
    app.router.add_get(PATH, _answer)


async def _to_folder(request: web.Request) -> web.StreamResponse:
    raise web.HTTPPermanentRedirect("/dashboard/")


async def _answer(request: web.Request) -> web.StreamResponse:
    return await answer_file(request, request.match_info["file"] or INDEX)


async def answer_file(request: web.Request, name: str) -> web.StreamResponse:
    """One of the files, as the browser can take it; nothing if it has it already."""
    # Once they are read and packed, which takes some tens of milliseconds.
    is_ready = _files.cache_info().currsize > 0
    file = (_files() if is_ready else await asyncio.to_thread(_files)).get(name)
    if file is None:
        raise web.HTTPNotFound
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept, Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if any(tag.value == file.etag for tag in request.if_none_match or ()):
        response = web.Response(status=304, headers=headers)
    elif "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        response = web.Response(body=file.packed, headers=headers)
    else:
        response = web.Response(body=file.data, headers=headers)
    response.content_type = file.content_type
    response.charset = "utf-8"
    response.etag = file.etag
    return response


@cache
def _files() -> dict[str, _DashboardFile]:
    """All files by their paths. No other file can be requested, whatever the path."""
    found: dict[str, _DashboardFile] = {}
    for name, file in _walk(resources.files("fanlog.listeners.web") / "dashboard", ""):
        content_type = _TYPES.get(name.rpartition(".")[2])
        if content_type is not None:
            data = file.read_bytes()
            tag = sha256(data).hexdigest()[:16]
            found[name] = _DashboardFile(data, gzip.compress(data, mtime=0), tag, content_type)
    return found


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        name = f"{path}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        else:
            yield name, entry
