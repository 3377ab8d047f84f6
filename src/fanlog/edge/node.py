"""The one place that puts a running edge together: a core whose topics are mirrors, its upstream,
and the listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from fanlog.broker.core import Broker as Core
from fanlog.client.address import parse_url
from fanlog.client.aio import Client
from fanlog.client.link import tcp_dial
from fanlog.config import ClientOptions, Config
from fanlog.edge.core import EdgeCore
from fanlog.edge.fanlog_upstream import FanlogUpstream
from fanlog.errors import FanlogError
from fanlog.model import TopicSettings
from fanlog.node import LoopRuntime, Node
from fanlog.release import VERSION

logger = logging.getLogger("fanlog.edge")

# Upstream may be started long after its edges.
_FOR_EVER_SECONDS = 10 * 365 * 86_400.0
_CLIENT = ClientOptions(name="edge", wait_seconds=_FOR_EVER_SECONDS, backoff_max_seconds=2.0)


class EdgeNode(Node):
    """An edge of a Fanlog broker. `start`, then `connect`, which waits for upstream; `listen` opens
    the network, and `stop` ends it."""

    def __init__(
        self,
        upstream: str,
        config: Config,
        *,
        runtime: LoopRuntime | None = None,
        client_options: ClientOptions = _CLIENT,
    ) -> None:
        address = parse_url(upstream)
        super().__init__(None, config, runtime)
        dial = tcp_dial(address, client_options.connect_timeout_seconds)
        self.client = Client(dial, client_options)
        # They hear of it when upstream is lost, and when it is back.
        self.on_state: list[Callable[[bool], None]] = []
        self.upstream: FanlogUpstream

    def _make_core(self, defaults: TopicSettings) -> Core:
        config = self._config
        core = EdgeCore(
            self._store,
            self._runtime,
            release=VERSION,
            options=config.broker,
            log_options=config.log,
            topic_defaults=defaults,
            sync_group=self._sync_group,
            authority=self._authority,
        )
        self.upstream = core.upstream = FanlogUpstream(core, self.client, config.edge)
        return core

    @property
    def up(self) -> bool:
        """Whether upstream can be reached."""
        return self.client.connected

    async def connect(self) -> None:
        """Waits until upstream is there, for as long as it takes."""
        self.client.on_lost = self._lost
        self.client.on_back = self._back
        await self.client.open()
        self.upstream.greeted()

    def _lost(self, error: FanlogError) -> None:
        self._tell(False)

    def _back(self) -> None:
        self.upstream.greeted()
        self._tell(True)

    def _tell(self, up: bool) -> None:
        for hear in list(self.on_state):
            hear(up)

    async def stop(self) -> None:
        await self.upstream.close()
        await self.client.close(flush=False)
        await super().stop()


def with_upstream(config: Config, upstream: str) -> Config:
    """The settings with another upstream."""
    return msgspec.structs.replace(
        config, edge=msgspec.structs.replace(config.edge, upstream=upstream)
    )
