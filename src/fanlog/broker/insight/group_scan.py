"""Scans all groups and queues in steps. The result is a row for each, for lists with search and
sort. A step takes about 50 µs, however many partitions a group has, or jobs a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from fanlog.broker.insight.record_times import UNREADABLE, Asked, RecordTimes
from fanlog.broker.messages.positions import continue_at
from fanlog.broker.queues.spans import JobSpan, JobState
from fanlog.model import GROUP_PREFIX, GroupKind, GroupState, TopicPartition

if TYPE_CHECKING:
    from fanlog.broker.insight.ports import ObservedBroker
    from fanlog.broker.messages.topics import Partition
    from fanlog.broker.queues.queue import Queue
    from fanlog.broker.queues.queue_partition import QueuePartition
    from fanlog.format.messages import Position

T = TypeVar("T")

_PARTITIONS_A_STEP = 16
_SPANS_A_STEP = 256
# Records whose age is read from disk after one scan. Later scans read the others.
_LOADED_MAX = 256


class GroupRow:
    """A group or queue. `lag` counts messages that are not committed, or jobs that are not done.
    `oldest_us` is when the oldest of them was appended, 0 if it is not known; `unknown` counts the
    partitions for which the broker has to read that from disk."""

    __slots__ = (
        "dead_lettered",
        "delivered",
        "in_flight",
        "kind",
        "lag",
        "members",
        "name",
        "oldest_us",
        "partitions",
        "rebalances",
        "redelivered",
        "retrying",
        "state",
        "topics",
        "unknown",
    )

    def __init__(self, name: str, kind: GroupKind, state: GroupState) -> None:
        self.name = name
        self.kind: GroupKind = kind
        self.state: GroupState = state
        self.members = 0
        self.topics = 0
        self.partitions = 0
        self.lag = 0
        self.oldest_us = 0
        self.unknown = 0
        self.rebalances = 0
        self.in_flight = 0
        self.retrying = 0
        self.delivered = 0
        self.redelivered = 0
        self.dead_lettered = 0

    def add_age(self, time_us: int) -> None:
        if time_us != UNREADABLE:
            self.oldest_us = min(self.oldest_us or time_us, time_us)


class GroupScan:
    """Scans everything. Times that must be read from disk are known in the next scan."""

    def __init__(self, broker: ObservedBroker) -> None:
        self._broker = broker
        self.times = RecordTimes(broker)

    async def rows(self) -> list[GroupRow]:
        """All groups and queues, in no order."""
        ages = Ages(self.times)
        steps = self._broker.slices.each(self._steps(ages))
        rows = [row async for row in steps if row is not None]
        await ages.load()
        return rows

    def _steps(self, ages: Ages) -> Iterator[GroupRow | None]:
        broker = self._broker
        for name in list(broker.durable.names()):
            if name.startswith(GROUP_PREFIX):
                yield from self._group(name.removeprefix(GROUP_PREFIX), ages)
        for name in broker.groups.active_names():
            if not broker.durable.has(GROUP_PREFIX + name):
                yield from self._group(name, ages)
        for queue in broker.queues.every():
            yield from self._queue(queue, ages)

    def _group(self, name: str, ages: Ages) -> Iterator[GroupRow | None]:
        broker = self._broker
        group = broker.groups.find(name)
        row = GroupRow(name, "stream", broker.groups.state(name))
        if group is not None:
            row.members, row.rebalances = len(group.members), group.rebalances
        topics: set[str] = set()
        known: set[TopicPartition] = set()
        for i, position in enumerate(broker.durable.each_committed(GROUP_PREFIX + name)):
            if i and not i % _PARTITIONS_A_STEP:
                yield None
            if group is not None:
                known.add(TopicPartition(position.topic, position.partition))
            topics.add(position.topic)
            self._add(row, position.topic, position.partition, position, ages)
        for i, tp in enumerate(list(group.owned) if group is not None else ()):
            if i and not i % _PARTITIONS_A_STEP:
                yield None
            if tp not in known:
                topics.add(tp[0])
                self._add(row, *tp, None, ages)
        row.topics = len(topics)
        # All its commits may be of deleted topics.
        yield row if topics or group is not None else None

    def _add(
        self, row: GroupRow, name: str, index: int, committed: Position | None, ages: Ages
    ) -> None:
        broker = self._broker
        topic = broker.catalog.find(name)
        if topic is None or index >= len(topic.partitions):
            return
        partition = topic.partitions[index]
        row.partitions += 1
        end = partition.visible_end
        if (
            committed is not None
            and committed.offset >= end
            and committed.epoch == broker.epoch
            and committed.number == topic.number
        ):
            return  # Most groups keep up.
        wanted = wanted_offset(broker, partition, committed)
        if end > wanted:
            row.lag += end - wanted
            ages.add(row, partition, wanted)

    def _queue(self, queue: Queue, ages: Ages) -> Iterator[GroupRow | None]:
        row = GroupRow(queue.name, "queue", queue_state(queue))
        row.members = len(queue.workers)
        row.partitions = len(queue.partitions)
        row.topics = len({number for number, _ in queue.partitions})
        row.delivered, row.redelivered = queue.delivered, queue.redelivered
        row.dead_lettered = queue.dead_lettered
        for i, part in enumerate(list(queue.partitions.values())):
            if i and not i % _PARTITIONS_A_STEP:
                yield None
            lag = queue_partition_lag(part)
            row.in_flight += part.jobs.leased
            if lag:
                row.lag += lag
                ages.add(row, part.partition, queue_partition_floor(part))
            for spans in span_steps(part) if part.jobs.waiting else ():
                row.retrying += sum(len(span) for span in spans if is_retried(span))
                yield None
        yield row


class Ages:
    """Finds the oldest record of each row: at once where it is in memory, and in `load` where it
    has to be read."""

    def __init__(self, times: RecordTimes) -> None:
        self._times = times
        self._wanted: dict[Asked, list[GroupRow]] = {}

    def add(self, row: GroupRow, partition: Partition, offset: int) -> None:
        time_us = self._times.maybe_time(partition, offset)
        if time_us is not None:
            row.add_age(time_us)
            return
        row.unknown += 1
        rows = self._wanted.get((partition, offset))
        if rows is not None:
            rows.append(row)
        elif len(self._wanted) < _LOADED_MAX:
            self._wanted[partition, offset] = [row]

    async def load(self) -> None:
        await self._times.load(self._wanted)
        for asked, rows in self._wanted.items():
            time_us = self._times.maybe_time(*asked)
            for row in rows if time_us is not None else ():
                row.unknown -= 1
                row.add_age(time_us or UNREADABLE)


def find_partition(broker: ObservedBroker, tp: TopicPartition) -> Partition | None:
    topic = broker.catalog.find(tp[0])
    if topic is None or tp[1] >= len(topic.partitions):
        return None
    return topic.partitions[tp[1]]


def wanted_offset(broker: ObservedBroker, partition: Partition, committed: Position | None) -> int:
    """The first record after the group's stored offset, if the log still has it."""
    start = partition.log.start_offset
    if committed is None:
        return start
    if committed.epoch == broker.epoch and committed.number == partition.topic.number:
        # Most positions are of this start. The others may need the log's history.
        return max(start, committed.offset)
    return max(start, continue_at(partition, committed, broker.epoch))


def queue_state(queue: Queue) -> GroupState:
    present = any(worker.subscription is not None for worker in queue.workers.values())
    return "active" if present else "inactive"


def queue_partition_floor(part: QueuePartition) -> int:
    """The first job that is not done."""
    return max(part.jobs.floor, part.partition.log.start_offset)


def queue_partition_lag(part: QueuePartition) -> int:
    """Jobs of a queue partition that are not done."""
    jobs, partition = part.jobs, part.partition
    behind = 0 if jobs.order is None else jobs.order.parked
    handed_out = max(jobs.next, partition.log.start_offset)
    return max(0, partition.visible_end - handed_out) + jobs.leased + jobs.waiting + behind


def is_retried(span: JobSpan) -> bool:
    """Whether these jobs have failed, and wait for their next delivery."""
    return span.state is JobState.WAITING and span.failures > 0


def span_steps(part: QueuePartition) -> Iterator[list[JobSpan]]:
    """A queue partition's jobs, some at a time. They may change meanwhile."""
    spans = list(part.jobs.spans)
    for at in range(0, len(spans), _SPANS_A_STEP):
        yield spans[at : at + _SPANS_A_STEP]


def in_steps(items: Iterable[T], do: Callable[[T], None]) -> Iterator[None]:
    """Applies a function to each, a few in one step."""
    for i, item in enumerate(items):
        if not i % _PARTITIONS_A_STEP:
            yield
        do(item)
