"""Topic events: a topic was created, has grown, was altered, truncated, removed, deleted or remade.
This is the only list of those who want to know. Every part that keeps something about topics
subscribes once: the parts of the broker first, then the listeners. Code that changes a topic does
not know the subscribers.

Subscribers run in the order in which they subscribed, on the loop, within the turn of the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fanlog.broker.messages.topics import BrokerTopic, Partition

TopicEvent = Callable[[BrokerTopic], object]
GrowthEvent = Callable[[BrokerTopic, list[Partition]], object]
# The old topic, the new one if there is one, and the epoch of the old one's log.
RemakeEvent = Callable[[BrokerTopic, BrokerTopic | None, int], object]


class TopicEvents:
    def __init__(self) -> None:
        self._created: list[TopicEvent] = []
        self._grown: list[GrowthEvent] = []
        self._altered: list[TopicEvent] = []
        self._truncated: list[TopicEvent] = []
        self._removed: list[TopicEvent] = []
        self._deleted: list[TopicEvent] = []
        self._remade: list[RemakeEvent] = []

    def subscribe(
        self,
        *,
        created: TopicEvent | None = None,
        grown: GrowthEvent | None = None,
        altered: TopicEvent | None = None,
        truncated: TopicEvent | None = None,
        removed: TopicEvent | None = None,
        deleted: TopicEvent | None = None,
        remade: RemakeEvent | None = None,
    ) -> None:
        """A subscriber without `remade` sees a remade topic as one that is deleted, and then one
        that is created."""
        if created is not None:
            self._created.append(created)
        if grown is not None:
            self._grown.append(grown)
        if altered is not None:
            self._altered.append(altered)
        if truncated is not None:
            self._truncated.append(truncated)
        if removed is not None:
            self._removed.append(removed)
        if deleted is not None:
            self._deleted.append(deleted)
        if remade is not None or deleted is not None or created is not None:
            self._remade.append(remade or _Replacement(deleted, created))

    def created(self, topic: BrokerTopic) -> None:
        for call in self._created:
            call(topic)

    def grown(self, topic: BrokerTopic, new: list[Partition]) -> None:
        """`new` are the partitions that it has got."""
        for call in self._grown:
            call(topic, new)

    def altered(self, topic: BrokerTopic) -> None:
        """It has other settings."""
        for call in self._altered:
            call(topic)

    def truncated(self, topic: BrokerTopic) -> None:
        """Records at the begin of its partitions are gone."""
        for call in self._truncated:
            call(topic)

    def removed(self, topic: BrokerTopic) -> None:
        """It is out of the catalog, and takes no more messages. The last ones may still have to be
        shown."""
        for call in self._removed:
            call(topic)

    def deleted(self, topic: BrokerTopic) -> None:
        """It is out of the catalog, and its last messages are shown."""
        for call in self._deleted:
            call(topic)

    def remade(self, old: BrokerTopic, new: BrokerTopic | None, epoch: int) -> None:
        """The log of a mirrored topic has changed since `epoch`: `old` is out of the catalog. `new`
        has its name; without it, there may be one later."""
        for call in self._remade:
            call(old, new, epoch)


class _Replacement(NamedTuple):
    """A remade topic for a subscriber to whom epochs mean nothing."""

    deleted: TopicEvent | None
    created: TopicEvent | None

    def __call__(self, old: BrokerTopic, new: BrokerTopic | None, epoch: int) -> None:
        if self.deleted is not None:
            self.deleted(old)
        if new is not None and self.created is not None:
            self.created(new)
