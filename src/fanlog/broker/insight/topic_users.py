"""The users of one topic: readers with cursors in it, groups and queues that read it, and producers
that its partitions remember. Each list comes from a scan in steps, and is cached and shared. The
cache has only plain values, so that it keeps no connection or log in memory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.insight.metric_scan import lag_of, queue_partition_lag
from fanlog.broker.insight.record_times import RecordTimes
from fanlog.broker.insight.shared_results import SharedResults
from fanlog.broker.insight.sliced_sort import order_of
from fanlog.broker.ports import Addressed
from fanlog.model import GROUP_PREFIX, PRODUCER_ID_MAX, GroupKind, GroupState, TopicPartition

if TYPE_CHECKING:
    from fanlog.broker.insight.metrics import MeasuredBroker
    from fanlog.broker.insight.peers import Peer
    from fanlog.broker.messages.topics import BrokerSubscription, BrokerTopic, Cursor, Partition
    from fanlog.broker.ports import Runtime
    from fanlog.broker.queues.queue import Queue
    from fanlog.broker.queues.queue_partition import QueuePartition

# Cursors, positions or producers scanned in one step: about 50 µs.
_A_STEP = 64
# The most cursors, and producers, scanned in all. With more, the result is a lower bound.
_LOOKED_AT_MAX = 500_000
# A client's name may be long.
_NAME_LENGTH_MAX = 100


@dataclass(slots=True)
class TopicReader:
    """A subscription, as far as it reads the topic. `position` is its next offset, if it reads a
    single topic partition; `live` says that it has got everything. `connection`, `user` and
    `transport` are empty for a client within the broker's own process."""

    address: str
    client: str
    target: str
    group: str
    policy: str
    partitions: int = 0
    position: int | None = None
    lag: int = 0
    live: bool = True
    connection: str = ""
    user: str = ""
    transport: str = ""


class TopicGroup(NamedTuple):
    """A group or queue that reads the topic, and its lag there."""

    name: str
    kind: GroupKind
    state: GroupState
    members: int
    partitions: int
    lag: int
    in_flight: int = 0
    waiting: int = 0


@dataclass(slots=True)
class TopicProducer:
    """A producer, by its id. `partition`, `sequence` and `offset` are those of its last message in
    the topic partition that it was seen in most recently; `idle` counts the messages of others
    behind it there."""

    id: int
    epoch: int
    partitions: int
    partition: int
    sequence: int
    offset: int
    idle: int


class _Who(NamedTuple):
    connection: str
    user: str
    transport: str


class TopicUsers:
    """Lists the users of topics."""

    def __init__(self, broker: MeasuredBroker, runtime: Runtime) -> None:
        self._broker = broker
        self._results = SharedResults(broker.slices, runtime)
        self.times = RecordTimes(broker)

    async def readers(self, topic: BrokerTopic) -> tuple[list[TopicReader], bool]:
        """Readers by lag, the largest first, and whether these are all."""
        return await self._results.get(
            ("readers", topic.number), lambda: _readers(self._broker, topic)
        )

    async def groups(self, topic: BrokerTopic) -> list[TopicGroup]:
        """Groups and queues by lag, the largest first."""
        return await self._results.get(
            ("groups", topic.number), lambda: _groups(self._broker, topic)
        )

    async def producers(
        self, topic: BrokerTopic, partition: int | None
    ) -> tuple[list[TopicProducer], bool]:
        """Producers, the most recent first, and whether these are all."""
        return await self._results.get(
            ("producers", topic.number, partition), lambda: _producers(topic, partition)
        )


# Readers


def _readers(
    broker: MeasuredBroker, topic: BrokerTopic
) -> Generator[None, None, tuple[list[TopicReader], bool]]:
    found: dict[BrokerSubscription, TopicReader] = {}
    there = at_end = looked_at = 0
    for partition in topic.partitions:
        yield
        there += partition.readers
        audience = partition.audience
        for cursor in () if audience is None else audience.cursors():
            at_end += 1
            if not at_end % _A_STEP:
                yield
            if at_end > _LOOKED_AT_MAX:
                return (yield from _by_lag(broker, found)), False
            _add(found, cursor)
    if at_end < there:
        for cursor in _behind(broker, topic):
            looked_at += 1
            if not looked_at % _A_STEP:
                yield
            if looked_at > _LOOKED_AT_MAX:
                return (yield from _by_lag(broker, found)), False
            if cursor is not None and not cursor.live and not cursor.dropped:
                _add(found, cursor)
    return (yield from _by_lag(broker, found)), True


def _add(found: dict[BrokerSubscription, TopicReader], cursor: Cursor) -> None:
    subscription, partition = cursor.subscription, cursor.partition
    reader = found.get(subscription)
    if reader is None:
        outlet = subscription.outlet
        reader = found[subscription] = TopicReader(
            address=outlet.peer if isinstance(outlet, Addressed) else "",
            client=_text(subscription.client),
            target=_text(subscription.target),
            group=_text(subscription.group),
            policy=subscription.policy.value,
        )
    end = partition.visible_end
    offset = end if cursor.live else max(cursor.offset, partition.log.start_offset)
    reader.partitions += 1
    reader.position = offset if reader.partitions == 1 else None
    reader.lag += max(0, end - offset)
    reader.live = reader.live and cursor.live


def _behind(broker: MeasuredBroker, topic: BrokerTopic) -> Iterable[Cursor | None]:
    """Cursors of the topic that may be before the end; None for each skipped one."""
    for subscription in broker.subscriptions.following(topic.name):
        for cursor in list(subscription.cursors):
            yield cursor if cursor.partition.topic is topic else None
    for name in broker.groups.following(topic):
        group = broker.groups.find(name.removeprefix(GROUP_PREFIX))
        if group is not None:
            for partition in topic.partitions:
                owned = group.owned.get(TopicPartition(topic.name, partition.index))
                yield None if owned is None else owned.cursor
    # Only the Redis listener knows its channels.
    for listener in broker.metrics.listeners:
        if listener.name == "redis":
            for peer in listener.peers():
                yield None
                for cursor in peer.behind():
                    yield cursor if cursor.partition.topic is topic else None


def _by_lag(
    broker: MeasuredBroker, found: dict[BrokerSubscription, TopicReader]
) -> Generator[None, None, list[TopicReader]]:
    """The sorted readers, with their connections."""
    rows = list(found.values())
    addresses = {row.address for row in rows if row.address}
    known: dict[str, _Who] = {}
    for listener in broker.metrics.listeners if addresses else ():
        for i, peer in enumerate(listener.peers()):
            if not i % _A_STEP:
                yield
            if peer.who.address in addresses and peer.transport != "http":
                known[peer.who.address] = _who(peer)
    for i, row in enumerate(rows):
        if not i % _A_STEP:
            yield
        row.connection, row.user, row.transport = known.get(row.address, _Who("", "", ""))
    order = yield from order_of([row.lag for row in rows], descending=True)
    return [rows[i] for i in order]


def _who(peer: Peer) -> _Who:
    return _Who(peer.id, _text(peer.who.user), peer.transport)


# Groups and queues


def _groups(broker: MeasuredBroker, topic: BrokerTopic) -> Generator[None, None, list[TopicGroup]]:
    found: list[TopicGroup] = []
    names = dict.fromkeys(
        name for name in broker.durable.names_beside(topic.name) if name.startswith(GROUP_PREFIX)
    )
    names |= dict.fromkeys(broker.groups.following(topic))
    for name in names:
        yield
        row = yield from _group(broker, topic, name.removeprefix(GROUP_PREFIX))
        if row is not None:
            found.append(row)
    for queue in broker.queues.every():
        yield
        row = yield from _queue(queue, topic)
        if row is not None:
            found.append(row)
    order = yield from order_of([row.lag for row in found], descending=True)
    return [found[i] for i in order]


def _group(
    broker: MeasuredBroker, topic: BrokerTopic, name: str
) -> Generator[None, None, TopicGroup | None]:
    group, offsets = broker.groups.find(name), GROUP_PREFIX + name
    lag = partitions = 0
    for i, partition in enumerate(topic.partitions):
        if not (i + 1) % _A_STEP:
            yield
        tp = (topic.name, partition.index)
        position = broker.durable.position(offsets, *tp)
        if position is not None or (group is not None and tp in group.owned):
            partitions += 1
            lag += lag_of(broker, *tp, position)
    if not partitions and group is None:
        return None
    state = broker.groups.state(name)
    return TopicGroup(
        name, "stream", state, 0 if group is None else len(group.members), partitions, lag
    )


def _queue(queue: Queue, topic: BrokerTopic) -> Generator[None, None, TopicGroup | None]:
    partitions = lag = in_flight = waiting = 0
    for i, part in enumerate(_queue_partitions(queue, topic)):
        if not (i + 1) % _A_STEP:
            yield
        if part is not None:
            partitions += 1
            lag += queue_partition_lag(part)
            in_flight += part.jobs.leased
            waiting += part.jobs.waiting
    if not partitions:
        return None
    state: GroupState = "active" if queue.present() else "inactive"
    workers = len(queue.workers)
    return TopicGroup(queue.name, "queue", state, workers, partitions, lag, in_flight, waiting)


def _queue_partitions(queue: Queue, topic: BrokerTopic) -> Iterable[QueuePartition | None]:
    """The queue's partitions of a topic, by the shorter search; None for each skipped one."""
    parts = queue.partitions
    if len(parts) < len(topic.partitions):
        for (number, _), part in list(parts.items()):
            yield part if number == topic.number else None
    else:
        for partition in topic.partitions:
            yield parts.get((topic.number, partition.index))


# Producers


def _producers(
    topic: BrokerTopic, partition: int | None
) -> Generator[None, None, tuple[list[TopicProducer], bool]]:
    found: dict[int, TopicProducer] = {}
    looked_at = 0
    for one in topic.partitions if partition is None else [topic.partitions[partition]]:
        yield
        producers = one.producers or {}
        for known in list(producers):
            looked_at += 1
            if not looked_at % _A_STEP:
                yield
            if looked_at > _LOOKED_AT_MAX:
                return (yield from _by_idleness(found)), False
            _take(found, one, known)
    return (yield from _by_idleness(found)), True


def _take(found: dict[int, TopicProducer], partition: Partition, known: int) -> None:
    producer = (partition.producers or {}).get(known)
    if producer is None:
        return
    idle = max(0, partition.next_offset - producer.run_next)
    row = found.get(known)
    seen = 0 if row is None else row.partitions
    if row is None or idle < row.idle:
        last = producer.next_sequence - 1, producer.run_next - 1
        row = found[known] = TopicProducer(
            known, producer.epoch, seen, partition.index, *last, idle
        )
    row.partitions = seen + 1


def _by_idleness(
    found: dict[int, TopicProducer],
) -> Generator[None, None, list[TopicProducer]]:
    rows = list(found.values())
    order = yield from order_of([row.idle for row in rows])
    return [rows[i] for i in order]


def is_transaction(producer_id: int) -> bool:
    """Whether an id is the broker's own, for messages of transactions."""
    return producer_id > PRODUCER_ID_MAX


def _text(name: str) -> str:
    """A name in valid JSON."""
    return name[:_NAME_LENGTH_MAX].encode(errors="replace").decode()
