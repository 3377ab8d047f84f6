"""A log in the moment of a point.

One turn of the broker's loop reads all logs, so this is a plain tuple of everything that may change
later. Threads make the rest of it.
"""

from __future__ import annotations

from fanlog.log.disk import DiskLog
from fanlog.log.partition_notes import Compacted
from fanlog.log.segment import Segment

# Its files, segments, those that are dropped and not removed yet, position in the newest segment,
# end offset, the segment with a file of producers, the offset before which records were deleted,
# and how far it is compacted.
LogMoment = tuple[DiskLog, tuple[Segment, ...], tuple[Segment, ...], int, int, int, int, Compacted]


def moment_of(disk: DiskLog, end_offset: int) -> LogMoment:
    return (
        disk,
        disk.segments,
        disk.to_delete,
        disk.position,
        end_offset,
        disk.producers_base,
        disk.deleted_before,
        disk.compacted,
    )
