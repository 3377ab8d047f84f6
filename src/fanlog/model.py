"""The small frozen types that every layer speaks in. They hold no behaviour and touch nothing."""

from __future__ import annotations

import datetime as dt
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

KIB = 1024
MIB = 1024 * KIB

TOPIC_NAME_BYTES_MAX = 255
DURABLE_NAME_BYTES_MAX = 255
PARTITIONS_MAX = 4096
# Ids past it are those of the broker's own producers.
PRODUCER_ID_MAX = (1 << 63) - 1
PRODUCER_EPOCH_MAX = (1 << 16) - 1
PRODUCER_NAME_BYTES_MAX = 255
INTERNAL_PREFIX = "_fanlog."
# Where replies to one client's requests go. A pattern must begin with it to mean inboxes.
INBOX_PREFIX = "_inbox."
# Where resumable streams are kept, each in a topic of its own; see `format/streams.py`.
STREAM_PREFIX = "_stream."
# There may be very many of these topics, and none is of interest to who follows everything: only a
# pattern that begins with the prefix matches them.
HIDDEN_PREFIXES = (INBOX_PREFIX, STREAM_PREFIX)
# A group commits under a durable name that begins so.
GROUP_PREFIX = "group/"
# Under such a name stands that a transaction's positions are committed.
TRANSACTION_PREFIX = "transaction/"
TRANSACTION_ID_BYTES_MAX = 255


class TopicPartition(NamedTuple):
    """One partition of one topic: `topic, partition = ...` takes it apart."""

    topic: str
    partition: int


class Durability(IntEnum):
    """What an acknowledgement promises."""

    MEMORY = 0
    OS = 1
    FSYNC = 2

    @property
    def label(self) -> str:
        """The name as settings have it: `memory`, `os` or `fsync`."""
        return self.name.lower()


class ConnectionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A client that is connected. `process` is the one that it is connected to; `since_us` when it
    came, by that one's clock. Of very many subscriptions only some are listed. `account` says how
    the user logged in: with a `key`, as a `user`, by `token` or `certificate`. `behind_messages`
    are those that it could have and was not sent yet, and `behind_bytes` about how much that is,
    with what waits in its connection."""

    id: str
    user: str
    address: str
    transport: str
    process: str
    since_us: int
    subscriptions: list[str] = []
    listener: str = "web"
    client: str = ""
    account: str = ""
    behind_messages: int = 0
    behind_bytes: int = 0

    @property
    def since(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.since_us / 1e6, tz=dt.UTC)


# Its name when only web listeners told of their connections.
WebConnectionInfo = ConnectionInfo


class PresentUser(msgspec.Struct, frozen=True):
    """A user in a topic. `info` is what the user's newest connection says of itself; `connections`
    0 means that the last one was lost a moment ago."""

    user: str
    connections: int
    info: Any = None


class PresenceInfo(msgspec.Struct, frozen=True):
    """Who is in a topic. `count` is of users. A topic with very many has no list of them: `users`
    is None."""

    topic: str
    count: int
    connections: int
    users: list[PresentUser] | None = None


class SlowPolicy(StrEnum):
    """What happens to a reader that can't keep up. It is the reader's own choice."""

    CATCH_UP = "catch-up"
    SKIP = "skip"
    DISCONNECT = "disconnect"


class GapReason(StrEnum):
    """Why a reader will not get some records."""

    SKIPPED = "skipped"
    RETENTION = "retention"
    DAMAGED = "damaged"
    RESET = "reset"
    # A client's own: a batch that its producer made wrong.
    UNREADABLE = "unreadable"


DurabilityName = Literal["memory", "os", "fsync"]
CompressionPolicy = Literal["producer", "none", "zlib", "zstd", "lz4"]
CleanupPolicy = Literal["delete", "compact"]
TopicRole = Literal["", "dead-letter", "inbox", "stream"]


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings, each with its unit in its name."""

    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_MAX, description="Independent, ordered parts of the topic.")
    ] = 1
    durability: Annotated[
        DurabilityName,
        Meta(
            description="When a message is acknowledged. memory: at once, and it is never on "
            "disk. os: after it is written to the file; the kernel flushes it. "
            "fsync: after it is synced to the disk."
        ),
    ] = "os"
    retention_seconds: Annotated[
        int, Meta(ge=0, description="Delete messages that are older. 0 keeps everything.")
    ] = 7 * 24 * 3600
    retention_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Delete the oldest messages of a topic partition above this size. 0 "
            "means no limit.",
        ),
    ] = 0
    expire_seconds: Annotated[
        int,
        Meta(
            ge=0,
            description="Delete the whole topic when nothing was published to it for so long. 0 "
            "keeps it.",
        ),
    ] = 0
    segment_bytes: Annotated[
        int, Meta(ge=64 * KIB, le=1024 * MIB, description="Size of a log file when it is full.")
    ] = 128 * MIB
    compression: Annotated[
        CompressionPolicy,
        Meta(
            description="producer: store batches as they were sent. A codec name: clients "
            "compress with it for this topic."
        ),
    ] = "producer"
    message_bytes_max: Annotated[
        int,
        Meta(ge=1, le=64 * MIB, description="Largest message. The broker refuses a larger one."),
    ] = 1 * MIB
    tail_bytes: Annotated[
        int,
        Meta(
            ge=4 * KIB,
            le=1024 * MIB,
            description="Newest bytes of a topic partition kept in memory.",
        ),
    ] = 16 * MIB
    cleanup: Annotated[
        CleanupPolicy,
        Meta(
            description="delete: remove messages by age and size alone. compact: also keep "
            "the last message of each key."
        ),
    ] = "delete"
    tombstone_seconds: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a compacted topic keeps a message without a value, so that "
            "every reader can see the delete.",
        ),
    ] = 24 * 3600
    compact_after_bytes: Annotated[
        int, Meta(ge=1, description="Bytes of full, uncompacted log files that start a compaction.")
    ] = 1 * MIB
    messages_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Messages that may be published to the topic in a second, by all "
            "publishers together. 0 means no limit.",
        ),
    ] = 0
    bytes_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes that may be published to the topic in a second, as they are "
            "stored. 0 means no limit.",
        ),
    ] = 0
    owner: Annotated[
        str,
        Meta(
            max_length=255,
            description="User or key whose quotas the topic counts for: who created it. Only an "
            "admin chooses another one.",
        ),
    ] = ""
    role: Annotated[
        TopicRole,
        Meta(description="What the broker uses the topic for. Empty for all topics of yours."),
    ] = ""

    @property
    def level(self) -> Durability:
        """The durability as a number that can be compared."""
        return Durability[self.durability.upper()]


class DamagedRange(msgspec.Struct, frozen=True):
    """Records `first` up to, not including, `next` that were lost to damage on disk."""

    first: int
    next: int
    file: str = ""
    reason: str = ""


class EpochInfo(msgspec.Struct, frozen=True):
    """The first record that was written to a log under an epoch of the broker."""

    epoch: int
    first: int


class ReaderCounters(msgspec.Struct):
    """What happened to slow readers of a topic since the broker started."""

    catch_ups: int = 0
    skips: int = 0
    skipped_records: int = 0
    disconnects: int = 0
    lost_records: int = 0


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a topic: its offsets, its size and its state."""

    partition: int
    start_offset: int
    end_offset: int
    visible_end: int
    bytes: int
    segments: int
    readers: int
    state: str = "ok"
    damaged: tuple[DamagedRange, ...] = ()
    epochs: tuple[EpochInfo, ...] = ()
    # Compaction has taken records before this offset, also if the topic is not compacted any more.
    compacted_until: int = 0


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: its settings, its partitions, and what happened to its slow readers."""

    name: str
    number: int
    settings: TopicSettings
    partitions: tuple[PartitionInfo, ...] = ()
    counters: ReaderCounters = msgspec.field(default_factory=ReaderCounters)

    @property
    def records(self) -> int:
        """Offsets from the start to the visible end. Each is a record, unless `has_holes`: then
        there are no more records than that."""
        return sum(p.visible_end - p.start_offset for p in self.partitions)

    @property
    def has_holes(self) -> bool:
        """Whether there may be offsets without a record: compaction or damage took them."""
        return self.settings.cleanup == "compact" or any(
            p.damaged or p.compacted_until > p.start_offset for p in self.partitions
        )

    @property
    def bytes(self) -> int:
        """Bytes of all partitions."""
        return sum(p.bytes for p in self.partitions)


class Scheduled(msgspec.Struct, frozen=True):
    """A message that the broker keeps, and publishes when it is due."""

    topic: str
    id: str
    due_us: int

    @property
    def due(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.due_us / 1e6, tz=dt.UTC)


class PendingMessage(msgspec.Struct, frozen=True):
    """A delayed message that is not due yet. `schedule` names the schedule that it is a run of."""

    topic: str
    id: str
    due_us: int
    key: bytes | None = None
    value_bytes: int = 0
    schedule: str = ""

    @property
    def due(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.due_us / 1e6, tz=dt.UTC)


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: by a cron expression in a time zone, or every so often. `last_us` is when its
    last run was due; 0: it has not run yet."""

    name: str
    topic: str
    cron: str = ""
    timezone: str = ""
    every_seconds: float = 0.0
    missed: str = "once"
    next_us: int = 0
    last_us: int = 0
    key: bytes | None = None
    value_bytes: int = 0

    @property
    def next_run(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.next_us / 1e6, tz=dt.UTC)

    @property
    def last_run(self) -> dt.datetime | None:
        if not self.last_us:
            return None
        return dt.datetime.fromtimestamp(self.last_us / 1e6, tz=dt.UTC)


class Receipt(msgspec.Struct, frozen=True):
    """What the broker promised for one message."""

    topic: str
    partition: int
    offset: int
    durability: DurabilityName
    timestamp_us: int
    duplicate: bool = False


class Gap(msgspec.Struct, frozen=True):
    """Records `first` up to, not including, `next` that a subscription will not get."""

    topic: str
    partition: int
    first: int
    next: int
    reason: GapReason


StartKind = Literal["latest", "earliest", "offset", "time", "last"]


class Start(msgspec.Struct, frozen=True):
    """Where a subscription begins. `value` is an offset, microseconds since 1970, or for `last` how
    many messages of a topic to begin before its end."""

    kind: StartKind = "latest"
    value: int = 0


ResetPolicy = Literal["earliest", "latest", "none"]
# What a reader of a topic that does not exist does. Reading creates none.
MissingPolicy = Literal["wait", "fail"]
GroupKind = Literal["stream", "queue"]
GroupState = Literal["active", "rebalancing", "inactive"]


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue hands out jobs. Kept with the queue; a worker that joins may change them."""

    visibility_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Time that a worker has for a job. After that another worker gets it.",
        ),
    ] = 30.0
    max_deliveries: Annotated[
        int, Meta(ge=1, le=10_000, description="Deliveries before a job becomes a dead letter.")
    ] = 5
    retry_delay_seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="Wait before a failed job is delivered again.")
    ] = 0.0
    retry_factor: Annotated[
        float, Meta(ge=1, le=100, description="The wait grows by this factor with each failure.")
    ] = 1.0
    retry_max_seconds: Annotated[float, Meta(ge=0, le=86_400, description="The longest wait.")] = (
        86_400.0
    )
    retry_jitter: Annotated[
        float, Meta(ge=0, le=1, description="The share of each wait that is random.")
    ] = 0.0
    dead_letter: Annotated[
        str, Meta(description="The dead-letter topic. Empty: `dead.` and the topic's name.")
    ] = ""
    ordered: Annotated[
        bool, Meta(description="Hand out one job of a key at a time, in the order of the log.")
    ] = False
    reset: Annotated[
        ResetPolicy, Meta(description="Where a new queue starts: earliest or latest.")
    ] = "earliest"


class GroupMemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group. One that is away keeps what it has for its session."""

    id: str
    client: str
    target: str
    static: bool
    present: bool
    partitions: int = 0
    in_flight: int = 0


class GroupPartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a group reads. `lag` is in offsets: each is a message, unless compaction or
    damage took some. In seconds it is the age of the oldest one that is not done. Of a queue,
    `committed` is the first that is not done, and `retrying` counts the jobs that have failed and
    wait for their next attempt, the first of which is due in `next_retry_seconds`. `urgent` counts
    the jobs that wait by their priority, as far as the queue has looked ahead."""

    topic: str
    partition: int
    committed: int | None
    start_offset: int
    end_offset: int
    lag: int
    lag_seconds: float = 0.0
    member: str = ""
    in_flight: int = 0
    waiting: int = 0
    retrying: int = 0
    next_retry_seconds: float | None = None
    urgent: dict[int, int] = {}


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group: `active` with members, `rebalancing` while a partition changes hands, `inactive`
    with nothing but what it has committed."""

    name: str
    kind: GroupKind
    state: GroupState
    rebalances: int = 0
    members: tuple[GroupMemberInfo, ...] = ()
    partitions: tuple[GroupPartitionInfo, ...] = ()
    queue: QueueSettings | None = None
    redelivered: int = 0
    dead_lettered: int = 0

    @property
    def lag(self) -> int:
        """Messages that are not committed, or jobs that are not done, in all partitions."""
        return sum(p.lag for p in self.partitions)

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest of them."""
        return max((p.lag_seconds for p in self.partitions), default=0.0)


class ResetStep(msgspec.Struct, frozen=True):
    """What a reset does, or would do, to one partition of a group."""

    topic: str
    partition: int
    before: int | None
    after: int
