"""Replay: restores the journal's batches in logs that lost them.

A power cut may leave holes anywhere in the unsynced part of a log's files. The journal has the
acknowledged batches of that part. So a hole is filled in place if the journal has its records, and
a log is cut only at a hole after which nothing was acknowledged. Every other hole is damage: whole
batches after it stay. A log that has lost nothing is only read.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from fanlog.format.batch import split_batches
from fanlog.format.header import BatchHeader
from fanlog.log.disk import DiskLog
from fanlog.log.epochs import with_batches
from fanlog.log.files import write_all
from fanlog.log.journal_file import JournalFound
from fanlog.log.lookup import quarantine
from fanlog.log.producers import ProducerRuns
from fanlog.log.scan import NO_STOP, Damage, FoundBatch, Owner
from fanlog.log.segment import (
    Segment,
    base_of,
    log_path,
    remove_index,
    scan_segment,
)
from fanlog.model import KIB, DamagedRange

logger = logging.getLogger("fanlog.log")

# Batches are put back in pieces of about this size.
_PIECE_BYTES = 256 * KIB


class Journaled:
    """One partition's batches of the journal, in the order of their offsets.

    Gaps come from pieces that were too large for the journal and went to the log's own file, and
    from groups that are damaged. The journal promises everything before `promised_end`.
    """

    __slots__ = ("batches", "headers", "promised_end")

    def __init__(self) -> None:
        self.promised_end = 0
        self.headers: list[BatchHeader] = []
        self.batches: list[memoryview] = []

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        if self.headers and header.base_offset < self.headers[-1].next_offset:
            logger.error("The journal has offset %d twice.", header.base_offset)
            return
        self.headers.append(header)
        self.batches.append(batch)

    def index_of(self, offset: int) -> int:
        """The first batch that begins at or after this offset."""
        return bisect_left(self.headers, offset, key=_base)

    def run_from(self, i: int, stop: int) -> int:
        """Where the batches that follow each other without a gap end: from the one at index `i`
        on, and none past the offset `stop`."""
        headers = self.headers
        while i < len(headers) and headers[i].next_offset <= stop:
            i += 1
            if i < len(headers) and headers[i].base_offset != headers[i - 1].next_offset:
                break
        return i

    def run_to(self, i: int, first: int) -> int:
        """The same backwards: from before the index `i` down to offset `first` at most."""
        headers = self.headers
        end = i
        while i and headers[i - 1].base_offset >= first:
            if i < end and headers[i - 1].next_offset != headers[i].base_offset:
                break
            i -= 1
        return i


def _base(header: BatchHeader) -> int:
    return header.base_offset


class Known(NamedTuple):
    """Facts about a log with durability fsync before it is read.

    It was synced itself up to `synced_end`. Records up to `promised_end` at most were acknowledged.
    Both are None if unknown.
    """

    journaled: Journaled
    synced_end: int | None = None
    promised_end: int | None = None

    @property
    def suspect_from(self) -> int:
        """A crash can have left holes from here on."""
        headers = self.journaled.headers
        first = headers[0].base_offset if headers else NO_STOP
        return first if self.synced_end is None else min(first, self.synced_end)

    def suspect_index(self, segments: list[Segment]) -> int:
        """The first segment that can have holes."""
        return max(0, bisect_right(segments, self.suspect_from, key=base_of) - 1)


def by_partition(found: JournalFound) -> dict[Owner, Journaled]:
    """The journal's batches, sorted by the partition they belong to."""
    out: dict[Owner, Journaled] = {}
    for group in found.batches:
        for journaled, header, batch in _sorted(group, out):
            journaled.add(header, batch)
            journaled.promised_end = max(journaled.promised_end, header.next_offset)
    for group in found.spare:
        for journaled, header, batch in _sorted(group, out):
            journaled.add(header, batch)
    for owner, end_offset in found.marks:
        journaled = out.setdefault(owner, Journaled())
        journaled.promised_end = max(journaled.promised_end, end_offset)
    return out


def _sorted(
    group: memoryview, out: dict[Owner, Journaled]
) -> Iterable[tuple[Journaled, BatchHeader, memoryview]]:
    for at, header in split_batches(group):
        owner = Owner(header.topic, header.partition)
        journaled = out.get(owner)
        if journaled is None:
            journaled = out[owner] = Journaled()
        yield journaled, header, group[at : at + header.length]


def mend(disk: DiskLog, known: Known, segments: list[Segment]) -> bool:
    """Fills the holes in a log's files, or cuts the log where nothing later was acknowledged.
    Returns whether anything was changed."""
    changed = False
    first = known.suspect_index(segments)
    interval_bytes = disk.shared.options.index_interval_bytes
    for i, segment in enumerate(segments[first:], first):
        scanned = scan_segment(disk.folder, segment, disk.owner, interval_bytes)
        for damage in scanned.damages:
            hole_end = segment.next_offset if damage.next is None else damage.next
            if hole_end == NO_STOP:
                # The log's end, where the journal's batches are appended.
                return changed
            changed = True
            if known.promised_end is not None and hole_end > known.promised_end:
                _cut(disk, segments, i, damage)
                return True
            for lost in _fill(disk, segment, damage, hole_end, known.journaled):
                quarantine(disk, segment, lost, hole_end)
    return changed


def _cut(disk: DiskLog, segments: list[Segment], i: int, damage: Damage) -> None:
    path = log_path(disk.folder, segments[i])
    logger.warning(
        "%s is cut at offset %d, byte %d: %s. Records behind it in the files were never "
        "acknowledged. Acknowledged records come back from the journal.",
        path,
        damage.first,
        damage.at,
        damage.reason,
    )
    # The newest first: a crash in between leaves a log that ends earlier, and no new hole.
    for later in reversed(segments[i + 1 :]):
        os.unlink(log_path(disk.folder, later))
        remove_index(disk.folder, later)
    remove_index(disk.folder, segments[i])
    os.truncate(path, damage.at)


def _fill(
    disk: DiskLog, segment: Segment, damage: Damage, hole_end: int, journaled: Journaled
) -> list[Damage]:
    """Writes what the journal has of a hole to where it was; what is still missing.

    Batches are in the log as they are in the journal, so that they fit exactly: those that follow
    what is whole before the hole, and those that lead up to what is whole behind it.
    """
    if segment.name:
        # Compaction made it: its batches are others.
        return [damage]
    i = journaled.index_of(damage.first)
    headers = journaled.headers
    begins = i < len(headers) and headers[i].base_offset == damage.first
    front_end = journaled.run_from(i, hole_end) if begins else i
    front = b"".join(journaled.batches[i:front_end])
    first = headers[front_end - 1].next_offset if front_end > i else damage.first
    end = journaled.index_of(hole_end)
    ends = end > 0 and headers[end - 1].next_offset == hole_end
    back_from = journaled.run_to(end, first) if ends and first < hole_end else end
    back = b"".join(journaled.batches[back_from:end]) if damage.end_at is not None else b""
    space = NO_STOP if damage.end_at is None else damage.end_at - damage.at
    fits = len(front) == space if first == hole_end else len(front) + len(back) < space
    if not fits and damage.end_at is not None:
        return [damage]
    _patch(disk, segment, front, damage.at)
    if back and damage.end_at is not None:
        _patch(disk, segment, back, damage.end_at - len(back))
    _say_filled(disk, damage.first, first)
    next_offset = headers[back_from].base_offset if back else hole_end
    _say_filled(disk, next_offset, hole_end)
    if first == next_offset:
        return []
    return [damage._replace(at=damage.at + len(front), first=first, next=next_offset)]


def _patch(disk: DiskLog, segment: Segment, data: bytes, at: int) -> None:
    if not data:
        return
    fd = os.open(log_path(disk.folder, segment), os.O_RDWR)
    try:
        write_all(fd, data, at)
    finally:
        os.close(fd)


def _say_filled(disk: DiskLog, first: int, end: int) -> None:
    if first < end:
        disk.quarantine.forget(first, end)
        logger.warning(
            "%s: offsets %d to %d come back from the journal.", disk.folder, first, end - 1
        )


def replay(disk: DiskLog, known: Known, end: int, producers: ProducerRuns) -> int:
    """Appends the journal's batches from the log's end on; the log's new end.

    Offsets that were promised, and that neither the log nor the journal has any more, are not used
    again. They are noted as damaged, unless their records were deleted.
    """
    journaled = known.journaled
    promised_end = max(journaled.promised_end, known.promised_end or 0)
    headers = journaled.headers
    i = journaled.index_of(end)
    while i < len(headers):
        base = headers[i].base_offset
        if base > end:
            if base >= promised_end:
                # After a torn write, and never acknowledged.
                break
            _skip(disk, end, base)
        stop = journaled.run_from(i, NO_STOP)
        _put_back(disk, journaled, i, stop, producers)
        end = headers[stop - 1].next_offset
        logger.warning(
            "%s: offsets %d to %d come back from the journal.", disk.folder, base, end - 1
        )
        i = stop
    if end < promised_end:
        _skip(disk, end, promised_end)
        end = promised_end
    return end


def _skip(disk: DiskLog, end: int, base: int) -> None:
    disk.roll(base)
    first = max(end, disk.deleted_before)
    if first < base:
        reason = "and neither the log nor the journal has them"
        disk.quarantine.add(DamagedRange(first, base, disk.folder, reason))


def _put_back(disk: DiskLog, journaled: Journaled, i: int, end: int, known: ProducerRuns) -> None:
    """Writes the batches from one index to another."""
    while i < end:
        first = i
        size = 0
        while i < end and (i == first or size < _PIECE_BYTES):
            size += len(journaled.batches[i])
            i += 1
        headers = journaled.headers[first:i]
        piece = b"".join(journaled.batches[first:i])
        times = headers[0].append_time_us, headers[-1].append_time_us
        disk.write(piece, headers[0].base_offset, *times)
        found = [_found(header) for header in headers]
        known.add(found)
        disk.epochs = with_batches(disk.epochs, found)


def _found(header: BatchHeader) -> FoundBatch:
    return FoundBatch(
        header.length,
        header.producer_epoch,
        header.base_offset,
        header.append_time_us,
        header.producer_id,
        header.first_sequence,
        header.record_count,
        header.span,
        header.leader_epoch,
    )
