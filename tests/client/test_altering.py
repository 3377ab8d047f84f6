"""Settings of a topic that change while it is in use, as clients see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.model import KIB
from tests.client.ways import WAYS, Way, take


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def test_a_shorter_retention_deletes_at_once(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", segment_bytes=64 * KIB)
        for _ in range(20):
            await client.publish("t", bytes(30 * KIB))
        before = await client.describe_topic("t")
        assert before.partitions[0].start_offset == 0
        info = await client.alter_topic("t", retention_bytes=256 * KIB, message_bytes_max=5000)
        assert info.settings.retention_bytes == 256 * KIB
        assert info.settings.message_bytes_max == 5000
        assert info.settings.segment_bytes == 64 * KIB
        assert info.partitions[0].start_offset > 0
        assert info.bytes <= 256 * KIB
        assert info == await client.describe_topic("t")
        assert (await client.fetch("t", 0, 19)).batches[0].values == [bytes(30 * KIB)]


async def test_what_cant_change_says_what_to_do_instead(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        before = await client.describe_topic("t")
        refused: list[tuple[dict[str, Any], str]] = [
            ({"partitions": 3}, "grow"),
            ({"durability": "memory"}, "can only rise, and it is os.*Create another topic"),
            ({"role": "dead-letter"}, "broker's own"),
            ({"retention_seconds": -1}, "retention_seconds can't be -1"),
            ({"nonsense": 1}, "no topic setting 'nonsense'"),
            ({"retention_seconds": 60, "partitions": 1}, "partitions"),
        ]
        for settings, says in refused:
            with pytest.raises(errors.InvalidArgumentError, match=says):
                await client.alter_topic("t", **settings)
        assert await client.describe_topic("t") == before
        # What stays as it is may be named.
        await client.alter_topic("t", before.settings)
        assert await client.describe_topic("t") == before
        with pytest.raises(errors.TopicNotFoundError):
            await client.alter_topic("nowhere", retention_seconds=1)
        with pytest.raises(errors.InvalidNameError):
            await client.alter_topic("_fanlog.cursors", retention_seconds=1)


# Durability


async def test_a_topic_becomes_synced_while_it_is_written_to(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2, retention_seconds=50)
        first = await client.publish("t", b"before", partition=0)
        publishing = asyncio.create_task(publish_until_synced(client, "t"))
        info = await client.alter_topic("t", durability="fsync", retention_seconds=60)
        assert (info.settings.durability, info.settings.retention_seconds) == ("fsync", 60)
        after = await client.publish("t", b"after", partition=1)
        assert (first.durability, after.durability) == ("os", "fsync")
        values = await publishing
        async with client.subscribe("t", start="earliest") as reader:
            stored = [m.value for m in await take(reader, len(values) + 2)]
        assert [value for value in stored if value.isdigit()] == values
    async with way.open() as client:
        assert (await client.describe_topic("t")).settings.durability == "fsync"
        assert (await client.publish("t", b"later")).durability == "fsync"
        assert (await client.status()).problems == ()


async def publish_until_synced(client: Any, topic: str) -> list[bytes]:
    """Publishes one after the other; what comes before the last is synced too, or was not
    promised to be."""
    values: list[bytes] = []
    while True:
        values.append(b"%d" % len(values))
        receipt = await client.publish(topic, values[-1], partition=0)
        if receipt.durability == "fsync":
            return values


async def test_durability_only_rises_and_not_from_memory(way: Way) -> None:
    async with way.open() as client:
        for name, durability in (("memory", "memory"), ("synced", "fsync")):
            await client.create_topic(name, durability=durability)
        for name, wanted, says in (
            ("memory", "os", "lives in memory, and its messages have no files"),
            ("memory", "fsync", "Create another topic with durability fsync"),
            ("synced", "os", "can only rise, and it is fsync"),
            ("synced", "memory", "can only rise"),
        ):
            before = await client.describe_topic(name)
            with pytest.raises(errors.InvalidArgumentError, match=says):
                await client.alter_topic(name, durability=wanted, retention_seconds=5)
            assert await client.describe_topic(name) == before
        assert (await client.alter_topic("synced", durability="fsync")).name == "synced"


async def test_changes_that_come_while_a_topic_is_raised_wait_for_it(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t")
        await client.create_topic("gone")
        got = await asyncio.gather(
            client.alter_topic("t", durability="fsync"),
            client.grow_topic("t", 3),
            client.alter_topic("t", retention_seconds=77),
            client.alter_topic("t", durability="os"),
            client.alter_topic("t", durability="fsync", retention_bytes=88),
            client.alter_topic("gone", durability="fsync"),
            client.delete_topic("gone"),
            return_exceptions=True,
        )
        # The blocking client asks in whatever order its threads run.
        if way.name != "blocking":
            assert isinstance(got[3], errors.InvalidArgumentError)
            assert isinstance(got[5], errors.TopicDeletedError | fanlog.TopicInfo)
        settings = (await client.describe_topic("t")).settings
        assert (settings.durability, settings.partitions) == ("fsync", 3)
        assert (settings.retention_seconds, settings.retention_bytes) == (77, 88)
        for index in range(3):
            assert (await client.publish("t", b"x", partition=index)).durability == "fsync"
    async with way.open() as client:
        assert (await client.describe_topic("t")).settings == settings
        assert (await client.status()).problems == ()


async def test_the_error_of_a_topic_that_differs_names_what_helps(way: Way) -> None:
    async with way.open() as client:
        await client.publish("orders", b"x")
        asked: dict[str, Any] = {"partitions": 4, "durability": "fsync", "exist_ok": True}
        with pytest.raises(
            errors.TopicDiffersError, match="fanlog topic alter orders, then fanlog"
        ):
            await client.create_topic("orders", **asked)
        await client.alter_topic("orders", durability="fsync")
        await client.grow_topic("orders", 4)
        assert (await client.create_topic("orders", **asked)).settings.durability == "fsync"


# Cleanup


async def test_a_topic_becomes_compacted_and_keeps_what_has_no_key(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", segment_bytes=64 * KIB)
        await client.publish("t", b"no key")
        for value in (b"1", b"2"):
            await client.publish("t", value, key="a")
        info = await client.alter_topic("t", cleanup="compact")
        assert (info.settings.cleanup, info.settings.retention_seconds) == ("compact", 0)
        with pytest.raises(errors.InvalidArgumentError, match="message with a key"):
            await client.publish("t", b"no key")
        await client.publish("t", b"3", key="a")
        await client.compact_topic("t")
        assert await values(client, "t", 2) == [b"no key", b"3"]


async def test_a_topic_that_was_compacted_keeps_everything_again(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", cleanup="compact")
        for value in (b"1", b"2"):
            await client.publish("t", value, key="a")
        await client.compact_topic("t")
        info = await client.alter_topic("t", cleanup="delete")
        assert (info.settings.cleanup, info.settings.retention_seconds) == ("delete", 0)
        # Offset 0 is gone, and that is still known.
        assert (info.has_holes, info.records) == (True, 2)
        with pytest.raises(errors.InvalidArgumentError, match="not a compacted one"):
            await client.compact_topic("t")
        await client.publish("t", b"no key")
        await client.publish("t", b"3", key="a")
        assert await values(client, "t", 3) == [b"2", b"no key", b"3"]
    async with way.open() as client:
        assert (await client.describe_topic("t")).has_holes


async def test_a_retention_that_was_chosen_stays_when_a_topic_becomes_compacted(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("chosen", retention_seconds=500)
        await client.create_topic("default")
        info = await client.alter_topic("chosen", cleanup="compact")
        assert info.settings.retention_seconds == 500
        info = await client.alter_topic("default", cleanup="compact", retention_seconds=600)
        assert info.settings.retention_seconds == 600
        await client.create_topic("memory", durability="memory")
        with pytest.raises(errors.InvalidArgumentError, match="can't be compacted"):
            await client.alter_topic("memory", cleanup="compact")


async def test_a_transaction_is_whole_though_its_topic_is_altered_before_the_commit(
    data: Path,
) -> None:
    async with fanlog.Broker(data) as client:
        await client.create_topic("t")
        await client.create_topic("u")
        async with client.transaction() as tx:
            await tx.publish("t", b"no key")
            await tx.publish("u", bytes(5000))
            await client.alter_topic("t", cleanup="compact")
            await client.alter_topic("u", message_bytes_max=1000)
        assert await values(client, "t", 1) == [b"no key"]
        assert await values(client, "u", 1) == [bytes(5000)]


async def values(client: Any, topic: str, count: int) -> list[bytes]:
    async with client.subscribe(topic, start="earliest") as reader:
        return [m.value for m in await take(reader, count)]


# Restarts


async def test_settings_outlive_a_restart(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        await broker.create_topic("t", partitions=2)
        await broker.alter_topic("t", retention_seconds=3600, tail_bytes=64 * KIB)
    async with fanlog.Broker(data) as broker:
        settings = (await broker.describe_topic("t")).settings
        assert (settings.retention_seconds, settings.tail_bytes) == (3600, 64 * KIB)
        assert settings.partitions == 2


async def test_the_newest_messages_stay_where_their_file_is_larger_than_the_new_retention(
    data: Path,
) -> None:
    """A file is deleted whole. One from before may hold all that is to be kept."""
    async with fanlog.Broker(data) as broker:
        await broker.create_topic("t", segment_bytes=1024 * KIB)
        for _ in range(60):
            await broker.publish("t", bytes(30 * KIB))
        info = await broker.alter_topic("t", retention_bytes=512 * KIB)
        assert info.partitions[0].visible_end - info.partitions[0].start_offset >= 512 // 30
        for _ in range(30):
            await broker.publish("t", bytes(30 * KIB))
        info = await broker.alter_topic("t", retention_bytes=512 * KIB)
        assert info.bytes <= 512 * KIB
        assert info.partitions[0].visible_end - info.partitions[0].start_offset >= 12


async def test_a_message_is_judged_by_the_settings_that_count_now(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        await broker.publish("t", bytes(2000))
        await broker.alter_topic("t", message_bytes_max=1000)
        with pytest.raises(errors.MessageTooLargeError):
            await broker.publish("t", bytes(20_000))
    async with fanlog.Broker(data) as broker:
        await broker.alter_topic("t", message_bytes_max=3_000_000)
        await broker.publish("t", bytes(2_000_000))
