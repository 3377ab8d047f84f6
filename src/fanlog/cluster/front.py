"""The ports of a node that is not the primary: an edge of the primary, on the node's own ports. So
clients may come to any node."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from fanlog.broker.ports import ClusterPort
from fanlog.config import ClientOptions, ClusterOptions, Config
from fanlog.edge.node import CLIENT, FanlogEdge
from fanlog.errors import FanlogError
from fanlog.node import LoopRuntime

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


class ClusterFront:
    """An edge of one primary, until `close`. It comes as soon as the primary serves clients, and
    waits as long as the primary is away."""

    def __init__(
        self, url: str, config: Config, options: ClientOptions, cluster: ClusterPort | None = None
    ) -> None:
        self._url = url
        # The edge has no data, and no accounts: those are the primary's.
        self._config = _for_edge(config)
        self._options = msgspec.structs.replace(
            options, wait_seconds=CLIENT.wait_seconds, backoff_max_seconds=_BACKOFF_SECONDS_MAX
        )
        self._cluster = cluster
        self._edge: FanlogEdge | None = None
        self._opening = asyncio.create_task(self._keep_opening())

    async def _keep_opening(self) -> None:
        said = ""
        while True:
            edge = self._edge = FanlogEdge(
                self._url, self._config, runtime=LoopRuntime(), client_options=self._options
            )
            edge.start()
            edge.core.cluster = self._cluster
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
