"""The ports of a node that is not the primary: an edge of the primary, on the node's own ports. So
clients may come to any node."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from fanlog.config import ClientOptions, ClusterOptions, Config
from fanlog.edge.node import FanlogEdge
from fanlog.errors import FanlogError
from fanlog.node import LoopRuntime

logger = logging.getLogger("fanlog.cluster")


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
    """An edge of one primary, until `close`."""

    def __init__(self, url: str, config: Config, options: ClientOptions) -> None:
        # The edge has no data, and no accounts: those are the primary's.
        self._edge = FanlogEdge(
            url, _for_edge(config), runtime=LoopRuntime(), client_options=options
        )
        self._config = config
        self._opening = asyncio.create_task(self._open())
        self._started = False

    async def _open(self) -> None:
        edge, config = self._edge, self._config
        edge.start()
        self._started = True
        try:
            await edge.connect()
            edge.listen()
            if config.redis.port >= 0:
                edge.listen_redis()
            if config.web.port >= 0:
                await edge.listen_web()
        except FanlogError as fault:
            logger.error("Clients can't connect to this node: %s", fault)

    async def close(self) -> None:
        self._opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._opening
        if self._started:
            await self._edge.stop()


def _for_edge(config: Config) -> Config:
    security = msgspec.structs.replace(config.security, auth=False)
    return msgspec.structs.replace(config, security=security)
