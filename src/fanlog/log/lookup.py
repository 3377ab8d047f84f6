"""Finding things in a log's files: the block that holds an offset, and the offset of a time.

Runs in worker threads while the log is being written. It works on the list of segments as it was
when it began, opens files of its own, and checks every batch that it hands out.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from fanlog.errors import OffsetOutOfRangeError, TopicDeletedError
from fanlog.log.disk import DiskLog
from fanlog.log.index import Index
from fanlog.log.scan import BatchRun, Damage, walk_file
from fanlog.log.segment import Segment, base_of, log_path, scan_segment
from fanlog.model import DamagedRange


class Block(NamedTuple):
    """Whole batches as in the file."""

    data: memoryview
    base_offset: int
    next_offset: int


def read_block(disk: DiskLog, offset: int, end: int, bytes_wanted: int = 0) -> Block:
    """The batches from the one with `offset` on, below `end`: about as many as are wanted, and
    one read's worth at least."""
    if offset >= end:
        raise ValueError(f"There is nothing to read from {offset} to {end}.")
    while True:
        segments = disk.segments
        if not segments or offset < disk.start_offset:
            raise out_of_range(disk.start_offset, offset)
        segment = segments[bisect_right(segments, offset, key=base_of) - 1]
        try:
            return _read_block(disk, segment, offset, end, bytes_wanted)
        except FileNotFoundError:
            if disk.deleted:
                raise TopicDeletedError("The topic was deleted.") from None
            if disk.segments is segments:
                lost = Damage(0, segment.base, "the file is gone", None, None)
                stop = min(end, segment.next_offset)
                raise disk.shared.damaged_error(quarantine(disk, segment, lost, stop)) from None
        # Retention or compaction came between the look at the list and the opening of the file.


def _read_block(disk: DiskLog, segment: Segment, offset: int, end: int, bytes_wanted: int) -> Block:
    base, at = _index(disk, segment).before(offset) or (segment.base, 0)
    stop = min(end, segment.next_offset)
    fd = os.open(log_path(disk.folder, segment), os.O_RDONLY)
    try:
        for part in walk_file(
            fd,
            disk.owner,
            at=at,
            expected=base,
            stop=stop,
            limit=os.fstat(fd).st_size,
            chunk_bytes=max(disk.shared.options.read_block_bytes, bytes_wanted),
        ):
            if isinstance(part, Damage):
                damaged = quarantine(disk, segment, part, stop)
                if damaged.next > offset:
                    raise disk.shared.damaged_error(damaged)
            elif part.next_offset > offset:
                return _cut_block(part, offset)
    finally:
        os.close(fd)
    raise out_of_range(disk.start_offset, offset)


def _cut_block(run: BatchRun, offset: int) -> Block:
    at = 0
    for batch in run.batches:
        if batch.base_offset + batch.span > offset:
            data = memoryview(run.data)[at : run.size]
            if len(data) < len(run.data) // 2:
                # A view keeps the whole block in memory, as long as the view exists.
                data = memoryview(bytes(data))
            return Block(data, batch.base_offset, run.next_offset)
        at += batch.length
    raise AssertionError("the run holds the offset")


def quarantine(disk: DiskLog, segment: Segment, damage: Damage, stop: int) -> DamagedRange:
    """Notes damage of a segment, as far as it is not deleted. A range with nothing whole behind it
    ends at `stop`."""
    end = stop if damage.next is None else min(damage.next, stop)
    start = disk.start_offset
    damaged = DamagedRange(
        max(damage.first, start) if start < end else damage.first,
        end,
        log_path(disk.folder, segment),
        f"at byte {damage.at}, {damage.reason}",
    )
    if start < end:
        disk.quarantine.add(damaged)
    return disk.quarantine.known(damaged)


def look_for_damage(disk: DiskLog) -> None:
    """Reads all sealed segments, and notes what is damaged there: a power cut may have taken what
    was never synced, and a start reads the newest segment only."""
    interval_bytes = disk.shared.options.index_interval_bytes
    with disk.quarantine.saved_at_the_end():
        for segment in disk.segments[:-1]:
            try:
                scanned = scan_segment(disk.folder, segment, disk.owner, interval_bytes)
            except FileNotFoundError:
                # Retention or compaction came between.
                continue
            for damage in scanned.damages:
                quarantine(disk, segment, damage, segment.next_offset)


def out_of_range(start_offset: int, offset: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"Offset {offset} is not kept any more: the log begins at {start_offset}. Read from there."
    )


def _index(disk: DiskLog, segment: Segment) -> Index:
    return disk.sealed_index(segment).entries if segment.index is None else segment.index


def find_time(disk: DiskLog, time_us: int, end: int) -> int:
    """The first offset appended at or after `time_us`; `end` when there is none."""
    segments = disk.segments
    if not segments:
        return end
    # Only the active one's last time still moves; it is looked into when no other will do.
    i = bisect_left(segments, time_us, 0, len(segments) - 1, key=disk.last_time_of)
    segment = segments[i]
    base, at = _index(disk, segment).before_time(time_us) or (segment.base, 0)
    stop = min(end, segment.next_offset)
    fd = os.open(log_path(disk.folder, segment), os.O_RDONLY)
    try:
        limit = os.fstat(fd).st_size
        for part in walk_file(
            fd,
            disk.owner,
            at=at,
            expected=base,
            stop=stop,
            limit=limit,
            chunk_bytes=disk.shared.options.index_interval_bytes,
        ):
            if isinstance(part, BatchRun):
                for batch in part.batches:
                    if batch.append_time_us >= time_us:
                        return batch.base_offset
    finally:
        os.close(fd)
    return stop


def find_append_time(disk: DiskLog, offset: int, end: int) -> int | None:
    """When the record at an offset was appended, by the header of its batch; None if it is not
    there any more."""
    segments = disk.segments
    if not segments or offset < disk.start_offset:
        return None
    segment = segments[bisect_right(segments, offset, key=base_of) - 1]
    base, at = _index(disk, segment).before(offset) or (segment.base, 0)
    fd = os.open(log_path(disk.folder, segment), os.O_RDONLY)
    try:
        for part in walk_file(
            fd,
            disk.owner,
            at=at,
            expected=base,
            stop=min(end, segment.next_offset),
            limit=os.fstat(fd).st_size,
            chunk_bytes=disk.shared.options.index_interval_bytes,
        ):
            if isinstance(part, BatchRun) and part.next_offset > offset:
                for batch in part.batches:
                    if batch.base_offset + batch.span > offset:
                        return batch.append_time_us
    finally:
        os.close(fd)
    return None
