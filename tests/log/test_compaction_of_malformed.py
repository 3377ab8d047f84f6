"""Batches whose checksums fit and whose columns do not decode: compaction leaves each as it is,
says so, and goes on with the rest of the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanlog.format.batch import Batch, split_batches, stamp
from fanlog.format.codecs import Codec, UnpackLimits
from fanlog.format.columns import HEADERS, KEYS, VALUE_NULLS
from fanlog.format.header import read_header
from fanlog.log.partition import PartitionLog
from fanlog.model import KIB, MIB
from tests.format.crafted import column, crafted, squeezed
from tests.log.compacting import COMPACTED, Row, begin, check_files, compact, put
from tests.log.pieces import OWNER, Sample, append, open_log

SECOND_US = 1_000_000
GOOD = column([0, 1, 2], b"xy")
# Which part is wrong; the keys, where they can be read, are b"a" and b"b".
MALFORMED = {
    "values": (column([0, 9, 2], b"xy") + column([0, 1, 2], b"ab"), KEYS),
    "keys": (GOOD + column([0, 9, 2], b"ab"), KEYS),
    "headers": (
        GOOD + column([0, 1, 2], b"ab") + column([0, 9, 2]) + GOOD + GOOD,
        KEYS | HEADERS,
    ),
    "too short": (GOOD, KEYS),
    "nulls": (bytes(8) + column([0, 7, 0]) + column([0, 1, 2], b"ab"), KEYS | VALUE_NULLS),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    made = open_log(tmp_path, COMPACTED)
    yield made
    made.close()


def put_malformed(log: PartitionLog, what: str, codec: Codec = Codec.NONE) -> Sample:
    """Appends a batch of two records that no reader can decode."""
    body, flags = MALFORMED[what]
    if codec is not Codec.NONE:
        body = squeezed(codec, body)
    raw = crafted(body, count=2, flags=flags, codec=codec, partition=OWNER.partition)
    base = log.end_offset
    data = stamp(raw, base_offset=base, append_time_us=0, leader_epoch=1, topic=OWNER.topic)
    batch = Sample(data, base, base + 2, 0)
    append(log, batch)
    return batch


def batches(log: PartitionLog) -> list[Batch]:
    found: list[Batch] = []
    offset = log.start_offset
    while offset < log.end_offset:
        block = log.read(offset, log.end_offset)
        found += [Batch(block.data[at : at + h.length], h) for at, h in split_batches(block.data)]
        offset = block.next_offset
    return found


def readable(log: PartitionLog, but: Sample) -> list[Row]:
    """Offset, key and value of all records but those of one batch, which is there as it was."""
    rows: list[Row] = []
    seen = False
    for batch in batches(log):
        if batch.base_offset == but.base:
            assert bytes(batch.data) == but.data
            seen = True
        else:
            rows += zip(batch.offsets, batch.keys, batch.values, strict=True)
    assert seen
    return rows


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("what", MALFORMED)
def test_the_rest_of_the_partition_is_compacted(
    log: PartitionLog, tmp_path: Path, what: str, codec: Codec
) -> None:
    for i in range(3):
        put(log, (b"a", b"%d" % i), (b"c", b"%d" % i * 500))
    bad = put_malformed(log, what, codec)
    for i in range(3, 6):
        put(log, (b"a", b"%d" % i), (b"c", b"%d" % i * 500))
    run = compact(log)
    assert readable(log, bad) == [(12, b"a", b"5"), (13, b"c", b"5" * 500)]
    assert run.removed_records == 10
    assert [(found.first, found.next) for found in log.unreadable] == [(6, 8)]
    check_files(tmp_path, log)
    # Another run finds the same, and once.
    put(log, (b"a", b"6"))
    compact(log)
    assert readable(log, bad)[-1] == (14, b"a", b"6")
    assert len(log.unreadable) == 1


def test_a_log_line_says_once_which_batch_it_is(
    log: PartitionLog, caplog: pytest.LogCaptureFixture
) -> None:
    put(log, (b"a", b"1"))
    put_malformed(log, "headers")
    with caplog.at_level(logging.WARNING):
        for i in range(3):
            put(log, (b"a", b"%d" % i))
            compact(log)
    lines = [record.getMessage() for record in caplog.records if "compact" in record.getMessage()]
    assert len(lines) == 1
    assert "1 to 2" in lines[0]


@pytest.mark.parametrize("what", ["values", "headers"])
def test_its_keys_take_nobodys_place(log: PartitionLog, what: str) -> None:
    """Who can't read the batch must find the last record of the key that it can read."""
    put(log, (b"a", b"good"), (b"b", b"good"))
    bad = put_malformed(log, what)
    compact(log)
    assert readable(log, bad) == [(0, b"a", b"good"), (1, b"b", b"good")]


def test_tombstones_behind_it_stay(log: PartitionLog) -> None:
    """Somebody may find an older record of their key in it."""
    put(log, (b"c", b"1"), (b"d", b"1"))
    put(log, (b"c", None))
    bad = put_malformed(log, "headers")
    put(log, (b"a", None), (b"d", None))
    put(log, (b"z", b"last"))
    compact(log, 5000 * SECOND_US)
    # Of those before it, the tombstone and what it deleted have gone.
    assert readable(log, bad) == [(5, b"a", None), (6, b"d", None), (7, b"z", b"last")]


def test_it_is_not_widened_over_those_that_went_behind_it(log: PartitionLog) -> None:
    bad = put_malformed(log, "headers")
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    compact(log)
    assert readable(log, bad) == [(3, b"a", b"2")]


def test_a_batch_that_would_unpack_to_too_much_is_left_as_it_is(log: PartitionLog) -> None:
    put(log, (b"a", b"0"), (b"k", b"0"))
    size = 2 * MIB
    columns = column([0, size], bytes(size)) + column([0, 1], b"k")
    raw = crafted(
        squeezed(Codec.ZSTD, columns), flags=KEYS, codec=Codec.ZSTD, partition=OWNER.partition
    )
    data = stamp(raw, base_offset=2, append_time_us=0, leader_epoch=1, topic=OWNER.topic)
    bad = Sample(data, 2, 3, 0)
    append(log, bad)
    put(log, (b"a", b"1"))
    run = log.compaction(
        log.end_offset, 0, lambda: False, everything=True, limits=UnpackLimits(64 * KIB)
    )
    assert run is not None
    while (rewritten := run.step()) is not None:
        run.swap(rewritten)
    assert readable(log, bad) == [(1, b"k", b"0"), (3, b"a", b"1")]
    assert [(found.first, found.next) for found in log.unreadable] == [(2, 3)]


def test_it_is_forgotten_when_its_records_are_deleted(log: PartitionLog) -> None:
    put_malformed(log, "headers")
    put(log, (b"a", b"1"))
    compact(log)
    assert log.unreadable
    log.delete_before(2)
    assert not log.unreadable


def test_a_run_begins_and_ends_with_nothing_but_malformed_batches(log: PartitionLog) -> None:
    samples = [put_malformed(log, what) for what in MALFORMED]
    run = begin(log)
    assert run.step() is None
    assert [bytes(batch.data) for batch in batches(log)] == [sample.data for sample in samples]
    assert len(log.unreadable) == len(samples)
    assert read_header(samples[0].data).base_offset == 0
