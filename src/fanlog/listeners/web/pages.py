"""The front page, the reference page, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from fanlog.listeners.web.dashboard_files import INDEX, answer_file
from fanlog.listeners.web.openapi import make_document
from fanlog.listeners.web.reference import make_front_page, make_page
from fanlog.release import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanlog.listeners.web.openapi import Schema
    from fanlog.listeners.web.routes import Route

# No other host, no inline code, and no framing.
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_FILES = {"reference.css": "text/css", "reference.js": "text/javascript"}


def add_pages(
    app: web.Application,
    routes: Sequence[Route],
    *,
    front_page: bool,
    dashboard: bool,
    guarded: bool,
) -> None:
    """Serves them. `front_page`: there is no page of the user's at `/`; there is the `dashboard`
    then, if the process has one. `guarded`: clients must log in."""
    documents = _Documents(routes, guarded)

    async def openapi(request: web.Request) -> web.StreamResponse:
        _, encoded = await documents.get()
        # Tools in other pages may read it: it has no secrets.
        return _tagged(request, encoded, "application/json", {"Access-Control-Allow-Origin": "*"})

    async def reference(request: web.Request) -> web.StreamResponse:
        document, _ = await documents.get()
        return _page(request, make_page(document, _origin(request)))

    app.router.add_get("/v1/openapi.json", openapi)
    app.router.add_get("/v1/reference", reference)
    for name, content_type in _FILES.items():
        app.router.add_get(f"/v1/{name}", _file(name, content_type))
    if front_page:
        app.router.add_get("/", _front(dashboard=dashboard))


class _Documents:
    """The OpenAPI document, and the same as JSON. Making it takes a tenth of a second, so it is
    made once, on the first request, in a thread."""

    def __init__(self, routes: Sequence[Route], guarded: bool) -> None:
        self._routes = routes
        self._guarded = guarded
        self._making: asyncio.Future[tuple[Schema, bytes]] | None = None

    async def get(self) -> tuple[Schema, bytes]:
        if self._making is None:
            self._making = asyncio.ensure_future(asyncio.to_thread(self._make))
        # If one caller goes away, the others still get the result.
        return await asyncio.shield(self._making)

    def _make(self) -> tuple[Schema, bytes]:
        document = make_document(self._routes, guarded=self._guarded)
        return document, msgspec.json.encode(document)


def _front(*, dashboard: bool) -> Any:
    """A page for people; for programs the list of addresses, as JSON."""
    links = {
        "name": "fanlog",
        "release": VERSION,
        **({"dashboard": "/dashboard/"} if dashboard else {}),
        "reference": "/v1/reference",
        "openapi": "/v1/openapi.json",
        "status": "/v1/status",
        "topics": "/v1/topics",
    }

    async def front(request: web.Request) -> web.StreamResponse:
        if "text/html" not in request.headers.get("Accept", ""):
            data = msgspec.json.encode(links)
            return _tagged(request, data, "application/json", {"Vary": "Accept"})
        if dashboard:
            return await answer_file(request, INDEX)
        return _page(request, make_front_page(VERSION, _origin(request)))

    return front


def _origin(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"


def _page(request: web.Request, text: str) -> web.StreamResponse:
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept, Host",
    }
    return _tagged(request, text.encode(), "text/html", headers)


def _file(name: str, content_type: str) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        return _tagged(request, _read(name), content_type, {"X-Content-Type-Options": "nosniff"})

    return answer


@cache
def _read(name: str) -> bytes:
    return (resources.files("fanlog.listeners.web") / "static" / name).read_bytes()


def _tagged(
    request: web.Request, data: bytes, content_type: str, headers: dict[str, str]
) -> web.StreamResponse:
    """An answer with an ETag: an unchanged one is not sent again."""
    tag = blake2b(data, digest_size=12).hexdigest()
    headers = {"Cache-Control": "no-cache", "ETag": f'W/"{tag}"', **headers}
    if any(given.value in (tag, "*") for given in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    charset = None if content_type == "application/json" else "utf-8"
    return web.Response(body=data, content_type=content_type, charset=charset, headers=headers)
