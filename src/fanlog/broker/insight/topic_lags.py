"""The lag of the groups and queues of each topic, from one scan in steps."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.insight.metric_scan import lag_of, queue_partition_lag
from fanlog.model import GROUP_PREFIX, GroupKind

if TYPE_CHECKING:
    from fanlog.broker.groups.state import ConsumerGroup
    from fanlog.broker.insight.ports import ObservedBroker
    from fanlog.broker.queues.queue import Queue

# Positions scanned in one step: about 50 µs.
_A_STEP = 32
_NAMES_A_STEP = 512


class LargestLag(NamedTuple):
    """The largest lag in a topic, and the name of its group or queue."""

    lag: int
    name: str
    kind: GroupKind


TopicLags = dict[str, LargestLag]


def scan_lags(broker: ObservedBroker) -> Generator[None, None, TopicLags]:
    """The largest lag of a group or queue, by topic."""
    found: TopicLags = {}
    looked_at: set[str] = set()
    # Groups with commits first, then those with only members.
    for name in chain(_committed_names(broker), broker.groups.active_names()):
        if name in looked_at:
            continue
        looked_at.add(name)
        yield
        lags = yield from _group_lags(broker, name, broker.groups.find(name))
        _take(found, lags, name, "stream")
    for queue in broker.queues.every():
        yield
        lags = yield from _queue_lags(queue)
        _take(found, lags, queue.name, "queue")
    return found


def _committed_names(broker: ObservedBroker) -> Iterator[str]:
    """Groups that have committed. Some may come and go meanwhile."""
    after = GROUP_PREFIX
    while True:
        # A list, because names may come and go between two steps.
        names = list(islice(broker.durable.names_since(after), _NAMES_A_STEP + 1))
        for name in names[:_NAMES_A_STEP]:
            if not name.startswith(GROUP_PREFIX):
                return
            yield name.removeprefix(GROUP_PREFIX)
        if len(names) <= _NAMES_A_STEP:
            return
        after = names[-1]


def _group_lags(
    broker: ObservedBroker, name: str, group: ConsumerGroup | None
) -> Generator[None, None, dict[str, int]]:
    """Uncommitted messages of a group, by topic."""
    lags: dict[str, int] = {}
    committed: set[tuple[str, int]] = set()
    for i, position in enumerate(broker.durable.each_committed(GROUP_PREFIX + name)):
        if not (i + 1) % _A_STEP:
            yield
        topic, partition = position.topic, position.partition
        if group is not None:
            committed.add((topic, partition))
        lags[topic] = lags.get(topic, 0) + lag_of(broker, topic, partition, position)
    for i, (topic, partition) in enumerate(list(group.owned) if group is not None else ()):
        if not (i + 1) % _A_STEP:
            yield
        if (topic, partition) not in committed:
            lags[topic] = lags.get(topic, 0) + lag_of(broker, topic, partition, None)
    return lags


def _queue_lags(queue: Queue) -> Generator[None, None, dict[str, int]]:
    """Unfinished jobs of a queue, by topic."""
    lags: dict[str, int] = {}
    for i, part in enumerate(list(queue.partitions.values())):
        if not (i + 1) % _A_STEP:
            yield
        topic = part.partition.topic.name
        lags[topic] = lags.get(topic, 0) + queue_partition_lag(part)
    return lags


def _take(found: TopicLags, lags: dict[str, int], name: str, kind: GroupKind) -> None:
    for topic, lag in lags.items():
        known = found.get(topic)
        if known is None or lag > known.lag:
            found[topic] = LargestLag(lag, name, kind)
