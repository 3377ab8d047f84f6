"""Spark's rows as batches of the log: which topic and partition each row goes to, and the columns
of those that go together as buffers. Rows are counted, hashed and gathered by Arrow and NumPy; a
Python loop goes over topics and partitions, never over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fanlog.errors import InvalidArgumentError, PartitionNotFoundError, no_partition, too_large
from fanlog.format.buffers import BatchBuffers, Buffers, HeaderBuffers, TimeBuffer
from fanlog.format.keys import fnv1a_32
from fanlog.spark.arrow import Ints

_FNV_OFFSET = np.uint32(0x811C9DC5)
_FNV_PRIME = np.uint32(0x01000193)
# All keys are hashed together, byte by byte. Keys with more bytes than this are hashed one by one.
_HASHED_BYTES = 256
_UNKEYED = -1


class TargetTopic(NamedTuple):
    """A topic as far as a cutter needs it."""

    name: str
    number: int
    partitions: int
    message_bytes_max: int


class Cut(NamedTuple):
    """Rows that go to one partition, in their order."""

    target: TargetTopic
    partition: int
    rows: pa.RecordBatch


def cut_rows(
    rows: pa.RecordBatch, topic: str, find: Callable[[str], TargetTopic], turn: int
) -> Iterator[Cut]:
    """The rows by topic and partition. A `topic` that is named is for all rows; rows without a key
    go to one partition together, the next one with each `turn`."""
    for name, of_topic in _by_topic(rows, topic):
        target = find(name)
        _check_sizes(of_topic, target)
        partitions = _partitions(of_topic, target, turn)
        if partitions is None:
            yield Cut(target, turn % target.partitions, of_topic)
            continue
        for partition in np.unique(partitions).tolist():
            chosen = np.flatnonzero(partitions == partition)
            gathered = of_topic if len(chosen) == len(of_topic) else of_topic.take(pa.array(chosen))
            yield Cut(target, partition, gathered)


def _by_topic(rows: pa.RecordBatch, topic: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A topic that was named is for all rows, as in Kafka's sink: or rows that were read, and
    still have their column `topic`, would go back to where they come from."""
    if topic:
        yield topic, rows
        return
    column = rows.column("topic")
    if column.null_count:
        raise InvalidArgumentError(
            "A row's `topic` is null, and the option `topic` is not set. Set one of them."
        )
    names: list[str] = pc.unique(column).to_pylist()
    for name in names:
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(column, name))


def _partitions(rows: pa.RecordBatch, target: TargetTopic, turn: int) -> Ints | None:
    """Each row's partition; None where all rows take the turn's."""
    count = target.partitions
    keys = _named(rows, "key")
    given = _named(rows, "partition")
    chosen: Ints | None = None
    if keys is not None and keys.null_count < len(rows) and count > 1:
        hashed = key_hashes(keys) % np.uint32(count)
        unkeyed = turn % count
        valid = np.asarray(keys.is_valid()) if keys.null_count else None
        chosen = hashed.astype(np.int64)
        if valid is not None:
            chosen[~valid] = unkeyed
    if given is None or given.null_count == len(rows):
        return chosen
    wanted = np.asarray(pc.fill_null(given.cast(pa.int64()), _UNKEYED))
    named = np.asarray(given.is_valid())
    worst = wanted[named & ((wanted < 0) | (wanted >= count))]
    if len(worst):
        raise PartitionNotFoundError(
            f"A row's `partition` is {worst[0]}. {no_partition(target.name, count, int(worst[0]))}"
        )
    rest = chosen if chosen is not None else np.full(len(rows), turn % count, np.int64)
    return np.where(named, wanted, rest)


def key_hashes(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """FNV-1a of each key, as every client makes it; of a null, that of no bytes."""
    column = _binary(keys)
    count = len(keys)
    bounds = np.frombuffer(column.offsets, np.int32, count + 1).astype(np.int64)
    data = np.frombuffer(column.data, np.uint8)
    starts, sizes = bounds[:-1], np.diff(bounds)
    hashes = np.full(count, _FNV_OFFSET, np.uint32)
    longest = int(sizes.max(initial=0))
    for i in range(min(longest, _HASHED_BYTES)):
        if int(sizes.min(initial=0)) > i:
            hashes = (hashes ^ data[starts + i]) * _FNV_PRIME
        else:
            some = np.flatnonzero(sizes > i)
            hashes[some] = (hashes[some] ^ data[starts[some] + i]) * _FNV_PRIME
    for long in np.flatnonzero(sizes > _HASHED_BYTES).tolist():
        hashes[long] = fnv1a_32(data[starts[long] : bounds[long + 1]].tobytes())
    return hashes


def _check_sizes(rows: pa.RecordBatch, target: TargetTopic) -> None:
    sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0)
    keys = _named(rows, "key")
    if keys is not None:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(keys), 0))
    sizes = np.asarray(sizes, np.int64)
    headers = _named(rows, "headers")
    if headers is not None:
        sizes = sizes + _header_sizes(headers)
    largest = int(sizes.max(initial=0))
    if largest > target.message_bytes_max:
        raise too_large(f"A row has {largest} bytes", target.name, target.message_bytes_max)


def _header_sizes(column: pa.Array) -> Ints:
    """The bytes of each row's headers, names included."""
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64))
    entries = pc.list_flatten(column)
    bytes_to = np.zeros(len(entries) + 1, np.int64)
    for part in ("key", "value"):
        lengths = pc.fill_null(pc.binary_length(pc.struct_field(entries, part)), 0)
        bytes_to[1:] += np.asarray(lengths, np.int64)
    np.cumsum(bytes_to, out=bytes_to)
    return np.diff(bytes_to[ends], prepend=0)


def _named(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    return rows.column(name) if name in rows.schema.names else None


# Columns as buffers


def buffers_of(rows: pa.RecordBatch, now_us: int) -> BatchBuffers:
    """The columns of a batch with these rows; what no row has is left out."""
    keys = _named(rows, "key")
    headers = _named(rows, "headers")
    times = _named(rows, "event_time")
    return BatchBuffers(
        records=len(rows),
        values=_binary(rows.column("value")),
        keys=None if keys is None or keys.null_count == len(keys) else _binary(keys),
        headers=None if headers is None else _headers(headers),
        event_times=None if times is None else _times(times, now_us),
    )


def _binary(column: pa.Array) -> Buffers:
    """A column of bytes or text from its first entry on, whatever it was cut out of."""
    array = column.cast(pa.binary())
    count = len(array)
    _, offsets, data = array.buffers()
    if not count or offsets is None:
        return Buffers(bytes(4 * (count + 1)), b"")
    bounds = np.frombuffer(memoryview(offsets), np.int32, count + 1, array.offset * 4)
    first, end = int(bounds[0]), int(bounds[-1])
    cut = memoryview(b"" if data is None else data)[first:end]
    return Buffers(
        (bounds - bounds[0]).data.cast("B"),
        cut,
        _bitmap(array) if array.null_count else None,
    )


def _bitmap(array: pa.Array) -> bytes:
    bits = np.packbits(np.asarray(array.is_valid()), bitorder="little").tobytes()
    return bits.ljust(-(-len(array) // 64) * 8, b"\0")


def _headers(column: pa.Array) -> HeaderBuffers | None:
    counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int32)
    slots = np.zeros(len(column) + 1, np.int32)
    np.cumsum(counts, out=slots[1:])
    if not slots[-1]:
        return None
    entries = pc.list_flatten(column)
    names = pc.fill_null(pc.struct_field(entries, "key"), "")
    contents = pc.fill_null(pc.struct_field(entries, "value").cast(pa.binary()), b"")
    return HeaderBuffers(slots.data.cast("B"), _binary(names), _binary(contents))


def _times(column: pa.Array, now_us: int) -> TimeBuffer | None:
    if column.null_count == len(column):
        return None
    unix_us = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    times = np.ascontiguousarray(np.asarray(pc.fill_null(unix_us, now_us), np.int64))
    return TimeBuffer(times.data.cast("B"), int(times.min()), int(times.max()))
