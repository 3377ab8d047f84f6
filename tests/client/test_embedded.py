"""What only shows where client and broker share a loop: windows, deletions, partial blocks."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import fanlog
from fanlog.broker.messages.reading import batches_within
from fanlog.errors import FanlogError
from fanlog.format.batch import encode_batch
from fanlog.model import KIB, MIB
from tests.client.ways import PATIENCE_SECONDS, until


async def test_many_partitions_that_catch_up_from_disk_stay_within_one_window(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        for number in range(16):
            await broker.create_topic(f"many.{number}", tail_bytes=4 * KIB)
            for _ in range(8):
                await broker.publish_many(f"many.{number}", [bytes(1000)] * 50)
        reader = broker.subscribe("many.*", start="earliest", window_bytes=64 * KIB)
        async with reader:
            await until(lambda: reader._receiving.window.queued_bytes >= 64 * KIB)
            await asyncio.sleep(0.3)  # nobody takes anything; nothing more may come
            assert reader._receiving.window.queued_bytes < 1.5 * MIB
            for _ in range(16 * 400):
                await reader.next(PATIENCE_SECONDS)


async def test_deleting_a_topic_that_is_published_to_leaves_nobody_waiting() -> None:
    async with fanlog.Broker() as broker:
        await broker.create_topic("t")
        for _ in range(20_000):
            await broker.send("t", bytes(200))
        await broker.delete_topic("t")
        with contextlib.suppress(FanlogError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await broker.flush()


async def test_a_partition_that_is_asked_for_twice_is_read_once(data: Path) -> None:
    async with (
        fanlog.Broker(data) as broker,
        broker.subscribe("t", partitions=(0, 0), window_bytes=4 * KIB) as reader,
    ):
        for number in range(200):
            await broker.publish("t", b"%d" % number + bytes(500))
            assert (await reader.next(PATIENCE_SECONDS)).offset == number


def test_a_part_of_a_block_does_not_keep_the_whole_in_memory() -> None:
    batch = encode_batch([bytes(1000)])
    part = batches_within(memoryview(batch * 100), 1)
    assert len(part) == len(batch)
    assert isinstance(part.obj, bytes)
    assert len(part.obj) == len(batch)
