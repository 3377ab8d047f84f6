"""Code that is written for a broker with a data folder, run on one without."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import fanlog
from fanlog import errors
from tests.client.ways import ALL_WAYS, PATIENCE_SECONDS, Way, take


@pytest.fixture(params=ALL_WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def durable_program(client: Any, kept: int) -> list[tuple[bytes | None, bytes]]:
    """What a program does that expects a data folder."""
    for _ in range(2):  # it is started again and again
        await client.create_topic("orders", partitions=2, durability="fsync", exist_ok=True)
        await client.create_topic("audit", fanlog.TopicSettings(durability="fsync"), exist_ok=True)
        await client.create_topic("prices", cleanup="compact", exist_ok=True)
        await client.create_topic("stock", cleanup="compact", durability="os", exist_ok=True)
    await client.alter_topic("orders", durability="fsync", retention_seconds=60)
    for price in ("3.10", "3.20"):
        await client.publish("prices", price, key="tea")
    await client.publish("prices", None, key="coffee")
    await client.compact_topic("prices")
    await client.publish("orders", b"one tea", key="alice")
    async with client.subscribe("orders", durable="billing", start="earliest") as orders:
        await take(orders, 1)
        await orders.commit()
    async with client.transaction(id="order-1") as tx:
        await tx.publish("orders", b"two", key="bob")
    assert [position.offset for position in await client.committed("billing") if position.offset]
    async with client.subscribe("prices", start="earliest") as prices:
        return [(m.key, m.value) for m in await take(prices, kept)]


async def test_a_program_that_expects_a_data_folder_runs_in_memory_with_a_warning(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with way.open(in_memory=True) as client:
            prices = await durable_program(client, 3)
            assert prices == [(b"tea", b"3.10"), (b"tea", b"3.20"), (b"coffee", b"")]
            info = await client.describe_topic("orders")
            assert (info.settings.durability, info.settings.retention_seconds) == ("memory", 60)
            receipt = await client.publish("orders", b"x", key="k")
            assert receipt.durability == "memory"
            assert (await client.describe_topic("prices")).settings.cleanup == "compact"
    said = [record.getMessage() for record in caplog.records]
    assert [line[:70] for line in said] == [
        "This broker keeps everything in memory: topic 'orders' asks for durabi",
        "This broker keeps everything in memory: topic 'prices' is not compacte",
    ]


async def test_the_same_program_runs_on_a_folder_without_a_warning(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with way.open() as client:
            prices = await durable_program(client, 2)
            assert prices == [(b"tea", b"3.20"), (b"coffee", b"")]
            assert (await client.publish("orders", b"x", key="k")).durability == "fsync"
    assert caplog.records == []


async def test_what_is_wrong_anywhere_is_wrong_in_memory_too(way: Way) -> None:
    async with way.open(in_memory=True) as client:
        for wrong in ({"durability": "fsnc"}, {"cleanup": "compcat"}, {"partitions": 0}):
            with pytest.raises(errors.InvalidArgumentError):
                await client.create_topic("t", **wrong)
        await client.create_topic("t", partitions=2, durability="fsync")
        with pytest.raises(errors.FanlogError, match="partitions"):
            await client.create_topic("t", partitions=3, durability="fsync", exist_ok=True)
        await client.create_topic("c", cleanup="compact")
        with pytest.raises(errors.InvalidArgumentError, match="key"):
            await client.publish("c", b"without a key")
        with pytest.raises(errors.InvalidArgumentError, match="compacted, and can't grow"):
            await client.grow_topic("c", 4)


async def test_a_memory_topic_that_asks_for_nothing_more_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        async with fanlog.Broker() as broker:
            await broker.create_topic("a", durability="memory")
            await broker.create_topic("b", fanlog.TopicSettings(partitions=3))
            await broker.publish("c", b"x")
            await broker.create_topic("a", durability="os", exist_ok="any")
            async with broker.subscribe("b", durable="d") as reader:
                await broker.publish("b", b"x")
                await reader.next(PATIENCE_SECONDS)
    assert caplog.records == []
