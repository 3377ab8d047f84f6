"""Finds the urgent jobs of a queue partition: runs of batches with a priority, found by their
headers alone, and read before their turn.

It starts at the first possible priority, and continues as the log grows. A partition without
priorities has none of this. The number of runs is limited: at the limit it reads on when some of
them were handed out; until then the jobs after them count as without priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from struct import Struct

from fanlog.format.header import BATCH_BYTES_MIN, CODEC_BITS, PACKING_AT, BatchHeader, read_header
from fanlog.format.offset_ranges import OffsetRange

# The bytes that are read of a batch without a priority.
_LENGTH = Struct("<I")


def _header(piece: memoryview, at: int) -> BatchHeader:
    return read_header(piece[at : at + BATCH_BYTES_MIN])


class UrgentJobs:
    """`until` is how far the log was read. `runs_max` runs are kept."""

    __slots__ = ("_at", "_count", "_pieces", "_runs", "_runs_max", "until")

    def __init__(self, start: int, runs_max: int) -> None:
        self.until = start
        self._runs: dict[int, deque[OffsetRange]] = {}
        self._runs_max = runs_max
        self._count = 0
        # Batches that are not read yet, and the position in the first of them.
        self._pieces: deque[memoryview] = deque()
        self._at = 0

    @property
    def is_full(self) -> bool:
        return self._count >= self._runs_max

    @property
    def has_more(self) -> bool:
        """Whether it has been given something that it has not read yet."""
        return bool(self._pieces)

    def give(self, pieces: Iterable[memoryview]) -> None:
        """Whole batches. The first one holds the offset `until`."""
        self._pieces = deque(pieces)
        self._at = 0

    def read(self, batches_max: int) -> tuple[int, bool]:
        """Reads at most `batches_max` headers. Returns how many it read, and whether one had a
        priority."""
        left, found = batches_max, False
        while self._pieces and left > 0 and not self.is_full:
            piece, at, last = self._pieces[0], self._at, -1
            while at < len(piece) and left > 0:
                if piece[at + PACKING_AT] > CODEC_BITS:
                    if self.is_full:
                        break
                    found = self._take(piece, at) or found
                last = at
                at += _LENGTH.unpack_from(piece, at)[0]
                left -= 1
            if last >= 0:
                self.until = max(self.until, _header(piece, last).next_offset)
            self._at = at
            if at >= len(piece):
                self._pieces.popleft()
                self._at = 0
        return batches_max - left, found

    def _take(self, piece: memoryview, at: int) -> bool:
        """Notes a batch that has a priority, unless it was read before."""
        header = _header(piece, at)
        first, next = max(header.base_offset, self.until), header.next_offset
        if first >= next:
            return False
        self._note(header.priority, first, next)
        self.until = next
        return True

    def _note(self, priority: int, first: int, next: int) -> None:
        runs = self._runs.setdefault(priority, deque())
        if runs and runs[-1][1] == first:
            runs[-1] = runs[-1][0], next
        else:
            runs.append((first, next))
            self._count += 1

    def skip_to(self, offset: int) -> None:
        """The log is not there before this offset."""
        if offset > self.until:
            self.until = offset
            self.give(())

    def first(self, priority: int) -> OffsetRange | None:
        runs = self._runs.get(priority)
        return runs[0] if runs else None

    def drop(self, priority: int, before: int) -> None:
        """Jobs before this offset need not be found any more."""
        runs = self._runs[priority]
        while runs and runs[0][0] < before:
            next = runs[0][1]
            if next > before:
                runs[0] = before, next
                return
            runs.popleft()
            self._count -= 1

    def runs(self) -> Iterator[tuple[int, OffsetRange]]:
        """All of them, with their priorities."""
        for priority, runs in self._runs.items():
            for run in runs:
                yield priority, run
