"""Topic events: a topic was created, has grown, was truncated or deleted. Whoever keeps something
about topics subscribes once, and no change to a topic knows who that is.

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
        self._truncated: list[TopicEvent] = []
        self._deleted: list[TopicEvent] = []

    def subscribe(
        self,
        *,
        created: TopicEvent | None = None,
        grown: GrowthEvent | None = None,
        truncated: TopicEvent | None = None,
        deleted: TopicEvent | None = None,
    ) -> None:
        if created is not None:
            self._created.append(created)
        if grown is not None:
            self._grown.append(grown)
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

    def truncated(self, topic: BrokerTopic) -> None:
        """Records at the begin of its partitions are gone."""
        for call in self._truncated:
            call(topic)

    def deleted(self, topic: BrokerTopic) -> None:
        """It is out of the catalog, and its last messages are shown."""
        for call in self._deleted:
            call(topic)
