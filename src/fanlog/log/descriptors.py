"""File descriptors: how many the process may have, and who gets them. A connection more is worth
nothing if the log can't open its files for it, so the log's share is taken off first."""

from __future__ import annotations

import os
from typing import NamedTuple

from fanlog.log import posix

# More than any broker needs; what "unlimited" means to us.
_UNLIMITED = 1 << 30
# The part of the log's share that is not for open segments: lock, journal, listeners, and files
# that the loop, the sync and checkpoint threads and the readers' threads open for a moment.
_PASSING_FILES = 16
_SEGMENTS_MIN = 4


class FileBudget(NamedTuple):
    """`limit` is the process's, `in_use` what the program around the broker has open, `reserved`
    the log's share."""

    limit: int
    in_use: int
    reserved: int

    @property
    def connections(self) -> int:
        """How many connections fit, on all listeners together."""
        return max(1, self.limit - self.in_use - self.reserved)

    @property
    def segments(self) -> int:
        """How many segments can be kept open."""
        return max(_SEGMENTS_MIN, self.reserved - _PASSING_FILES)

    @property
    def staged(self) -> int:
        """How many files of transactions can be open."""
        return max(_SEGMENTS_MIN, self.reserved // 4)


def measure_budget(reserved_files: int) -> FileBudget:
    """The budget as the process's limit allows it now, before the broker opens anything. The log
    never gets more than half of it."""
    limit = posix.open_files_max() or _UNLIMITED
    return FileBudget(limit, _open_files(), min(reserved_files, limit // 2))


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return _PASSING_FILES
