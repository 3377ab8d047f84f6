"""Reads at an offset: fetches, blocks from disk, where a start lies, and a call when there is more.
Those who follow a partition have cursors instead (`fanout.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fanlog.broker.messages.last_messages import last_offsets
from fanlog.broker.messages.loader import Loader
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import Runtime
from fanlog.broker.threads import threaded
from fanlog.config import LogOptions
from fanlog.errors import FanlogError, InvalidArgumentError, TopicNotFoundError
from fanlog.format.batch import split_batches
from fanlog.format.header import read_header
from fanlog.format.messages import PartitionOffset
from fanlog.log.lookup import out_of_range
from fanlog.log.partition import Block
from fanlog.model import Start


class Reading:
    def __init__(self, loader: Loader, options: LogOptions, runtime: Runtime) -> None:
        self._loader = loader
        self._options = options
        self._runtime = runtime

    def fetch(
        self,
        partition: Partition,
        offset: int,
        bytes_max: int,
        done: Callable[[list[memoryview] | FanlogError], None],
        *,
        at_length: bool = False,
    ) -> None:
        """Calls `done` with the batches from `offset` on that are available now. Batches on disk
        come in one block, or with `at_length` in a larger one than readers share."""
        log = partition.log
        if partition.topic.deleted:
            done(
                TopicNotFoundError(f"Topic {partition.topic.name!r} was deleted while it was read.")
            )
        elif offset >= partition.visible_end:
            done([])
        elif offset < log.start_offset:
            done(out_of_range(log.start_offset, offset))
        elif offset >= log.tail.start_offset:
            done(log.tail.read(offset, partition.visible_end, bytes_max)[0])
        else:
            self._loader.load(
                partition,
                offset,
                lambda got: done(
                    _as_fault(got)
                    if isinstance(got, Exception)
                    else [batches_within(got.data, bytes_max)]
                ),
                self._bytes_at_length(bytes_max) if at_length else 0,
            )

    async def age_seconds(self, partition: Partition, offset: int) -> float:
        """The age of a record: that of its batch, from the header alone."""
        got: asyncio.Future[list[memoryview] | FanlogError]
        got = asyncio.get_running_loop().create_future()

        def done(result: list[memoryview] | FanlogError) -> None:
            if not got.done():
                got.set_result(result)

        self.fetch(partition, offset, 1, done)
        batches = await got
        if isinstance(batches, FanlogError) or not batches:
            return 0.0
        return max(0.0, (self._runtime.now_us() - read_header(batches[0]).append_time_us) / 1e6)

    def _bytes_at_length(self, bytes_max: int) -> int:
        """Bytes that a fetch may read from disk at once; 0 for the block that readers share."""
        wanted = min(bytes_max, self._options.fetch_block_bytes)
        return wanted if wanted > self._options.read_block_bytes else 0

    def load_block(
        self, partition: Partition, offset: int, done: Callable[[Block | Exception], None]
    ) -> None:
        """Calls `done` with the block on disk from the batch of `offset` on, or with the error."""
        self._loader.load(partition, offset, done)

    def when_more(self, partition: Partition, wake: Callable[[], None]) -> None:
        """Calls `wake` once when more becomes visible, or the topic goes."""
        partition.keep_audience().add_wake(wake)

    def no_more(self, partition: Partition, wake: Callable[[], None]) -> None:
        """Cancels a `when_more`: the waiting peer is gone, or its time is over."""
        if partition.audience is not None:
            partition.audience.drop_wake(wake)

    async def until_visible(self, partition: Partition, offset: int) -> None:
        """Waits until everything below an offset is visible, or the topic goes."""
        while partition.visible_end < offset and not partition.topic.deleted:
            more = asyncio.Event()
            self.when_more(partition, more.set)
            try:
                await more.wait()
            finally:
                self.no_more(partition, more.set)

    async def find_offset(self, partition: Partition, start: Start) -> int:
        """Where `start` lies in a partition."""
        log = partition.log
        if start.kind == "earliest":
            return log.start_offset
        if start.kind == "offset":
            if start.value < 0:
                raise InvalidArgumentError(f"An offset is 0 or more, not {start.value}.")
            return start.value
        if start.kind == "time":
            found = await threaded(self._runtime, lambda: log.offset_at(start.value))
            return min(found, partition.visible_end)
        if start.kind == "last":
            return (await last_offsets(self, [partition], start.value))[partition.index]
        return partition.visible_end

    async def find_offsets(self, topic: BrokerTopic, start: Start) -> tuple[PartitionOffset, ...]:
        """Where `start` lies in each partition of a topic."""
        if start.kind == "last":
            found = await last_offsets(self, topic.partitions, start.value)
            return tuple(PartitionOffset(p.index, found[p.index]) for p in topic.partitions)
        return tuple(
            [PartitionOffset(p.index, await self.find_offset(p, start)) for p in topic.partitions]
        )


def batches_within(data: memoryview, bytes_max: int) -> memoryview:
    """As many whole batches as fit, and one at least."""
    if len(data) <= bytes_max:
        return data
    end = 0
    for at, header in split_batches(data):
        if end and at + header.length > bytes_max:
            break
        end = at + header.length
    # A copy: a view would keep the whole block in memory.
    return data if end == len(data) else memoryview(bytes(data[:end]))


def _as_fault(fault: Exception) -> FanlogError:
    return fault if isinstance(fault, FanlogError) else FanlogError(f"Reading failed: {fault}")
