"""A group that begins at a time: it is given a position in every partition that it has none in,
before its first member joins. A topic that appears later is read from its first record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fanlog.broker.topics import Topic
from fanlog.errors import InvalidArgumentError
from fanlog.format.messages import JoinGroup, Position
from fanlog.model import GROUP_PREFIX, Start

if TYPE_CHECKING:
    from fanlog.broker.core import Broker


async def place_group(broker: Broker, wanted: JoinGroup, start: Start) -> None:
    """Commits where a group begins. Raises what speaks against it."""
    if start.kind != "time":
        raise InvalidArgumentError(
            f"A group can't begin at {start.kind} by its start: use a time, or its reset policy."
        )
    broker.groups.check_seat(wanted)
    name = GROUP_PREFIX + wanted.group
    async for topic in broker.slices.each(_topics(broker, wanted)):
        places: list[Position] = []
        for partition in topic.partitions:
            if broker.durable.position(name, topic.name, partition.index) is None:
                offset = await broker.find_offset(partition, start)
                places.append(
                    Position(topic.name, partition.index, offset, broker.epoch, topic.number)
                )
        # Others may have been faster, and the topic may be gone.
        free = [p for p in places if broker.durable.position(name, p.topic, p.partition) is None]
        if free and not topic.deleted:
            broker.durable.commit([(name, broker.check_positions(name, free))])
    # Nobody reads what a power cut could make the group leave out.
    await broker.begun(broker.internal.when_durable)


def _topics(broker: Broker, wanted: JoinGroup) -> Iterator[Topic]:
    if wanted.wildcard:
        yield from broker.catalog.each_matching(wanted.target)
    elif (topic := broker.catalog.find(wanted.target)) is not None:
        yield topic
