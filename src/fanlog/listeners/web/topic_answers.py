"""What `topic_details.py` answers: a topic's summary, and a page of one of its lists."""

from __future__ import annotations

import msgspec

from fanlog.broker.insight.topic_table import TopicState
from fanlog.model import GroupKind, GroupState, ReaderCounters, TopicSettings


class DamagedPart(msgspec.Struct, frozen=True, kw_only=True):
    """Messages `first` up to, not including, `next` of a partition that were lost to damage."""

    partition: int
    first: int
    next: int
    file: str
    reason: str


class FailedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that takes no more writes."""

    partition: int
    reason: str


class TopicPartitionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A partition. `end_offset` is the offset that the next message gets, `newest_us` when the last
    one came; 0: none did."""

    partition: int
    start_offset: int
    end_offset: int
    messages: int
    bytes: int
    segments: int
    readers: int
    newest_us: int
    compacted_until: int
    damaged: int
    state: TopicState


class TopicSegmentDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a partition's log. The active one is written to, and has no `next_offset` yet.
    `newest_us` is null where nobody has looked into the file since the start. `generation` says how
    often it was compacted."""

    partition: int
    file: str
    base_offset: int
    next_offset: int | None
    bytes: int
    newest_us: int | None
    generation: int
    active: bool


class TopicReaderDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that reads the topic. `position` is its next offset, if it reads one partition
    only. One without a connection runs in the broker's own process."""

    connection: str
    transport: str
    user: str
    address: str
    client: str
    target: str
    group: str
    policy: str
    partitions: int
    position: int | None
    lag: int
    live: bool


class TopicGroupDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A group or queue that reads the topic. `lag` is its number of unread messages there.
    `members` counts all of its members, also those for other topics."""

    name: str
    kind: GroupKind
    state: GroupState
    members: int
    partitions: int
    lag: int
    in_flight: int
    waiting: int


class TopicProducerDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A producer that the topic remembers, and its last message: its sequence number, offset and
    time. The time is null if the message is not kept any more. `transaction` says that the id is
    the broker's own, for one that was committed."""

    id: int
    name: str
    epoch: int
    transaction: bool
    partitions: int
    partition: int
    sequence: int
    offset: int
    time_us: int | None


class TopicPartitionsPage(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[TopicPartitionDetails]
    total: int
    offset: int


class TopicSegmentsPage(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[TopicSegmentDetails]
    total: int
    offset: int


class TopicReadersPage(msgspec.Struct, frozen=True, kw_only=True):
    """Those that are furthest behind first. Only admins see who they are: for others `restricted`
    is true, and there are no rows. If not `complete`, there are more than were looked at."""

    rows: list[TopicReaderDetails]
    total: int
    offset: int
    restricted: bool
    complete: bool
    behind: int


class TopicGroupsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Those with the largest lag first. Groups and queues that you may not see are left out."""

    rows: list[TopicGroupDetails]
    total: int
    offset: int


class TopicProducersPage(msgspec.Struct, frozen=True, kw_only=True):
    """Those that published last first. If not `complete`, there are more than were looked at."""

    rows: list[TopicProducerDetails]
    total: int
    offset: int
    complete: bool


class TopicDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: what it keeps, what happens to it, and the list that was asked for. `messages` and
    `bytes` are kept now, `published` ever were. `damaged` and `failed` list the first 100 of each.
    `lag` is the largest of a group or queue, and null if none reads the topic. `counters` say what
    happened to slow readers since the start."""

    name: str
    number: int
    internal: bool
    settings: TopicSettings
    partition_count: int
    messages: int
    published: int
    bytes: int
    segment_count: int
    messages_per_second: float
    bytes_per_second: float
    newest_us: int
    reader_count: int
    lag: int | None
    state: TopicState
    damaged: list[DamagedPart]
    failed: list[FailedLog]
    counters: ReaderCounters
    partitions: TopicPartitionsPage | None = None
    segments: TopicSegmentsPage | None = None
    readers: TopicReadersPage | None = None
    groups: TopicGroupsPage | None = None
    producers: TopicProducersPage | None = None
