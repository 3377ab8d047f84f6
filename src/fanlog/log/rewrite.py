"""The output of compaction: one new file with the remaining records of one or several segments.

Offsets never change. A batch that loses records becomes sparse; the offsets of a removed batch are
covered by the batch before it, or by a placeholder. Nothing is written until the first record is
removed: an unchanged segment only costs its reading.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable
from typing import NamedTuple

from fanlog.errors import UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.columns import SPARSE
from fanlog.format.sparse import placeholder, thinned, widened
from fanlog.log import posix
from fanlog.log.files import read_at, remove_if_there, write_all
from fanlog.log.index import Index, SealedIndex
from fanlog.log.segment import Segment, generation_of, log_path
from fanlog.log.segment_names import LOG_SUFFIX, TEMPORARY_SUFFIX, compacted_stem
from fanlog.model import KIB, MIB

_BUFFER_BYTES = 256 * KIB
_COPY_BYTES = 1 * MIB
# A dense batch of more records is not made sparse to cover others' offsets: a placeholder of 80
# bytes is smaller than the offsets of all its records.
_WIDENED_RECORDS_MAX = 16

# The indexes of a batch's records that stay; None for all of them. Raises `UnreadableError` for a
# batch that has to stay as it is.
Decide = Callable[[Batch], list[int] | None]


class Rewritten(NamedTuple):
    """A new file, durable under its temporary name, which will replace `sources`."""

    sources: tuple[Segment, ...]
    made: Segment
    facts: SealedIndex
    path: str


class RewriteMark(NamedTuple):
    """Where the output can be taken back to."""

    position: int
    entries: int
    index_at: int
    last_time_us: int
    sources: int
    held: Batch | None
    held_next: int
    held_is_fixed: bool


class Rewriter:
    """Collects segments, one after another, and writes their remaining records."""

    def __init__(self, folder: str, interval_bytes: int) -> None:
        self._folder = folder
        self._interval_bytes = interval_bytes
        self._sources: list[Segment] = []
        self._path = ""
        self._fd = -1
        self._buffer: list[bytes | memoryview] = []
        self._buffered_bytes = 0
        self._held: Batch | None = None
        self._held_next = 0
        self._held_is_fixed = False
        self._index = Index()
        self._index_at = 0
        self._last_time_us = 0
        self.position = 0

    # Segments

    def begin(self, segment: Segment) -> RewriteMark:
        """Adds the next segment; later batches belong to it. Returns how to undo this."""
        mark = RewriteMark(
            self.position,
            len(self._index.offsets),
            self._index_at,
            self._last_time_us,
            len(self._sources),
            self._held,
            self._held_next,
            self._held_is_fixed,
        )
        if self._sources:
            self._materialise()
        self._sources.append(segment)
        return mark

    def take(self, batch: Batch, decide: Decide) -> None:
        """The segment's next batch."""
        try:
            kept = decide(batch)
        except UnreadableError:
            self._hold(batch, fixed=True)
            return
        if kept is None:
            if len(batch) or not self._covers_more(batch):
                self._hold(batch)
            else:
                self._drop(batch)
        elif kept:
            self._materialise()
            self._hold(Batch(thinned(batch, kept)))
        else:
            self._drop(batch)

    def forget(self, mark: RewriteMark) -> None:
        """Takes the segment that was begun last back: it can't be read, so that it must stay."""
        self._write_buffer()
        del self._sources[mark.sources :]
        self.position, self._index_at = mark.position, mark.index_at
        self._last_time_us = mark.last_time_us
        self._held, self._held_next = mark.held, mark.held_next
        self._held_is_fixed = mark.held_is_fixed
        columns: tuple[array[int], ...] = (
            self._index.offsets,
            self._index.positions,
            self._index.times,
        )
        for column in columns:
            del column[mark.entries :]
        if self._fd >= 0:
            os.ftruncate(self._fd, self.position)

    def finish(self) -> Rewritten | None:
        """Makes the new file durable; None if nothing has changed."""
        if self._fd < 0 or not self._sources:
            self.discard()
            return None
        self._flush_held()
        self._write_buffer()
        posix.sync_data(self._fd)
        os.close(self._fd)
        self._fd = -1
        sources = tuple(self._sources)
        base, next_offset = sources[0].base, sources[-1].next_offset
        made = Segment(
            base,
            next_offset=next_offset,
            bytes=self.position,
            last_time_us=self._last_time_us,
            name=self._name(),
        )
        facts = SealedIndex(self._index, base, next_offset, self._last_time_us, self.position)
        return Rewritten(sources, made, facts, self._path)

    def discard(self) -> None:
        """Leaves no trace."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._path:
            remove_if_there(self._path)

    # Batches

    def _covers_more(self, behind: Batch) -> bool:
        """Whether the batch that was held back may be extended over the offsets of a later one. Not
        over another epoch: a reader that stopped there would have a position that the log's history
        does not know."""
        held = self._held
        if held is None or self._held_is_fixed:
            return False
        if held.header.leader_epoch != behind.header.leader_epoch:
            return False
        return (
            bool(held.header.flags & SPARSE)
            or self._held_next > held.next_offset
            or len(held) <= _WIDENED_RECORDS_MAX
        )

    def _drop(self, batch: Batch) -> None:
        self._materialise()
        if self._covers_more(batch):
            self._held_next = batch.next_offset
        else:
            self._hold(Batch(placeholder(batch.header, batch.next_offset)))

    def _hold(self, batch: Batch, *, fixed: bool = False) -> None:
        """Holds a batch back until its range is known. A `fixed` one is written unchanged."""
        self._flush_held()
        self._held = batch
        self._held_next = batch.next_offset
        self._held_is_fixed = fixed

    def _flush_held(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        data = held.data
        if self._held_next != held.next_offset:
            data = widened(held, self._held_next)
        self._emit(data, held.base_offset, held.append_time_us)

    def _emit(self, data: bytes | bytearray | memoryview, base: int, time_us: int) -> None:
        if self.position >= self._index_at:
            self._index.add(base, self.position, time_us)
            self._index_at = self.position + self._interval_bytes
        self._last_time_us = time_us
        self.position += len(data)
        if self._fd >= 0:
            self._buffer.append(bytes(data))
            self._buffered_bytes += len(data)
            if self._buffered_bytes >= _BUFFER_BYTES:
                self._write_buffer()

    # The file

    def _name(self) -> str:
        generation = 1 + max(map(generation_of, self._sources))
        return compacted_stem(self._sources[0].base, self._sources[-1].next_offset, generation)

    def _materialise(self) -> None:
        """Creates the file, with the batches that were unchanged until now."""
        if self._fd >= 0:
            return
        first = self._sources[0]
        # Its final name is known only with the last source; this one has the number of the try.
        attempt = compacted_stem(first.base, 0, 1 + generation_of(first))
        self._path = f"{self._folder}/{attempt}{LOG_SUFFIX}{TEMPORARY_SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._fd = os.open(self._path, flags, 0o666)
        source = os.open(log_path(self._folder, first), os.O_RDONLY)
        try:
            at = 0
            while at < self.position:
                data = read_at(source, at, min(_COPY_BYTES, self.position - at))
                if not data:
                    raise OSError(errno.EIO, "A sealed segment has become shorter")
                write_all(self._fd, data, at)
                at += len(data)
        finally:
            os.close(source)

    def _write_buffer(self) -> None:
        data, self._buffer = b"".join(self._buffer), []
        self._buffered_bytes = 0
        if data:
            write_all(self._fd, data, self.position - len(data))
