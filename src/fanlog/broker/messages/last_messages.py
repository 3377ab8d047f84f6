"""Where the last N messages of a topic begin, over all its partitions in the order of time.

It reads only the headers of batches, from the end backwards in steps: compaction may have left few
records within many offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.errors import FanlogError, InvalidArgumentError
from fanlog.format.batch import Batch, split_batches
from fanlog.format.columns import SPARSE
from fanlog.model import Start

# A page shows far fewer. It reads the header of every batch of them.
LAST_MAX = 10_000
_READ_BYTES = 1 << 20
_EARLIEST = Start("earliest")


class OffsetSource(Protocol):
    """Where partitions are read: `Reading`, here or on an edge."""

    async def find_offset(self, partition: Partition, start: Start) -> int: ...

    def fetch(
        self,
        partition: Partition,
        offset: int,
        bytes_max: int,
        done: Callable[[list[memoryview] | FanlogError], None],
    ) -> None: ...


class _RecordRun(NamedTuple):
    """A batch's records."""

    time_us: int
    partition: int
    offsets: Sequence[int]


def check_last(count: int) -> int:
    if not 1 <= count <= LAST_MAX:
        raise InvalidArgumentError(
            f"`last` is 1 to {LAST_MAX} messages, not {count}. Start at an offset or a time for "
            "more."
        )
    return count


async def last_offsets(
    source: OffsetSource, partitions: Sequence[Partition], count: int
) -> dict[int, int]:
    """The offset in each partition where its share of the last `count` messages begins."""
    check_last(count)
    if len(partitions) == 1 and not _has_holes(partitions[0]):
        (only,) = partitions
        start = await _start_of(source, only)
        return {only.index: max(start, only.visible_end - count)}
    offsets = {partition.index: partition.visible_end for partition in partitions}
    runs: list[_RecordRun] = []
    for partition in partitions:
        runs += await _last_runs(source, partition, count)
    left = count
    for run in sorted(runs, key=lambda run: (run.time_us, run.offsets[0]), reverse=True):
        taken = run.offsets[-left:]
        offsets[run.partition] = min(offsets[run.partition], taken[0])
        left -= len(taken)
        if not left:
            break
    return offsets


def _has_holes(partition: Partition) -> bool:
    log = partition.log
    compacted = partition.topic.settings.cleanup == "compact" or log.compacted_until > 0
    return compacted or bool(log.damaged)


async def _last_runs(source: OffsetSource, partition: Partition, count: int) -> list[_RecordRun]:
    """At least the last `count` records of a partition, or all if there are fewer."""
    end = partition.visible_end
    span = count
    while True:
        start = min(await _start_of(source, partition), end)
        begin = max(start, end - span)
        runs = await _runs(source, partition, begin, end)
        if begin == start or sum(len(run.offsets) for run in runs) >= count:
            return runs
        span *= 8


async def _start_of(source: OffsetSource, partition: Partition) -> int:
    # Asked for: an edge does not hold all of a log that it mirrors.
    return min(await source.find_offset(partition, _EARLIEST), partition.visible_end)


async def _runs(
    source: OffsetSource, partition: Partition, begin: int, end: int
) -> list[_RecordRun]:
    runs: list[_RecordRun] = []
    offset = begin
    while offset < end:
        try:
            pieces = await _fetched(source, partition, offset)
        except FanlogError:
            # The reader learns about unreadable records when it gets there.
            return runs
        if not pieces:
            return runs
        for piece in pieces:
            for at, header in split_batches(piece):
                offset = header.next_offset
                if header.flags & SPARSE:
                    found = Batch(piece[at : at + header.length], header).offsets
                else:
                    found = range(header.base_offset, offset)
                kept = [o for o in found if begin <= o < end]
                if kept:
                    runs.append(_RecordRun(header.append_time_us, partition.index, kept))
    return runs


async def _fetched(source: OffsetSource, partition: Partition, offset: int) -> list[memoryview]:
    future: asyncio.Future[list[memoryview]] = asyncio.get_running_loop().create_future()

    def done(got: list[memoryview] | FanlogError) -> None:
        if future.done():
            return
        if isinstance(got, FanlogError):
            future.set_exception(got)
        else:
            future.set_result(got)

    source.fetch(partition, offset, _READ_BYTES, done)
    return await future
