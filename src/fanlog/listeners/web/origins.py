"""Which pages may use the listener: those of the same host, and those of `web.origins`. One
function decides it for REST, SSE and WebSocket.

A request without an origin is not from a page of another host: programs and `curl` send none.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from fanlog.listeners.web.files import PUBLIC
from fanlog.listeners.web.problems import http_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from multidict import CIMultiDictProxy

# How long a browser may remember the answer to a preflight request.
_MAX_AGE_SECONDS = 600
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADERS = "content-type, idempotency-key, last-event-id, if-none-match, if-match, authorization"
_EXPOSED = "ETag, Link, Location, Retry-After"
_READING = ("GET", "HEAD")
_PORTS = {"http": 80, "https": 443}


class Origins:
    """The origins that are allowed, from the setting."""

    def __init__(self, setting: str) -> None:
        listed = setting.split()
        self._all = "*" in listed
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in listed)
        # The port, if the listener is for this machine only.
        self._local_port = 0
        self._scheme = "http"

    def listens_on(self, host: str, port: int, *, secure: bool = False) -> None:
        """Where the listener is, and whether it speaks TLS."""
        self._scheme = "https" if secure else "http"
        self._local_port = port if _is_this_machine(host) else 0

    def allow_host(self, host: str) -> bool:
        """Whether a request is for this listener. One for this machine only is not known by other
        names: such a name is one that its owner lets point here, so that a browser takes the
        listener for the host of the owner's page (DNS rebinding). A proxy has another port."""
        if not self._local_port or self._all or not host:
            return True
        try:
            to_us = urlsplit(f"//{host}")
            if (to_us.port or _PORTS[self._scheme]) != self._local_port:
                return True
            name = to_us.hostname or ""
        except ValueError:
            return False
        known = _is_this_machine(name) or _is_address(name)
        return known or f"{self._scheme}://{host.lower()}" in self._allowed

    def allow(self, headers: Mapping[str, str]) -> bool:
        """Whether a request comes from a page that may send it, or from no page."""
        origin = headers.get(hdrs.ORIGIN)
        if origin is None or self._all or origin.lower() in self._allowed:
            return True
        return _is_same_host(origin, headers.get(hdrs.HOST, ""))

    def allow_cookie(self, request: web.BaseRequest) -> bool:
        """Whether the cookie of a request counts. A browser adds it to every request, also to one
        that another site has caused. Stricter than `allow`: `*` names no page, and what changes
        something or opens a WebSocket must say where it comes from."""
        headers = request.headers
        origin = headers.get(hdrs.ORIGIN)
        site = headers.get("Sec-Fetch-Site")
        if origin is not None:
            listed = origin.lower() in self._allowed
            return listed or _is_same_host(origin, headers.get(hdrs.HOST, ""))
        if site is not None:
            # `none`: somebody typed the address.
            return site == "same-origin" or (site == "none" and request.method in _READING)
        return request.method in _READING and not _opens_websocket(headers)

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What lets a page read the answer to an allowed request."""
        origin = headers.get(hdrs.ORIGIN)
        if origin is None:
            return {}
        return {
            hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin,
            hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: _EXPOSED,
            hdrs.VARY: "Origin",
        }


def _opens_websocket(headers: Mapping[str, str]) -> bool:
    return headers.get(hdrs.UPGRADE, "").lower() == "websocket"


def _is_this_machine(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost") or _is_address(name, loopback=True)


def _is_address(name: str, *, loopback: bool = False) -> bool:
    try:
        return ip_address(name).is_loopback or not loopback
    except ValueError:
        return False


def _is_same_host(origin: str, host: str) -> bool:
    """Whether an origin is the host that the request was sent to. A proxy may have ended TLS on the
    way, so the scheme says nothing but its own port."""
    try:
        from_page, to_us = urlsplit(origin), urlsplit(f"//{host}")
        usual = _PORTS.get(from_page.scheme)
        if usual is None or not from_page.hostname or from_page.hostname != to_us.hostname:
            return False
        return (from_page.port or usual) == (to_us.port or usual)
    except ValueError:
        return False


def refused(headers: CIMultiDictProxy[str]) -> web.Response:
    origin = headers.get(hdrs.ORIGIN, "")[:200]
    return http_problem(
        403,
        f"Pages of {origin} may not use this server. To allow them, add the origin to web.origins.",
        "origin_not_allowed",
        Vary="Origin",
    )


def refused_host(headers: CIMultiDictProxy[str], scheme: str) -> web.Response:
    host = headers.get(hdrs.HOST, "")[:200]
    return http_problem(
        403,
        f"This server is for its own machine, where {host} is not its name. Use localhost, or add "
        f"{scheme}://{host} to web.origins.",
        "host_not_allowed",
    )


def cross_origin(origins: Origins):
    """Answers preflight requests, refuses pages of other origins, and lets those that are allowed
    read their answers."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = request.headers
        if not origins.allow_host(headers.get(hdrs.HOST, "")):
            return refused_host(headers, request.scheme)
        if hdrs.ORIGIN not in headers or request.path in PUBLIC:
            return await handler(request)
        if not origins.allow(headers):
            return refused(headers)
        if request.method == "OPTIONS" and hdrs.ACCESS_CONTROL_REQUEST_METHOD in headers:
            return web.Response(status=204, headers=_preflight(origins, headers))
        response = await handler(request)
        if not response.prepared:
            vary = response.headers.get(hdrs.VARY, "")
            response.headers.update(origins.answer_headers(headers))
            if vary:
                response.headers[hdrs.VARY] = f"{vary}, Origin"
        return response

    return guard


def _preflight(origins: Origins, headers: Mapping[str, str]) -> dict[str, str]:
    return origins.answer_headers(headers) | {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: headers.get(
            hdrs.ACCESS_CONTROL_REQUEST_HEADERS, _HEADERS
        ),
        hdrs.ACCESS_CONTROL_MAX_AGE: str(_MAX_AGE_SECONDS),
    }
