"""Reads a segment's batches: which are whole, which are damaged, and where whole ones begin again.

A batch is valid if its header checksum, body checksum, topic and partition fit, and it begins where
the one before it ends. Everything that reads a segment uses `walk_file`: readers that catch up, the
search for a time, index rebuilds, compaction, and recovery.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google_crc32c import value as crc32c

from fanlog.errors import ChecksumError, FormatError
from fanlog.format.columns import SPAN, SPARSE
from fanlog.format.header import (
    ALIGNMENT,
    BATCH_BYTES_MIN,
    CLIENT_PART_AT,
    HEADER_BYTES,
    KIND_AT,
    KIND_BATCH,
    STAMPED,
    VERSION,
    check_header,
    select,
)
from fanlog.log.files import read_at

SCAN_BYTES = 4 * 1024 * 1024
# An offset past every other: "to the end of the file".
NO_STOP = 1 << 63

# All but the packing.
_FIELDS = select(
    "length", "kind", "version", "producer_epoch", "topic", "leader_epoch", "base_offset",
    "append_time_us", "producer_id", "first_sequence", "header_crc", "body_crc", "partition",
    "flags", "record_count",
)  # fmt: skip
_STAMPED_BYTES = STAMPED.size
# Fields at the same position in every batch.
_MARK_BYTES = bytes((KIND_BATCH, VERSION))

_EMPTY = "there is no batch where one should begin"
_HEADER_BAD = "the header's checksum does not fit"
_BODY_BAD = "the body's checksum does not fit"
_CUT = "the batch is cut off"
_ENDS = "the file ends too early"
_STRAY = "the batch does not belong here"


class Owner(NamedTuple):
    """The topic and partition of a file."""

    topic: int
    partition: int


class FoundBatch(NamedTuple):
    """A whole batch, with the header fields that a log needs. `span` is the number of offsets that
    it covers: its records, unless it is sparse. A sparse batch has no producer: its sequences have
    gaps."""

    length: int
    producer_epoch: int
    base_offset: int
    append_time_us: int
    producer_id: int
    first_sequence: int
    record_count: int
    span: int
    leader_epoch: int


class BatchRun(NamedTuple):
    """Consecutive whole batches: `data[:size]` is the file's content at `at`."""

    at: int
    data: bytes
    size: int
    batches: list[FoundBatch]
    next_offset: int


class Damage(NamedTuple):
    """A stretch without whole batches. `next` and `end_at` are None when none comes after it."""

    at: int
    first: int
    reason: str
    next: int | None
    end_at: int | None


class _Stop(NamedTuple):
    """Where a walk came to an end: `needs` is the batch's length if its header is whole."""

    at: int
    expected: int
    fault: str
    needs: int


def _walk(data: bytes, expected: int, stop: int, owner: Owner, out: list[FoundBatch]) -> _Stop:
    """Takes whole batches off the front of `data` until the offset `stop`, a fault, or its end."""
    topic, partition = owner
    size = len(data)
    at = 0
    unpack = _FIELDS.unpack_from
    while expected < stop:
        if size - at < HEADER_BYTES:
            return _Stop(at, expected, "", HEADER_BYTES)
        (length, kind, version, epoch, number, leader, base, time_us, producer, sequence, head_crc,
         body_crc, part, flags, count) = unpack(data, at)  # fmt: skip
        if (
            kind != KIND_BATCH
            or version != VERSION
            or length < BATCH_BYTES_MIN
            or length % ALIGNMENT
        ):
            empty = not (kind or version or length)
            return _Stop(at, expected, _EMPTY if empty else _HEADER_BAD, 0)
        if crc32c(data[at : at + _STAMPED_BYTES]) != head_crc:
            return _Stop(at, expected, _HEADER_BAD, 0)
        if number != topic or base != expected:
            return _Stop(at, expected, _STRAY, 0)
        end = at + length
        if end > size:
            return _Stop(at, expected, "", length)
        if crc32c(data[at + CLIENT_PART_AT : end]) != body_crc:
            return _Stop(at, expected, _BODY_BAD, length)
        span = count
        if flags & SPARSE:
            producer, span = 0, SPAN.unpack_from(data, at + HEADER_BYTES)[0]
        if part != partition or not span:
            return _Stop(at, expected, _STRAY, length)
        out.append(
            FoundBatch(length, epoch, base, time_us, producer, sequence, count, span, leader)
        )
        expected += span
        at = end
    return _Stop(at, expected, "", 0)


def check_piece(piece: bytes, base: int, next_offset: int, owner: Owner) -> list[FoundBatch]:
    """The batches of a piece that covers exactly these offsets. Raises `ChecksumError` unless all
    of it is whole."""
    found: list[FoundBatch] = []
    end = _walk(piece, base, next_offset, owner, found)
    if end.expected != next_offset or end.at != len(piece):
        raise ChecksumError(
            f"A piece of topic {owner.topic}, partition {owner.partition}, is damaged at offset "
            f"{end.expected}, byte {end.at}: {end.fault or _CUT}."
        )
    return found


def walk_file(
    fd: int,
    owner: Owner,
    *,
    at: int,
    expected: int,
    stop: int,
    limit: int,
    chunk_bytes: int = SCAN_BYTES,
) -> Iterator[BatchRun | Damage]:
    """The file's batches from position `at`, which should begin with offset `expected`.

    Ends at the offset `stop` or at the position `limit`, or with a `Damage` that nothing whole
    comes after. It never reads past `limit`.
    """
    wanted = chunk_bytes
    while expected < stop and at < limit:
        asked = min(wanted, limit - at)
        data = read_at(fd, at, asked)
        if len(data) < asked:
            limit = at + len(data)
        batches: list[FoundBatch] = []
        end = _walk(data, expected, stop, owner, batches)
        wanted = chunk_bytes
        if batches:
            yield BatchRun(at, data, end.at, batches, end.expected)
        at += end.at
        expected = end.expected
        fault = end.fault
        if not fault and expected < stop:
            if at + end.needs <= limit:
                wanted = max(chunk_bytes, end.needs)
                continue
            fault = _CUT if limit - at >= HEADER_BYTES or any(data[end.at :]) else _EMPTY
        if fault:
            found = _resync(fd, owner, limit, end._replace(at=at))
            if found is None:
                yield Damage(at, expected, fault, None, None)
                return
            yield Damage(at, expected, fault, found[1], found[0])
            at, expected = found
    if expected < stop < NO_STOP:
        yield Damage(at, expected, _ENDS, None, None)


def _resync(fd: int, owner: Owner, limit: int, stopped: _Stop) -> tuple[int, int] | None:
    """Position and base offset of the first whole batch after a damaged one."""
    at, expected, _, length = stopped
    base = _whole_batch_at(fd, owner, at, expected, limit)
    if base is not None:
        return at, base
    if length:
        # The header is whole, so that its length can be trusted: no look-alike inside the
        # damaged body is taken for a batch.
        base = _whole_batch_at(fd, owner, at + length, expected, limit)
        if base is not None:
            return at + length, base
    search_at = at + (length or ALIGNMENT)
    while search_at + BATCH_BYTES_MIN <= limit:
        data = read_at(fd, search_at, min(SCAN_BYTES, limit - search_at))
        i = data.find(_MARK_BYTES)
        while i >= 0:
            position = search_at + i - KIND_AT
            if position > at and position % ALIGNMENT == 0:
                base = _whole_batch_at(fd, owner, position, expected, limit)
                if base is not None:
                    return position, base
            i = data.find(_MARK_BYTES, i + 1)
        if len(data) < SCAN_BYTES:
            return None
        # The last bytes again: a mark may lie across the border of two reads.
        search_at += len(data) - ALIGNMENT
    return None


def _whole_batch_at(fd: int, owner: Owner, at: int, expected: int, limit: int) -> int | None:
    """The base offset of the batch at `at`, if it is whole, this log's, and after `expected`."""
    if at + BATCH_BYTES_MIN > limit:
        return None
    try:
        header = check_header(read_at(fd, at, BATCH_BYTES_MIN))
    except FormatError:
        return None
    base = header.base_offset
    if base <= expected or at + header.length > limit:
        return None
    end = _walk(read_at(fd, at, header.length), base, base + 1, owner, [])
    return base if end.expected > base else None


def is_zero(fd: int, at: int, limit: int) -> bool:
    """Whether the file holds only zeros from `at` to `limit`."""
    while at < limit:
        data = read_at(fd, at, min(SCAN_BYTES, limit - at))
        if data.count(0) != len(data):
            return False
        if not data:
            return True
        at += len(data)
    return True
