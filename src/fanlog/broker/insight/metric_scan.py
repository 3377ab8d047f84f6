"""Scans all topics, groups and queues in steps. It selects those that matter most, and sums up all
others. The counters of the others only grow: otherwise a program that computes rates would see a
reset whenever a topic enters or leaves the selection. So they add what a topic gained while it was
not selected.

It is long because topics, groups and queues are ranked and summed up alike, in one walk.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fanlog.broker.groups.state import ConsumerGroup
from fanlog.broker.insight.peers import Peer, PeerSource, describe_peer, how_far_behind
from fanlog.broker.messages.positions import continue_at
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.names import is_hidden
from fanlog.broker.queues.queue import Queue
from fanlog.broker.queues.queue_partition import QueuePartition
from fanlog.format.messages import Position
from fanlog.model import GROUP_PREFIX, INTERNAL_PREFIX, TopicPartition
from fanlog.telemetry.snapshot import (
    OTHERS,
    GroupMetrics,
    QueueMetrics,
    ReaderMetrics,
    TopicMetrics,
)

if TYPE_CHECKING:
    from fanlog.broker.insight.ports import ObservedBroker

# Rates are averages over about this time.
_RATE_SECONDS = 10.0
# Topics scanned in one step: about 50 µs.
_TOPICS_A_STEP = 32
# Messages per second below which a topic counts as idle.
_IDLE_RATE = 1e-3

# The first three values of an entry are unique.
Ranked = TypeVar("Ranked", bound=tuple[Any, ...])
_QueueCounts = tuple[int, int, int]
_NOTHING: _QueueCounts = (0, 0, 0)


class MetricScan:
    """The result of a scan. `steps` fills it."""

    def __init__(self) -> None:
        self.topics: tuple[TopicMetrics, ...] = ()
        self.groups: tuple[GroupMetrics, ...] = ()
        self.queues: tuple[QueueMetrics, ...] = ()
        self.partition_count = 0
        self.group_count = 0
        self.group_lag = 0
        self.queue_lag = 0
        self.readers: tuple[ReaderMetrics, ...] = ()
        self.readers_behind = 0


class Scanner:
    """Scans everything. Keeps the counters of unnamed topics between scans."""

    def __init__(
        self,
        broker: ObservedBroker,
        named_max: int,
        listeners: Callable[[], Sequence[PeerSource]] = tuple,
    ) -> None:
        self._broker = broker
        self._scanned_us = 0
        self._topics = _TopicScan(broker, named_max)
        self._groups = _Groups(broker, named_max)
        self._queues = _Queues(broker, named_max)
        self._listeners = listeners
        self._named_max = named_max

    def steps(self, scan: MetricScan, now_us: int) -> Iterator[None]:
        """Fills a scan. `now_us` is of the monotonic clock."""
        seconds = (now_us - self._scanned_us) / 1e6 if self._scanned_us else 0.0
        self._scanned_us = now_us
        yield from self._topics.steps(scan, seconds)
        yield from self._groups.steps(scan)
        yield from self._queues.steps(scan)
        yield from self._readers(scan)

    def _readers(self, scan: MetricScan) -> Iterator[None]:
        """Connections that are behind, and their lag."""
        best: list[tuple[int, int, str, Peer]] = []
        for listener in list(self._listeners()):
            for peer in listener.peers():
                yield
                messages, size = how_far_behind(peer)
                if messages or size:
                    scan.readers_behind += 1
                    _keep_best(best, (size, messages, peer.id, peer), self._named_max)
        best.sort(key=lambda one: one[:3], reverse=True)
        scan.readers = tuple(
            reader_metrics(peer, messages, size) for size, messages, _, peer in best
        )


class _RankedTopic(NamedTuple):
    """Topics by rate, then by size, then by number."""

    rate: float
    kept_bytes: int
    number: int
    topic: BrokerTopic
    grown: _QueueCounts


class _TopicScan:
    def __init__(self, broker: ObservedBroker, named_max: int) -> None:
        self._broker = broker
        self._named_max = named_max
        # Counts of topics while they were unnamed: messages, bytes, and misses of readers.
        self._others: _QueueCounts = (0, 0, 0)
        self._missed: dict[int, int] = {}

    def steps(self, scan: MetricScan, seconds: float) -> Iterator[None]:
        weight = 1 - math.exp(-seconds / _RATE_SECONDS)
        best: list[_RankedTopic] = []
        grown = kept = (0, 0, 0)
        missed_before, self._missed = self._missed, {}
        least = -1.0, -1
        for i, topic in enumerate(list(self._broker.catalog)):
            if not i % _TOPICS_A_STEP:
                yield
            messages, kept_messages, kept_bytes, readers = sizes_of(topic)
            more = _NOTHING
            if messages != topic.seen_messages or topic.counters is not None:
                more = self._growth(topic, messages, missed_before)
                grown = _plus(grown, more)
            if more[0] or topic.rates is not None:
                _take_rates(topic, more, seconds, weight)
            if messages or readers:
                kept = _plus(kept, (kept_messages, kept_bytes, readers))
            scan.partition_count += len(topic.partitions)
            rate = 0.0 if topic.rates is None else topic.rates[1]
            if (rate, kept_bytes) > least and not is_nameless(topic.name):
                one = _RankedTopic(rate, kept_bytes, topic.number, topic, more)
                _keep_best(best, one, self._named_max)
                if best and len(best) == self._named_max:
                    least = best[0][:2]
        best.sort(reverse=True)
        named = [topic_metrics(one.topic) for one in best]
        scan.topics = (*named, self._sum_up(scan, best, named, grown, kept))

    def _growth(
        self, topic: BrokerTopic, messages: int, missed_before: dict[int, int]
    ) -> _QueueCounts:
        """What was published to a topic, and missed by its readers, since the last scan."""
        more = max(0, messages - topic.seen_messages)
        more_bytes = topic.published_bytes - topic.seen_bytes
        topic.seen_messages, topic.seen_bytes = messages, topic.published_bytes
        if topic.counters is None:
            return more, more_bytes, 0
        missed = self._missed[topic.number] = missed_in(topic)
        return more, more_bytes, max(0, missed - missed_before.get(topic.number, 0))

    def _sum_up(
        self,
        scan: MetricScan,
        best: list[_RankedTopic],
        named: list[TopicMetrics],
        grown: _QueueCounts,
        kept: _QueueCounts,
    ) -> TopicMetrics:
        """The sum of all unnamed topics."""
        for one, found in zip(best, named, strict=True):
            grown = _minus(grown, one.grown)
            kept = _minus(kept, (found.stored_messages, found.stored_bytes, found.readers))
        self._others = _plus(self._others, grown)
        messages, published_bytes, missed = self._others
        return TopicMetrics(
            name=OTHERS,
            partitions=scan.partition_count - sum(found.partitions for found in named),
            published_messages=messages,
            published_bytes=published_bytes,
            stored_messages=kept[0],
            stored_bytes=kept[1],
            readers=kept[2],
            missed_messages=missed,
        )


class _Groups:
    def __init__(self, broker: ObservedBroker, named_max: int) -> None:
        self._broker = broker
        self._named_max = named_max

    def steps(self, scan: MetricScan) -> Iterator[None]:
        broker = self._broker
        best: list[tuple[int, str, GroupMetrics]] = []
        sums = (0, 0, 0)
        names = {
            name.removeprefix(GROUP_PREFIX): None
            for name in broker.durable.names()
            if name.startswith(GROUP_PREFIX)
        }
        yield
        names |= dict.fromkeys(broker.groups.active_names())
        scan.group_count = len(names)
        for name in names:
            yield
            group = broker.groups.find(name)
            lag, partitions = yield from group_lag(broker, name, group)
            found = GroupMetrics(
                name=name,
                members=0 if group is None else len(group.members),
                partitions=partitions,
                lag=lag,
                rebalances=0 if group is None else group.rebalances,
            )
            sums = _plus(sums, (found.members, partitions, lag))
            if name != OTHERS:
                _keep_best(best, (lag, name, found), self._named_max)
        scan.group_lag = sums[2]
        named = [found for _, _, found in sorted(best, key=_by_lag)]
        for found in named:
            sums = _minus(sums, (found.members, found.partitions, found.lag))
        others = GroupMetrics(name=OTHERS, members=sums[0], partitions=sums[1], lag=sums[2])
        scan.groups = (*named, others)


def group_lag(
    broker: ObservedBroker, name: str, group: ConsumerGroup | None
) -> Generator[None, None, tuple[int, int]]:
    """How far a group is behind, and in how many partitions it reads, in steps."""
    committed = broker.durable.committed(GROUP_PREFIX + name)
    count, lag = len(committed), 0
    for i, position in enumerate(committed):
        if i and not i % _TOPICS_A_STEP:
            yield
        lag += lag_of(broker, position.topic, position.partition, position)
    known = (
        {(p.topic, p.partition) for p in committed} if group is not None else set[TopicPartition]()
    )
    for i, tp in enumerate(list(group.owned) if group is not None else ()):
        if i and not i % _TOPICS_A_STEP:
            yield
        if tp not in known:
            lag += lag_of(broker, *tp, None)
            count += 1
    return lag, count


class _Queues:
    def __init__(self, broker: ObservedBroker, named_max: int) -> None:
        self._broker = broker
        self._named_max = named_max
        # Counts of queues while they were unnamed: delivered, redelivered, dead letters.
        self._others: _QueueCounts = (0, 0, 0)
        self._counted: dict[str, _QueueCounts] = {}

    def steps(self, scan: MetricScan) -> Iterator[None]:
        best: list[tuple[int, str, QueueMetrics]] = []
        sums = held = (0, 0, 0)
        before, self._counted = self._counted, {}
        grown: dict[str, _QueueCounts] = {}
        for queue in self._broker.queues.every():
            yield
            found = queue_metrics(queue)
            counted = (found.delivered, found.redelivered, found.dead_lettered)
            self._counted[queue.name] = counted
            grown[queue.name] = _growth(counted, before.get(queue.name, (0, 0, 0)))
            sums = _plus(sums, (found.workers, found.partitions, found.lag))
            held = _plus(held, (found.in_flight, found.waiting, 0))
            if queue.name != OTHERS:
                _keep_best(best, (found.lag, queue.name, found), self._named_max)
        scan.queue_lag = sums[2]
        named = [found for _, _, found in sorted(best, key=_by_lag)]
        for found in named:
            del grown[found.name]
            sums = _minus(sums, (found.workers, found.partitions, found.lag))
            held = _minus(held, (found.in_flight, found.waiting, 0))
        for more in grown.values():
            self._others = _plus(self._others, more)
        delivered, redelivered, dead_lettered = self._others
        others = QueueMetrics(
            name=OTHERS,
            workers=sums[0],
            partitions=sums[1],
            lag=sums[2],
            in_flight=held[0],
            waiting=held[1],
            delivered=delivered,
            redelivered=redelivered,
            dead_lettered=dead_lettered,
        )
        scan.queues = (*named, others)


def reader_metrics(peer: Peer, messages: int, size: int) -> ReaderMetrics:
    """A connection that is behind."""
    info = describe_peer(peer)
    cursor = next(peer.behind(), None)
    subscription = None if cursor is None else cursor.subscription
    return ReaderMetrics(
        connection=info.id,
        listener=info.listener,
        user=info.user,
        client=info.client,
        target=", ".join(info.subscriptions) if subscription is None else subscription.target,
        group="" if subscription is None else subscription.group,
        policy="" if subscription is None else subscription.policy.value,
        messages=messages,
        bytes=size,
    )


def is_nameless(name: str) -> bool:
    """The broker's own topics, inboxes and streams are never named: there may be many, and not
    everybody may see them."""
    return name.startswith(INTERNAL_PREFIX) or is_hidden(name, ">") or name == OTHERS


def sizes_of(topic: BrokerTopic) -> tuple[int, int, int, int]:
    """Messages published, messages kept, their bytes, and readers."""
    messages = kept_messages = kept_bytes = readers = 0
    for partition in topic.partitions:
        end = partition.visible_end
        readers += partition.readers
        if end:
            log = partition.log
            messages += end
            kept_messages += end - log.start_offset
            kept_bytes += log.bytes
    return messages, kept_messages, kept_bytes, readers


def _take_rates(topic: BrokerTopic, more: _QueueCounts, seconds: float, weight: float) -> None:
    """Updates a topic's average rates. A topic that is idle for long has none. The first scan gives
    no rate."""
    if not seconds:
        return
    messages, published_bytes = more[0] / seconds, more[1] / seconds
    if topic.rates is not None:
        before = topic.rates
        messages = before[0] + weight * (messages - before[0])
        published_bytes = before[1] + weight * (published_bytes - before[1])
    topic.rates = (messages, published_bytes) if messages > _IDLE_RATE else None


def missed_in(topic: BrokerTopic) -> int:
    """Messages that its readers missed since the start."""
    counters = topic.counters
    return 0 if counters is None else counters.skipped_records + counters.lost_records


def topic_metrics(topic: BrokerTopic) -> TopicMetrics:
    """A topic now, with the rates of the last scan."""
    messages, kept_messages, kept_bytes, readers = sizes_of(topic)
    rates = topic.rates or (0.0, 0.0)
    return TopicMetrics(
        name=topic.name,
        partitions=len(topic.partitions),
        published_messages=messages,
        published_bytes=topic.published_bytes,
        stored_messages=kept_messages,
        stored_bytes=kept_bytes,
        readers=readers,
        missed_messages=missed_in(topic),
        messages_per_second=round(rates[0], 3),
        bytes_per_second=round(rates[1], 3),
    )


def lag_of(broker: ObservedBroker, name: str, index: int, position: Position | None) -> int:
    """Messages of a topic partition behind a group's position; all of them if it has none."""
    topic = broker.catalog.find(name)
    if topic is None or index >= len(topic.partitions):
        return 0
    partition = topic.partitions[index]
    end = partition.visible_end
    if not end:
        return 0
    wanted = partition.log.start_offset
    if position is None:
        return end - wanted
    epoch = broker.epoch
    if position.epoch == epoch and position.number == topic.number:
        # Most positions are of this start. The others may need the log's history.
        return max(0, end - max(wanted, position.offset))
    return max(0, end - max(wanted, continue_at(partition, position, epoch)))


def queue_partition_lag(part: QueuePartition) -> int:
    """Jobs of a queue partition that are not done."""
    jobs, partition = part.jobs, part.partition
    behind = 0 if jobs.order is None else jobs.order.parked
    handed_out = max(jobs.next, partition.log.start_offset)
    return max(0, partition.visible_end - handed_out) + jobs.leased + jobs.waiting + behind


def queue_metrics(queue: Queue) -> QueueMetrics:
    lag = in_flight = waiting = 0
    for part in queue.partitions.values():
        lag += queue_partition_lag(part)
        in_flight += part.jobs.leased
        waiting += part.jobs.waiting
    return QueueMetrics(
        name=queue.name,
        workers=len(queue.workers),
        partitions=len(queue.partitions),
        lag=lag,
        in_flight=in_flight,
        waiting=waiting,
        delivered=queue.delivered,
        redelivered=queue.redelivered,
        dead_lettered=queue.dead_lettered,
    )


def _growth(now: _QueueCounts, then: _QueueCounts) -> _QueueCounts:
    """The count since then. A queue that was created again begins at 0."""
    return now if now[0] < then[0] else _minus(now, then)


def _plus(one: _QueueCounts, other: _QueueCounts) -> _QueueCounts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _minus(one: _QueueCounts, other: _QueueCounts) -> _QueueCounts:
    """Never below 0: the subtracted value may be a moment newer."""
    return max(0, one[0] - other[0]), max(0, one[1] - other[1]), max(0, one[2] - other[2])


def _by_lag(ranked: tuple[int, str, object]) -> tuple[int, str]:
    """The largest lag first."""
    return -ranked[0], ranked[1]


def _keep_best(best: list[Ranked], one: Ranked, most: int) -> None:
    """Keeps the highest in a heap."""
    if len(best) < most:
        heapq.heappush(best, one)
    elif best and one[:3] > best[0][:3]:
        heapq.heapreplace(best, one)
