"""The records of delayed messages, read from the log by their offsets. Those that will be due soon
are read ahead, many at a time: they lie all over the log, and each read brings a whole block."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from fanlog.broker.messages.topics import Partition
from fanlog.broker.ports import Runtime
from fanlog.errors import DamagedError, FanlogError, OffsetOutOfRangeError
from fanlog.format.batch import Batch, split_batches
from fanlog.log.partition import PartitionLog
from fanlog.log.retrying import retry_briefly

logger = logging.getLogger("fanlog.broker")

# At least this much of a block is read: the next record is often near.
_READ_BYTES = 256 * 1024


class DelayedRecord(NamedTuple):
    """A delayed message as in the log; see `fanlog.format.schedules`."""

    offset: int
    key: bytes
    value: bytes
    time_us: int
    append_time_us: int


class DelayedRecordsFound(NamedTuple):
    """Records, and the offsets of those that did not fit."""

    records: list[DelayedRecord]
    unread: list[int]


RecordsDone = Callable[[DelayedRecordsFound | FanlogError], None]


class ScheduleRecords:
    """`keep_all`: there are no files to read them from again."""

    def __init__(self, runtime: Runtime, bytes_max: int, *, keep_all: bool) -> None:
        self._runtime = runtime
        self._bytes_max = bytes_max
        self.keep_all = keep_all
        self._kept: dict[int, DelayedRecord] = {}
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, offset: int) -> bool:
        return offset in self._kept

    def has_room(self) -> bool:
        return self.keep_all or self._kept_bytes < self._bytes_max

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    def keep(self, record: DelayedRecord) -> None:
        if record.offset not in self._kept and self.has_room():
            self._kept[record.offset] = record
            self._kept_bytes += len(record.value)

    def forget(self, offset: int) -> None:
        record = self._kept.pop(offset, None)
        if record is not None:
            self._kept_bytes -= len(record.value)

    def read(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int, done: RecordsDone
    ) -> None:
        """Calls `done` with the records at these offsets, in order, up to about `bytes_max`.
        Missing or damaged records are left out."""
        kept = self._kept
        missing = [] if self.keep_all else [offset for offset in offsets if offset not in kept]
        if not missing:
            done(DelayedRecordsFound([kept[offset] for offset in offsets if offset in kept], []))
            return
        found = {offset: kept[offset] for offset in offsets if offset in kept}
        log, end = partition.log, partition.visible_end

        def read(got: DelayedRecordsFound | Exception) -> None:
            if isinstance(got, Exception):
                done(got if isinstance(got, FanlogError) else FanlogError(f"Reading failed: {got}"))
                return
            found.update((record.offset, record) for record in got.records)
            done(
                DelayedRecordsFound(
                    [found[offset] for offset in offsets if offset in found], got.unread
                )
            )

        def work() -> DelayedRecordsFound:
            return retry_briefly(
                lambda: read_records(log, missing, end, bytes_max), "Delayed messages"
            )

        self._runtime.in_thread(work, read)


def read_records(
    log: PartitionLog, offsets: Iterable[int], end: int, bytes_max: int
) -> DelayedRecordsFound:
    """The records at these offsets that still exist. Blocks."""
    wanted = sorted(offsets)
    found: list[DelayedRecord] = []
    i = size = 0
    while i < len(wanted) and size < bytes_max:
        try:
            block = log.read(wanted[i], end, _READ_BYTES)
        except DamagedError as fault:
            logger.error("delayed messages can't be read: %s", fault)
            after = fault.next
        except OffsetOutOfRangeError:
            after = wanted[i] + 1
        else:
            inside = _before(wanted, i, block.next_offset)
            for record in _pick(block.data, wanted[i:inside]):
                found.append(record)
                size += len(record.value)
            after = block.next_offset
        i = max(i + 1, _before(wanted, i, after))
    return DelayedRecordsFound(found, wanted[i:])


def _before(wanted: Sequence[int], i: int, offset: int) -> int:
    while i < len(wanted) and wanted[i] < offset:
        i += 1
    return i


def _pick(data: memoryview, wanted: Sequence[int]) -> Iterator[DelayedRecord]:
    """The records of a block at these offsets."""
    i = 0
    for at, header in split_batches(data):
        end = _before(wanted, i, header.next_offset)
        if end > i:
            try:
                yield from _pick_batch(Batch(data[at : at + header.length], header), wanted[i:end])
            except FanlogError as fault:
                logger.error("delayed messages can't be read: %s", fault)
        i = end
        if i == len(wanted):
            return


def _pick_batch(batch: Batch, wanted: Sequence[int]) -> Iterator[DelayedRecord]:
    columns = batch.columns
    keys, values, times = columns.key_column, columns.value_column, columns.event_times_us
    if keys is None or times is None:
        return
    offsets = batch.offsets
    for offset in wanted:
        at = bisect_left(offsets, offset)
        if at == len(offsets) or offsets[at] != offset:
            continue
        key, value = keys[at], values[at]
        if key is not None and value is not None:
            yield DelayedRecord(offset, key, value, times[at], batch.append_time_us)
