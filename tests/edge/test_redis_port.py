"""Redis clients on an edge of a Fanlog broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

import fanlog
from fanlog.config import Config, EdgeOptions, ListenerOptions, RedisOptions
from fanlog.edge.node import FanlogEdge
from tests.client.proxy import proxy_to
from tests.edge.stage import PATIENCE_SECONDS, broker_at, until


class RedisStand:
    """An edge with a Redis port, and a Redis client of it."""

    def __init__(self, url: str) -> None:
        config = Config(
            listener=ListenerOptions(port=0),
            redis=RedisOptions(port=0),
            edge=EdgeOptions(linger_seconds=0.2),
        )
        self.node = FanlogEdge(url, config)
        self.redis: Any = None

    async def __aenter__(self) -> RedisStand:
        self.node.start()
        await self.node.connect()
        port = self.node.listen_redis().port
        self.redis = Redis(host="127.0.0.1", port=port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.redis.aclose()
        await self.node.stop()


async def heard(pubsub: Any, count: int) -> list[tuple[bytes, bytes]]:
    got: list[tuple[bytes, bytes]] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(got) < count:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
            if message is not None:
                got.append((message["channel"], message["data"]))
    return got


async def test_redis_clients_of_two_edges_and_native_ones_hear_each_other() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with RedisStand(url) as one, RedisStand(url) as other:
            named, pattern = one.redis.pubsub(), other.redis.pubsub()
            await named.subscribe("room.a", "room.b")
            await pattern.psubscribe("room.*")
            # Both are confirmed: from here on nothing is missed.
            for pubsub, count in ((named, 2), (pattern, 1)):
                for _ in range(count):
                    assert await pubsub.get_message(timeout=PATIENCE_SECONDS) is not None
            for i in range(50):
                await other.redis.publish("room.a", f"{i}")
            expected = [(b"room.a", b"%d" % i) for i in range(50)]
            assert await heard(named, 50) == expected
            assert await heard(pattern, 50) == expected
            await broker.publish("room.b", "native")
            assert await heard(named, 1) == [(b"room.b", b"native")]
            assert await heard(pattern, 1) == [(b"room.b", b"native")]
            async with broker.subscribe("room.a", start="earliest") as reader:
                got = [(await reader.next(PATIENCE_SECONDS)).value for _ in range(50)]
                assert got == [b"%d" % i for i in range(50)]
            # What nobody reads makes no topic.
            assert await one.redis.publish("nobody", "x") == 0
            assert "nobody" not in [topic.name for topic in await broker.topics()]
            pipeline = one.redis.pipeline(transaction=False)
            for i in range(200):
                pipeline.publish("room.a", f"p{i}")
            await pipeline.execute()
            assert [data for _, data in await heard(pattern, 200)] == [
                b"p%d" % i for i in range(200)
            ]
            await named.aclose()
            await pattern.aclose()
            await until(lambda: not one.node.upstream.subscriptions)
            assert await one.redis.ping()


async def test_messages_to_very_many_channels_are_all_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanlog.edge.redis_port._GATHERING_MAX", 4)
    async with (
        broker_at() as broker,
        RedisStand(f"fanlog://127.0.0.1:{broker.listen().port}") as one,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        for name in "abcd":
            assert await one.redis.publish(name, "x") == 0
        for new in "efgh":
            pipeline = one.redis.pipeline(transaction=False)
            for name in ("d", new):
                pipeline.publish(name, "y")
            assert await pipeline.execute() == [0, 0]


async def test_a_redis_subscriber_outlives_upstream() -> None:
    async with broker_at() as broker:
        await broker.create_topic("room")
        async with (
            proxy_to(broker.listen().port) as proxy,
            RedisStand(f"fanlog://127.0.0.1:{proxy.port}") as edge,
        ):
            pubsub = edge.redis.pubsub()
            await pubsub.subscribe("room")
            assert await pubsub.get_message(timeout=PATIENCE_SECONDS) is not None
            await broker.publish("room", "before")
            assert await heard(pubsub, 1) == [(b"room", b"before")]
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not edge.node.up)
            await broker.publish("room", "meanwhile")
            proxy.refusing = False
            assert await heard(pubsub, 1) == [(b"room", b"meanwhile")]
            await pubsub.aclose()


async def test_a_topic_of_the_edge_is_a_fanlog_topic() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with RedisStand(url) as edge:
            port = edge.node.listen().port
            async with (
                fanlog.connect(f"fanlog://127.0.0.1:{port}") as client,
                client.subscribe("x") as reader,
            ):
                await edge.redis.publish("x", b"\xff\x00")
                assert (await reader.next(PATIENCE_SECONDS)).value == b"\xff\x00"
