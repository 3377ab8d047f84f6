"""Files that the listener serves: the browser client, and a folder with the user's own page.

The client's module is the one that the npm package in clients/browser has, too.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from fanlog.errors import ConfigError

_TYPES = {"fanlog.js": "text/javascript", "fanlog.d.ts": "text/plain"}
# Pages of any host may load these: they are the same for everybody.
PUBLIC = frozenset(f"/{name}" for name in _TYPES)


class _BundledFile(NamedTuple):
    data: bytes
    packed: bytes
    etag: str


def add_files(app: web.Application, folder: str) -> None:
    """Serves `/fanlog.js` and `/fanlog.d.ts`, and the folder under `/`, if there is one."""
    for name in _TYPES:
        app.router.add_get(f"/{name}", _module)
    if not folder:
        return
    root = Path(folder)
    index = root / "index.html"
    if not root.is_dir():
        raise ConfigError(f"web.folder is {folder}, which is not a folder: create it, or unset it.")

    async def front_page(request: web.Request) -> web.StreamResponse:
        if not index.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(index, headers={"Cache-Control": "no-cache"})

    app.router.add_get("/", front_page)
    # Behind all other routes. It keeps to the folder, and answers conditional requests.
    app.router.add_static("/", root)


async def _module(request: web.Request) -> web.StreamResponse:
    file = _read(request.path.removeprefix("/"))
    headers = {
        "Access-Control-Allow-Origin": "*",
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
    }
    if any(tag.value == file.etag for tag in request.if_none_match or ()):
        response = web.Response(status=304, headers=headers)
    elif "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        response = web.Response(body=file.packed, headers=headers)
    else:
        response = web.Response(body=file.data, headers=headers)
    response.content_type = _TYPES[request.path.removeprefix("/")]
    response.charset = "utf-8"
    response.etag = file.etag
    return response


@cache
def _read(name: str) -> _BundledFile:
    data = (resources.files("fanlog.listeners.web") / "static" / name).read_bytes()
    return _BundledFile(data, gzip.compress(data, mtime=0), sha256(data).hexdigest()[:16])
