"""The web listener as its routes, streams and pages see it.

Law: they take this port, and do not know `server.py`, which has the application of all routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.insight.peers import PeerSource
from fanlog.broker.messages.latest_values import LatestTables
from fanlog.config_web import WebOptions
from fanlog.format.web_positions import Vectors
from fanlog.listeners.web.connection import WebConnection
from fanlog.listeners.web.connections import WebConnections
from fanlog.listeners.web.dead_index import DeadLetterIndexes
from fanlog.listeners.web.entrance import Entrance
from fanlog.listeners.web.group_tables import GroupTables
from fanlog.listeners.web.message_pages import RenderedBatches
from fanlog.listeners.web.origins import Origins
from fanlog.listeners.web.ports import Bus
from fanlog.listeners.web.presence import Presence
from fanlog.listeners.web.server_api import ServerApi
from fanlog.listeners.web.stream_protocol import StreamProtocol
from fanlog.listeners.web.tasks import Tasks


class WebPort(Protocol):
    """One listener, and what its connections share."""

    loop: asyncio.AbstractEventLoop
    options: WebOptions
    bus: Bus
    entrance: Entrance
    origins: Origins
    connections: WebConnections
    presence: Presence
    server_api: ServerApi
    tasks: Tasks
    vectors: Vectors
    latest: LatestTables
    rendered: RenderedBatches
    dead_letters: DeadLetterIndexes
    group_tables: GroupTables
    # Further steps of each request, before all others.
    middlewares: list[Middleware]

    @property
    def secure(self) -> bool:
        """Whether it speaks TLS."""
        ...

    @property
    def core(self) -> BrokerCore:
        """Where subscriptions read from."""
        ...

    def all_listeners(self) -> list[PeerSource]: ...
    def connection_count(self) -> int: ...
    def peer_of(self, request: web.Request) -> str: ...
    def begun(self, request: web.Request) -> None: ...
    def ended(self, request: web.Request) -> None: ...
    def take_over(
        self, request: web.Request, stream: WebConnection, protocol: StreamProtocol, head: bytes
    ) -> None: ...
    def left(self, stream: WebConnection) -> None: ...
    def recheck(self) -> None: ...
    async def unless_draining(self, waiting: Coroutine[Any, Any, Any]) -> None: ...
