"""A chat in the browser: FastAPI, and Redis Pub/Sub between its processes through redis-py.

There is nothing of Fanlog in here. It runs unchanged against both servers:

    python examples/chat.py --redis redis://127.0.0.1:6379    # Redis
    python examples/chat.py --redis redis://127.0.0.1:7421    # fanlog serve

Start it several times with other --port numbers: everybody in a room sees everybody. With Fanlog
the rooms are topics as well, while somebody is in them: fanlog tail "chat:lobby"
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio as redis
import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse

PAGE = """<!doctype html>
<title>Chat</title>
<h1>Chat</h1>
<form id="say"><input id="text" autocomplete="off" autofocus><button>Say</button></form>
<ul id="said"></ul>
<script>
  const room = new URLSearchParams(location.search).get("room") || "lobby";
  const socket = new WebSocket(`ws://${location.host}/rooms/${room}`);
  socket.onmessage = (event) => {
    const line = document.createElement("li");
    line.textContent = event.data;
    document.getElementById("said").prepend(line);
  };
  document.getElementById("say").onsubmit = (event) => {
    event.preventDefault();
    socket.send(document.getElementById("text").value);
    document.getElementById("text").value = "";
  };
</script>
"""


def create_app(redis_url: str) -> FastAPI:
    """The whole application. Its processes know of each other only through the server."""
    client = redis.from_url(redis_url, decode_responses=True)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE)

    @app.get("/rooms/{room}/count")
    async def count(room: str) -> int:
        (_, members), *_ = await client.pubsub_numsub(f"chat:{room}")
        return members

    @app.websocket("/rooms/{room}")
    async def chat(socket: WebSocket, room: str) -> None:
        channel = f"chat:{room}"
        async with client.pubsub(ignore_subscribe_messages=True) as follower:
            await follower.subscribe(channel)
            await socket.accept()

            async def show() -> None:
                async for message in follower.listen():
                    await socket.send_text(message["data"])

            showing = asyncio.create_task(show())
            try:
                while True:
                    await client.publish(channel, await socket.receive_text())
            except WebSocketDisconnect:
                pass
            finally:
                showing.cancel()

    return app


def main() -> None:
    options = argparse.ArgumentParser(description="A chat in the browser.")
    options.add_argument("--redis", default="redis://127.0.0.1:7421", metavar="URL")
    options.add_argument("--port", type=int, default=8000)
    given = options.parse_args()
    uvicorn.run(create_app(given.redis), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
