"""A session's reads go forward only, whichever node it is connected to, and whoever is primary."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fanlog.client.aio import Connecting
from fanlog.client.aio import connect as connect_client
from fanlog.errors import LinkError, UnavailableError
from tests.cluster.test_front import move
from tests.cluster.three_nodes import PATIENCE_SECONDS, ThreeNodes, three_nodes, until


class Sessions:
    """A publisher, a subscriber, and one that fetches. Each has the addresses of all nodes. A gap
    or a reset ends a session with an error."""

    def __init__(self, cluster: ThreeNodes) -> None:
        self._hosts = [f"127.0.0.1:{port}" for port in cluster.ports.values()]
        self.published = 0
        self.subscribed: list[int] = []
        self.fetched: list[int] = []
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        async with self._connect() as client:
            await client.create_topic("t", durability="os")
        work = self._publish(), self._subscribe(), self._fetch()
        self._tasks = [asyncio.create_task(one) for one in work]

    def _connect(self) -> Connecting:
        """Each connection begins with another node."""
        self._hosts.append(self._hosts.pop(0))
        return connect_client(
            f"fanlog://{','.join(self._hosts)}",
            wait_seconds=PATIENCE_SECONDS,
            backoff_max_seconds=0.2,
            request_timeout_seconds=PATIENCE_SECONDS,
        )

    async def _publish(self) -> None:
        async with self._connect() as client:
            while not self._over.is_set():
                await client.publish("t", str(self.published).encode())
                self.published += 1
                await asyncio.sleep(0.002)

    async def _subscribe(self) -> None:
        async with (
            self._connect() as client,
            client.subscribe("t", start="earliest") as reader,
        ):
            while True:
                message = await reader.next(PATIENCE_SECONDS)
                assert int(message.value) == message.offset
                self.subscribed.append(message.offset)

    async def _fetch(self) -> None:
        offset = 0
        while True:
            # A new connection each time: perhaps to another node.
            try:
                async with self._connect() as client:
                    found = await client.fetch("t", 0, offset, bytes_max=500)
            except (LinkError, UnavailableError):
                continue
            for batch in found.batches:
                for place, value in zip(batch.offsets, batch.values, strict=True):
                    if place >= offset:
                        assert value is not None
                        assert int(value) == place
                        self.fetched.append(place)
                        offset = place + 1
            await asyncio.sleep(0.002)

    def check(self) -> None:
        """Raises the error of a session that has ended."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def more(self, count: int) -> None:
        """Waits until all of them have got further."""
        wanted = self.published + count

        def got_further() -> bool:
            self.check()
            return min(self.published, len(self.subscribed), len(self.fetched)) >= wanted

        await until(got_further)

    async def finish(self) -> None:
        self._over.set()
        await self._tasks[0]
        await self.more(0)
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks[1:], return_exceptions=True)
        expected = list(range(self.published))
        assert self.subscribed == expected
        assert self.fetched == expected


async def test_reads_go_forward_only_while_nodes_take_over_and_come_back(tmp_path: Path) -> None:
    async with three_nodes(tmp_path, front=True) as cluster:
        await cluster.start("a", "b", "c")
        await cluster.whole()
        sessions = Sessions(cluster)
        await sessions.start()
        await sessions.more(50)
        for node in "abc":
            if cluster.primary() != node:
                await move(cluster, node)
            await sessions.more(30)
            killed = cluster.nodes.pop(node)
            await killed.stop(hand_over=False)
            await until(cluster.primary)
            await sessions.more(30)
            await cluster.start(node)
            await cluster.whole()
            await sessions.more(30)
        await sessions.finish()
