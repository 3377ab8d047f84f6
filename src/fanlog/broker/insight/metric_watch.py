"""Topics, groups and queues that a user watches. They are measured by name, even if they are below
the limit of named ones."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from fanlog.broker.insight.metric_scan import group_lag, is_nameless, queue_metrics, topic_metrics
from fanlog.model import GROUP_PREFIX
from fanlog.telemetry.history_series import SeriesOwner
from fanlog.telemetry.snapshot import GroupMetrics, NamedMetrics, QueueMetrics, TopicMetrics

if TYPE_CHECKING:
    from fanlog.broker.insight.ports import ObservedBroker


def watch_steps(
    broker: ObservedBroker, wanted: Iterable[tuple[SeriesOwner, str]]
) -> Generator[None, None, NamedMetrics]:
    """Measures those that exist."""
    topics: list[TopicMetrics] = []
    groups: list[GroupMetrics] = []
    queues: list[QueueMetrics] = []
    for owner, name in wanted:
        yield
        if owner == "topic":
            topic = broker.catalog.find(name)
            if topic is not None and not is_nameless(name):
                topics.append(topic_metrics(topic))
        elif owner == "queue":
            queue = broker.queues.find(name)
            if queue is not None:
                queues.append(queue_metrics(queue))
        else:
            group = broker.groups.find(name)
            if group is not None or broker.durable.committed(GROUP_PREFIX + name):
                lag, partitions = yield from group_lag(broker, name, group)
                members = 0 if group is None else len(group.members)
                groups.append(
                    GroupMetrics(name=name, members=members, partitions=partitions, lag=lag)
                )
    return NamedMetrics(topics=tuple(topics), groups=tuple(groups), queues=tuple(queues))
