"""Three nodes of a cluster in one process, over loopback, with an etcd in memory. A node is killed
by forgetting it: it answers nobody, and its lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fanlog.client.aio import Client
from fanlog.client.aio import connect as connect_client
from fanlog.cluster.node import ClusterNode
from fanlog.cluster.records import ClusterKeys, SeenRecord, ShardRecord, decode
from fanlog.config import ClusterOptions, Config
from tests.servers import free_port
from tests.simulation.memory_etcd import MemoryCoordination, MemoryEtcd

# A condition that takes longer than this never comes.
PATIENCE_SECONDS = 60.0
LEASE_SECONDS = 1.5


async def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.02)


class ThreeNodes:
    """`nodes` has those that run, by their ids."""

    def __init__(
        self,
        folder: Path,
        *,
        front: bool = False,
        every_listener: bool = False,
        min_in_sync: int = 2,
    ) -> None:
        self.etcd = MemoryEtcd(asyncio.get_running_loop().time)
        self.nodes: dict[str, ClusterNode] = {}
        self.coordinations: dict[str, MemoryCoordination] = {}
        self.ports = {node: free_port() for node in "abc"}
        self.web_ports = {node: free_port() if every_listener else -1 for node in "abc"}
        self.redis_ports = {node: free_port() if every_listener else -1 for node in "abc"}
        self._folder = folder
        self._front = front
        self._min_in_sync = min_in_sync

    def config(self, node: str) -> Config:
        base = Config()
        return msgspec.structs.replace(
            base,
            data=str(self._folder / node),
            listener=msgspec.structs.replace(base.listener, port=self.ports[node]),
            redis=msgspec.structs.replace(base.redis, port=self.redis_ports[node]),
            web=msgspec.structs.replace(base.web, port=self.web_ports[node]),
            cluster=ClusterOptions(
                name="test",
                node_id=node,
                min_in_sync=self._min_in_sync,
                grace_seconds=0.2,
                follower_timeout_seconds=1.0,
            ),
        )

    async def start(self, *nodes: str, adopt: bool = False) -> None:
        for node in nodes:
            coordination = self.coordinations[node] = MemoryCoordination(self.etcd, LEASE_SECONDS)
            self.nodes[node] = made = ClusterNode(
                self._folder / node,
                self.config(node),
                coordination,
                boot_id="boot",
                front=self._front,
                adopt=adopt,
            )
            await made.start()

    async def stop(self, node: str) -> None:
        await self.nodes.pop(node).stop()

    def record(self) -> ShardRecord:
        return self.seen().record

    def seen(self) -> SeenRecord:
        stored = self.etcd.get(ClusterKeys("test").shard())
        assert stored is not None
        return SeenRecord(decode(stored.value, ShardRecord), stored.revision)

    def primary(self) -> str:
        """The node that serves clients as the primary; empty if there is none."""
        return next(
            (
                name
                for name, node in self.nodes.items()
                if node.primary is not None and node.primary.serving
            ),
            "",
        )

    async def whole(self, count: int = 3) -> str:
        """Waits until so many nodes are in sync. The primary."""
        await until(lambda: self.primary() and len(self.record().in_sync) == count)
        return self.primary()

    async def connect(self, node: str) -> Client:
        """A client of a node, which opens its ports when the primary serves clients."""
        url = f"fanlog://127.0.0.1:{self.ports[node]}"
        return await connect_client(url, wait_seconds=PATIENCE_SECONDS)


@asynccontextmanager
async def three_nodes(folder: Path, **options: object) -> AsyncIterator[ThreeNodes]:
    cluster = ThreeNodes(folder, **options)  # type: ignore[arg-type]
    try:
        yield cluster
    finally:
        for node in list(cluster.nodes.values()):
            await node.stop(hand_over=False)
