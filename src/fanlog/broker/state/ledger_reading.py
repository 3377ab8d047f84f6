"""Reading a ledger at start, whatever state its log is in: what is damaged is left out and
counted, and nothing raises. A ledger that could keep the broker from starting would lose more
than it holds.

Where a snapshot is whole, all that counts is behind its begin, and damage before it has lost
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from fanlog.errors import DamagedError, FanlogError
from fanlog.format.batch import Batch, encode_batch, split_batches
from fanlog.format.columns import KEYS
from fanlog.format.header import BatchHeader
from fanlog.log.partition import PartitionLog

logger = logging.getLogger("fanlog.broker")

TakeEntry = Callable[[bytes, bytes | None], None]

_encode = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(int).decode


class LedgerContents(NamedTuple):
    """What was read, from offset `start` on, and how many entries were lost. `cut` means that the
    log does not begin with its first entry, and that no snapshot says what was before."""

    start: int
    cut: bool
    records: int
    bytes: int
    lost: int


class _Lost(NamedTuple):
    first: int
    next: int


def snapshot_mark(begins_at: int) -> bytes:
    """The batch that ends a snapshot. It is the only kind without keys: all that counts has been
    written since the offset that it names."""
    return encode_batch([_encode(begins_at)])


def read_ledger(log: PartitionLog, take: TakeEntry) -> LedgerContents:
    """Hands every entry that counts to `take`, in the order they were written."""
    marked = _find_snapshot(log)
    start = log.start_offset if marked is None else marked
    records = size = lost = 0
    for part in _walk(log, start):
        if isinstance(part, _Lost):
            lost += part.next - part.first
            continue
        header, data = part
        records += header.record_count
        size += header.length
        if header.flags & KEYS:
            lost += _take_all(log, header, data, take)
    return LedgerContents(start, log.start_offset > 0 and marked is None, records, size, lost)


def _find_snapshot(log: PartitionLog) -> int | None:
    """Where the last snapshot begins that is whole, and has no damage in it."""
    found, damaged_before = None, log.start_offset
    for part in _walk(log, log.start_offset):
        if isinstance(part, _Lost):
            damaged_before = part.next
            continue
        header, data = part
        if not header.flags & KEYS:
            try:
                begins_at = _decode_mark(Batch(data, header).values[0] or b"")
            except (FanlogError, msgspec.DecodeError):
                continue
            if begins_at >= damaged_before:
                found = begins_at
    return found


def _walk(log: PartitionLog, offset: int) -> Iterator[tuple[BatchHeader, memoryview] | _Lost]:
    end = log.end_offset
    while offset < end:
        try:
            block = log.read(offset, end)
            batches = list(split_batches(block.data))
        except FanlogError as fault:
            damaged = isinstance(fault, DamagedError)
            after = fault.next if damaged else log.next_segment(offset)
            after = min(max(after, offset + 1), end)
            if not damaged:
                logger.error("entries of the broker's own can't be read: %s", fault)
            yield _Lost(offset, after)
            offset = after
            continue
        for at, header in batches:
            yield header, block.data[at : at + header.length]
        offset = block.next_offset


def _take_all(log: PartitionLog, header: BatchHeader, data: memoryview, take: TakeEntry) -> int:
    """Hands a batch's entries on; how many of them nobody understands."""
    try:
        batch = Batch(data, header)
        entries = list(zip(batch.keys, batch.values, strict=True))
    except FanlogError as fault:
        logger.error("a batch at offset %d of the broker's own: %s", header.base_offset, fault)
        return header.record_count
    lost = 0
    for key, value in entries:
        try:
            take(key or b"", value)
        except Exception:  # whatever an entry holds, it must not keep the broker from starting
            logger.exception("an entry of topic %d is not understood", log.owner.topic)
            lost += 1
    return lost
