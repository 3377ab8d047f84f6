"""The endpoints that stream: `/v1/ws`, and streams of some topics. aiohttp has read the request;
from here on the connection is ours."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from fanlog.listeners.web.connection import WebConnection
from fanlog.listeners.web.problems import http_problem
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.session import WebSession
from fanlog.listeners.web.websocket import HandshakeError, WebSocketTalk, shake_hands

if TYPE_CHECKING:
    from fanlog.listeners.web.server import WebListener

_User = Annotated[str, Meta(max_length=200, description="The user's name. It is not verified.")]
_Token = Annotated[str, Meta(description="A token that shows who the user is.")]


class WsQuery(msgspec.Struct, frozen=True):
    """Who connects."""

    user: _User = ""
    token: _Token = ""


async def open_websocket(call: Call[WsQuery, Any]) -> web.StreamResponse:
    """One WebSocket for any number of subscriptions."""
    session = begin_websocket(call.listener, call.request, call.query.user)
    if isinstance(session, WebSession):
        session.greet()
        return taken()
    return session


def begin_websocket(
    listener: WebListener, request: web.Request, user: str
) -> WebSession | web.Response:
    """Takes the connection over, or says why not."""
    try:
        agreed = shake_hands(request)
    except HandshakeError as fault:
        asked = {"Sec-WebSocket-Version": "13", "Upgrade": "websocket", "Connection": "Upgrade"}
        headers = asked if fault.status == HTTPStatus.UPGRADE_REQUIRED else {}
        return http_problem(fault.status, str(fault), "bad_handshake", **headers)
    connection = WebConnection(listener, request.remote or "")
    session = WebSession(listener, connection, user, binary=agreed.binary)
    talk = WebSocketTalk(connection, listener.options, session, listener.loop.time())
    session.talk = talk
    listener.take_over(request, connection, talk, agreed.head)
    return session


def taken() -> web.StreamResponse:
    """What a handler returns whose connection is not aiohttp's any more: nobody will see it."""
    return web.Response(status=101)


ROUTES = [
    Route(
        "GET",
        "/v1/ws",
        open_websocket,
        "Many subscriptions on one WebSocket",
        "streams",
        query=WsQuery,
        status=101,
    ),
]
