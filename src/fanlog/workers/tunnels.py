"""Which requests to a worker's web port the core answers: all but those that a worker can answer
from its mirrors, or by publishing. The whole connection goes there: it is one client's."""

from __future__ import annotations

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from fanlog.listeners.web.entrance import COOKIE, WEBSOCKET_PATH, cookies_of
from fanlog.listeners.web.routes import read_body
from fanlog.listeners.web.server import WebListener
from fanlog.listeners.web.tunnels import Tunnel, request_bytes
from fanlog.listeners.web.websocket import taken
from fanlog.workers.socket_reach import SocketReach

# Messages to and from clients, and files that are the same everywhere.
_OWN_PATHS = frozenset(
    {
        WEBSOCKET_PATH,
        "/v1/stream",
        "/v1/publish",
        "/v1/topics/{topic}/stream",
        "/v1/topics/{topic}/messages",
        "/v1/topics/{topic}/partitions/{partition}/messages",
        "/fanlog.js",
        "/fanlog.d.ts",
        "/healthz/live",
    }
)


def pass_to_core(listener: WebListener, reach: SocketReach):
    """A step of every request, before anything else looks at it."""

    @web.middleware
    async def choose(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _is_ours(request):
            return await handler(request)
        seconds = listener.options.body_timeout_seconds
        body = await read_body(request, seconds, stranger=_is_stranger(listener, request))
        tunnel = Tunnel(listener.peer_of(request), listener.tunnel_ended)
        far = await reach.connect(lambda: tunnel.other, "web", tunnel.peer)
        far.write(request_bytes(request, body))
        listener.give_away(request, tunnel)
        return taken()

    return choose


def _is_ours(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    if isinstance(resource, web.StaticResource):
        return True
    if resource is None or resource.canonical not in _OWN_PATHS:
        return False
    # The core has the sessions and the tickets.
    return not cookies_of(request, COOKIE) and "ticket" not in request.query


def _is_stranger(listener: WebListener, request: web.Request) -> bool:
    """Whether the request shows nothing that might be a login."""
    shows = hdrs.AUTHORIZATION in request.headers or hdrs.COOKIE in request.headers
    return listener.entrance.guarded and not shows
