"""NATS as the bus of an edge's web listener."""

from __future__ import annotations

from fanlog.config import Config
from fanlog.edge.core import EdgeCore, Upstream
from fanlog.edge.nats_upstream import NatsUpstream
from fanlog.edge.node import EdgeNode
from fanlog.edge.plain_bus import PlainBus
from fanlog.listeners.web.ports import Bus, Hear, Incoming, MessageToPublish
from fanlog.node import LoopRuntime


class NatsEdge(EdgeNode):
    """An edge of NATS."""

    def __init__(
        self,
        url: str,
        address: str,
        config: Config,
        *,
        make_streams: bool = False,
        runtime: LoopRuntime | None = None,
    ) -> None:
        super().__init__(address, config, runtime=runtime)
        self._url = url
        self._make_streams = make_streams
        self.upstream: NatsUpstream

    def make_upstream(self, core: EdgeCore) -> Upstream:
        self.upstream = NatsUpstream(
            core, self._url, self._config.edge, make_streams=self._make_streams
        )
        return self.upstream

    def make_bus(self) -> Bus:
        return NatsBus(self)

    @property
    def up(self) -> bool:
        return self.upstream.line.up

    async def connect(self) -> None:
        self.upstream.line.on_state = self._changed
        await self.upstream.line.connect()

    def _changed(self, up: bool) -> None:
        self.edge_core.problem = "" if up else f"The upstream {self.address} is away."
        self.tell(up)

    async def stop(self, drain_seconds: float | None = None) -> None:
        await super().stop(drain_seconds)
        await self.upstream.close()


class NatsBus(PlainBus):
    """Publishes go through NATS."""

    name = "nats"

    def __init__(self, node: NatsEdge) -> None:
        super().__init__(node, node.upstream)
        self._line = node.upstream.line

    async def request(
        self, topic: str, message: MessageToPublish, timeout_seconds: float
    ) -> Incoming:
        return await self._line.request(topic, message, timeout_seconds)

    def signal(self, channel: str, data: bytes) -> None:
        self._line.signal(channel, data)

    def on_signal(self, channel: str, hear: Hear) -> None:
        self._line.on_signal(channel, hear)
