"""The ports of a node that is not the primary: an edge of the primary, on the node's own ports. So
clients may come to any node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from fanlog.broker.ports import ClusterPort
from fanlog.client.address import parse_url
from fanlog.client.link import Dial, Link, Transport, tcp_dial
from fanlog.cluster.records import NodeRecord
from fanlog.config import ClientOptions, ClusterOptions, Config
from fanlog.edge.node import CLIENT, FanlogEdge, tls_options
from fanlog.edge.own_copy import OwnCopy
from fanlog.edge.reach import PeerProtocol, PeerProtocols, open_at
from fanlog.errors import ConnectError, ConnectionLostError, FanlogError
from fanlog.node import LoopRuntime

if TYPE_CHECKING:
    from fanlog.listeners.web.server import WebListener

logger = logging.getLogger("fanlog.cluster")

_RETRY_SECONDS = 0.25
_DRAIN_SECONDS_MAX = 0.5
_BACKOFF_SECONDS_MAX = 1.0


def peer_options(cluster: ClusterOptions, options: ClientOptions) -> ClientOptions:
    """How a node connects to another one."""
    found: dict[str, str] = {}
    if cluster.key_file:
        found["key_file"] = cluster.key_file
    if cluster.tls_ca_file:
        found["tls_ca_file"] = cluster.tls_ca_file
    if cluster.tls_server_name:
        found["tls_server_name"] = cluster.tls_server_name
    return msgspec.structs.replace(options, **found)


class PrimaryReach:
    """The way to whoever is the primary: the `UpstreamReach` of a follower's edge."""

    def __init__(self, url: str, options: ClientOptions) -> None:
        self._options = options
        self._address = parse_url(url)
        # Connections to this primary, of the edge itself.
        self._links: WeakKeyDictionary[Link, None] = WeakKeyDictionary()
        self._peers = PeerProtocols()

    @property
    def name(self) -> str:
        return str(self._address)

    @property
    def url(self) -> str:
        return self._address.url

    async def dial(self, link: Link) -> Transport:
        address = self._address
        transport = await tcp_dial(address, self._options)(link)
        if address != self._address:
            transport.close()
            raise ConnectError(f"{address} is not the primary any more.")
        self._links[link] = None
        return transport

    @property
    def dial_beside(self) -> Dial:
        return self.dial

    async def open(self, make: Callable[[], PeerProtocol], peer: str) -> None:
        address = self._address
        await open_at(address, partial(self._peers.noting, make, address), self._options)

    def turn_to(self, url: str) -> None:
        """Another node is the primary. Connections to the last one end: it may be paused, and
        would keep them open without an answer."""
        before, self._address = self._address, parse_url(url)
        links, self._links = list(self._links), WeakKeyDictionary()
        for link in links:
            link.close()
            link.connection_lost(ConnectionLostError("Another node is the primary now."))
        self._peers.abort(before)


class FollowerEdge(FanlogEdge):
    """The edge in front of a follower. `primary_web`: where browsers find the primary."""

    def __init__(self, primary_web: Callable[[], str], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._primary_web = primary_web

    def make_web_listener(self) -> WebListener:
        from fanlog.cluster.web_redirects import to_primary  # noqa: PLC0415 - as in EdgeNode

        listener = super().make_web_listener()
        listener.middlewares.append(to_primary(self._primary_web))
        return listener


class ClusterFront:
    """An edge of the primary, until `close`. It comes as soon as a primary serves clients, and
    waits as long as there is none."""

    def __init__(
        self,
        primary: NodeRecord,
        config: Config,
        options: ClientOptions,
        *,
        cluster: ClusterPort | None = None,
        own_copy: OwnCopy | None = None,
    ) -> None:
        """`own_copy`: topics of the primary that this node has in files of its own."""
        # The edge has no data, and no accounts: those are the primary's.
        self._config = _for_edge(config)
        self._options = msgspec.structs.replace(
            options,
            wait_seconds=CLIENT.wait_seconds,
            backoff_max_seconds=_BACKOFF_SECONDS_MAX,
            **tls_options(config.edge),
        )
        self._primary = primary
        self._reach = PrimaryReach(primary.address, self._options)
        self._cluster = cluster
        self._own_copy = own_copy
        self._edge: FanlogEdge | None = None
        self._opening = asyncio.create_task(self._keep_opening())

    def turn_to(self, primary: NodeRecord) -> None:
        """Another node is the primary. Clients that only read stay connected."""
        self._primary = primary
        self._reach.turn_to(primary.address)
        if self._edge is not None:
            self._edge.show_upstream(self._reach.url)

    async def _keep_opening(self) -> None:
        said = ""
        while True:
            edge = self._edge = FollowerEdge(
                lambda: self._primary.web,
                self._reach.url,
                self._config,
                runtime=LoopRuntime(),
                client_options=self._options,
                reach=self._reach,
            )
            edge.start()
            edge.core.cluster = self._cluster
            edge.edge_core.own_copy = self._own_copy
            try:
                await self._open(edge)
            except (FanlogError, OSError) as fault:
                # A primary that is about to serve says so at each attempt.
                if str(fault) != said:
                    said = str(fault)
                    logger.warning("Clients can't connect to this node yet: %s", fault)
            else:
                return
            await self._stop()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _open(self, edge: FanlogEdge) -> None:
        config = self._config
        await edge.connect()
        edge.listen()
        if config.redis.port >= 0:
            edge.listen_redis()
        if config.web.port >= 0:
            await edge.listen_web()

    async def _stop(self) -> None:
        edge, self._edge = self._edge, None
        if edge is None:
            return
        stopping = asyncio.create_task(edge.stop())
        done, _ = await asyncio.wait((stopping,), timeout=_DRAIN_SECONDS_MAX)
        if not done:
            # A primary that is paused or gone doesn't answer, and this node may have to replace it.
            await edge.client.close(flush=False)
        await stopping

    async def close(self) -> None:
        self._opening.cancel()
        await asyncio.gather(self._opening, return_exceptions=True)
        await self._stop()


def _for_edge(config: Config) -> Config:
    """Without accounts. It closes quickly: the node may be about to become the primary."""
    return msgspec.structs.replace(
        config,
        security=msgspec.structs.replace(config.security, auth=False),
        listener=msgspec.structs.replace(
            config.listener,
            drain_seconds=min(config.listener.drain_seconds, _DRAIN_SECONDS_MAX),
        ),
    )
