"""An existing Redis as the bus of an edge's web listener."""

from __future__ import annotations

from fanlog.config import Config
from fanlog.edge.core import EdgeCore, Upstream
from fanlog.edge.node import EdgeNode
from fanlog.edge.plain_bus import PlainBus
from fanlog.edge.redis_upstream import RedisUpstream
from fanlog.errors import NotSupportedError
from fanlog.listeners.web.ports import Bus, Hear, Incoming, MessageToPublish
from fanlog.node import LoopRuntime


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

    async def stop(self, drain_seconds: float | None = None) -> None:
        await super().stop(drain_seconds)
        await self.upstream.close()


class RedisBus(PlainBus):
    """Publishes go through Redis."""

    name = "redis"

    def __init__(self, node: RedisEdge) -> None:
        super().__init__(node, node.upstream)
        self._upstream = node.upstream

    async def request(
        self, topic: str, message: MessageToPublish, timeout_seconds: float
    ) -> Incoming:
        raise NotSupportedError(
            "Redis has no requests with answers. Use an edge of a Fanlog broker, or of NATS."
        )

    def signal(self, channel: str, data: bytes) -> None:
        self._upstream.signal(channel, data)

    def on_signal(self, channel: str, hear: Hear) -> None:
        self._upstream.on_signal(channel, hear)
