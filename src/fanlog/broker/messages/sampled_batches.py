"""Sampled batches between the socket and their readers. What happens to them is only written down
here, in few words; `tracing.py` makes spans of it later, many at once.

Law: what is done once in a thousand batches is done with cold caches, and costs ten times what it
costs in a row. So a sampled batch neither ends the intake's loop nor begins a span. It is noted
with the offsets that it will get, and the intake says if it did not take it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fanlog.format.frames import FRAME_HEADER_BYTES
from fanlog.format.header import HEADER_BYTES, INCOMING, KIND_BATCH
from fanlog.format.trace_context import ENTRY_BYTES, TRACED_RECORDS_MAX, SampledRecord

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import Partition
    from fanlog.telemetry.tracing.spans import SpanLog

Find = Callable[[int], "Partition | None"]
# Notes kept before spans are made of them: enough to be worthwhile, and few enough for half a
# millisecond.
_PENDING_MAX = 64
_ENTRIES_BYTES_MAX = TRACED_RECORDS_MAX * ENTRY_BYTES


class SampledBatch(msgspec.Struct, frozen=True):
    """A sampled batch. It begins at `at` in the bytes that the intake takes; the TRACED frame that
    names its sampled records begins at `begin`. Its records get the offsets from `base` up to
    `next`. `marks` may still be the bytes that the publisher sent."""

    begin: int
    at: int
    partition: Partition
    base: int
    next: int
    bytes: int
    marks: bytes | list[SampledRecord]
    taken_us: int


class VisibleRange(msgspec.Struct, frozen=True):
    """A partition's offsets from `base` up to `end` became visible at `start_us`, and were sent to
    `readers` readers by `end_us`."""

    partition: Partition
    base: int
    end: int
    start_us: int
    end_us: int
    readers: int


class Sampled:
    """`noted` is empty but while a read is taken in. `hidden` has the partitions with sampled
    batches that nobody may see yet, and where the last of them ends. `pending` waits for
    `settle`, in the order in which it happened."""

    def __init__(self, spans: SpanLog, settle: Callable[[], None]) -> None:
        self._spans = spans
        self._settle = settle
        self.noted: list[SampledBatch] = []
        self.hidden: dict[Partition, int] = {}
        self.pending: list[SampledBatch | VisibleRange] = []

    def note_next(self, data: bytes, at: int, end: int, find: Find, now_us: int) -> bool:
        """Notes the batch behind the TRACED frame from `at` to `end`. False if the frame has to be
        looked at alone: its batch is not here or not whole yet, or something is wrong with it."""
        size = end - at - FRAME_HEADER_BYTES
        if size % ENTRY_BYTES or not 0 < size <= _ENTRIES_BYTES_MAX:
            return False
        if len(data) - end < HEADER_BYTES:
            return False
        length, kind, _, _, topic, _, _, _, index, _, _, count = INCOMING.unpack_from(data, end)
        if kind != KIND_BATCH or end + length > len(data):
            return False
        if not self._spans.is_full(now_us, len(self.noted), size // ENTRY_BYTES):
            partition = find(topic << 16 | index)
            if partition is not None:
                base, marks = partition.next_offset, data[at + FRAME_HEADER_BYTES : end]
                self.noted.append(
                    SampledBatch(at, end, partition, base, base + count, length, marks, now_us)
                )
        return True

    def note(
        self, data: bytes, at: int, marks: list[SampledRecord], find: Find, now_us: int
    ) -> None:
        """Notes the batch at `at`, which the intake takes next."""
        length, _, _, _, topic, _, _, _, index, _, _, count = INCOMING.unpack_from(data, at)
        partition = find(topic << 16 | index)
        if partition is not None:
            base = partition.next_offset
            self.noted.append(
                SampledBatch(at, at, partition, base, base + count, length, marks, now_us)
            )

    def not_taken(self, at: int) -> int:
        """The batch at `at` was not taken. Returns where the intake stops if the batch has to wait:
        before its TRACED frame."""
        if self.noted and self.noted[-1].at == at:
            return self.noted.pop().begin
        return at

    def taken(self) -> None:
        """The intake has taken the noted batches."""
        for one in self.noted:
            # A bad batch ends the read, and leaves its offsets to others.
            if one.next <= one.partition.next_offset:
                self.pending.append(one)
                self.hidden[one.partition] = one.next
        self.noted.clear()
        if len(self.pending) >= _PENDING_MAX:
            self._settle()

    def showed(self, partition: Partition, base: int, start_us: int, readers: int) -> None:
        """A hidden partition's offsets since `base` are visible, and all live readers have them."""
        end, now_us = partition.visible_end, self._spans.now_us()
        self.pending.append(VisibleRange(partition, base, end, start_us, now_us, readers))
        if end >= self.hidden[partition]:
            del self.hidden[partition]
        if len(self.pending) >= _PENDING_MAX:
            self._settle()
