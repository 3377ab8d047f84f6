"""A group as operators see it: its members, its partitions, its lag; and the effect of a reset."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from fanlog.broker.groups.state import ConsumerGroup
from fanlog.broker.messages.positions import continue_at
from fanlog.broker.names import check_not_internal
from fanlog.errors import PartitionNotFoundError
from fanlog.format.messages import Position, ResetGroup
from fanlog.model import (
    GROUP_PREFIX,
    GroupInfo,
    GroupMemberInfo,
    GroupPartitionInfo,
    GroupState,
    ResetStep,
    TopicPartition,
)

if TYPE_CHECKING:
    from fanlog.broker.groups.ports import GroupPorts


async def describe_group(
    broker: GroupPorts, name: str, group: ConsumerGroup | None, *, waits: bool
) -> GroupInfo:
    """A group with its members, if it has any. `waits`: for members of before the start."""
    positions = broker.durable.positions(GROUP_PREFIX + name)
    committed = {TopicPartition(p.topic, p.partition): p for p in positions}
    owners = {} if group is None else {p: o.member.id for p, o in group.owned.items()}
    partitions = [
        await _describe_partition(broker, place, committed.get(place), owners.get(place, ""))
        async for place in broker.slices.each(sorted({*committed, *owners}))
    ]
    state: GroupState = "inactive"
    members: tuple[GroupMemberInfo, ...] = ()
    if group is not None:
        state = "rebalancing" if waits or group.revoking else "active"
        members = tuple(
            GroupMemberInfo(
                id=member.id,
                client=member.client,
                target=member.target,
                static=member.static,
                present=member.subscription is not None,
                partitions=len(member.owned),
            )
            for member in sorted(group.members.values(), key=lambda member: member.id)
        )
    return GroupInfo(
        name=name,
        kind="stream",
        state=state,
        rebalances=0 if group is None else group.rebalances,
        members=members,
        partitions=tuple(found for found in partitions if found is not None),
    )


async def _describe_partition(
    broker: GroupPorts, place: TopicPartition, committed: Position | None, owner: str
) -> GroupPartitionInfo | None:
    topic = broker.catalog.find(place[0])
    if topic is None or place[1] >= len(topic.partitions):
        return None
    partition = topic.partitions[place[1]]
    start, end = partition.log.start_offset, partition.visible_end
    wanted = start
    if committed is not None:
        wanted = max(start, continue_at(partition, committed, broker.epoch))
    lag = max(0, end - wanted)
    return GroupPartitionInfo(
        topic=place[0],
        partition=place[1],
        committed=None if committed is None else committed.offset,
        start_offset=start,
        end_offset=end,
        lag=lag,
        lag_seconds=await broker.reading.age_seconds(partition, wanted) if lag else 0.0,
        member=owner,
    )


async def plan_reset(broker: GroupPorts, wanted: ResetGroup) -> list[ResetStep]:
    """Where a reset puts a group, partition by partition. Without a topic, everywhere that it has
    committed; an offset outside of a log becomes the end that is nearer."""
    name = GROUP_PREFIX + wanted.group
    known = {(p.topic, p.partition): p.offset for p in broker.durable.positions(name)}
    places = sorted(place for place in known if wanted.topic in ("", place[0]))
    if wanted.topic:
        topic = broker.catalog.get(check_not_internal(wanted.topic))
        places = [(topic.name, partition.index) for partition in topic.partitions]
    if wanted.partitions is not None:
        chosen = set(wanted.partitions)
        missing = chosen - {index for _, index in places}
        if missing:
            raise PartitionNotFoundError(
                f"The group {wanted.group!r} has no partition {min(missing)} to reset in "
                f"{wanted.topic or 'its topics'!r}. See what it has with: fanlog group describe "
                f"{shlex.quote(wanted.group)}"
            )
        places = [place for place in places if place[1] in chosen]
    steps: list[ResetStep] = []
    async for place in broker.slices.each(places):
        found = broker.catalog.find(place[0])
        if found is not None and place[1] < len(found.partitions):
            partition = found.partitions[place[1]]
            offset = await broker.reading.find_offset(partition, wanted.start)
            after = min(max(offset, partition.log.start_offset), partition.visible_end)
            steps.append(ResetStep(*place, known.get(place), after))
    return steps
