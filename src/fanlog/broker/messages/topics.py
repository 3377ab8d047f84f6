"""Topics and partitions as the broker holds them: the log, and who is at its end.

There may be hundreds of thousands, most of them idle, so an idle partition has no container of
its own: what it needs when something happens is made then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fanlog.model import (
    Durability,
    EpochInfo,
    PartitionInfo,
    ReaderCounters,
    TopicInfo,
    TopicSettings,
)

if TYPE_CHECKING:
    from fanlog.broker.messages.cursors import Cursor
    from fanlog.broker.messages.metering import TopicLimits
    from fanlog.broker.messages.producers import Producer
    from fanlog.broker.messages.views import AnyView
    from fanlog.broker.ports import Origin
    from fanlog.log.partition import PartitionLog
    from fanlog.log.producers import ProducerHistory
    from fanlog.log.store import StoredTopic


class Submission:
    """What one publisher put into one partition in this turn."""

    __slots__ = ("acks", "origin", "producers")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.acks: list[bytes] = []
        self.producers: list[Producer | None] = []


class Partition:
    """A partition's log and the readers at its end. `visible_end` is how far readers may see;
    `next_offset` counts what was taken in and is not in the log yet. From `ranked_from` on there
    may be batches with a priority; None if there are none."""

    __slots__ = (
        "durability",
        "first_time_us",
        "idle_mark",
        "index",
        "last_time_us",
        "live",
        "log",
        "next_offset",
        "parts",
        "producers",
        "ranked_from",
        "readers",
        "submissions",
        "topic",
        "viewed",
        "visible_end",
        "waiters",
    )

    def __init__(self, topic: BrokerTopic, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.durability: Durability = log.durability
        self.next_offset = log.end_offset
        self.visible_end = log.end_offset
        self.first_time_us = 0
        self.last_time_us = log.last_time_us
        self.ranked_from: int | None = 0 if log.is_ranked else None
        self.readers = 0
        self.live: dict[Cursor, None] | None = None
        self.viewed: dict[AnyView, dict[Cursor, None]] | None = None
        self.parts: list[bytes] | None = None
        self.submissions: list[Submission] | None = None
        self.producers: dict[int, Producer] | None = None
        # Where the log ended when it was last looked for idle producers.
        self.idle_mark = self.next_offset
        self.waiters: dict[Callable[[], None], None] | None = None

    @property
    def name(self) -> str:
        return f"{self.topic.name}/{self.index}"

    def remember_producers(self) -> dict[int, Producer]:
        """The producers by their ids, made when there is first one to remember."""
        if self.producers is None:
            self.producers = {}
            self.log.keep_producers(self._producer_histories)
        return self.producers

    def _producer_histories(self) -> Iterator[ProducerHistory]:
        """One after the other: producers may come and go between two of them."""
        producers = self.producers or {}
        for producer_id in list(producers):
            producer = producers.get(producer_id)
            if producer is not None:
                yield producer.history(producer_id)

    def info(self) -> PartitionInfo:
        log = self.log
        return PartitionInfo(
            partition=self.index,
            start_offset=log.start_offset,
            end_offset=log.end_offset,
            visible_end=self.visible_end,
            bytes=log.bytes,
            segments=log.segment_count,
            readers=self.readers,
            state="ok" if log.failure is None else f"failed: {log.failure}",
            damaged=tuple(log.damaged),
            epochs=tuple(EpochInfo(*start) for start in log.epochs),
            compacted_until=log.compacted_until,
        )


class BrokerTopic:
    """A named stream. `deleted` is seen by whoever still holds on to it."""

    __slots__ = (
        "counters",
        "deleted",
        "limits",
        "name",
        "number",
        "partitions",
        "published_bytes",
        "rates",
        "seen_bytes",
        "seen_messages",
        "settings",
        "stored",
    )

    def __init__(self, stored: StoredTopic) -> None:
        self.stored = stored
        self.name = stored.name
        self.number = stored.number
        self.settings: TopicSettings = stored.settings
        self.partitions = [Partition(self, i, log) for i, log in enumerate(stored.logs)]
        self.counters: ReaderCounters | None = None
        # Since the start.
        self.published_bytes = 0
        # Of the last scan for metrics: how much there was, and messages and bytes per second. None
        # while it is idle.
        self.seen_messages = 0
        self.seen_bytes = 0
        self.rates: tuple[float, float] | None = None
        # What bounds it beside its settings; see `metering.py`.
        self.limits: TopicLimits | None = None
        self.deleted = False

    def grow(self) -> list[Partition]:
        """Takes in the logs that its store has got since; returns the partitions that are new.
        The list is another one: whoever is in the middle of the old one goes on with that."""
        self.settings = self.stored.settings
        known = len(self.partitions)
        new = [Partition(self, i, log) for i, log in enumerate(self.stored.logs) if i >= known]
        self.partitions = [*self.partitions, *new]
        return new

    def count(self) -> ReaderCounters:
        """The counters, made when there is first something to count."""
        if self.counters is None:
            self.counters = ReaderCounters()
        return self.counters

    def info(self) -> TopicInfo:
        return TopicInfo(
            name=self.name,
            number=self.number,
            settings=self.settings,
            partitions=tuple(p.info() for p in self.partitions),
            counters=self.counters or ReaderCounters(),
        )
