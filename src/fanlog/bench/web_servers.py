"""Web servers as people write them: each message is sent to each client by itself.

Law: the documented way of each library, on uvloop, without compression or logs of requests. They
keep nothing: no offsets, no recovery, no slow readers. Started as
`python -m fanlog.bench.web_servers NAME PORT`.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

import uvloop
from aiohttp import web

HOST = "127.0.0.1"


async def _serve(app: web.Application, port: int) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    await asyncio.Event().wait()


def _publishing(send: Any) -> Any:
    """A handler of a WebSocket whose messages are published."""

    async def publish(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(compress=False, max_msg_size=0)
        await ws.prepare(request)
        async for message in ws:
            await send(message.data)
        return ws

    return publish


async def serve_aiohttp(port: int) -> None:
    clients: dict[web.WebSocketResponse, None] = {}
    streams: dict[web.StreamResponse, None] = {}

    async def send(text: str) -> None:
        for client in list(clients):
            await client.send_str(text)
        if streams:
            event = f"data: {text}\n\n".encode()
            for stream in list(streams):
                await stream.write(event)

    async def subscribe(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(compress=False)
        await ws.prepare(request)
        clients[ws] = None
        try:
            async for _ in ws:
                pass
        finally:
            clients.pop(ws, None)
        return ws

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        streams[response] = None
        try:
            await asyncio.Event().wait()
        finally:
            streams.pop(response, None)
        return response

    app = web.Application()
    app.add_routes(
        [
            web.get("/publish", _publishing(send)),
            web.get("/subscribe", subscribe),
            web.get("/events", events),
        ]
    )
    await _serve(app, port)


async def serve_websockets(port: int) -> None:
    from websockets.asyncio.server import ServerConnection, broadcast, serve  # noqa: PLC0415

    clients: dict[ServerConnection, None] = {}

    async def handle(connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path == "/publish":
            async for message in connection:
                # The library's own way to send to many: it frames the message for each.
                broadcast(clients, message)
            return
        clients[connection] = None
        try:
            await connection.wait_closed()
        finally:
            clients.pop(connection, None)

    async with serve(handle, HOST, port, compression=None, ping_interval=None, max_size=None):
        await asyncio.Event().wait()


async def serve_socketio(port: int) -> None:
    # It has no types.
    socketio: Any = importlib.import_module("socketio")
    server = socketio.AsyncServer(
        async_mode="aiohttp",
        http_compression=False,
        ping_interval=3600,
        cors_allowed_origins="*",
    )
    app = web.Application()
    server.attach(app)

    async def send(text: str) -> None:
        await server.emit("message", text)

    app.add_routes([web.get("/publish", _publishing(send))])
    await _serve(app, port)


SERVERS = {"aiohttp": serve_aiohttp, "websockets": serve_websockets, "socketio": serve_socketio}


def main() -> None:
    name, port = sys.argv[1:]
    uvloop.run(SERVERS[name](int(port)))


if __name__ == "__main__":
    main()
