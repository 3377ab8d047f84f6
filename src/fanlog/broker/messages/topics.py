"""Topics and partitions in the broker: the log, and the readers at its end.

There may be hundreds of thousands, most of them idle, so an idle partition has no container of its
own: containers are created when they are needed.

A reader is a cursor: a partition, an offset, and an owner. A subscription is a set of cursors that
share one `Outlet` and one window. Nothing is queued for either: many readers get the same piece of
memory, and a reader that can't take it keeps a view, never a copy. Partitions know their cursors
and cursors their partition, so all of them are in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from fanlog.broker.authority import Permit
from fanlog.broker.messages.audience import PartitionAudience
from fanlog.broker.messages.producers import Producer
from fanlog.broker.messages.topic_limits import TopicLimits
from fanlog.broker.messages.wire_forms import AnyView
from fanlog.broker.ports import Origin, Reader, SendBuffer
from fanlog.errors import FanlogError
from fanlog.format.messages import Position
from fanlog.identity import Verb
from fanlog.log.partition import PartitionLog
from fanlog.log.producers import ProducerHistory
from fanlog.log.store import StoredTopic
from fanlog.model import (
    Durability,
    EpochInfo,
    Gap,
    PartitionInfo,
    ReaderCounters,
    SlowPolicy,
    TopicInfo,
    TopicSettings,
)

UNLIMITED = 1 << 62


class Submission:
    """The batches of one publisher for one partition in this turn."""

    __slots__ = ("acks", "origin", "producers")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.acks: list[bytes] = []
        self.producers: list[Producer | None] = []


class Partition:
    """A partition's log and the readers at its end. Readers may see offsets below `visible_end`;
    `next_offset` also counts batches that are not in the log yet. From `ranked_from` on there may
    be batches with a priority; None if there are none."""

    __slots__ = (
        "audience",
        "durability",
        "first_time_us",
        "idle_mark",
        "index",
        "last_time_us",
        "log",
        "next_offset",
        "parts",
        "producers",
        "ranked_from",
        "readers",
        "submissions",
        "topic",
        "visible_end",
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
        self.audience: PartitionAudience[Cursor] | None = None
        self.parts: list[bytes] | None = None
        self.submissions: list[Submission] | None = None
        self.producers: dict[int, Producer] | None = None
        # Where the log ended when it was last looked for idle producers.
        self.idle_mark = self.next_offset

    @property
    def name(self) -> str:
        return f"{self.topic.name}/{self.index}"

    def keep_audience(self) -> PartitionAudience[Cursor]:
        """The readers that wait for its next messages. It is made for the first one."""
        if self.audience is None:
            self.audience = PartitionAudience()
        return self.audience

    def remember_producers(self) -> dict[int, Producer]:
        """The producers by their ids. The dict is made for the first one."""
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
    """A named stream. `deleted` is for code that still has a reference to it."""

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
        # From the last scan for metrics: the totals, and the messages and bytes per second. None
        # while it is idle.
        self.seen_messages = 0
        self.seen_bytes = 0
        self.rates: tuple[float, float] | None = None
        # Its limits besides its settings; see `metering.py`.
        self.limits: TopicLimits | None = None
        self.deleted = False

    def grow(self) -> list[Partition]:
        """Adds the logs that its store has created since; returns the new partitions. The list is a
        new one: code that iterates over the old one continues with that."""
        self.settings = self.stored.settings
        known = len(self.partitions)
        new = [Partition(self, i, log) for i, log in enumerate(self.stored.logs) if i >= known]
        self.partitions = [*self.partitions, *new]
        return new

    def count(self) -> ReaderCounters:
        """The counters. They are made when there is something to count."""
        if self.counters is None:
            self.counters = ReaderCounters()
        return self.counters

    def info(self) -> TopicInfo:
        return msgspec.structs.replace(
            self.info_without_partitions(), partitions=tuple(p.info() for p in self.partitions)
        )

    def info_without_partitions(self) -> TopicInfo:
        """The same for those who collect the partitions in slices."""
        return TopicInfo(
            name=self.name,
            number=self.number,
            settings=self.settings,
            counters=self.counters or ReaderCounters(),
        )


# Makes the view in which a subscription follows a topic.
TopicViews = Callable[[BrokerTopic], AnyView]


class Outlet(Protocol):
    """The broker's interface to one connection. `blocked` means that the peer takes nothing now;
    when it does again, the outlet calls `FanOut.resume(outlet)`."""

    blocked: bool
    feed: BrokerSubscription | None
    waiting: list[Cursor]

    @property
    def send(self) -> Callable[[SendBuffer], int]:
        """The raw send: how much of the piece was taken, or BlockingIOError."""
        ...

    def hold(self, piece: SendBuffer, sent: int) -> None:
        """Keeps a view of the rest of a piece after `send`, and blocks until it is sent."""
        ...

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        """Sends pieces of a subscription that may not be the one in `feed`; holds the rest."""
        ...

    def lost(self, fault: Exception) -> None:
        """The peer is gone."""
        ...

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        """Ends the connection, telling the peer why, and which subscription is to blame."""
        ...


class Keeper(Protocol):
    """Manages a subscription's life: it may be lost with its connection, or leave."""

    def lost(self, subscription: BrokerSubscription) -> None: ...
    def leave(self, subscription: BrokerSubscription) -> None: ...


class BrokerSubscription:
    """`sent_bytes` may grow up to `limit_bytes`, which the reader moves as it takes messages; a
    started piece is finished, so it can overshoot by one. `client` is the reader's name for itself;
    `durable` or `group` is its durable name.

    It has many fields, because the fan-out reads them for each piece and reader: an object behind
    another would be one more step there."""

    __slots__ = (
        "absent",
        "asked",
        "client",
        "closed",
        "cursors",
        "durable",
        "group",
        "held",
        "keeper",
        "key",
        "limit_bytes",
        "mirror",
        "opening_gaps",
        "outlet",
        "partitions",
        "paused",
        "permit",
        "policy",
        "reader",
        "sent_bytes",
        "target",
        "views",
        "wildcard",
    )

    def __init__(
        self,
        key: int,
        keeper: Keeper,
        outlet: Outlet,
        reader: Reader,
        target: str,
        *,
        wildcard: bool = False,
        policy: SlowPolicy = SlowPolicy.CATCH_UP,
        window_bytes: int = 0,
        durable: str = "",
        partitions: tuple[int, ...] | None = None,
        client: str = "",
        group: str = "",
        views: TopicViews | None = None,
    ) -> None:
        self.key = key
        self.keeper = keeper
        self.outlet = outlet
        self.reader = reader
        self.target = target
        self.wildcard = wildcard
        self.policy = policy
        self.durable = durable
        self.partitions = partitions
        self.client = client
        self.group = group
        # In which form its cursors read each topic; None: batches as they are.
        self.views = views
        self.sent_bytes = 0
        self.limit_bytes = window_bytes or UNLIMITED
        self.cursors: list[Cursor] = []
        self.paused: list[Cursor] | None = None
        self.opening_gaps: list[tuple[Gap, int]] = []
        # Where a reader that came back was in topics that do not exist at present.
        self.absent: dict[tuple[str, int], Position] | None = None
        # For a pattern: the matching topics that the reader may read. None means all.
        self.permit: Permit | None = None
        # The permissions that it started with, to be checked again.
        self.asked: tuple[tuple[Verb, str], ...] = ()
        self.closed = False
        # Events of its topics before its reader knows of the subscription. None after that.
        self.held: list[Callable[[], None]] | None = None
        # Whether the reader keeps a mirror, and has to know all about its topics.
        self.mirror = False


class Cursor:
    """`offset` is the next record to send, `begin` was the first. A `live` cursor stands at the
    visible end, and there its offset is not kept up: the partition's is. One that is `behind`
    reads history, because it asked for it or because it was slow; its policy counts again once it
    is live. A `dropped` one has been taken out of its subscription, and does nothing more. With a
    `view` it is sent that form of the messages instead of the batches; as one of `several` of its
    reader it is sent them together with the others."""

    __slots__ = (
        "begin",
        "behind",
        "dropped",
        "live",
        "offset",
        "outlet",
        "partition",
        "several",
        "started",
        "subscription",
        "view",
    )

    def __init__(self, subscription: BrokerSubscription, partition: Partition, offset: int) -> None:
        self.subscription = subscription
        self.outlet = subscription.outlet
        self.partition = partition
        self.offset = self.begin = offset
        self.live = False
        self.behind = False
        self.started = False
        self.dropped = False
        self.view: AnyView | None = None
        self.several = False
