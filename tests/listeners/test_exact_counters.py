"""Counters are exact where connections are full and where several parts of the broker look after
the same readers: nothing is counted twice, and nothing is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.config import Config, ListenerOptions, RedisOptions
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.model import KIB, SlowPolicy, Start
from fanlog.node import Node
from tests.listeners.peers import HOST, PATIENCE_SECONDS, Frame, Peer, Serving, one_message, serving

# More than the kernel keeps for a reader whose own buffer is small, in batches of 10 KB.
VALUE = b"x" * 10_000
# Far less than that: who stops reading falls behind it.
TAIL_BYTES = 64 * KIB


async def subscribe(peer: Peer, key: int = 3, **wanted: Any) -> None:
    wanted = {"target": "t", "start": Start("earliest")} | wanted
    answer = await peer.ask(FrameKind.SUBSCRIBE, messages.Subscribe(**wanted), aux=key)
    assert answer.kind is not FrameKind.ERROR, answer


async def publish_until_full(served: Serving, reader: Peer, publisher: Peer, number: int) -> int:
    """Publishes until the broker can send the reader no more; the number of messages."""
    count = 0
    while not served.connection_of(reader).blocked:
        await publisher.publish(one_message(number, VALUE))
        count += 1
    return count


async def batches_until(reader: Peer, end: int) -> list[Frame]:
    """The batches up to an offset."""
    found: list[Frame] = []
    while sum(map(records_of, found)) < end:
        found.append(await reader.until(FrameKind.BATCH))
    return found


def records_of(batch: Frame) -> int:
    return batch.payload.count(VALUE)


@pytest.mark.parametrize("on_disk", [True, False], ids=["disk", "memory"])
async def test_a_full_reader_is_counted_what_it_gets_to_the_byte(data: Path, on_disk: bool) -> None:
    """It gets some at once, some late from what was held, and the rest from the tail or disk."""
    async with serving(data if on_disk else None) as served:
        fan_out = served.node.core.fan_out
        reader, publisher = await served.greeted(receive_bytes=4096), await served.greeted()
        settings = {"durability": "os", "tail_bytes": TAIL_BYTES} if on_disk else {}
        number = await publisher.open_topic("t", **settings)
        await subscribe(reader)
        count = await publish_until_full(served, reader, publisher, number)
        at_full = fan_out.delivered_bytes
        for _ in range(50):
            await publisher.publish(one_message(number, VALUE))
        assert fan_out.delivered_bytes == at_full, "nothing is sent to a full reader"
        got = await batches_until(reader, count + 50)
        assert fan_out.delivered_bytes == sum(len(batch.payload) for batch in got)
        assert fan_out.delivered_records == count + 50
        # Live again.
        await publisher.publish(one_message(number, VALUE))
        got += await batches_until(reader, 1)
        assert fan_out.delivered_bytes == sum(len(batch.payload) for batch in got)
        assert fan_out.delivered_records == count + 51


async def test_two_subscriptions_of_one_full_connection_are_counted_each() -> None:
    """Between their batches there are markers, which are no messages."""
    async with serving() as served:
        fan_out = served.node.core.fan_out
        reader, publisher = await served.greeted(receive_bytes=4096), await served.greeted()
        number = await publisher.open_topic("t")
        for key in (3, 4):
            await subscribe(reader, key)
        count = await publish_until_full(served, reader, publisher, number)
        for _ in range(20):
            await publisher.publish(one_message(number, VALUE))
        got = await batches_until(reader, 2 * (count + 20))
        assert fan_out.delivered_bytes == sum(len(batch.payload) for batch in got)
        assert fan_out.delivered_records == 2 * (count + 20)


async def test_a_full_redis_reader_is_counted_what_it_gets_to_the_byte() -> None:
    async with serving() as served:
        redis = served.node.listen_redis()
        fan_out = served.node.core.fan_out
        publisher = await served.greeted()
        number = await publisher.open_topic("t", tail_bytes=64 << 20)
        reader = await served.dial(receive_bytes=4096, port=redis.port)
        await reader.send(b"SUBSCRIBE t\r\n")
        confirmed = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nt\r\n:1\r\n"
        got = b""
        while len(got) < len(confirmed):
            got += await reader.recv()
        assert got == confirmed
        (connection,) = redis._connections
        count = 0
        while not connection.blocked or count % 10:
            await publisher.publish(one_message(number, VALUE))
            count += 1
        count += 20
        for _ in range(20):
            await publisher.publish(one_message(number, VALUE))
        size = count * len(b"*3\r\n$7\r\nmessage\r\n$1\r\nt\r\n$10000\r\n%b\r\n" % VALUE)
        read = 0
        while read < size:
            read += len(await reader.recv())
        assert read == size == fan_out.delivered_bytes
        assert fan_out.delivered_records == count


async def test_a_reader_that_falls_behind_in_all_partitions_is_disconnected_once() -> None:
    async with serving() as served:
        core = served.node.core
        reader, publisher = await served.greeted(receive_bytes=4096), await served.greeted()
        number = await publisher.open_topic("t", partitions=4, tail_bytes=TAIL_BYTES)
        await subscribe(reader, policy=SlowPolicy.DISCONNECT)
        connections = served.connections
        for _ in range(100):
            for partition in range(4):
                await publisher.publish(one_message(number, VALUE, partition=partition))
        await served.until(lambda: served.connections == connections - 1)
        assert core.describe("t").counters.disconnects == 1
        assert core.drop_notes.times == {"disconnected": 1}


async def test_two_listeners_and_an_embedded_reader_count_each_reader_once() -> None:
    """The broker looks for slow readers of all of them."""
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0),
        redis=RedisOptions(host=HOST, port=0, slow_policy="disconnect"),
    )
    async with fanlog.Broker(None, config) as broker:
        node: Node = broker._node  # type: ignore[assignment]
        served = Serving(node)
        redis = node.listen_redis()
        await broker.create_topic("t", tail_bytes=TAIL_BYTES)
        native = await served.greeted(receive_bytes=4096)
        await subscribe(native, policy=SlowPolicy.DISCONNECT)
        other = await served.dial(receive_bytes=4096, port=redis.port)
        await other.send(b"SUBSCRIBE t\r\n")
        assert (await other.recv()).startswith(b"*3")
        before = node.core.connections
        embedded = broker.subscribe("t", policy="disconnect", window_bytes=1000)
        async with embedded:
            for _ in range(1500):
                await broker.publish("t", VALUE)
            await served.until(lambda: node.core.describe("t").counters.disconnects >= 3)
            # Whoever looks again finds nobody.
            await asyncio.sleep(2.5)
        assert node.core.describe("t").counters.disconnects == 3
        assert node.core.drop_notes.times == {"disconnected": 3}
        assert node.core.connections == before - 2
        served.close_peers()


async def test_an_embedded_broker_without_listeners_disconnects_slow_readers() -> None:
    async with fanlog.Broker() as broker:
        await broker.create_topic("t", tail_bytes=TAIL_BYTES)
        node: Node = broker._node  # type: ignore[assignment]
        async with broker.subscribe("t", policy="disconnect", window_bytes=1000):
            for _ in range(50):
                await broker.publish("t", VALUE)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not node.core.describe("t").counters.disconnects:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert node.core.describe("t").counters.disconnects == 1
