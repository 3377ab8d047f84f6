"""Deleting a topic's records before an offset: checked for all partitions before the first one is
touched, so that a wrong request deletes nothing. A topic may have thousands of partitions: they are
deleted in slices, and the followers of the topic are notified once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.errors import (
    OffsetOutOfRangeError,
    TopicNotFoundError,
    no_partition,
)
from fanlog.format.messages import PartitionOffset

if TYPE_CHECKING:
    from fanlog.broker.lifecycle.ports import TruncationPorts


async def delete_in_slices(
    broker: TruncationPorts, checked: list[tuple[Partition, int]]
) -> list[PartitionOffset]:
    """Deletes what `check_deletion` has returned; where each partition begins now. Threads wait for
    the disk, and others have their turns in between."""
    starts: list[PartitionOffset] = []
    try:
        async for partition, offset in broker.slices.each(checked):
            start = await _delete_in_thread(broker, partition, offset)
            starts.append(PartitionOffset(partition.index, start))
    finally:
        # Once for all of them, because each subscriber checks every partition of the topic.
        if starts and not checked[0][0].topic.deleted:
            broker.events.truncated(checked[0][0].topic)
    return starts


async def _delete_in_thread(broker: TruncationPorts, partition: Partition, offset: int) -> int:
    """Deletes the records of one partition; where it begins now."""
    log = partition.log
    # Two deletions of one log must not write down where it begins in the wrong order.
    async with broker.deleting:
        save = log.begin_deletion(offset)
        if save is not None:
            try:
                await broker.threaded(save)
            except OSError as fault:
                log.refuse(fault)
        if partition.topic.deleted:
            raise TopicNotFoundError(f"Topic {partition.topic.name!r} was deleted.")
        tail_bytes = log.tail.bytes
        start = log.end_deletion(offset)
        broker.turns.resized(partition, tail_bytes)
    return start


def check_deletion(topic: BrokerTopic, offsets: dict[int, int]) -> list[tuple[Partition, int]]:
    """The partitions that will begin at these offsets; raises if one of them can't."""
    return [(_partition(topic, index, offset), offset) for index, offset in offsets.items()]


def _partition(topic: BrokerTopic, index: int, offset: int) -> Partition:
    if not 0 <= index < len(topic.partitions):
        raise no_partition(topic.name, len(topic.partitions), index)
    partition = topic.partitions[index]
    if not 0 <= offset <= partition.visible_end:
        raise OffsetOutOfRangeError(
            f"Partition {index} of {topic.name!r} ends at offset {partition.visible_end}; it can't "
            f"begin at {offset}. Nothing was deleted: give {partition.visible_end} at most, or "
            "latest."
        )
    return partition
