"""What is due when: moments and offsets in order, packed. A million of them take 16 MB.

Two columns of numbers, cut into blocks, so that an entry is put between others, or taken out, by
moving a few kilobytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

# A block is split past this. Half as many, twice 8 bytes each, are moved for an entry.
_BLOCK_MAX = 2048


class Due(NamedTuple):
    """A time in microseconds, and the offset of the message that is due then."""

    moment_us: int
    offset: int


class _Block:
    __slots__ = ("moments", "offsets")

    def __init__(self, moments: array[int], offsets: array[int]) -> None:
        self.moments = moments
        self.offsets = offsets

    @property
    def head(self) -> Due:
        return Due(self.moments[0], self.offsets[0])

    def find(self, due: Due) -> int:
        """The position of an entry, or where it belongs. Offsets are in order within the same
        time."""
        moments = self.moments
        first = bisect_left(moments, due.moment_us)
        end = bisect_right(moments, due.moment_us, first)
        return bisect_left(self.offsets, due.offset, first, end)


class DueOrder:
    """Entries, the first due in front."""

    __slots__ = ("_blocks", "_length", "_moments")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        # Of each block, its first moment.
        self._moments: list[int] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def first(self) -> Due | None:
        return self._blocks[0].head if self._blocks else None

    def add(self, moment_us: int, offset: int) -> None:
        self._length += 1
        i = bisect_right(self._moments, moment_us) - 1
        if i < 0:
            i = 0
            if not self._blocks:
                self._blocks.append(_Block(array("q", (moment_us,)), array("q", (offset,))))
                self._moments.append(moment_us)
                return
        block = self._blocks[i]
        moments, offsets = block.moments, block.offsets
        at = bisect_right(moments, moment_us)
        if at and moments[at - 1] == moment_us and offsets[at - 1] > offset:
            # One that was taken, and comes back: most are newer than all others of their moment.
            i = self._block_of(Due(moment_us, offset))
            block = self._blocks[i]
            at = block.find(Due(moment_us, offset))
            moments, offsets = block.moments, block.offsets
        moments.insert(at, moment_us)
        offsets.insert(at, offset)
        if not at:
            self._moments[i] = moment_us
        if len(moments) > _BLOCK_MAX:
            self._split(i)

    def _block_of(self, due: Due) -> int:
        """The last block that begins at or before an entry; the first if none does."""
        i = bisect_right(self._moments, due.moment_us) - 1
        while i > 0 and self._blocks[i].head > due:
            i -= 1
        return max(0, i)

    def _split(self, i: int) -> None:
        block = self._blocks[i]
        # Where entries come in the order of their moments, blocks stay nearly full.
        last = i == len(self._blocks) - 1
        at = len(block.moments) - 1 if last else len(block.moments) // 2
        behind = _Block(block.moments[at:], block.offsets[at:])
        self._blocks[i] = _Block(block.moments[:at], block.offsets[:at])
        self._blocks.insert(i + 1, behind)
        self._moments.insert(i + 1, behind.moments[0])

    def remove(self, due: Due) -> bool:
        """Takes an entry out; False if it is not there."""
        if not self._blocks:
            return False
        i = self._block_of(due)
        block = self._blocks[i]
        at = block.find(due)
        if at == len(block.moments) or (block.moments[at], block.offsets[at]) != due:
            return False
        del block.moments[at], block.offsets[at]
        self._length -= 1
        self._tidy(i)
        return True

    def _tidy(self, i: int) -> None:
        if self._blocks[i].moments:
            self._moments[i] = self._blocks[i].moments[0]
        else:
            del self._blocks[i], self._moments[i]

    def take(self, until_us: int, most: int) -> list[Due]:
        """Takes out the entries that are due by a time, in order, up to a number."""
        taken: list[Due] = []
        while self._blocks and self._moments[0] <= until_us and len(taken) < most:
            block = self._blocks[0]
            end = min(bisect_right(block.moments, until_us), most - len(taken))
            taken += map(Due, block.moments[:end], block.offsets[:end])
            del block.moments[:end], block.offsets[:end]
            self._tidy(0)
        self._length -= len(taken)
        return taken

    def after(self, due: Due) -> Iterator[Due]:
        """The entries after one, which need not exist. They must not change meanwhile."""
        if not self._blocks:
            return
        i = self._block_of(due)
        begin = self._blocks[i].find(due)
        for block in self._blocks[i:]:
            for entry in map(Due, block.moments[begin:], block.offsets[begin:]):
                if entry > due:
                    yield entry
            begin = 0
