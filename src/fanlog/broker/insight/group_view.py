"""The view of one group or queue, made in steps: members with their lag, partitions, and for a
queue the leased jobs and the jobs that wait for a retry. Its size is bounded, except for one small
row for each partition."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.insight.group_scan import (
    Ages,
    GroupRow,
    find_partition,
    in_steps,
    is_retried,
    queue_partition_floor,
    queue_partition_lag,
    queue_state,
    span_steps,
    wanted_offset,
)
from fanlog.broker.ports import Addressed
from fanlog.broker.queues.spans import JobSpan, JobState
from fanlog.model import GROUP_PREFIX, TopicPartition

if TYPE_CHECKING:
    from fanlog.broker.groups.state import ConsumerMember
    from fanlog.broker.insight.ports import ObservedBroker
    from fanlog.broker.insight.record_times import RecordTimes
    from fanlog.broker.messages.topics import BrokerSubscription, Partition
    from fanlog.broker.queues.queue import Queue, QueueWorker
    from fanlog.format.messages import Position

# The most leases shown for one worker, the oldest first.
LEASES_MAX = 50
# The most retries shown, by due time.
RETRIES_MAX = 1000


class PartitionRow:
    """A partition that a group reads, or a queue works on. `wanted` is the first record that is
    not done."""

    __slots__ = (
        "committed",
        "end",
        "in_flight",
        "lag",
        "member",
        "number",
        "partition",
        "retrying",
        "start",
        "topic",
        "wanted",
    )

    def __init__(self, partition: Partition, wanted: int) -> None:
        self.partition = partition
        self.topic = partition.topic.name
        self.number = partition.index
        self.start = partition.log.start_offset
        self.end = partition.visible_end
        self.wanted = wanted
        self.committed: int | None = None
        self.lag = 0
        self.member = ""
        self.in_flight = 0
        self.retrying = 0


class LeaseRow(NamedTuple):
    """Adjacent jobs leased to a worker. Times are of the monotonic clock."""

    since_us: int
    due_us: int
    topic: str
    partition: int
    first: int
    next: int
    deliveries: int


class RetryRow(NamedTuple):
    """Adjacent failed jobs, and their due time on the monotonic clock."""

    due_us: int
    topic: str
    partition: int
    first: int
    next: int
    failures: int
    reason: str


@dataclass(slots=True)
class MemberRow:
    """A member or worker, and its lag."""

    id: str
    client: str
    target: str
    static: bool
    present: bool
    address: str = ""
    prefetch: int = 0
    partitions: int = 0
    lag: int = 0
    in_flight: int = 0
    leases: list[LeaseRow] = field(default_factory=list[LeaseRow])


@dataclass(slots=True)
class TopicSum:
    """The lag of a group in one topic."""

    name: str
    partitions: int = 0
    lag: int = 0


class GroupView:
    """`row` has the sums. `retries` are the first due of `row.retrying` jobs."""

    def __init__(self, row: GroupRow) -> None:
        self.row = row
        self.members: dict[str, MemberRow] = {}
        self.partitions: list[PartitionRow] = []
        self.topics: dict[str, TopicSum] = {}
        self.retries: list[RetryRow] = []

    def add(self, found: PartitionRow, ages: Ages) -> None:
        row = self.row
        row.partitions += 1
        row.lag += found.lag
        row.in_flight += found.in_flight
        row.retrying += found.retrying
        self.partitions.append(found)
        topic = self.topics.get(found.topic)
        if topic is None:
            topic = self.topics[found.topic] = TopicSum(found.topic)
            row.topics += 1
        topic.partitions += 1
        topic.lag += found.lag
        member = self.members.get(found.member)
        if member is not None:
            member.lag += found.lag
        if found.lag:
            ages.add(row, found.partition, found.wanted)


async def view_group(broker: ObservedBroker, name: str, times: RecordTimes) -> GroupView | None:
    """A group or queue as it is now; None if there is none."""
    queue = broker.queues.find(name)
    if queue is None and not broker.groups.is_known(name):
        return None
    kind = "stream" if queue is None else "queue"
    state = broker.groups.state(name) if queue is None else queue_state(queue)
    view, ages = GroupView(GroupRow(name, kind, state)), Ages(times)
    steps = _group_steps(broker, view, ages) if queue is None else _queue_steps(queue, view, ages)
    async for _ in broker.slices.each(steps):
        pass
    await ages.load()
    return view


def _group_steps(broker: ObservedBroker, view: GroupView, ages: Ages) -> Iterator[None]:
    name = view.row.name
    group = broker.groups.find(name)
    owners: dict[TopicPartition, str] = {}
    if group is not None:
        view.row.rebalances = group.rebalances
        owners = {tp: owned.member.id for tp, owned in group.owned.items()}

        def add_member(member: ConsumerMember) -> None:
            view.members[member.id] = MemberRow(
                member.id,
                member.client,
                member.target,
                member.static,
                member.subscription is not None,
                address=_address(member.subscription),
                partitions=len(member.owned),
            )

        yield from in_steps(list(group.members.values()), add_member)
        view.row.members = len(view.members)

    def add(tp: TopicPartition, committed: Position | None) -> None:
        partition = find_partition(broker, tp)
        if partition is not None:
            found = PartitionRow(partition, wanted_offset(broker, partition, committed))
            found.committed = None if committed is None else committed.offset
            found.lag = max(0, found.end - found.wanted)
            found.member = owners.pop(tp, "")
            view.add(found, ages)

    yield
    committed = broker.durable.each_committed(GROUP_PREFIX + name)
    yield from in_steps(committed, lambda at: add(TopicPartition(at.topic, at.partition), at))
    yield from in_steps(list(owners), lambda tp: add(tp, None))


def _queue_steps(queue: Queue, view: GroupView, ages: Ages) -> Iterator[None]:
    row = view.row
    row.delivered, row.redelivered = queue.delivered, queue.redelivered
    row.dead_lettered = queue.dead_lettered

    def add_worker(worker: QueueWorker) -> None:
        view.members[worker.id] = MemberRow(
            worker.id,
            worker.client,
            worker.target,
            worker.named,
            worker.subscription is not None,
            address=_address(worker.subscription),
            prefetch=worker.prefetch,
            in_flight=worker.in_hand,
        )

    yield from in_steps(list(queue.workers.values()), add_worker)
    row.members = len(view.members)
    for part in list(queue.partitions.values()):
        found = PartitionRow(part.partition, queue_partition_floor(part))
        found.committed = part.jobs.floor
        found.lag = queue_partition_lag(part)
        found.in_flight = part.jobs.leased
        if part.jobs.leased or part.jobs.waiting:
            for spans in span_steps(part):
                for span in spans:
                    _take_in(view, found, span)
                yield
        view.add(found, ages)
        yield

    def choose(member: MemberRow) -> None:
        member.leases = heapq.nsmallest(LEASES_MAX, member.leases)

    yield from in_steps(view.members.values(), choose)
    view.retries = heapq.nsmallest(RETRIES_MAX, view.retries)


def _take_in(view: GroupView, found: PartitionRow, span: JobSpan) -> None:
    """Collects leased jobs, and jobs that wait for a retry, up to the limits."""
    tp = (found.topic, found.number, span.first, span.next)
    if span.state is JobState.LEASED:
        worker = view.members.get(span.worker)
        if worker is not None:
            worker.leases.append(LeaseRow(span.since_us, span.due_us, *tp, span.failures + 1))
            if len(worker.leases) > 4 * LEASES_MAX:
                worker.leases = heapq.nsmallest(LEASES_MAX, worker.leases)
    elif is_retried(span):
        found.retrying += len(span)
        view.retries.append(RetryRow(span.due_us, *tp, span.failures, span.reason))
        if len(view.retries) > 2 * RETRIES_MAX:
            view.retries = heapq.nsmallest(RETRIES_MAX, view.retries)


def _address(subscription: BrokerSubscription | None) -> str:
    """Where a member's connection comes from; empty if it is in this process."""
    outlet = None if subscription is None else subscription.outlet
    return outlet.peer if isinstance(outlet, Addressed) else ""
