"""Batches and logs for the tests of this folder: real bytes, real files, small segments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fanlog.config import LogOptions
from fanlog.errors import DamagedError
from fanlog.format.batch import encode_batch, split_batches, stamp
from fanlog.log.disk import LogResources
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner
from fanlog.model import KIB, TopicSettings

OPTIONS = LogOptions(
    segment_first_bytes=4 * KIB, index_interval_bytes=1 * KIB, read_block_bytes=64 * KIB
)
OWNER = Owner(7, 3)
# Far smaller than a user may ask for, so that a few batches make several segments.
SETTINGS = TopicSettings(segment_bytes=4 * KIB, retention_seconds=0)


class Sample(NamedTuple):
    """A batch that was appended, and what is known of it."""

    data: bytes
    base: int
    next: int
    time_us: int


def make_batch(
    base: int,
    *,
    count: int = 1,
    time_us: int = 0,
    size: int = 100,
    owner: Owner = OWNER,
    producer: tuple[int, int, int] = (0, 0, 0),
    epoch: int = 1,
) -> Sample:
    """A stamped batch of `count` records; `producer` is its id, epoch and first sequence, `epoch`
    that of the broker's start."""
    producer_id, producer_epoch, first_sequence = producer
    values = [(b"%d." % (base + i)).ljust(size, b"v") for i in range(count)]
    raw = encode_batch(
        values,
        topic=owner.topic,
        partition=owner.partition,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        first_sequence=first_sequence,
    )
    data = stamp(
        raw, base_offset=base, append_time_us=time_us, leader_epoch=epoch, topic=owner.topic
    )
    return Sample(data, base, base + count, time_us)


def open_log(
    folder: Path | str,
    settings: TopicSettings = SETTINGS,
    options: LogOptions = OPTIONS,
    owner: Owner = OWNER,
) -> PartitionLog:
    return PartitionLog.open(os.fspath(folder), settings, owner, LogResources(options))


def append(log: PartitionLog, *batches: Sample) -> None:
    """Appends batches as one piece."""
    piece = b"".join(batch.data for batch in batches)
    log.append(piece, batches[-1].next, batches[0].time_us, batches[-1].time_us)


def fill(log: PartitionLog, count: int, *, size: int = 100, records: int = 1) -> list[Sample]:
    """Appends `count` batches, each a piece, with times 1000, 1010, 1020, …"""
    out: list[Sample] = []
    for i in range(count):
        batch = make_batch(
            log.end_offset, count=records, time_us=1000 + 10 * i, size=size, owner=log.owner
        )
        append(log, batch)
        out.append(batch)
    return out


def read_batches(log: PartitionLog, offset: int = 0) -> Iterator[bytes]:
    """Every batch from disk from `offset` on, each as its bytes."""
    end = log.end_offset
    while offset < end:
        block = log.read(offset, end)
        assert block.base_offset <= offset < block.next_offset <= end
        expected = block.base_offset
        for at, header in split_batches(block.data):
            assert header.base_offset == expected
            expected = header.next_offset
            yield bytes(block.data[at : at + header.length])
        assert expected == block.next_offset
        offset = block.next_offset


def read_around_damage(log: PartitionLog) -> tuple[list[bytes], list[tuple[int, int]]]:
    """What can be read, and the stretches that can't, as a reader meets them."""
    found: list[bytes] = []
    lost: list[tuple[int, int]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            block = log.read(offset, log.end_offset)
        except DamagedError as error:
            lost.append((error.first, error.next))
            offset = error.next
            continue
        found += [
            bytes(block.data[at : at + header.length]) for at, header in split_batches(block.data)
        ]
        offset = block.next_offset
    return found, lost


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))
