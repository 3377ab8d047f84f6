"""A log in the moment of a point, as the loop thread sees it."""

from __future__ import annotations

from typing import NamedTuple

from fanlog.log.disk import DiskLog
from fanlog.log.marks import Compacted
from fanlog.log.scan import Owner
from fanlog.log.segment import Segment
from fanlog.model import DamagedRange


class LogMoment(NamedTuple):
    """A log in the moment of a point, as the loop thread sees it. `segments` is never changed."""

    owner: Owner
    segments: tuple[Segment, ...]
    doomed: tuple[Segment, ...]
    position: int
    end_offset: int
    producers_base: int
    deleted_before: int
    compacted: Compacted
    ranked: bool
    damaged: list[DamagedRange]


def moment_of(disk: DiskLog, end_offset: int) -> LogMoment:
    """Cheap: it is called for every log in one turn of the loop."""
    return LogMoment(
        disk.owner,
        disk.segments,
        disk.doomed,
        disk.position,
        end_offset,
        disk.producers_base,
        disk.deleted_before,
        disk.compacted,
        disk.ranked,
        disk.quarantine.ranges,
    )
