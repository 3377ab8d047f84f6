"""An existing Redis as the bus of an edge's web listener."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fanlog.config import Config
from fanlog.edge.core import EdgeCore, Upstream
from fanlog.edge.node import EdgeNode
from fanlog.edge.redis_upstream import RedisUpstream
from fanlog.errors import NotSupportedError
from fanlog.listeners.web.ports import Bus, Hear, Incoming, Outgoing, Published
from fanlog.node import LoopRuntime

if TYPE_CHECKING:
    from fanlog.client.aio import Client


class RedisEdge(EdgeNode):
    """An edge of a Redis."""

    def __init__(
        self, url: str, address: str, config: Config, *, runtime: LoopRuntime | None = None
    ) -> None:
        super().__init__(address, config, runtime=runtime)
        self._url = url
        self.upstream: RedisUpstream

    def make_upstream(self, core: EdgeCore) -> Upstream:
        self.upstream = RedisUpstream(core, self._url, self._config.edge)
        return self.upstream

    def make_bus(self) -> Bus:
        return RedisBus(self)

    @property
    def up(self) -> bool:
        return self.upstream.line.up

    async def connect(self) -> None:
        self.upstream.line.on_state = self._changed
        self.upstream.open()
        await self.upstream.line.ready()

    def _changed(self, up: bool) -> None:
        self.edge_core.problem = "" if up else f"The upstream {self.address} is away."
        self.tell(up)

    async def stop(self) -> None:
        await super().stop()
        await self.upstream.close()


class RedisBus:
    """What is published goes through Redis; subscriptions read the mirrors."""

    name = "redis"

    def __init__(self, node: RedisEdge) -> None:
        self.process = secrets.token_hex(8)
        self.core = node.core
        self.up = node.up
        self.on_state: list[Callable[[bool], None]] = []
        self._upstream = node.upstream
        node.on_state.append(self._changed)

    @property
    def client(self) -> Client | None:
        return None

    async def open(self) -> None:
        """The node connects."""

    async def close(self) -> None:
        """The node disconnects."""

    def _changed(self, up: bool) -> None:
        self.up = up
        for hear in list(self.on_state):
            hear(up)

    async def follow(self, target: str, *, wildcard: bool) -> None:
        await self._upstream.follow(target, wildcard)

    def unfollow(self, target: str, *, wildcard: bool) -> None:
        self._upstream.unfollow(target, wildcard)

    async def publish(
        self, topic: str, messages: Sequence[Outgoing], *, dedupe: str = ""
    ) -> list[Published]:
        return await self._upstream.publish(topic, messages, dedupe)

    async def request(self, topic: str, message: Outgoing, timeout_seconds: float) -> Incoming:
        raise NotSupportedError(
            "Redis has no requests with answers. Use an edge of a Fanlog broker, or of NATS."
        )

    def signal(self, channel: str, data: bytes) -> None:
        self._upstream.signal(channel, data)

    def on_signal(self, channel: str, hear: Hear) -> None:
        self._upstream.on_signal(channel, hear)
