"""What the native protocol's frames say, as MessagePack maps of these structs. Fields may be
added with a default; a reader ignores what it does not know."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from fanlog.errors import ProtocolError
from fanlog.model import GapReason, SlowPolicy, Start, TopicSettings

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True):
    versions: tuple[int, ...]
    client: str = ""


class Welcome(msgspec.Struct, frozen=True):
    version: int
    release: str
    epoch: int
    frame_bytes_max: int
    fetch_bytes_max: int
    idle_timeout_seconds: float


class OpenTopic(msgspec.Struct, frozen=True):
    name: str
    create: bool = True


class TopicOpened(msgspec.Struct, frozen=True):
    name: str
    number: int
    epoch: int
    settings: TopicSettings


class CreateTopic(msgspec.Struct, frozen=True):
    """`settings` are those of `TopicSettings`; what is left out is the broker's default."""

    name: str
    settings: dict[str, int | str] = {}
    exist_ok: bool = False


class ListTopics(msgspec.Struct, frozen=True):
    pattern: str = ">"
    internal: bool = False


class NamedTopic(msgspec.Struct, frozen=True):
    """DESCRIBE_TOPIC and DELETE_TOPIC."""

    name: str


class Position(msgspec.Struct, frozen=True):
    """The next offset that a reader wants of a partition, and the log's epoch that it knew. The
    topic's number tells a topic from another that has got its name since; 0 is not known."""

    topic: str
    partition: int
    offset: int
    epoch: int = 0
    number: int = 0


class Subscribe(msgspec.Struct, frozen=True, kw_only=True):
    """`resume` says where a reader was before it lost its connection; a topic that matches and
    is not listed there has appeared since, and is read from its first record."""

    target: str
    wildcard: bool = False
    start: Start = Start()
    durable: str = ""
    policy: SlowPolicy = SlowPolicy.CATCH_UP
    window_bytes: int = 0
    partitions: tuple[int, ...] | None = None
    resume: tuple[Position, ...] | None = None
    create: bool = True


class PartitionOffset(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class Joined(msgspec.Struct, frozen=True):
    """A topic that a subscription reads, and where it begins in each partition."""

    number: int
    name: str
    epoch: int
    starts: tuple[PartitionOffset, ...]


class Subscribed(msgspec.Struct, frozen=True):
    joined: tuple[Joined, ...]


class Left(msgspec.Struct, frozen=True):
    number: int
    name: str


class GapNotice(msgspec.Struct, frozen=True):
    number: int
    partition: int
    first: int
    next: int
    reason: GapReason


class Fetch(msgspec.Struct, frozen=True):
    number: int
    partition: int
    offset: int
    bytes_max: int = 1 << 20
    wait_ms: int = 0


class Commit(msgspec.Struct, frozen=True):
    durable: str
    positions: tuple[Position, ...]


class Committed(msgspec.Struct, frozen=True):
    durable: str


class Positions(msgspec.Struct, frozen=True):
    positions: tuple[Position, ...]


class FindOffsets(msgspec.Struct, frozen=True):
    topic: str
    start: Start


class Refused(msgspec.Struct, frozen=True):
    """A batch that was not stored. `expected_sequence` is what the broker waits for."""

    number: int
    partition: int
    first_sequence: int
    expected_sequence: int
    code: str
    message: str


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str
    first: int = 0
    next: int = 0


class Goodbye(msgspec.Struct, frozen=True):
    reason: str = ""


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What `fanlog health` shows."""

    state: str
    release: str
    epoch: int
    uptime_seconds: float
    topics: int
    connections: int
    subscriptions: int
    tail_bytes: int
    pending_bytes: int
    published_records: int
    delivered_bytes: int
    problems: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def decode(kind: type[T], payload: bytes | memoryview) -> T:
    """A payload as the struct that its frame must carry, or a ProtocolError that says why not."""
    try:
        return _decoder(kind).decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ProtocolError(f"The frame's content does not fit its kind: {fault}.") from fault
