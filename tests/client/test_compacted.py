"""Compacted topics and deleted records over every implementation of the API."""

from __future__ import annotations

from typing import Any

import pytest

from fanlog import errors
from fanlog.model import KIB
from tests.client.ways import PATIENCE_SECONDS, WAYS, Way, take


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def fill(client: Any, topic: str, rounds: int, keys: int = 4) -> None:
    for i in range(rounds):
        for k in range(keys):
            await client.send(topic, f"{i}", key=f"k{k}")
        await client.flush()


async def test_messages_of_a_compacted_topic_have_their_own_offsets(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("prices", cleanup="compact", segment_bytes=64 * KIB)
        await fill(client, "prices", 20)
        await client.publish("prices", "alone", key="k1", headers={"a": b"1"})
        info = await client.compact_topic("prices")
        assert info.partitions[0].visible_end == 81
        await client.publish("prices", "live", key="k0")
        async with client.subscribe("prices", start="earliest") as history:
            found = await take(history, 5)
        assert [(m.offset, m.key, m.text) for m in found] == [
            (76, b"k0", "19"),
            (78, b"k2", "19"),
            (79, b"k3", "19"),
            (80, b"k1", "alone"),
            (81, b"k0", "live"),
        ]
        assert found[3].headers == {"a": b"1"}


async def test_a_reader_begins_inside_what_compaction_took_away(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("prices", cleanup="compact")
        await fill(client, "prices", 20)
        await client.compact_topic("prices")
        for start in (0, 13, 76, 77):
            async with client.subscribe("prices", start=start) as history:
                (first,) = await take(history, 1)
                assert first.offset == max(start, 76)


async def test_a_durable_name_goes_on_behind_what_was_compacted(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("prices", cleanup="compact")
        await fill(client, "prices", 20)
        async with client.subscribe("prices", start="earliest", durable="me") as reader:
            await take(reader, 10)
            await reader.commit()
        await client.compact_topic("prices")
        async with client.subscribe("prices", durable="me") as reader:
            assert [m.offset for m in await take(reader, 2)] == [76, 77]
            await reader.commit()
        async with client.subscribe("prices", durable="me") as reader:
            assert [m.offset for m in await take(reader, 2)] == [78, 79]


async def test_batches_say_how_far_they_reach_even_without_messages(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("prices", cleanup="compact", tombstone_seconds=0)
        for _ in range(3):
            await client.publish("prices", None, key="k")
        await client.compact_topic("prices")
        async with client.subscribe("prices", start="earliest") as history:
            batch = await history.next_batch(PATIENCE_SECONDS)
        assert (len(batch), batch.messages, batch.next_offset) == (0, [], 3)
        assert batch.base_offset == 3


async def test_a_fetch_brings_sparse_batches(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("prices", cleanup="compact")
        await fill(client, "prices", 20)
        await client.compact_topic("prices")
        fetched = await client.fetch("prices", 0, 0)
        assert [o for batch in fetched.batches for o in batch.offsets] == [76, 77, 78, 79]
        assert fetched.batches[-1].next_offset == 80


async def test_a_compacted_topic_survives_a_restart(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("prices", cleanup="compact")
        await fill(client, "prices", 20)
        await client.compact_topic("prices")
    async with way.open() as client:
        await client.publish("prices", "new", key="k9")
        async with client.subscribe("prices", start="earliest") as history:
            assert [m.offset for m in await take(history, 5)] == [76, 77, 78, 79, 80]


async def test_publishing_to_a_compacted_topic_needs_a_key(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("prices", cleanup="compact")
        with pytest.raises(errors.InvalidArgumentError, match="publish each message with a key"):
            await client.publish("prices", "no key")
        assert (await client.publish("prices", "a key", key="k")).offset == 0


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
async def test_records_are_deleted_before_an_offset(way: Way, durability: str) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2, durability=durability)
        for i in range(10):
            await client.publish("t", f"{i}", partition=0)
            await client.publish("t", f"{i}", partition=1)
        assert await client.delete_records("t", {1: 7}) == {1: 7}
        assert await client.delete_records("t", 3) == {0: 3, 1: 7}
        async with client.subscribe("t", start="earliest") as history:
            found = await take(history, 10)
        assert sorted((m.partition, m.offset) for m in found) == [
            *((0, offset) for offset in range(3, 10)),
            *((1, offset) for offset in range(7, 10)),
        ]
        with pytest.raises(errors.OffsetOutOfRangeError):
            await client.fetch("t", 0, 2)
        with pytest.raises(errors.OffsetOutOfRangeError, match="ends at offset 10"):
            await client.delete_records("t", 11)
        assert await client.delete_records("t", "latest") == {0: 10, 1: 10}
        assert (await client.describe_topic("t")).records == 0
        assert (await client.publish("t", "new", partition=0)).offset == 10
    if durability != "memory":
        async with way.open() as client:
            assert await client.find_offsets("t", "earliest") == {0: 10, 1: 10}
