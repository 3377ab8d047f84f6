"""Deleting a topic's records before an offset: checked for all partitions before the first one is
touched, so that a wrong request deletes nothing."""

from __future__ import annotations

from fanlog.broker.commits import Commits
from fanlog.broker.topics import Partition, Topic
from fanlog.errors import OffsetOutOfRangeError, PartitionNotFoundError
from fanlog.format.messages import PartitionOffset


def delete_records(
    topic: Topic, offsets: dict[int, int], commits: Commits
) -> list[PartitionOffset]:
    """Deletes what is before these offsets, one for each partition; where each begins now. Each
    waits for the disk."""
    starts: list[PartitionOffset] = []
    for partition, offset in check_deletion(topic, offsets):
        tail_bytes = partition.log.tail.bytes
        try:
            start = partition.log.delete_before(offset)
        finally:
            commits.resized(partition, tail_bytes)
        starts.append(PartitionOffset(partition.index, start))
    return starts


def check_deletion(topic: Topic, offsets: dict[int, int]) -> list[tuple[Partition, int]]:
    """The partitions that are to begin at these offsets; raises if one of them can't."""
    return [(_partition(topic, index, offset), offset) for index, offset in offsets.items()]


def _partition(topic: Topic, index: int, offset: int) -> Partition:
    if not 0 <= index < len(topic.partitions):
        raise PartitionNotFoundError(
            f"Topic {topic.name!r} has {len(topic.partitions)} partitions; there is no {index}."
        )
    partition = topic.partitions[index]
    if not 0 <= offset <= partition.visible_end:
        raise OffsetOutOfRangeError(
            f"Partition {index} of {topic.name!r} ends at offset {partition.visible_end}; it can't "
            f"begin at {offset}. Nothing was deleted."
        )
    return partition
