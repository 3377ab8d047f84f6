"""Pages at a follower: a browser is sent to the primary, which has the dashboard. So are requests
that only a broker with the data can answer; all others are answered here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

_NO_PRIMARY = (
    "This node is a follower, and has no dashboard. The primary has one, but its web port can't be "
    "reached from here: open it on the primary, or set cluster.advertise_web there. Ask `fanlog "
    "cluster status` which node that is.\n"
)


def to_primary(find: Callable[[], str]) -> Middleware:
    """A step of every request at a follower. `find` says where the primary's web port is."""

    @web.middleware
    async def choose(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _is_page(request):
            answer = await handler(request)
            if answer.status != web.HTTPNotImplemented.status_code or answer.prepared:
                return answer
            url = find()
            return _redirect(request, url) if url else answer
        url = find()
        if not url:
            return web.Response(status=503, text=_NO_PRIMARY, headers={"Retry-After": "5"})
        return _redirect(request, url)

    return choose


def _is_page(request: web.Request) -> bool:
    if request.path == "/":
        return "text/html" in request.headers.get(hdrs.ACCEPT, "")
    return request.path == "/dashboard" or request.path.startswith("/dashboard/")


def _redirect(request: web.Request, url: str) -> web.StreamResponse:
    location = url + request.rel_url.raw_path_qs
    return web.Response(
        status=307,
        text=f"This node is a follower. Ask the primary: {location}\n",
        headers={hdrs.LOCATION: location, hdrs.CACHE_CONTROL: "no-store"},
    )
