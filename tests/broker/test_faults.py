"""Disks that are full, broken, slow or damaged: what publishers and readers are told."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

import fanlog
from fanlog import errors
from fanlog.config import BrokerOptions, Config, LogOptions
from fanlog.errors import DamagedError, DiskFullError, LogFailedError, OverloadedError
from fanlog.model import KIB, Gap, GapReason
from tests.broker.stage import Publisher, no_room, stage

PATIENCE_SECONDS = 100.0


def damage(folder: Path, after: bytes) -> None:
    """Flips a bit behind a place in one of the segments."""
    for path in folder.rglob("*.log"):
        data = bytearray(path.read_bytes())
        at = data.find(after)
        if at >= 0:
            data[at + len(after)] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("there is no such record")


def published(folder: Path) -> None:
    with stage(folder, segment_bytes=64 * KIB) as on:
        for i in range(300):
            on.publish("t", [b"record %d " % i + bytes(900)])
            on.run()


async def test_a_damaged_record_is_a_gap_with_its_offsets_and_reading_goes_on(data: Path) -> None:
    published(data)
    damage(data, b"record 123 ")
    with stage(data, segment_bytes=64 * KIB) as on:
        reader = await on.subscribe("t")
        on.run()
        assert reader.gaps == [Gap("t", 0, 123, 124, GapReason.DAMAGED)]
        assert reader.offsets == [*range(123), *range(124, 300)]
        assert on.counters("t") == {"lost_records": 1}
        with pytest.raises(DamagedError, match="Records 123 to 123") as damaged:
            on.fetch("t", 123)
        assert (damaged.value.first, damaged.value.next) == (123, 124)
        assert on.fetch("t", 124)[0].base_offset == 124
        (known,) = on.core.describe("t").partitions[0].damaged
        assert (known.first, known.next) == (123, 124)


async def test_a_segment_that_is_gone_is_a_gap_too(data: Path) -> None:
    published(data)
    second = sorted(data.rglob("*.log"))[1]
    with stage(data, segment_bytes=64 * KIB) as on:
        second.unlink()
        reader = await on.subscribe("t")
        on.run()
        ((gap),) = reader.gaps
        assert (gap.reason, gap.first) == (GapReason.DAMAGED, int(second.stem))
        assert reader.offsets == [*range(gap.first), *range(gap.next, 300)]


async def test_damage_reaches_the_application_as_messages_lost(data: Path) -> None:
    published(data)
    damage(data, b"record 55 ")
    async with fanlog.Broker(data) as broker:
        async with broker.subscribe("t", start="earliest") as reader:
            for i in range(55):
                assert (await reader.next(PATIENCE_SECONDS)).offset == i
            with pytest.raises(fanlog.MessagesLostError, match="damaged on disk") as lost:
                await reader.next(PATIENCE_SECONDS)
            assert (lost.value.first, lost.value.next, lost.value.reason) == (55, 56, "damaged")
            assert (await reader.next(PATIENCE_SECONDS)).offset == 56
        with pytest.raises(DamagedError) as damaged:
            await broker.fetch("t", 0, 55)
        assert (damaged.value.first, damaged.value.next) == (55, 56)
        gaps: list[fanlog.Gap] = []
        async with broker.subscribe("t", start=50, on_gap=gaps.append) as reader:
            offsets = [(await reader.next(PATIENCE_SECONDS)).offset for _ in range(10)]
        assert offsets == [*range(50, 55), *range(56, 61)]
        assert [(gap.first, gap.next) for gap in gaps] == [(55, 56)]


async def publish_when_there_is_room(broker: fanlog.Broker, value: bytes) -> None:
    """The reserve may still be in use for a moment: by the file of producers, in a thread."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await broker.publish("t", value)
            except DiskFullError:
                await asyncio.sleep(0.01)
            else:
                return


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_full_disk_turns_writes_away_keeps_serving_reads_and_recovers_by_itself(
    data: Path, monkeypatch: pytest.MonkeyPatch, call: str, durability: str
) -> None:
    async with fanlog.Broker(data) as broker:
        await broker.create_topic("t", durability=durability, segment_bytes=64 * KIB)
        values = [b"%d" % i + bytes(30_000) for i in range(6)]
        async with broker.subscribe("t", start="earliest") as reader:
            for value in values[:3]:
                await broker.publish("t", value)
            with monkeypatch.context() as patched:
                patched.setattr(os, call, no_room)
                with pytest.raises(DiskFullError, match="Free disk space"):  # noqa: PT012 - either may raise
                    for _ in range(4):
                        await broker.publish("t", bytes(30_000))
                for _ in range(3):
                    await broker.send("t", bytes(30_000))
                with pytest.raises(DiskFullError, match="3 messages were not stored"):
                    await broker.flush()
                stored = (await broker.describe_topic("t")).records
                fetched = await broker.fetch("t", 0, 0)
                assert fetched.batches[0].values[0] == values[0]
                status = await broker.status()
                assert status.state == "degraded"
                assert "the disk is full" in status.problems[0]
            for value in values[3:]:
                await publish_when_there_is_room(broker, value)
            got = [(await reader.next(PATIENCE_SECONDS)) for _ in range(stored + 3)]
            assert [m.offset for m in got] == list(range(stored + 3))
            assert [m.value for m in got[:3]] == values[:3]
            assert [m.value for m in got[-3:]] == values[3:]
    async with fanlog.Broker(data) as broker:
        assert (await broker.describe_topic("t")).records == stored + 3


async def test_a_broken_disk_stops_the_topic_and_the_status_says_failing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "io")

    async with fanlog.Broker(data) as broker:
        await broker.publish("t", b"good")
        await broker.create_topic("memory", durability="memory")
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", broken)
            with pytest.raises(LogFailedError, match="disk reports a fault"):
                await broker.publish("t", b"bad")
        with pytest.raises(LogFailedError, match="disk reports a fault"):
            await broker.publish("t", b"for good")
        status = await broker.status()
        assert status.state == "failing"
        assert "t/0: Writing" in status.problems[0]
        assert (await broker.describe_topic("t")).partitions[0].state.startswith("failed")
        await broker.publish("memory", b"not concerned")
        async with broker.subscribe("t", start="earliest") as reader:
            assert (await reader.next(PATIENCE_SECONDS)).value == b"good"


async def test_a_failed_sync_refuses_shows_nothing_and_the_status_says_failing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync = os.fdatasync

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "io")

    # The default is taken when the group commit is made, which is with the first message.
    monkeypatch.setattr("fanlog.log.group_commit.GroupCommit.__init__.__defaults__", (broken,))
    async with fanlog.Broker(data) as broker:
        await broker.create_topic("t", durability="fsync")
        async with broker.subscribe("t", start="earliest") as reader:
            with pytest.raises(LogFailedError, match="Syncing"):
                await broker.publish("t", b"x")
            with pytest.raises(LogFailedError):
                await broker.publish("t", b"y")
            assert (await broker.status()).state == "failing"
            info = (await broker.describe_topic("t")).partitions[0]
            assert info.visible_end == 0
            with pytest.raises(TimeoutError):
                await reader.next(0.01)
            assert (await broker.fetch("t", 0, 0)).batches == []
            receipt = await broker.publish("other", b"not concerned")
            assert receipt.durability == "os"
    monkeypatch.undo()
    assert os.fdatasync is fdatasync


async def test_nothing_is_visible_or_acknowledged_before_the_sync_is_done(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = threading.Event()
    syncing = threading.Event()

    def held(fd: int) -> None:
        syncing.set()
        assert resume.wait(PATIENCE_SECONDS)
        os.fsync(fd)

    monkeypatch.setattr("fanlog.log.group_commit.GroupCommit.__init__.__defaults__", (held,))
    async with fanlog.Broker(data) as broker:
        await broker.create_topic("t", durability="fsync")
        async with broker.subscribe("t", start="earliest") as reader:
            publishing = asyncio.create_task(broker.publish("t", b"x"))
            assert await asyncio.to_thread(syncing.wait, PATIENCE_SECONDS)
            later = asyncio.create_task(broker.publish("t", b"y"))
            info = (await broker.describe_topic("t")).partitions[0]
            while info.end_offset < 2:
                await asyncio.sleep(0.001)
                info = (await broker.describe_topic("t")).partitions[0]
            assert (info.visible_end, info.end_offset) == (0, 2)
            with pytest.raises(TimeoutError):
                await reader.next(0.02)
            assert not publishing.done()
            assert not later.done()
            assert (await broker.fetch("t", 0, 0)).batches == []
            assert await broker.find_offsets("t", "latest") == {0: 0}
            assert (await broker.status()).pending_bytes > 0
            resume.set()
            assert [(await publishing).offset, (await later).offset] == [0, 1]
            assert (await reader.next(PATIENCE_SECONDS)).value == b"x"
            assert (await reader.next(PATIENCE_SECONDS)).value == b"y"


def test_past_pending_bytes_max_publishing_is_refused_and_then_goes_on(data: Path) -> None:
    with stage(data, options=BrokerOptions(pending_bytes_max=64 * KIB), durability="fsync") as on:
        publisher = Publisher(1)
        on.publish("t", [bytes(100 * KIB)], publisher)
        on.run()
        assert on.core.status().pending_bytes > 100 * KIB
        on.publish("t", [b"too much"], publisher, sequence=1)
        on.run()
        ((_, expected, error),) = publisher.refusals
        assert expected == 1
        assert isinstance(error, OverloadedError)
        assert "pending_bytes_max" in str(error)
        on.sync_group.sync()
        on.publish("t", [b"later"], publisher, sequence=1)
        on.run()
        on.sync_group.sync()
        on.run()
        assert [ack.base_offset for ack in publisher.acks] == [0, 1]


def test_past_pending_bytes_pause_publishers_are_not_read_until_it_is_over(data: Path) -> None:
    options = BrokerOptions(pending_bytes_pause=64 * KIB)
    with stage(data, options=options, durability="fsync") as on:
        relieved: list[bool] = []
        on.publish("t", [bytes(100 * KIB)])
        on.run()
        assert on.core.congested()
        on.core.turns.when_relieved(lambda: relieved.append(on.core.congested()))
        on.sync_group.sync()
        assert relieved == [False]


def test_no_tail_outgrows_its_topic_and_all_of_them_together_their_total(data: Path) -> None:
    total = 1024 * KIB
    with stage(data, log_options=LogOptions(tail_total_bytes=total), tail_bytes=256 * KIB) as on:
        for i in range(400):
            on.publish(f"t{i % 12}", [bytes(10 * KIB)])
            on.run()
            tails = [p.log.tail.bytes for topic in on.core.catalog for p in topic.partitions]
            assert on.core.turns.tail_bytes == sum(tails) <= total
            assert max(tails) <= 256 * KIB
        on.core.delete_topic("t3")
        on.runtime.time_us += 30 * 24 * 3600 * 1_000_000
        on.core.housekeeping()
        tails = [p.log.tail.bytes for topic in on.core.catalog for p in topic.partitions]
        assert on.core.turns.tail_bytes == sum(tails)
        assert on.core.status().tail_bytes == sum(tails)


async def test_a_reader_of_a_tail_that_was_given_up_reads_from_disk(data: Path) -> None:
    with stage(data, log_options=LogOptions(tail_total_bytes=1024 * KIB)) as on:
        reader = await on.subscribe("quiet")
        reader.room = 10
        for _ in range(5):
            on.publish("quiet", [bytes(1000)])
            on.run()
        for _ in range(120):
            on.publish("busy", [bytes(10 * KIB)])
            on.run()
        assert on.core.catalog.get("quiet").partitions[0].log.tail.bytes == 0
        reader.drain(on.core)
        on.run()
        assert (reader.offsets, reader.gaps) == (list(range(5)), [])


def test_a_message_larger_than_its_topic_takes_is_refused_by_the_broker_too(data: Path) -> None:
    with stage(data, message_bytes_max=1000) as on:
        publisher = Publisher(1)
        on.publish("t", [bytes(20_000)], publisher)
        on.run()
        ((_, _, error),) = publisher.refusals
        assert isinstance(error, errors.MessageTooLargeError)
        on.publish("t", [b"small"], publisher)
        on.run()
        assert [ack.base_offset for ack in publisher.acks] == [0]


async def test_a_folder_in_use_is_refused(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        with pytest.raises(errors.FolderInUseError):
            async with fanlog.Broker(data):
                pass
        await broker.publish("t", b"x")
    async with fanlog.Broker(data, Config()) as broker:
        assert (await broker.describe_topic("t")).records == 1


async def test_a_topic_is_deleted_for_good_also_while_the_disk_is_full(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fanlog.Broker(data) as broker:
        async with broker.subscribe("t", durable="me") as reader:
            await broker.publish("t", b"x")
            await reader.next(PATIENCE_SECONDS)
            await reader.commit()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_room)
            await broker.delete_topic("t")
        assert await broker.committed("me") == ()
        # The next commit takes along what could not be written then.
        async with broker.subscribe("u", durable="other") as reader:
            await broker.publish("u", b"x")
            await reader.next(PATIENCE_SECONDS)
            await reader.commit()
    async with fanlog.Broker(data) as broker:
        assert [info.name for info in await broker.topics()] == ["u"]
        assert await broker.committed("me") == ()


async def test_a_damaged_small_file_is_reported_and_stops_nobody(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        await broker.publish("t", b"first")
    (path,) = data.glob("topics/*-t/topic.json")
    path.write_bytes(path.read_bytes()[:-9])
    async with fanlog.Broker(data) as broker:
        status = await broker.status()
        assert status.state == "degraded"
        (problem,) = status.problems
        assert "made again from its copy" in problem
        await broker.publish("t", b"second")
        assert (await broker.describe_topic("t")).records == 2
    async with fanlog.Broker(data) as broker:
        assert (await broker.status()).state == "ok"
