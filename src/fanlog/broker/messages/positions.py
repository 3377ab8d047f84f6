"""Decides whether a position still means what it meant.

A position is an offset, the epoch in which it was reached, and the number of its topic. A crash
can take the end of a log, and a topic can be deleted and made again; then other records have the
same offsets. See `log/epochs.py`.
"""

from __future__ import annotations

import msgspec

from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.errors import FencedError, InvalidArgumentError, OffsetOutOfRangeError, no_partition
from fanlog.format.messages import Position
from fanlog.log.epochs import parted_at
from fanlog.model import Durability


def known_until(partition: Partition, epoch: int, now: int) -> int:
    """The offset up to which a log is unchanged since an epoch; -1 if nothing is. `now` is the
    broker's epoch."""
    if partition.durability is Durability.MEMORY:
        return partition.visible_end if epoch == now else -1
    parted = parted_at(partition.log.epochs, epoch)
    end = partition.visible_end
    return end if parted is None else min(parted, end)


def is_valid(partition: Partition, position: Position, now: int) -> bool:
    """Whether all that was read before a position is still the log's."""
    if position.number not in (0, partition.topic.number):
        return False
    return position.offset <= known_until(partition, position.epoch, now)


def continue_at(partition: Partition, position: Position, now: int) -> int:
    """Where a reader resumes: at its position, or where the log parted from the one that it
    knew."""
    if is_valid(partition, position, now):
        return position.offset
    start = min(partition.log.start_offset, partition.visible_end)
    if not position.epoch or position.number not in (0, partition.topic.number):
        # Nobody knows what the reader has read: it rather gets too much.
        return start
    return max(start, known_until(partition, position.epoch, now))


def checked_position(topic: BrokerTopic, position: Position, now: int) -> Position:
    """A position to commit, with the epoch and the number of its topic. Raises if it is not one of
    this topic's log."""
    if position.number not in (0, topic.number):
        raise FencedError(
            f"This position is of another topic {topic.name!r}, which was deleted; nothing was "
            "committed. Read the topic that has the name now."
        )
    if position.offset < 0:
        raise InvalidArgumentError(f"An offset is 0 or more, not {position.offset}.")
    if not 0 <= position.partition < len(topic.partitions):
        missing = no_partition(topic.name, len(topic.partitions), position.partition)
        raise InvalidArgumentError(str(missing))
    partition = topic.partitions[position.partition]
    # A position without an epoch means the log as it is now.
    position = msgspec.structs.replace(position, epoch=position.epoch or now, number=topic.number)
    if is_valid(partition, position, now):
        return position
    where = f"partition {partition.index} of {topic.name!r}"
    if position.epoch == now:
        raise OffsetOutOfRangeError(
            f"Offset {position.offset} is past the end of {where}, which is "
            f"{partition.visible_end}; nothing was committed. Commit what was read."
        )
    raise FencedError(
        f"What was read before offset {position.offset} is not in {where} any more: the broker was "
        "restarted, and a crash took the end of the log, or it lives in memory. Nothing was "
        "committed. Readers get a gap event, and resume behind the gap."
    )
