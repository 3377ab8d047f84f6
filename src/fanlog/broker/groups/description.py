"""A group as operators see it: its members, its partitions, its lag; and the effect of a reset."""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Iterator
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

# Topics' names that are sorted in one step.
_SORTED_AT_ONCE = 512


async def describe_group(
    broker: GroupPorts, name: str, group: ConsumerGroup | None, *, waits: bool
) -> GroupInfo:
    """A group with its members, if it has any. `waits`: for members of before the start."""
    durable = broker.durable
    known: dict[str, set[int]] = {}
    async for position in broker.slices.each(durable.each_position(GROUP_PREFIX + name)):
        known.setdefault(position.topic, set()).add(position.partition)
    async for tp in broker.slices.each([] if group is None else list(group.owned)):
        known.setdefault(tp.topic, set()).add(tp.partition)
    partitions: list[GroupPartitionInfo] = []
    async for tp in broker.slices.each(await _in_order(broker, known)):
        owned = None if group is None else group.owned.get(tp)
        committed = durable.position(GROUP_PREFIX + name, *tp)
        if owned is None and committed is None:
            continue  # It was deleted, or released, meanwhile.
        found = await _describe_partition(
            broker,
            tp,
            committed,
            "" if owned is None else owned.member.id,
        )
        if found is not None:
            partitions.append(found)
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
        partitions=tuple(partitions),
    )


async def _in_order(broker: GroupPorts, known: dict[str, set[int]]) -> Iterator[TopicPartition]:
    """Partitions by topic, in order. There may be very many topics."""
    names, runs = list(known), list[list[str]]()
    async for first in broker.slices.each(range(0, len(names), _SORTED_AT_ONCE)):
        runs.append(sorted(names[first : first + _SORTED_AT_ONCE]))
    return (
        TopicPartition(name, index) for name in heapq.merge(*runs) for index in sorted(known[name])
    )


async def _describe_partition(
    broker: GroupPorts, tp: TopicPartition, committed: Position | None, owner: str
) -> GroupPartitionInfo | None:
    topic = broker.catalog.find(tp[0])
    if topic is None or tp[1] >= len(topic.partitions):
        return None
    partition = topic.partitions[tp[1]]
    start, end = partition.log.start_offset, partition.visible_end
    wanted = start
    if committed is not None:
        wanted = max(start, continue_at(partition, committed, broker.epoch))
    lag = max(0, end - wanted)
    return GroupPartitionInfo(
        topic=tp[0],
        partition=tp[1],
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
    durable = broker.durable
    known: dict[str, set[int]] = {}
    if wanted.topic:
        topic = broker.catalog.get(check_not_internal(wanted.topic))
        known[topic.name] = set(range(len(topic.partitions)))
    else:
        async for position in broker.slices.each(durable.each_position(name)):
            known.setdefault(position.topic, set()).add(position.partition)
    if wanted.partitions is not None:
        chosen = set(wanted.partitions)
        missing = chosen.difference(*known.values())
        if missing:
            raise PartitionNotFoundError(
                f"The group {wanted.group!r} has no partition {min(missing)} to reset in "
                f"{wanted.topic or 'its topics'!r}. See what it has with: fanlog group describe "
                f"{shlex.quote(wanted.group)}"
            )
        known = {topic: indexes & chosen for topic, indexes in known.items()}
    steps: list[ResetStep] = []
    async for tp in broker.slices.each(await _in_order(broker, known)):
        found = broker.catalog.find(tp[0])
        if found is not None and tp[1] < len(found.partitions):
            partition = found.partitions[tp[1]]
            offset = await broker.reading.find_offset(partition, wanted.start)
            after = min(max(offset, partition.log.start_offset), partition.visible_end)
            before = durable.position(name, *tp)
            steps.append(ResetStep(*tp, None if before is None else before.offset, after))
    return steps
