"""An edge in front of a cluster, as a process of its own: its clients while nodes are killed and
paused."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

import fanlog
from tests.cluster.processes import PATIENCE_SECONDS, ClusterProcesses
from tests.edge.edge_process import EdgeProcess
from tests.etcd_servers import etcd_servers

pytestmark = pytest.mark.timeout(240)

TOPIC = "t"


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[ClusterProcesses]:
    with (
        etcd_servers(tmp_path) as etcd,
        closing(ClusterProcesses(tmp_path, etcd)) as nodes,
    ):
        nodes.start()
        yield nodes


class Crowd:
    """Subscribers of each kind at an edge, and publishers of each kind; none may miss anything, get
    anything twice, or see an error. Every message is a number."""

    def __init__(self, edge: EdgeProcess) -> None:
        self._edge = edge
        self._web = f"http://127.0.0.1:{edge.http_port}/v1/topics/{TOPIC}"
        self._over = asyncio.Event()
        self._number = 0
        self.stored: set[int] = set()
        self.heard: dict[str, list[int]] = {"web": [], "redis": [], "native": []}
        self.connections = 0
        self._readers: list[asyncio.Task[None]] = []
        self._publishers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        ready = [asyncio.Event() for _ in range(3)]
        readers = (self._read_web, self._read_redis, self._read_native)
        self._readers = [
            asyncio.create_task(read(event)) for read, event in zip(readers, ready, strict=True)
        ]
        async with asyncio.timeout(PATIENCE_SECONDS):
            for event in ready:
                await event.wait()
        publishers = (self._publish_web, self._publish_redis, self._publish_native)
        self._publishers = [asyncio.create_task(publish()) for publish in publishers]

    async def _read_web(self, ready: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{self._web}/stream?start=latest") as answer,
        ):
            assert answer.status == 200
            self.connections += 1
            ready.set()
            async for line in answer.content:
                assert b"gap" not in line
                if found := re.search(rb"number=(\d+)", line):
                    self.heard["web"].append(int(found[1]))

    async def _read_redis(self, ready: asyncio.Event) -> None:
        client = redis.asyncio.Redis(port=self._edge.redis_port)
        async with client, client.pubsub() as subscribed:
            await subscribed.subscribe(TOPIC)
            async for message in subscribed.listen():
                if message["type"] == "subscribe":
                    self.connections += 1
                    ready.set()
                else:
                    self.heard["redis"].append(int(message["data"].split(b"=")[1]))

    async def _read_native(self, ready: asyncio.Event) -> None:
        async with (
            fanlog.connect(self._edge.url) as client,
            client.subscribe(TOPIC, start="latest") as reader,
        ):
            ready.set()
            async for message in reader:
                self.heard["native"].append(int(message.text.split("=")[1]))

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _publish_web(self) -> None:
        async with aiohttp.ClientSession() as session:
            while not self._over.is_set():
                number = self._next()
                headers = {"Idempotency-Key": str(number)}
                data = f"number={number}"
                async with session.post(
                    f"{self._web}/messages", data=data, headers=headers
                ) as answer:
                    assert answer.status == 200, await answer.text()
                self.stored.add(number)
                await asyncio.sleep(0.02)

    async def _publish_redis(self) -> None:
        # By default it gives up after 5 s, and sends the same command again.
        once = Retry(NoBackoff(), 0)
        port = self._edge.redis_port
        async with redis.asyncio.Redis(port=port, socket_timeout=None, retry=once) as client:
            while not self._over.is_set():
                number = self._next()
                await client.publish(TOPIC, f"number={number}")
                self.stored.add(number)
                await asyncio.sleep(0.02)

    async def _publish_native(self) -> None:
        async with fanlog.connect(self._edge.url, producer="billing") as client:
            while not self._over.is_set():
                number = self._next()
                await client.publish(TOPIC, f"number={number}")
                self.stored.add(number)
                await asyncio.sleep(0.02)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                for task in (*self._readers, *self._publishers):
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)

    async def more(self, count: int) -> None:
        """Waits until all publishers get on."""
        wanted = len(self.stored) + count
        await self._until(lambda: len(self.stored) >= wanted)

    async def finish(self) -> None:
        self._over.set()
        await asyncio.wait_for(asyncio.gather(*self._publishers), PATIENCE_SECONDS)
        self._publishers = []
        for heard in self.heard.values():
            await self._until(lambda heard=heard: len(heard) >= len(self.stored))
        for kind, heard in self.heard.items():
            assert sorted(heard) == sorted(self.stored), kind
            assert heard == self.heard["native"], kind
        # Neither had to come again.
        assert self.connections == 2

    async def close(self) -> None:
        for task in (*self._readers, *self._publishers):
            task.cancel()
        await asyncio.gather(*self._readers, *self._publishers, return_exceptions=True)


@asynccontextmanager
async def crowd_at_an_edge(
    cluster: ClusterProcesses, nodes: list[str], log: Path
) -> AsyncIterator[Crowd]:
    """An edge that begins at the first of these nodes."""
    addresses = ",".join(f"127.0.0.1:{cluster.nodes[node].port}" for node in nodes)
    async with fanlog.connect(cluster.url, wait_seconds=PATIENCE_SECONDS) as client:
        await client.create_topic(TOPIC, durability="os")
    with EdgeProcess(f"fanlog://{addresses}", log, "--redis-port", "0") as edge:
        await asyncio.to_thread(edge.wait)
        crowd = Crowd(edge)
        try:
            await crowd.start()
            await crowd.more(30)
            yield crowd
            await crowd.more(30)
            await crowd.finish()
        finally:
            await crowd.close()
            sys.stdout.write(log.read_text()[-3000:])


async def another_primary(cluster: ClusterProcesses, lost: str) -> None:
    await asyncio.to_thread(
        cluster.wait_until,
        lambda record: not record.primary.startswith(f"{lost}."),
        "another primary",
    )


async def test_clients_of_an_edge_miss_nothing_when_its_node_the_primary_is_killed(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    primary = cluster.primary()
    others = [node for node in cluster.nodes if node != primary]
    async with crowd_at_an_edge(cluster, [primary, *others], tmp_path / "edge.log"):
        cluster.nodes[primary].kill()
        await another_primary(cluster, primary)


async def test_clients_of_an_edge_miss_nothing_when_its_node_a_follower_is_killed(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    primary = cluster.primary()
    first, last = (node for node in cluster.nodes if node != primary)
    async with crowd_at_an_edge(cluster, [first, last, primary], tmp_path / "edge.log") as crowd:
        cluster.nodes[first].kill()
        await crowd.more(30)
        # The next node of the edge may be the one that replaces the primary.
        cluster.nodes[first].start()
        await asyncio.to_thread(cluster.wait_whole)
        cluster.nodes[primary].kill()
        await another_primary(cluster, primary)


async def test_an_edge_leaves_a_node_that_is_silent(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    primary = cluster.primary()
    first, last = (node for node in cluster.nodes if node != primary)
    async with crowd_at_an_edge(cluster, [first, primary, last], tmp_path / "edge.log") as crowd:
        cluster.nodes[first].pause()
        await crowd.more(30)
        cluster.nodes[first].resume()
