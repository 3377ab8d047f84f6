"""The small frozen types that every layer speaks in. They hold no behaviour and touch nothing."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

KIB = 1024
MIB = 1024 * KIB

TOPIC_NAME_BYTES_MAX = 255
DURABLE_NAME_BYTES_MAX = 255
PARTITIONS_MAX = 4096
INTERNAL_PREFIX = "_fanlog."


class Durability(IntEnum):
    """What an acknowledgement promises."""

    MEMORY = 0
    OS = 1
    FSYNC = 2

    @property
    def label(self) -> str:
        return self.name.lower()


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


DurabilityName = Literal["memory", "os", "fsync"]
CompressionPolicy = Literal["producer", "none", "zlib", "zstd", "lz4"]


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings, each with its unit in its name."""

    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_MAX, description="Independent, ordered parts of the topic.")
    ] = 1
    durability: Annotated[
        DurabilityName,
        Meta(description="memory: never on disk; os: the kernel flushes; fsync: before the ack."),
    ] = "os"
    retention_seconds: Annotated[
        int, Meta(ge=0, description="Delete what is older. 0 keeps everything.")
    ] = 7 * 24 * 3600
    retention_bytes: Annotated[
        int, Meta(ge=0, description="Delete the oldest past this size, per partition. 0: no limit.")
    ] = 0
    segment_bytes: Annotated[
        int, Meta(ge=64 * KIB, le=1024 * MIB, description="A log file's size when it is full.")
    ] = 128 * MIB
    compression: Annotated[
        CompressionPolicy,
        Meta(description="producer: as sent; a codec's name: what clients use for this topic."),
    ] = "producer"
    message_bytes_max: Annotated[
        int, Meta(ge=1, le=64 * MIB, description="Larger messages are refused.")
    ] = 1 * MIB
    tail_bytes: Annotated[
        int,
        Meta(ge=4 * KIB, le=1024 * MIB, description="Newest bytes of a partition kept in memory."),
    ] = 16 * MIB

    @property
    def level(self) -> Durability:
        return Durability[self.durability.upper()]


class DamagedRange(msgspec.Struct, frozen=True):
    """Records `first` up to, not including, `next` that were lost to damage on disk."""

    first: int
    next: int
    file: str = ""
    reason: str = ""


class ReaderCounters(msgspec.Struct):
    """What happened to slow readers of a topic since the broker started."""

    catch_ups: int = 0
    skips: int = 0
    skipped_records: int = 0
    disconnects: int = 0
    lost_records: int = 0


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    start_offset: int
    end_offset: int
    visible_end: int
    bytes: int
    segments: int
    readers: int
    state: str = "ok"
    damaged: tuple[DamagedRange, ...] = ()


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    number: int
    settings: TopicSettings
    partitions: tuple[PartitionInfo, ...] = ()
    counters: ReaderCounters = msgspec.field(default_factory=ReaderCounters)

    @property
    def records(self) -> int:
        return sum(p.visible_end - p.start_offset for p in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.partitions)


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


StartKind = Literal["latest", "earliest", "offset", "time", "durable"]


class Start(msgspec.Struct, frozen=True):
    """Where a subscription begins. `value` is an offset, or microseconds since 1970."""

    kind: StartKind = "latest"
    value: int = 0
