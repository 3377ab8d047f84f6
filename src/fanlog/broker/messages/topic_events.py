"""Topic events: a topic was created, has grown, was altered, truncated or deleted. Every part that
keeps something about topics subscribes once. Code that changes a topic does not know the
subscribers.

Subscribers run in the order in which they subscribed, on the loop, within the turn of the change.
"""

from __future__ import annotations

from collections.abc import Callable

from fanlog.broker.messages.topics import BrokerTopic, Partition

TopicEvent = Callable[[BrokerTopic], object]
GrowthEvent = Callable[[BrokerTopic, list[Partition]], object]


class TopicEvents:
    def __init__(self) -> None:
        self._created: list[TopicEvent] = []
        self._grown: list[GrowthEvent] = []
        self._altered: list[TopicEvent] = []
        self._truncated: list[TopicEvent] = []
        self._deleted: list[TopicEvent] = []

    def subscribe(
        self,
        *,
        created: TopicEvent | None = None,
        grown: GrowthEvent | None = None,
        altered: TopicEvent | None = None,
        truncated: TopicEvent | None = None,
        deleted: TopicEvent | None = None,
    ) -> None:
        if created is not None:
            self._created.append(created)
        if grown is not None:
            self._grown.append(grown)
        if altered is not None:
            self._altered.append(altered)
        if truncated is not None:
            self._truncated.append(truncated)
        if deleted is not None:
            self._deleted.append(deleted)

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

    def deleted(self, topic: BrokerTopic) -> None:
        """It is out of the catalog, and its last messages are shown."""
        for call in self._deleted:
            call(topic)
