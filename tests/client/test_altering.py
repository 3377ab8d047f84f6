"""Settings of a topic that change while it is in use, as clients see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.model import KIB
from tests.client.ways import WAYS, Way


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
            ({"durability": "memory"}, "create another topic"),
            ({"cleanup": "compact"}, "create another topic"),
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
