"""Edges for tests: in this program, in front of a broker at a URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import fanlog
from fanlog.config import Config, EdgeOptions, ListenerOptions
from fanlog.edge.node import FanlogEdge
from fanlog.model import TopicSettings

PATIENCE_SECONDS = 100.0


class Edge:
    """A running edge, and the address of its native listener."""

    def __init__(self, node: FanlogEdge, port: int) -> None:
        self.node = node
        self.port = port
        self.url = f"fanlog://127.0.0.1:{port}"

    def ends(self, topic: str) -> list[int]:
        """How far its mirror of a topic is; empty if it has none."""
        found = self.node.core.catalog.find(topic)
        return [] if found is None else [p.visible_end for p in found.partitions]


@asynccontextmanager
async def edge_of(
    url: str, *, linger_seconds: float = 10.0, tail_total_bytes: int = 0
) -> AsyncIterator[Edge]:
    config = Config(
        listener=ListenerOptions(port=0), edge=EdgeOptions(linger_seconds=linger_seconds)
    )
    node = FanlogEdge(url, config)
    node.start()
    try:
        await node.connect()
        yield Edge(node, node.listen().port)
    finally:
        await node.stop()


@asynccontextmanager
async def broker_at(port: int = 0, **topic: int | str) -> AsyncIterator[fanlog.Broker]:
    """A broker in memory, with a native listener."""
    config = Config(listener=ListenerOptions(port=port), topic=TopicSettings(**topic))  # type: ignore[arg-type]
    async with fanlog.Broker(config=config) as broker:
        yield broker


async def until(condition: Callable[[], object]) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - of many kinds, and a test is in no hurry
            await asyncio.sleep(0.01)
