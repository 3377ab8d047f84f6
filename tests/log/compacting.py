"""Keyed batches for the tests of compaction, and runs of it on the test's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fanlog.format.batch import Batch, check_batch, encode_batch, split_batches, stamp
from fanlog.format.codecs import Codec
from fanlog.log.compaction import Compaction
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner
from fanlog.model import TopicSettings
from tests.log.pieces import OWNER, SETTINGS, Sample, append

COMPACTED: TopicSettings = msgspec.structs.replace(
    SETTINGS, cleanup="compact", tombstone_seconds=1000, compact_after_bytes=1
)

Pair = tuple[bytes | None, bytes | None]
Row = tuple[int, bytes | None, bytes | None]


def keyed_batch(
    base: int,
    pairs: Sequence[Pair],
    *,
    time_us: int = 0,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (0, 0, 0),
    owner: Owner = OWNER,
    epoch: int = 1,
) -> Sample:
    """A stamped batch of keys and values; a value of None is a tombstone."""
    producer_id, producer_epoch, first_sequence = producer
    raw = encode_batch(
        [value for _, value in pairs],
        keys=[key for key, _ in pairs],
        topic=owner.topic,
        partition=owner.partition,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        first_sequence=first_sequence,
    )
    data = stamp(
        raw, base_offset=base, append_time_us=time_us, leader_epoch=epoch, topic=owner.topic
    )
    return Sample(data, base, base + len(pairs), time_us)


def put(log: PartitionLog, *pairs: Pair, **given: Any) -> Sample:
    """Appends a batch of these; `given` is as `keyed_batch` takes it."""
    batch = keyed_batch(log.end_offset, pairs, **given)
    append(log, batch)
    return batch


def begin(log: PartitionLog, now_us: int = 0, *, everything: bool = True) -> Compaction:
    run = log.compaction(log.end_offset, now_us, lambda: False, everything=everything)
    assert run is not None
    return run


def compact(log: PartitionLog, now_us: int = 0, *, everything: bool = True) -> Compaction:
    """One run, from its begin to its end."""
    run = begin(log, now_us, everything=everything)
    while (rewritten := run.step()) is not None:
        run.swap(rewritten)
    return run


def check_files(folder: Path, log: PartitionLog) -> None:
    """That the folder holds the log's segments and nothing that one of them has replaced."""
    names = sorted(path.stem for path in folder.glob("*.log"))
    assert len(names) == log.segment_count
    bases = [int(name[:20]) for name in names]
    for name, base, after in zip(names, bases, [*bases, log.end_offset][1:], strict=True):
        assert base < after or after == log.end_offset
        assert name == f"{base:020d}" or name.startswith(f"{base:020d}-{after:020d}.")
    assert not list(folder.glob("*.tmp"))
    assert {path.stem for path in folder.glob("*.idx")} <= set(names)


def rows(log: PartitionLog, offset: int | None = None) -> list[Row]:
    """Offset, key and value of every record that is still there, every batch checked.

    Batches may grow into each other's offsets meanwhile. So a reader leaves out what is before the
    offset that it has come to, and may get past the end that it has asked for.
    """
    found: list[Row] = []
    wanted = log.start_offset if offset is None else offset
    end = log.end_offset
    while wanted < end:
        block = log.read(wanted, end)
        assert block.base_offset <= wanted < block.next_offset <= log.end_offset
        for at, header in split_batches(block.data):
            assert header.base_offset <= wanted < header.next_offset
            check_batch(block.data, at)
            batch = Batch(block.data[at : at + header.length])
            records = zip(batch.offsets, batch.keys, batch.values, strict=True)
            found += [record for record in records if record[0] >= wanted]
            wanted = header.next_offset
        assert wanted == block.next_offset
    return found
