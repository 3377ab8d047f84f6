"""Stretches of a partition's log, for readers in both directions: whole batches as they are stored,
or the offsets that can't be read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from fanlog.errors import DamagedError, OffsetOutOfRangeError, TopicDeletedError
from fanlog.log.lookup import out_of_range

if TYPE_CHECKING:
    from fanlog.broker.messages.reading import Reading
    from fanlog.broker.messages.topics import Partition
    from fanlog.log.partition import Block


class OffsetGap(NamedTuple):
    """Offsets from `first` up to, not including, `next` that can't be read."""

    first: int
    next: int
    reason: str


async def read_pieces(
    reading: Reading, partition: Partition, offset: int, high: int, bytes_max: int
) -> tuple[list[memoryview], int] | OffsetGap:
    """Batches from an offset on, and the offset after them; or the unreadable range. Data on disk
    is read in blocks."""
    log = partition.log
    if partition.topic.deleted:
        name = partition.topic.name
        raise TopicDeletedError(f"Topic {name!r} was deleted while it was read.")
    try:
        if offset < log.start_offset:
            raise out_of_range(log.start_offset, offset)
        tail = log.tail
        if tail.start_offset <= offset < tail.end_offset:
            return tail.read(offset, high, bytes_max)
        block = await _block(reading, partition, offset)
    except DamagedError as fault:
        if fault.next <= offset:
            raise
        return OffsetGap(offset, min(fault.next, high), "damaged")
    except OffsetOutOfRangeError:
        # Retention has deleted it meanwhile.
        start = log.start_offset
        if start <= offset:
            raise
        return OffsetGap(offset, min(start, high), "retention")
    return [block.data], block.next_offset


async def _block(reading: Reading, partition: Partition, offset: int) -> Block:
    future: asyncio.Future[Block] = asyncio.get_running_loop().create_future()

    def done(got: Block | Exception) -> None:
        if future.done():
            return
        if isinstance(got, Exception):
            future.set_exception(got)
        else:
            future.set_result(got)

    reading.load_block(partition, offset, done)
    return await future
