"""A queue as operators see it, and the effect of a reset."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from fanlog.broker.messages.topics import Partition
from fanlog.broker.names import check_not_internal
from fanlog.broker.queues.queue import Queue
from fanlog.broker.queues.queue_partition import QueuePartition
from fanlog.broker.queues.spans import JobState
from fanlog.errors import PartitionNotFoundError
from fanlog.format.messages import ResetGroup
from fanlog.model import GroupInfo, GroupMemberInfo, GroupPartitionInfo, ResetStep

if TYPE_CHECKING:
    from fanlog.broker.queues.ports import QueuePorts


async def describe_queue(broker: QueuePorts, queue: Queue, now_us: int) -> GroupInfo:
    parts = await _in_order(broker, queue)
    partitions = [
        await _describe_partition(broker, part, now_us) async for part in broker.slices.each(parts)
    ]
    members = tuple(
        GroupMemberInfo(
            id=worker.id,
            client=worker.client,
            target=worker.target,
            static=worker.named,
            present=worker.subscription is not None,
            partitions=sum(queue.met.get(number, 0) for number in worker.topics),
            in_flight=worker.in_hand,
        )
        for worker in sorted(queue.workers.values(), key=lambda worker: worker.id)
    )
    return GroupInfo(
        name=queue.name,
        kind="queue",
        state="active" if queue.present() else "inactive",
        members=members,
        partitions=tuple(partitions),
        queue=queue.settings,
        redelivered=queue.redelivered,
        dead_lettered=queue.dead_lettered,
    )


async def _describe_partition(
    broker: QueuePorts, part: QueuePartition, now_us: int
) -> GroupPartitionInfo:
    partition, jobs = part.partition, part.jobs
    floor = max(jobs.floor, partition.log.start_offset)
    done_above = sum(next - first for first, next in jobs.done_ranges())
    lag = max(0, partition.visible_end - floor - done_above)
    retrying = [s for s in jobs.spans if s.state is JobState.WAITING and s.failures]
    due_us = min((span.due_us for span in retrying), default=None)
    return GroupPartitionInfo(
        topic=partition.topic.name,
        partition=partition.index,
        committed=jobs.floor,
        start_offset=partition.log.start_offset,
        end_offset=partition.visible_end,
        lag=lag,
        lag_seconds=await broker.reading.age_seconds(partition, floor) if lag else 0.0,
        in_flight=jobs.leased,
        waiting=jobs.waiting,
        retrying=sum(len(span) for span in retrying),
        next_retry_seconds=None if due_us is None else max(0, due_us - now_us) / 1e6,
        urgent=_urgent(part),
    )


def _urgent(part: QueuePartition) -> dict[int, int]:
    """Number of waiting jobs by priority: handed out before, and new."""
    counts: dict[int, int] = {}
    for span in part.jobs.spans if part.ahead is not None else ():
        if span.state is JobState.WAITING and span.priority:
            counts[span.priority] = counts.get(span.priority, 0) + len(span)
    for priority, (first, next) in () if part.ahead is None else part.ahead.runs():
        waiting = max(0, next - max(first, part.jobs.next))
        for span in part.jobs.spans.within(first, min(next, part.jobs.next)):
            if span.state is JobState.WAITING and not span.priority:
                waiting += min(next, span.next) - max(first, span.first)
        if waiting:
            counts[priority] = counts.get(priority, 0) + waiting
    return dict(sorted(counts.items(), reverse=True))


async def plan_queue_reset(
    broker: QueuePorts, queue: Queue, wanted: ResetGroup
) -> list[tuple[Partition, ResetStep]]:
    """Where a reset puts a queue, partition by partition; without a topic, everywhere that it has
    worked. An offset outside of a log becomes the end that is nearer."""
    if wanted.topic:
        partitions = list(broker.catalog.get(check_not_internal(wanted.topic)).partitions)
    else:
        partitions = [part.partition for part in await _in_order(broker, queue)]
    if wanted.partitions is not None:
        missing = set(wanted.partitions) - {partition.index for partition in partitions}
        if missing:
            raise PartitionNotFoundError(
                f"The queue {queue.name!r} has no partition {min(missing)} to reset in "
                f"{wanted.topic or 'its topics'!r}. See what it has with: fanlog group describe "
                f"{shlex.quote(queue.name)}"
            )
        partitions = [p for p in partitions if p.index in wanted.partitions]
    steps: list[tuple[Partition, ResetStep]] = []
    async for partition in broker.slices.each(partitions):
        offset = await broker.reading.find_offset(partition, wanted.start)
        after = min(max(offset, partition.log.start_offset), partition.visible_end)
        part = queue.partitions.get((partition.topic.number, partition.index))
        floor = None if part is None else part.jobs.floor
        steps.append((partition, ResetStep(partition.topic.name, partition.index, floor, after)))
    return steps


async def _in_order(broker: QueuePorts, queue: Queue) -> list[QueuePartition]:
    """A queue's partitions by topic. There may be very many."""
    known: dict[str, list[QueuePartition]] = {}
    async for part in broker.slices.each(list(queue.partitions.values())):
        known.setdefault(part.partition.topic.name, []).append(part)
    found: list[QueuePartition] = []
    async for name in broker.slices.each(sorted(known)):
        found += sorted(known[name], key=lambda part: part.partition.index)
    return found
