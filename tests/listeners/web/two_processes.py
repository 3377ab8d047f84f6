"""Two web listeners over one broker. Each has a bus of its own, as two processes have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec

import fanlog
from fanlog.config import Config
from fanlog.identity import Identity
from fanlog.listeners.web.presence import PresenceEvent
from fanlog.listeners.web.server import WebListener

PATIENCE_SECONDS = 100.0
# Whoever says goodbye leaves soon. Nobody is given up because the machine is slow.
QUICK: dict[str, Any] = {
    "ask_timeout_seconds": PATIENCE_SECONDS,
    "presence_heartbeat_seconds": 0.2,
    "presence_timeout_seconds": 3600.0,
    "presence_grace_seconds": 0.5,
}


@dataclass
class Two:
    broker: fanlog.Broker
    first: WebListener
    second: WebListener
    http: aiohttp.ClientSession

    def url(self, listener: WebListener, path: str) -> str:
        return f"http://127.0.0.1:{listener.port}{path}"


async def until(true: Callable[[], bool]) -> None:
    """Waits for what comes by itself."""

    async def look() -> None:
        while not true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), PATIENCE_SECONDS)


@asynccontextmanager
async def two_processes(**web: Any) -> AsyncIterator[Two]:
    config = Config()
    options = msgspec.structs.replace(config.web, port=0, **(QUICK | web))
    native = msgspec.structs.replace(config.listener, port=0)
    config = msgspec.structs.replace(config, web=options, listener=native)
    async with fanlog.Broker(None, config) as broker:
        first, second = await broker.listen_web(), await broker.listen_web()
        async with aiohttp.ClientSession() as http:
            await until(lambda: first.presence.roster.processes == 2)
            await until(lambda: second.presence.roster.processes == 2)
            yield Two(broker, first, second, http)


class Watching:
    """What a watcher was told."""

    def __init__(self) -> None:
        self.events: list[PresenceEvent] = []

    def presence_changed(self, event: PresenceEvent) -> None:
        self.events.append(event)

    @property
    def said(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(event.json) for event in self.events]


class Peer:
    """A connection that only a test has."""

    def __init__(self, id: str, user: str, *follows: str) -> None:
        self.id = id
        self.user = user
        self.address = "10.0.0.1:5000"
        self.transport = "websocket"
        self.since_us = 1_700_000_000_000_000
        self.follows = list(follows)
        self.closed: tuple[str, bool] | None = None
        self.permit: Any = SimpleNamespace(who=Identity(user, self.address, "web", id))

    def subscriptions(self) -> list[str]:
        return self.follows

    def disconnect(self, reason: str, *, reconnect: bool) -> None:
        self.closed = (reason, reconnect)
