"""Composes a running edge: a core whose topics are mirrors, its upstream, and the listeners."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fanlog.broker.authority import ALLOW_ALL
from fanlog.broker.broker_core import BrokerCore as Core
from fanlog.broker.gate import OPEN_GATE
from fanlog.broker.ports import Authority, Gate
from fanlog.client.address import parse_urls
from fanlog.config import ClientOptions, Config, EdgeOptions
from fanlog.edge.client import EdgeClient
from fanlog.edge.core import EdgeCore, Upstream
from fanlog.edge.fanlog_upstream import FanlogUpstream
from fanlog.edge.gate import EdgeGate
from fanlog.edge.native import EdgeListener
from fanlog.edge.reach import TcpReach, UpstreamReach
from fanlog.edge.redis_port import EdgeRedisListener
from fanlog.errors import ConfigError, FanlogError, ForbiddenError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.log import posix
from fanlog.model import TopicSettings
from fanlog.node import LoopRuntime, Node
from fanlog.release import VERSION

if TYPE_CHECKING:
    from fanlog.listeners.redis.server import RedisListener
    from fanlog.listeners.server import NativeListener
    from fanlog.listeners.web.ports import Bus
    from fanlog.listeners.web.server import WebListener

logger = logging.getLogger("fanlog.edge")

# Upstream may be started long after its edges.
_FOR_EVER_SECONDS = 10 * 365 * 86_400.0
# How often the edge asks upstream whether keys, users or rules have changed.
_LOOK_SECONDS = 0.5
# With several addresses there is another node to go to. A machine that lost power says nothing, and
# all clients of the edge wait until the edge notices.
_PING_SECONDS = 2.0
CLIENT = ClientOptions(name="edge", wait_seconds=_FOR_EVER_SECONDS, backoff_max_seconds=2.0)


def tls_options(edge: EdgeOptions) -> dict[str, str]:
    """TLS to the upstream, as client options from the settings."""
    found = {
        "tls_ca_file": edge.tls_ca_file,
        "tls_certificate_file": edge.tls_certificate_file,
        "tls_key_file": edge.tls_key_file,
        "tls_server_name": edge.tls_server_name,
    }
    return {option: value for option, value in found.items() if value}


class EdgeNode(Node):
    """An edge. `start`, then `connect`, which waits for upstream; `listen` and its siblings open
    the network, and `stop` ends it. `address` is upstream's, without a password."""

    # Whether native and Redis clients can be served as well.
    speaks_fanlog = False

    def __init__(
        self,
        address: str,
        config: Config,
        *,
        runtime: LoopRuntime | None = None,
        authority: Authority = ALLOW_ALL,
        gate: Gate = OPEN_GATE,
    ) -> None:
        super().__init__(None, config, runtime, authority, gate)
        self.address = address
        # Called when upstream is lost, and when it is back.
        self.on_state: list[Callable[[bool], None]] = []
        self.edge_core: EdgeCore

    @property
    @abstractmethod
    def up(self) -> bool:
        """Whether upstream can be reached."""

    @abstractmethod
    async def connect(self) -> None:
        """Waits until upstream is there, for as long as it takes."""

    @abstractmethod
    def make_upstream(self, core: EdgeCore) -> Upstream:
        """Answers the core's requests."""

    @abstractmethod
    def make_bus(self) -> Bus:
        """The bus behind the web listener."""

    def _make_core(self, defaults: TopicSettings) -> Core:
        config = self._config
        core = self.edge_core = EdgeCore(
            self._store,
            self._runtime,
            release=VERSION,
            options=config.broker,
            log_options=config.log,
            topic_defaults=defaults,
            sync_group=self._sync_group,
            authority=self._authority,
            gate=self._gate,
            telemetry=config.telemetry,
            limits=config.limits,
        )
        core.metrics.role = "edge"
        core.metrics.upstream = self.address
        core.upstream = self.make_upstream(core)
        return core

    def make_web_listener(self) -> WebListener:
        # aiohttp takes a while to import, and not every edge has a use for it.
        from fanlog.listeners.web.server import WebListener  # noqa: PLC0415

        return WebListener(self.make_bus(), self._config.web, self._admission)

    async def listen_web(self) -> WebListener:
        posix.require()
        listener = self.make_web_listener()
        self.prepare_listener(listener)
        await listener.start()
        self.listeners.append(listener)
        return listener

    def show_upstream(self, address: str) -> None:
        """Says to people that upstream has another address."""
        self.address = address
        self.core.metrics.upstream = address

    def tell(self, up: bool) -> None:
        """Upstream is lost, or back."""
        for hear in list(self.on_state):
            hear(up)


class FanlogEdge(EdgeNode):
    """An edge of a Fanlog broker."""

    speaks_fanlog = True

    def __init__(
        self,
        upstream: str,
        config: Config,
        *,
        runtime: LoopRuntime | None = None,
        client_options: ClientOptions = CLIENT,
        reach: UpstreamReach | None = None,
    ) -> None:
        """`reach`: the way to its upstream, where that has no address."""
        if reach is None:
            addresses = parse_urls(upstream)
            client_options = msgspec.structs.replace(client_options, **tls_options(config.edge))
            if len(addresses) > 1:
                client_options = msgspec.structs.replace(client_options, ping_seconds=_PING_SECONDS)
            reach = TcpReach(addresses, client_options)
        runtime = runtime or LoopRuntime()
        gate = self._edge_gate = EdgeGate(
            self._vouch, runtime.now_us, user_topic=config.web.user_topic
        )
        super().__init__(reach.url, config, runtime=runtime, authority=gate, gate=gate)
        self.dial_beside = reach.dial_beside
        self.reach = reach
        self.client_options = client_options
        self.client = EdgeClient(reach.dial, client_options)
        self.upstream: FanlogUpstream

    def make_upstream(self, core: EdgeCore) -> Upstream:
        self.client.read_own = core.read_own
        self.upstream = FanlogUpstream(core, self.client, self._config.edge)
        return self.upstream

    def make_bus(self) -> Bus:
        from fanlog.edge.fanlog_bus import FanlogBus  # noqa: PLC0415 - as in `listen_web`

        return FanlogBus(self)

    @property
    def up(self) -> bool:
        return self.client.connected

    async def connect(self) -> None:
        self.client.on_lost = self._lost
        self.client.on_back = self._back
        await self.client.open()
        self.upstream.greeted()
        await self._check_role()
        self._tasks.append(asyncio.create_task(self._watch_accounts()))

    async def _check_role(self) -> None:
        """Asks upstream for accounts for the first time."""
        try:
            await self._vouch(messages.Vouch())
        except ForbiddenError as fault:
            raise ConfigError(
                "The edge's own key must have the role admin, because the edge speaks for its "
                "clients. Make one with: fanlog key create edge --role admin. Put it into a file, "
                "and its path into edge.key_file or FANLOG_KEY_FILE."
            ) from fault
        await self._edge_gate.look()

    async def _vouch(self, asked: messages.Vouch) -> messages.Vouched:
        return decode(messages.Vouched, await self.client.ask(FrameKind.VOUCH, asked))

    async def _watch_accounts(self) -> None:
        """A key that is revoked upstream is cut off here, within a second."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            expired = self._edge_gate.expired()
            if await self._edge_gate.look() or expired:
                self.recheck()

    def _lost(self, error: FanlogError) -> None:
        self.edge_core.problem = f"The upstream {self.address} is away: {error}"
        self.tell(False)

    def _back(self) -> None:
        self.upstream.greeted()
        self.edge_core.problem = ""
        self.tell(True)

    def listen(self) -> NativeListener:
        posix.require()
        listener = self.make_native_listener()
        self.prepare_listener(listener)
        listener.open()
        self.listeners.append(listener)
        return listener

    def make_native_listener(self) -> EdgeListener:
        return EdgeListener(
            self.edge_core,
            self._config.listener,
            self._admission,
            reach=self.reach,
            welcome=lambda: self.client.welcome,
        )

    def listen_redis(self) -> RedisListener:
        posix.require()
        config = self._config
        listener = EdgeRedisListener(
            self.edge_core,
            config.listener,
            config.redis,
            self._admission,
            upstream=self.upstream,
            client=self.client,
        )
        self.prepare_listener(listener)
        listener.open()
        self.listeners.append(listener)
        return listener

    async def stop(self, drain_seconds: float | None = None) -> None:
        await super().stop(drain_seconds)
        await self.upstream.close()
        await self.client.close(flush=False)
