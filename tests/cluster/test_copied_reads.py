"""Reads at a follower: from its own files, and as from the primary."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fanlog.client.aio import Client
from fanlog.cluster.copied_reads import CopiedReads
from fanlog.errors import OffsetOutOfRangeError
from tests.cluster.three_nodes import PATIENCE_SECONDS, ThreeNodes, three_nodes, until


class Two:
    """A cluster's primary and one of its followers, with a client of each."""

    def __init__(self, cluster: ThreeNodes, primary: str, follower: str) -> None:
        self.cluster = cluster
        self.primary = primary
        self.follower = follower
        self.at_primary: Client
        self.at_follower: Client

    @property
    def reads(self) -> CopiedReads:
        role = self.cluster.nodes[self.follower].follower
        assert role is not None
        return role.reads

    @property
    def fetched_from_primary(self) -> int:
        """Bytes of history that the primary has read for anybody."""
        role = self.cluster.nodes[self.primary].primary
        assert role is not None
        return role.node.core.fetched_bytes

    async def copied(self, topic: str, end: int, partition: int = 0) -> None:
        """Waits until the follower shows a topic up to an offset."""
        reads, epoch = self.reads, self.cluster.record().epoch

        def shows() -> bool:
            number = reads.maybe_number(topic)
            return number is not None and reads.has(
                number, partition, end - 1, epoch=epoch, upstream_away=False
            )

        await until(shows)


@asynccontextmanager
async def two(folder: Path, *, every_listener: bool = False) -> AsyncIterator[Two]:
    async with three_nodes(folder, front=True, every_listener=every_listener) as cluster:
        await cluster.start("a", "b", "c")
        primary = await cluster.whole()
        found = Two(cluster, primary, next(node for node in "abc" if node != primary))
        async with (
            await cluster.connect(primary) as found.at_primary,
            await cluster.connect(found.follower) as found.at_follower,
        ):
            yield found


async def publish(client: Client, topic: str, count: int, partitions: int = 1) -> None:
    for i in range(count):
        await client.publish(topic, str(i).encode(), partition=i % partitions)


async def replay(
    client: Client, topic: str, count: int, **start: object
) -> list[tuple[object, ...]]:
    """What a subscriber gets of each message."""
    found: list[tuple[object, ...]] = []
    async with client.subscribe(topic, **(start or {"start": "earliest"})) as reader:  # type: ignore[arg-type]
        for _ in range(count):
            one = await reader.next(PATIENCE_SECONDS)
            found.append((one.partition, one.offset, bytes(one.value), one.timestamp))
    return sorted(found)


async def fetch_all(client: Client, topic: str, partition: int, first: int) -> list[bytes]:
    """All batches of a partition, as they are."""
    found: list[bytes] = []
    while True:
        fetched = await client.fetch(topic, partition, first, bytes_max=200)
        if not fetched.batches:
            return found
        found += [bytes(batch.data) for batch in fetched.batches]
        first = fetched.batches[-1].header.next_offset


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_follower_replays_history_from_its_own_files(
    tmp_path: Path, durability: str
) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("t", durability=durability, partitions=3)
        await publish(nodes.at_primary, "t", 60, partitions=3)
        for partition in range(3):
            await nodes.copied("t", 20, partition)
        fetched, blocks = nodes.fetched_from_primary, nodes.reads.blocks_read
        assert await replay(nodes.at_follower, "t", 60) == await replay(nodes.at_primary, "t", 60)
        assert nodes.reads.blocks_read > blocks
        assert nodes.fetched_from_primary == fetched
        # What is published from now on follows.
        async with nodes.at_follower.subscribe("t", start="earliest") as reader:
            await nodes.at_primary.publish("t", b"more", partition=0)
            values = [(await reader.next(PATIENCE_SECONDS)).value for _ in range(61)]
        assert values[-1] == b"more" or b"more" in values


async def test_fetches_at_a_follower_give_the_same_bytes_without_asking_the_primary(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("t", durability="os", compression="zstd")
        await publish(nodes.at_primary, "t", 50)
        await nodes.copied("t", 50)
        fetched = nodes.fetched_from_primary
        copied = await fetch_all(nodes.at_follower, "t", 0, 0)
        assert nodes.fetched_from_primary == fetched
        assert copied == await fetch_all(nodes.at_primary, "t", 0, 0)
        assert len(copied) > 1
        one = await nodes.at_follower.fetch("t", 0, 7, bytes_max=1)
        same = await nodes.at_primary.fetch("t", 0, 7, bytes_max=1)
        assert [bytes(batch.data) for batch in one.batches] == [
            bytes(batch.data) for batch in same.batches
        ]
        assert (one.start_offset, one.visible_end) == (same.start_offset, same.visible_end)


async def test_starts_by_time_and_offset_and_deleted_records_are_as_at_the_primary(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("t", durability="os")
        await publish(nodes.at_primary, "t", 20)
        await asyncio.sleep(0.01)
        middle = dt.datetime.now(dt.UTC)
        await asyncio.sleep(0.01)
        await nodes.at_primary.publish("t", b"middle")
        await publish(nodes.at_primary, "t", 20)
        await nodes.at_primary.delete_records("t", {0: 5})
        await nodes.copied("t", 41)
        await until(lambda: nodes.reads.start_of(nodes.reads.maybe_number("t") or 0, 0) == 5)
        for start, count in (("earliest", 36), (middle, 21), (30, 11)):
            here = await replay(nodes.at_follower, "t", count, start=start)
            assert here == await replay(nodes.at_primary, "t", count, start=start)
        for client in (nodes.at_primary, nodes.at_follower):
            with pytest.raises(OffsetOutOfRangeError, match="begins at 5"):
                await client.fetch("t", 0, 3)


async def test_a_reader_ahead_of_a_follower_that_is_behind_gets_the_rest_from_the_primary(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("t", durability="os")
        await publish(nodes.at_primary, "t", 20)
        await nodes.copied("t", 20)
        role = nodes.cluster.nodes[nodes.follower].follower
        assert role is not None
        following = role._following  # pyright: ignore[reportPrivateUsage]
        assert following is not None
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await publish(nodes.at_primary, "t", 20)
        fetched = nodes.fetched_from_primary
        assert len(await replay(nodes.at_follower, "t", 40)) == 40
        ahead = await replay(nodes.at_follower, "t", 5, start=35)
        assert [offset for _, offset, *_ in ahead] == [35, 36, 37, 38, 39]
        assert (await nodes.at_follower.fetch("t", 0, 39)).batches
        assert nodes.fetched_from_primary > fetched


async def test_while_a_copy_may_be_cut_the_primary_is_read(tmp_path: Path) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("t", durability="os")
        await publish(nodes.at_primary, "t", 20)
        await nodes.copied("t", 20)
        await nodes.reads.pause()
        blocks = nodes.reads.blocks_read
        assert len(await replay(nodes.at_follower, "t", 20)) == 20
        assert len(await fetch_all(nodes.at_follower, "t", 0, 0)) > 0
        assert nodes.reads.blocks_read == blocks


async def test_memory_topics_and_compacted_topics_come_from_the_primary(tmp_path: Path) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("m", durability="memory")
        await nodes.at_primary.create_topic("c", durability="os", cleanup="compact")
        for topic in ("m", "c"):
            for i in range(20):
                await nodes.at_primary.publish(topic, str(i).encode(), key=str(i % 3))
        await nodes.at_primary.compact_topic("c")
        blocks = nodes.reads.blocks_read
        assert len(await replay(nodes.at_follower, "m", 20)) == 20
        here = await fetch_all(nodes.at_follower, "c", 0, 0)
        assert here == await fetch_all(nodes.at_primary, "c", 0, 0)
        assert nodes.reads.blocks_read == blocks


async def test_a_topic_that_is_deleted_and_made_again_is_not_mixed_up(tmp_path: Path) -> None:
    async with two(tmp_path) as nodes:
        for text in ("old", "new"):
            await nodes.at_primary.create_topic("t", durability="os")
            for _ in range(5):
                await nodes.at_primary.publish("t", text.encode())
            await nodes.copied("t", 5)
            found = await replay(nodes.at_follower, "t", 5)
            assert {value for _, _, value, _ in found} == {text.encode()}
            if text == "old":
                await nodes.at_primary.delete_topic("t")


async def test_web_pages_of_history_come_from_the_followers_files(tmp_path: Path) -> None:
    async with two(tmp_path, every_listener=True) as nodes:
        await nodes.at_primary.create_topic("t", durability="os")
        await publish(nodes.at_primary, "t", 30)
        await nodes.copied("t", 30)
        fetched, blocks = nodes.fetched_from_primary, nodes.reads.blocks_read
        pages: list[object] = []
        async with aiohttp.ClientSession() as session:
            for node in (nodes.follower, nodes.primary):
                port = nodes.cluster.web_ports[node]
                url = f"http://127.0.0.1:{port}/v1/topics/t/messages?limit=25"
                async with session.get(url) as answer:
                    assert answer.status == 200
                    pages.append(await answer.json())
                if node == nodes.follower:
                    assert nodes.fetched_from_primary == fetched
        assert pages[0] == pages[1]
        assert nodes.reads.blocks_read > blocks


async def test_a_copy_gives_nothing_of_another_reign(tmp_path: Path) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("t", durability="os")
        await publish(nodes.at_primary, "t", 5)
        await nodes.copied("t", 5)
        number = nodes.reads.maybe_number("t")
        assert number is not None
        epoch = nodes.cluster.record().epoch
        for other in (epoch - 1, epoch + 1, 0):
            assert not nodes.reads.has(number, 0, 0, epoch=other, upstream_away=False)


async def test_history_can_be_read_at_a_follower_while_there_is_no_primary(tmp_path: Path) -> None:
    async with two(tmp_path) as nodes:
        await nodes.at_primary.create_topic("t", durability="os")
        await publish(nodes.at_primary, "t", 20)
        await nodes.copied("t", 20)
        assert (await nodes.at_follower.fetch("t", 0, 0)).batches
        number, epoch = nodes.reads.maybe_number("t"), nodes.cluster.record().epoch
        assert number is not None
        nodes.reads.lost()
        assert not nodes.reads.has(number, 0, 0, epoch=epoch, upstream_away=False)
        assert nodes.reads.has(number, 0, 0, epoch=epoch, upstream_away=True)
        assert await nodes.reads.read(number, 0, 0, 0) is not None
