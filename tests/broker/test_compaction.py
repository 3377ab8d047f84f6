"""Compacted topics and deleted records, as the broker's readers and publishers meet them."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from fanlog.errors import (
    FanlogError,
    FormatError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
)
from fanlog.format.batch import Batch, encode_batch
from fanlog.format.messages import PartitionOffset
from fanlog.format.sparse import placeholder, thinned
from fanlog.model import KIB, GapReason, Start
from tests.broker.deletions import delete_records
from tests.broker.stage import Publisher, Stage, no_room, stage

COMPACT = {"cleanup": "compact", "compact_after_bytes": 1}


def put(
    on: Stage,
    topic: str,
    *pairs: tuple[bytes, bytes | None],
    by: Publisher | None = None,
    sequence: int = 0,
) -> Publisher:
    """Publishes a batch of keys and values, and ends the turn."""
    origin = by or Publisher()
    data = encode_batch(
        [value for _, value in pairs],
        keys=[key for key, _ in pairs],
        topic=on.core.open_topic(topic, create=True).number,
        producer_id=origin.producer_id,
        first_sequence=sequence,
    )
    on.core.take(data, 0, origin)
    on.run()
    return origin


def fill(on: Stage, topic: str, rounds: int = 40) -> None:
    for i in range(rounds):
        put(on, topic, *((b"k%d" % k, b"%d." % i * 100) for k in range(5)))


async def compacted(on: Stage, topic: str) -> None:
    task = asyncio.ensure_future(on.core.compact(topic))
    while not task.done():
        await asyncio.sleep(0)
        on.run()
    await task


def offsets(on: Stage, topic: str) -> list[int]:
    """Of every record that a fetch from the start brings."""
    found: list[int] = []
    partition = on.core.catalog.get(topic).partitions[0]
    offset = partition.log.start_offset
    while offset < partition.visible_end:
        for batch in on.fetch(topic, offset):
            found += [o for o in batch.offsets if o >= offset]
            offset = batch.next_offset
    return found


async def test_housekeeping_compacts_what_is_worthwhile(tmp_path: Path) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        fill(on, "prices")
        before = on.core.describe("prices").bytes
        on.core.housekeeping()
        on.run()
        assert offsets(on, "prices") == [195, 196, 197, 198, 199]
        info = on.core.describe("prices")
        assert info.bytes < before / 10
        assert (info.partitions[0].start_offset, info.partitions[0].end_offset) == (0, 200)
        on.core.housekeeping()
        assert not on.runtime.due


async def test_housekeeping_leaves_other_topics_alone(tmp_path: Path) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB) as on:
        fill(on, "plain")
        on.core.housekeeping()
        assert not on.runtime.due
        with pytest.raises(InvalidArgumentError, match="not a compacted one"):
            await on.core.compact("plain")


async def test_a_reader_from_the_start_gets_sparse_batches(tmp_path: Path) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        fill(on, "prices")
        await compacted(on, "prices")
        put(on, "prices", (b"k0", b"new"))
        peer = await on.subscribe("prices")
        on.run()
        records = [o for batch in peer.batches for o in batch.offsets]
        assert records == [195, 196, 197, 198, 199, 200]
        assert peer.gaps == []
        put(on, "prices", (b"k1", b"newer"))
        assert peer.batches[-1].offsets == range(201, 202)


async def test_a_reader_in_the_middle_of_history_goes_on_through_a_compaction(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, tail_bytes=4 * KIB, **COMPACT) as on:
        fill(on, "prices", 200)
        peer = await on.subscribe("prices", window_bytes=1)
        on.run()
        seen = peer.batches[-1].next_offset
        assert 0 < seen < 900
        await compacted(on, "prices")
        assert peer.feed is not None
        on.core.fan_out.grant(peer.feed, 1 << 40)
        on.run()
        records = [o for batch in peer.batches for o in batch.offsets]
        assert records == sorted(set(records))
        assert records[-5:] == [995, 996, 997, 998, 999]
        assert peer.gaps == []
        assert on.core.status().problems == ()


async def test_publishing_goes_on_while_a_run_is_under_way(tmp_path: Path) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        fill(on, "prices")
        number = on.core.catalog.get("prices").number
        task = asyncio.ensure_future(on.core.compact("prices"))
        turns = 0
        while not task.done():
            origin = Publisher()
            on.core.take(encode_batch([b"x"], keys=[b"k9"], topic=number), 0, origin)
            on.core.turns.end()
            assert len(origin.acks) == 1
            await asyncio.sleep(0)
            for _ in range(len(on.runtime.due)):
                on.runtime.due.popleft()()
            turns += 1
        await task
        assert turns > 2
        assert offsets(on, "prices")[:5] == [195, 196, 197, 198, 199]


async def test_a_compacted_topic_needs_keys(tmp_path: Path) -> None:
    with stage(tmp_path, **COMPACT) as on:
        refused = on.publish("prices", [b"no key"])
        on.run()
        ((_, _, error),) = refused.refusals
        assert isinstance(error, InvalidArgumentError)
        assert "publish each message with a key" in str(error)
        assert on.core.describe("prices").records == 0
        assert len(put(on, "prices", (b"k", b"v")).acks) == 1


@pytest.mark.parametrize("kept", [[1], []])
def test_a_client_cant_publish_a_sparse_batch(tmp_path: Path, kept: list[int]) -> None:
    with stage(tmp_path) as on:
        number = on.core.open_topic("t", create=True).number
        dense = Batch(encode_batch([b"a", b"b"], topic=number))
        sparse = thinned(dense, kept) if kept else placeholder(dense.header, 2)
        with pytest.raises(FormatError, match="out of bounds"):
            on.core.take(sparse, 0, Publisher())


async def test_a_compacted_topic_survives_a_restart(tmp_path: Path) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        fill(on, "prices")
        await compacted(on, "prices")
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        assert offsets(on, "prices") == [195, 196, 197, 198, 199]
        info = on.core.describe("prices").partitions[0]
        assert (info.start_offset, info.end_offset, info.damaged) == (0, 200, ())
        assert put(on, "prices", (b"k", b"v")).acks[0].base_offset == 200


@pytest.mark.parametrize("restart", [False, True])
async def test_a_repeat_is_known_though_its_records_were_compacted(
    tmp_path: Path, restart: bool
) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        by = Publisher(77)
        put(on, "prices", (b"a", b"1"), (b"a", b"2"), by=by)
        put(on, "prices", (b"a", b"3"), by=by, sequence=2)
        await compacted(on, "prices")
        assert offsets(on, "prices") == [2]
        if not restart:
            again = put(on, "prices", (b"a", b"1"), (b"a", b"2"), by=Publisher(77))
            assert [(a.duplicate, a.base_offset) for a in again.acks] == [(1, 0)]
    if restart:
        with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
            again = put(on, "prices", (b"a", b"1"), (b"a", b"2"), by=Publisher(77))
            assert [(a.duplicate, a.base_offset) for a in again.acks] == [(1, 0)]
            assert offsets(on, "prices") == [2]


async def test_a_full_disk_is_told_to_who_asked_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        fill(on, "prices", 200)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_room)
            with pytest.raises(FanlogError, match="Free disk space"):
                await compacted(on, "prices")
        assert on.core.status().state == "degraded"
        on.core.tick()
        on.run()
        assert on.core.status().state == "ok"
        await compacted(on, "prices")
        assert len(offsets(on, "prices")) == 5


async def test_a_log_that_cant_be_synced_stops_taking_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        fill(on, "prices")

        def broken(_: int) -> None:
            raise OSError(errno.EIO, "broken")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", broken)
            with pytest.raises(FanlogError, match="disk reports a fault"):
                await compacted(on, "prices")
        assert on.core.status().state == "failing"


async def test_deleting_a_topic_ends_its_compaction(tmp_path: Path) -> None:
    with stage(tmp_path, segment_bytes=64 * KIB, **COMPACT) as on:
        fill(on, "prices")
        task = asyncio.ensure_future(on.core.compact("prices"))
        await asyncio.sleep(0)
        on.core.delete_topic("prices")
        on.run()
        await task
        fill(on, "other")
        await compacted(on, "other")
        assert len(offsets(on, "other")) == 5


def test_a_compacted_topic_cant_live_in_memory_beside_topics_on_disk(tmp_path: Path) -> None:
    with stage(tmp_path) as on, pytest.raises(InvalidArgumentError, match="lives in memory"):
        on.core.create_topic("t", {"cleanup": "compact", "durability": "memory"})


def test_a_compacted_topic_is_kept_for_good_unless_a_time_is_chosen(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        made = on.core.create_topic("a", {"cleanup": "compact"})
        assert made.settings.retention_seconds == 0
        made = on.core.create_topic("b", {"cleanup": "compact", "retention_seconds": 60})
        assert made.settings.retention_seconds == 60
    with stage(tmp_path, cleanup="compact", retention_seconds=70) as on:
        assert on.core.create_topic("c", {}).settings.retention_seconds == 70
    with stage(tmp_path, cleanup="compact") as on:
        assert on.core.create_topic("d", {}).settings.retention_seconds == 0


# Deleting records


@pytest.mark.parametrize("in_memory", [False, True])
async def test_records_are_deleted_exactly_up_to_an_offset(tmp_path: Path, in_memory: bool) -> None:
    with stage(None if in_memory else tmp_path) as on:
        for i in range(10):
            on.publish("t", [b"%d" % i] * 3)
            on.run()
        assert delete_records(on.core, "t", {0: 13}) == [PartitionOffset(0, 13)]
        info = on.core.describe("t")
        assert (info.partitions[0].start_offset, info.records) == (13, 17)
        with pytest.raises(OffsetOutOfRangeError, match="begins at 13"):
            on.fetch("t", 12)
        assert offsets(on, "t") == list(range(13, 30))
        peer = await on.subscribe("t")
        on.run()
        assert peer.joins[0].starts[0].offset == 13
        late = await on.subscribe("t", start=Start("offset", 5))
        on.run()
        (gap,) = late.gaps
        assert (gap.first, gap.next, gap.reason) == (5, 13, GapReason.RETENTION)
        assert delete_records(on.core, "t", {0: 4}) == [PartitionOffset(0, 13)]
        assert delete_records(on.core, "t", {0: 30}) == [PartitionOffset(0, 30)]
        assert on.core.describe("t").bytes == (0 if not in_memory else on.core.turns.tail_bytes)
        on.publish("t", [b"new"])
        on.run()
        assert offsets(on, "t") == [30]


def test_a_wrong_deletion_deletes_nothing(tmp_path: Path) -> None:
    with stage(tmp_path, partitions=2) as on:
        on.publish("t", [b"x"] * 5)
        on.run()
        with pytest.raises(OffsetOutOfRangeError, match="Nothing was deleted"):
            delete_records(on.core, "t", {0: 2, 1: 1})
        with pytest.raises(OffsetOutOfRangeError):
            delete_records(on.core, "t", {0: -1})
        with pytest.raises(PartitionNotFoundError):
            delete_records(on.core, "t", {0: 2, 2: 0})
        assert on.core.describe("t").partitions[0].start_offset == 0


def test_what_is_not_visible_yet_cant_be_deleted(tmp_path: Path) -> None:
    with stage(tmp_path, durability="fsync") as on:
        on.publish("t", [b"x"] * 5)
        on.run()
        with pytest.raises(OffsetOutOfRangeError, match="ends at offset 0"):
            delete_records(on.core, "t", {0: 3})
        on.sync_group.sync()
        on.run()
        assert delete_records(on.core, "t", {0: 3}) == [PartitionOffset(0, 3)]
