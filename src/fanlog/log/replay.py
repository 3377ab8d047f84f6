"""Putting the journal's batches back into the logs that lost them.

A power loss may leave holes anywhere in what a log's files had not synced. All of that is in the
journal, so that a log is cut at its first hole in the journaled range and goes on from there with
the journal's batches. A log that has lost nothing is only read.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right

from fanlog.format.batch import BatchHeader, split_batches
from fanlog.log.disk import DiskLog
from fanlog.log.epochs import with_batches
from fanlog.log.producers import ProducerRuns
from fanlog.log.scan import Found, Owner
from fanlog.log.segment import base_of, list_segments, log_path, remove_index, scan_segment
from fanlog.model import KIB, DamagedRange

logger = logging.getLogger("fanlog.log")

# Batches are put back in pieces of about this size.
_PIECE_BYTES = 256 * KIB


class Journaled:
    """One partition's batches of the journal: the last stretch without a gap.

    Gaps come from pieces that were too large for the journal and went to the log's own file: what
    is before one is synced there.
    """

    __slots__ = ("_batches", "_headers", "bases", "end_offset", "first_seen")

    def __init__(self, first_seen: int) -> None:
        self.first_seen = first_seen
        self.end_offset = -1
        self.bases: list[int] = []
        self._headers: list[BatchHeader] = []
        self._batches: list[memoryview] = []

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        if header.base_offset != self.end_offset:
            self.bases.clear()
            self._headers.clear()
            self._batches.clear()
        self.bases.append(header.base_offset)
        self._headers.append(header)
        self._batches.append(batch)
        self.end_offset = header.next_offset

    def has(self, offset: int) -> bool:
        """Whether a batch begins with this offset."""
        i = bisect_left(self.bases, offset)
        return i < len(self.bases) and self.bases[i] == offset

    def covers(self, offset: int) -> bool:
        """Whether a log may be cut at this offset, where it has a hole, and lose nothing."""
        return self.has(offset) or offset >= self.end_offset

    @property
    def batches(self) -> list[memoryview]:
        return self._batches

    def put_back(self, disk: DiskLog, offset: int, producers: ProducerRuns) -> None:
        """Writes the batches from `offset` on."""
        i = bisect_left(self.bases, offset)
        while i < len(self.bases):
            first = i
            size = 0
            while i < len(self.bases) and (i == first or size < _PIECE_BYTES):
                size += len(self._batches[i])
                i += 1
            headers = self._headers[first:i]
            piece = b"".join(self._batches[first:i])
            times = headers[0].append_time_us, headers[-1].append_time_us
            disk.write(piece, headers[0].base_offset, *times)
            found = [_found(header) for header in headers]
            producers.add(found)
            disk.epochs = with_batches(disk.epochs, found)


def _found(header: BatchHeader) -> Found:
    return Found(
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


def by_partition(groups: list[memoryview]) -> dict[Owner, Journaled]:
    """The journal's batches, sorted by the partition they belong to."""
    found: dict[Owner, Journaled] = {}
    for group in groups:
        for at, header in split_batches(group):
            owner = Owner(header.topic, header.partition)
            journaled = found.get(owner)
            if journaled is None:
                journaled = found[owner] = Journaled(header.base_offset)
            journaled.add(header, group[at : at + header.length])
    return found


def cut_first_hole(disk: DiskLog, journaled: Journaled) -> None:
    """Cuts the log's files where a batch is bad or missing that the journal has.

    Or one that comes after all that the journal has: such were never acknowledged, so that a hole
    in them is a torn tail, whatever made it to the disk behind it.
    """
    segments = list_segments(disk.folder)
    first = max(0, bisect_right(segments, journaled.bases[0], key=base_of) - 1)
    interval_bytes = disk.shared.options.index_interval_bytes
    for i, segment in enumerate(segments[first:], first):
        scanned = scan_segment(disk.folder, segment, disk.owner, interval_bytes)
        hole = next((d for d in scanned.damages if journaled.covers(d.first)), None)
        if hole is None:
            continue
        # Where nothing comes after it that the journal has, it is just the end.
        only_the_end = hole.next is None and hole.first >= journaled.end_offset
        logger.log(
            logging.DEBUG if only_the_end else logging.WARNING,
            "%s is cut at offset %d, byte %d, and goes on with what the journal has: %s.",
            log_path(disk.folder, segment),
            hole.first,
            hole.at,
            hole.reason,
        )
        # The newest first: a crash in between leaves a log that ends earlier, and no new hole.
        for later in reversed(segments[i + 1 :]):
            os.unlink(log_path(disk.folder, later))
            remove_index(disk.folder, later)
        remove_index(disk.folder, segment)
        os.truncate(log_path(disk.folder, segment), hole.at)
        return


def replay(disk: DiskLog, journaled: Journaled, end: int, producers: ProducerRuns) -> int:
    """Appends the journal's batches from the log's end on; the log's new end."""
    # Also what is whole may be in the kernel's memory only: the next sync takes it along.
    disk.unsynced = [s.base for s in disk.segments[:-1] if s.next_offset > journaled.first_seen]
    disk.unsynced_folders = True
    if journaled.end_offset <= end:
        return end
    first = journaled.bases[0]
    if first > end:
        lost = DamagedRange(end, first, disk.folder, "and neither the log nor the journal has them")
        disk.roll(first)
        disk.quarantine.add(lost)
        end = first
    if not journaled.has(end):
        logger.error("The journal does not fit %s at offset %d.", disk.folder, end)
        return end
    logger.warning(
        "%s: offsets %d to %d come back from the journal.",
        disk.folder,
        end,
        journaled.end_offset - 1,
    )
    journaled.put_back(disk, end, producers)
    return journaled.end_offset
