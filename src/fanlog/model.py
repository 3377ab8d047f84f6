"""The small frozen types that every layer speaks in. They hold no behaviour and touch nothing. It
is long because it is a list of types, with what their fields mean."""

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
# Higher ids belong to the broker's own producers.
PRODUCER_ID_MAX = (1 << 63) - 1
PRODUCER_EPOCH_MAX = (1 << 16) - 1
PRODUCER_NAME_BYTES_MAX = 255
INTERNAL_PREFIX = "_fanlog."
# The inbox of one client: replies to its requests. A pattern matches inboxes only if it begins so.
INBOX_PREFIX = "_inbox."
# Resumable streams, each in its own topic; see `format/streams.py`.
STREAM_PREFIX = "_stream."
# There may be very many of these topics, and a reader that follows everything does not want them:
# only a pattern that begins with the prefix matches them.
HIDDEN_PREFIXES = (INBOX_PREFIX, STREAM_PREFIX)
# The offset commits of a group are stored under a durable name that begins so.
GROUP_PREFIX = "group/"
# An entry under such a name marks that a transaction's offsets are committed.
TRANSACTION_PREFIX = "transaction/"
TRANSACTION_ID_BYTES_MAX = 255


class TopicPartition(NamedTuple):
    """One partition of one topic. Unpack it with `topic, partition = ...`."""

    topic: str
    partition: int


class Durability(IntEnum):
    """What an acknowledgement promises."""

    MEMORY = 0
    OS = 1
    FSYNC = 2

    @property
    def label(self) -> str:
        """The name that settings use: `memory`, `os` or `fsync`."""
        return self.name.lower()


class ConnectionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A connected client. `process` is the process that it is connected to, and `since_us` the time
    when it connected, by the clock of that process. A client with very many subscriptions lists
    only some of them. `account` says how the user logged in: with a `key`, as a `user`, by `token`
    or `certificate`. `behind_messages` counts the messages that the broker has not sent to it yet.
    `behind_bytes` is their size, about, and includes the bytes that wait in its connection."""

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


# The old name, from when only web listeners listed their connections.
WebConnectionInfo = ConnectionInfo


class PresentUser(msgspec.Struct, frozen=True):
    """A user in a topic. `info` comes from the user's newest connection. `connections` is 0 if the
    last one was lost a moment ago."""

    user: str
    connections: int
    info: Any = None


class PresenceInfo(msgspec.Struct, frozen=True):
    """The users in a topic. `count` is their number. If a topic has very many, `users` is None."""

    topic: str
    count: int
    connections: int
    users: list[PresentUser] | None = None


class SlowPolicy(StrEnum):
    """What happens to a reader that can't keep up. The reader chooses it."""

    CATCH_UP = "catch-up"
    SKIP = "skip"
    DISCONNECT = "disconnect"


class GapReason(StrEnum):
    """Why a reader will not get some records."""

    SKIPPED = "skipped"
    RETENTION = "retention"
    DAMAGED = "damaged"
    RESET = "reset"
    # Only clients use it: a batch that its producer made wrong.
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
            description="Delete the topic when nothing was published to it for this long. 0 "
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
            description="Messages per second that all publishers together may publish to the "
            "topic. 0 means no limit.",
        ),
    ] = 0
    bytes_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes per second that all publishers together may publish to the topic, "
            "as stored. 0 means no limit.",
        ),
    ] = 0
    owner: Annotated[
        str,
        Meta(
            max_length=255,
            description="The user or key that created the topic: the topic counts for its quotas. "
            "Only an admin can choose another owner.",
        ),
    ] = ""
    role: Annotated[
        TopicRole,
        Meta(description="The broker's use of the topic. Empty for your own topics."),
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
    # Compaction has removed records before this offset, even if the topic is no longer compacted.
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
        """Offsets from the start to the visible end. Each is a record. With `has_holes` there may
        be fewer records."""
        return sum(p.visible_end - p.start_offset for p in self.partitions)

    @property
    def has_holes(self) -> bool:
        """Whether there may be offsets without a record, because of compaction or damage."""
        return self.settings.cleanup == "compact" or any(
            p.damaged or p.compacted_until > p.start_offset for p in self.partitions
        )

    @property
    def bytes(self) -> int:
        """Bytes of all partitions."""
        return sum(p.bytes for p in self.partitions)


class Scheduled(msgspec.Struct, frozen=True):
    """A delayed message: the broker stores it, and publishes it when it is due."""

    topic: str
    id: str
    due_us: int

    @property
    def due(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.due_us / 1e6, tz=dt.UTC)


class PendingMessage(msgspec.Struct, frozen=True):
    """A delayed message that is not due yet. If it is a run of a schedule, `schedule` is the name
    of the schedule."""

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
    """A schedule: a cron expression in a time zone, or an interval. `last_us` is when its last run
    was due; 0 means that it has not run yet."""

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
    """The broker's acknowledgement of one message."""

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
    """Where a subscription begins. `value` is an offset, microseconds since 1970, or for `last` the
    number of messages before the end of a topic."""

    kind: StartKind = "latest"
    value: int = 0


ResetPolicy = Literal["earliest", "latest", "none"]
# What a reader does if its topic does not exist. Reading creates no topic.
MissingPolicy = Literal["wait", "fail"]
GroupKind = Literal["stream", "queue"]
GroupState = Literal["active", "rebalancing", "inactive"]


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue hands out jobs. The broker stores them with the queue; a worker that joins may
    change them."""

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
    """A member of a group. While it is away, it keeps its partitions for the time of its
    session."""

    id: str
    client: str
    target: str
    static: bool
    present: bool
    partitions: int = 0
    in_flight: int = 0


class GroupPartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a group reads. `lag` counts offsets: each is a message, unless compaction or
    damage removed some. `lag_seconds` is the age of the oldest message that is not done. For a
    queue, `committed` is the first job that is not done. `retrying` counts the failed jobs that
    wait for their next delivery, and the first of them is due in `next_retry_seconds`. `urgent`
    counts the waiting jobs by their priority, as far as the queue has looked ahead."""

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
    """A group: `active` with members, `rebalancing` while a partition moves, `inactive` without
    members, when only its offset commits are left."""

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
    """The effect of a reset on one partition of a group."""

    topic: str
    partition: int
    before: int | None
    after: int
