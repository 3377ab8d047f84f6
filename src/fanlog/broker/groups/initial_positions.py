"""The start of a group without positions. A group that starts at a time gets a position in every
partition before its first member joins; a group that starts at the end uses the end that its first
member found. A topic that appears later is read from its first record."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.threads import begun
from fanlog.errors import InvalidArgumentError
from fanlog.format.messages import JoinGroup, Position
from fanlog.model import GROUP_PREFIX, Start, TopicPartition

if TYPE_CHECKING:
    from fanlog.broker.groups.ports import GroupPorts
    from fanlog.broker.groups.state import ConsumerGroup

# A pattern may fit very many topics, and a member joins in one turn. A topic past these is read
# from the end that it has when it is granted.
_ENDS_MAX = 1000


def note_ends(broker: GroupPorts, group: ConsumerGroup, wanted: JoinGroup) -> None:
    """Notes where topics end as a member joins. Partitions are shared out some turns later, and
    nothing that is published meanwhile may be left out."""
    if wanted.reset != "latest":
        return
    for topic in islice(_topics(broker, wanted), _ENDS_MAX):
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.index)
            if broker.durable.position(group.offsets, *tp) is None:
                group.ends.setdefault(tp, partition.visible_end)


async def set_initial_positions(broker: GroupPorts, wanted: JoinGroup, start: Start) -> None:
    """Commits the start of a group. Raises if that is not allowed."""
    if start.kind != "time":
        raise InvalidArgumentError(
            f"A group can't begin at {start.kind} by its start: use a time, or its reset policy."
        )
    broker.groups.check_membership(wanted)
    name = GROUP_PREFIX + wanted.group
    async for topic in broker.slices.each(_topics(broker, wanted)):
        tps: list[Position] = []
        for partition in topic.partitions:
            if broker.durable.position(name, topic.name, partition.index) is None:
                offset = await broker.reading.find_offset(partition, start)
                tps.append(
                    Position(topic.name, partition.index, offset, broker.epoch, topic.number)
                )
        # Others may have been faster, and the topic may be gone.
        free = [p for p in tps if broker.durable.position(name, p.topic, p.partition) is None]
        if free and not topic.deleted:
            broker.durable.commit_positions([(name, broker.check_positions(name, free))])
    # Nobody reads records that the group could skip after a power cut.
    await begun(broker.internal.when_durable)


def _topics(broker: GroupPorts, wanted: JoinGroup) -> Iterator[BrokerTopic]:
    if wanted.wildcard:
        yield from broker.catalog.each_matching(wanted.target)
    elif (topic := broker.catalog.find(wanted.target)) is not None:
        yield topic
