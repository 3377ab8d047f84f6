"""The newest pieces of a partition, in memory. Readers that keep up read them here.

A piece is an immutable `bytes` of whole stamped batches. It is never copied or split here: readers
get views of the bytes that were appended. 100,000 empty tails must cost next to nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from fanlog.format.columns import SPAN, SPARSE
from fanlog.format.header import HEADER_BYTES, select

PIECES_PER_READ_MAX = 64
# Empty slots at the front of the lists are removed when there are this many.
_COMPACT_AT = 64

# Whole stamped batches of one partition, one after another.
Piece = bytes

_STEP = select("length", "append_time_us", "flags", "record_count")


class Tail:
    """Pieces in the order of their offsets, behind a head that moves as the oldest are dropped.

    >>> Tail(7).end_offset
    7
    """

    __slots__ = ("_head", "_lists", "bytes", "end_offset", "start_offset")

    def __init__(self, offset: int = 0) -> None:
        self.start_offset = offset
        self.end_offset = offset
        self.bytes = 0
        self._head = 0
        # Base offsets, pieces, last append times; entries before the head are empty. Another thread
        # may search them: they only grow at the end, and are replaced together.
        self._lists: tuple[list[int], list[Piece], list[int]] | None = None

    def append(self, piece: Piece, next_offset: int, time_us: int) -> None:
        """Appends a piece whose first offset is `end_offset`, with its last append time."""
        lists = self._lists
        if lists is None:
            lists = self._lists = ([], [], [])
        bases, pieces, times = lists
        bases.append(self.end_offset)
        pieces.append(piece)
        times.append(time_us)
        self.end_offset = next_offset
        self.bytes += len(piece)

    def drop_first(self) -> int:
        """Forgets the oldest piece; its size in bytes, 0 when there is none."""
        if self._lists is None:
            return 0
        bases, pieces, times = self._lists
        head = self._head
        size = len(pieces[head])
        self.bytes -= size
        pieces[head] = b""
        head += 1
        if head == len(bases):
            self.start_offset = self.end_offset
            self._head = 0
            self._lists = None
            return size
        self.start_offset = bases[head]
        if head >= _COMPACT_AT and head * 2 >= len(bases):
            self._lists = (bases[head:], pieces[head:], times[head:])
            head = 0
        self._head = head
        return size

    def trim(self, bytes_max: int) -> int:
        """Drops the oldest pieces past `bytes_max`, never the newest; the bytes dropped."""
        dropped = 0
        while self.bytes > bytes_max and self._first_piece_end() < self.end_offset:
            dropped += self.drop_first()
        return dropped

    def drop_older(self, time_us: int) -> int:
        """Drops the pieces whose last append was before `time_us`; the bytes dropped."""
        dropped = 0
        while self._lists is not None and self._lists[2][self._head] < time_us:
            dropped += self.drop_first()
        return dropped

    def drop_before(self, offset: int) -> int:
        """Drops the pieces that end at or before `offset`; the bytes dropped."""
        dropped = 0
        while self._lists is not None and self._first_piece_end() <= offset:
            dropped += self.drop_first()
        return dropped

    def read(self, offset: int, end: int, bytes_max: int) -> tuple[list[memoryview], int]:
        """Views of the pieces from the batch with `offset` up to `end`, and the offset after them.

        At least one piece; no more than `bytes_max` once there is one; at most 64 of them.
        """
        lists = self._lists
        if lists is None or not self.start_offset <= offset < end or offset >= self.end_offset:
            raise ValueError(
                f"The tail holds {self.start_offset} to {self.end_offset}, not {offset} to {end}."
            )
        bases, pieces, _ = lists
        i = bisect_right(bases, offset, self._head) - 1
        first = memoryview(pieces[i])
        if bases[i] != offset:
            first = first[_position(pieces[i], bases[i], offset) :]
        views = [first]
        size = len(first)
        stop = min(len(bases), i + PIECES_PER_READ_MAX)
        i += 1
        while i < stop and bases[i] < end:
            size += len(pieces[i])
            if size > bytes_max:
                break
            views.append(memoryview(pieces[i]))
            i += 1
        return views, bases[i] if i < len(bases) else self.end_offset

    def offset_at(self, time_us: int) -> int | None:
        """The first offset of the first batch appended at or after `time_us`, if there is one.

        Any thread may ask.
        """
        lists = self._lists
        if lists is None:
            return None
        bases, pieces, times = lists
        # Not from the head, which may have moved on since: dropped pieces are seen by their size.
        i = bisect_left(times, time_us)
        piece = b""
        while i < len(times) and not (piece := pieces[i]):
            i += 1
        if not piece:
            return None
        at, offset = 0, bases[i]
        while True:
            length, appended_us, span = _step(piece, at)
            if appended_us >= time_us:
                return offset
            at += length
            offset += span

    def _first_piece_end(self) -> int:
        lists = self._lists
        after = self._head + 1
        return lists[0][after] if lists is not None and after < len(lists[0]) else self.end_offset


def _step(piece: Piece, at: int) -> tuple[int, int, int]:
    """Length, append time and span of the batch at `at`."""
    length, appended_us, flags, span = _STEP.unpack_from(piece, at)
    if flags & SPARSE:
        span = SPAN.unpack_from(piece, at + HEADER_BYTES)[0]
    return length, appended_us, span


def _position(piece: Piece, base: int, offset: int) -> int:
    """Where in `piece`, which begins with offset `base`, the batch that holds `offset` begins."""
    at = 0
    while True:
        length, _, span = _step(piece, at)
        base += span
        if base > offset:
            return at
        at += length
