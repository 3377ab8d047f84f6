"""An upstream Fanlog broker as the bus of an edge's web listener: subscriptions read the mirrors,
and everything else goes through the edge's one client."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from fanlog.broker.broker_core import BrokerCore
from fanlog.client.link import Dial
from fanlog.client.once import OncePublisher
from fanlog.client.signals import Signals
from fanlog.config import ClientOptions
from fanlog.edge.client import EdgeClient
from fanlog.edge.fanlog_upstream import FanlogUpstream
from fanlog.listeners.web.local_bus import LocalBus


class FanlogEdgePorts(Protocol):
    """The edge of a Fanlog broker, as far as its bus needs it."""

    @property
    def core(self) -> BrokerCore: ...
    @property
    def client(self) -> EdgeClient: ...
    @property
    def upstream(self) -> FanlogUpstream: ...
    @property
    def up(self) -> bool: ...
    @property
    def on_state(self) -> list[Callable[[bool], None]]: ...
    @property
    def dial_beside(self) -> Dial: ...
    @property
    def client_options(self) -> ClientOptions: ...


class FanlogBus(LocalBus):
    """Publishes, requests and signals go upstream."""

    is_broker = False

    def __init__(self, node: FanlogEdgePorts) -> None:
        self.process = secrets.token_hex(8)
        self.core = node.core
        self.up = node.up
        self.on_state: list[Callable[[bool], None]] = []
        self.client = node.client
        self._upstream = node.upstream
        self._signals = Signals(node.client)
        self._once = OncePublisher(node.dial_beside, node.client_options)
        node.on_state.append(self._changed)

    async def open(self) -> None:
        """The node connects the client."""
        await self._signals.open()

    async def close(self) -> None:
        await self._signals.close()
        await self._once.close()

    def _changed(self, up: bool) -> None:
        self.up = up
        for hear in list(self.on_state):
            hear(up)

    def claim(self, topic: str, owner: str) -> None:
        """An edge creates no topics. The broker does, when the message reaches it."""

    async def wait_for_more(self, topic: str, offsets: Mapping[int, int], seconds: float) -> None:
        await self.follow(topic, wildcard=False)
        try:
            await super().wait_for_more(topic, offsets, seconds)
        finally:
            self.unfollow(topic, wildcard=False)

    async def follow(self, target: str, *, wildcard: bool) -> None:
        await self._upstream.follow(target, wildcard)

    def unfollow(self, target: str, *, wildcard: bool) -> None:
        self._upstream.unfollow(target, wildcard)
