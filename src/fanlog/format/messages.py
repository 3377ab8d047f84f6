"""What the native protocol's frames say, as MessagePack maps of these structs. Fields may be
added with a default; a reader ignores what it does not know. It is long because it is a list: each
message of the protocol is a struct."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from fanlog.errors import ProtocolError
from fanlog.identity import Account, Login
from fanlog.model import (
    ConnectionInfo,
    GapReason,
    GroupInfo,
    MissingPolicy,
    PendingMessage,
    QueueSettings,
    ResetPolicy,
    ScheduleInfo,
    SlowPolicy,
    Start,
    TopicInfo,
    TopicSettings,
)

T = TypeVar("T")
NoticeKind = Literal["missing", "parent"]


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    versions: tuple[int, ...]
    client: str = ""
    login: Login | None = None


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int
    release: str
    epoch: int
    frame_bytes_max: int
    fetch_bytes_max: int
    idle_timeout_seconds: float
    # The account of the client, and for how long: 0 means that it does not expire.
    user: str = ""
    expires_seconds: float = 0.0
    # Sampled records that a client may name to the broker in a second; 0: no TRACED frames.
    traced_per_second_max: int = 0


class LoggedIn(msgspec.Struct, frozen=True):
    user: str = ""
    expires_seconds: float = 0.0


class Vouch(msgspec.Struct, frozen=True, omit_defaults=True):
    """An edge asks who somebody is, whose login it was shown, or what accounts are now."""

    login: Login | None = None
    address: str = ""
    listener: str = ""
    accounts: tuple[Account, ...] = ()


class Vouched(msgspec.Struct, frozen=True, omit_defaults=True):
    """`version` is another one whenever keys, users or rules have changed. Without `guarded` there
    are no logins. An account that is None may not log in any more."""

    version: str
    guarded: bool = True
    account: Account | None = None
    accounts: tuple[Account | None, ...] = ()


class OpenTopic(msgspec.Struct, frozen=True):
    name: str
    create: bool = True


class TopicOpened(msgspec.Struct, frozen=True):
    """`followers`: readers of the topic, and workers on it, at this moment."""

    name: str
    number: int
    epoch: int
    settings: TopicSettings
    followers: int = 0


class CreateTopic(msgspec.Struct, frozen=True):
    """`settings` are those of `TopicSettings`; what is left out is the broker's default. `compare`
    names those that must agree with a topic that exists, with `exist_ok`; null is all of them. With
    `awaited` it is only made if somebody waits for a topic of this name."""

    name: str
    settings: dict[str, int | str] = {}
    exist_ok: bool = False
    compare: tuple[str, ...] | None = None
    awaited: bool = False


class ListTopics(msgspec.Struct, frozen=True):
    """`after` is the `next` of the page before."""

    pattern: str = ">"
    internal: bool = False
    after: str = ""


class TopicPage(msgspec.Struct, frozen=True):
    """Some topics, by name. With `next` there are more, even if there are none on this page."""

    topics: tuple[TopicInfo, ...]
    next: str = ""


class NamedTopic(msgspec.Struct, frozen=True):
    """DESCRIBE_TOPIC and DELETE_TOPIC."""

    name: str


class GrowTopic(msgspec.Struct, frozen=True):
    """`partitions` is the new number."""

    name: str
    partitions: int


class AlterTopic(msgspec.Struct, frozen=True):
    """The settings that are to change; the others stay."""

    name: str
    settings: dict[str, int | str]


class Grew(msgspec.Struct, frozen=True):
    """A topic has got more partitions. Publishers use them from now on."""

    number: int
    partitions: int


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
    is not listed there has appeared since, and is read from its first record. `missing` says what
    happens if there is no such topic: the reader waits for it, or that is an error. A `mirror` gets
    the full description of each topic that it joins."""

    target: str
    wildcard: bool = False
    start: Start = Start()
    durable: str = ""
    policy: SlowPolicy = SlowPolicy.CATCH_UP
    window_bytes: int = 0
    partitions: tuple[int, ...] | None = None
    resume: tuple[Position, ...] | None = None
    missing: MissingPolicy = "wait"
    mirror: bool = False


class PartitionOffset(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class Joined(msgspec.Struct, frozen=True):
    """A topic that a subscription reads, and where it begins in each partition. `info` is for a
    mirror."""

    number: int
    name: str
    epoch: int
    starts: tuple[PartitionOffset, ...]
    info: TopicInfo | None = None


class Subscribed(msgspec.Struct, frozen=True):
    """Topics that are read. Of more than a thousand, the others follow in JOINED frames."""

    joined: tuple[Joined, ...]


class Left(msgspec.Struct, frozen=True):
    number: int
    name: str


class Notice(msgspec.Struct, frozen=True):
    """What a reader should know. `missing`: its topic does not exist yet, and it waits for it.
    `parent`: this topic exists, and its pattern, the topic's name and `.>`, does not include it."""

    kind: NoticeKind
    topic: str


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


class CommitOffsets(msgspec.Struct, frozen=True):
    """An offset commit: the next offset of each partition, under a durable name or a group."""

    durable: str
    positions: tuple[Position, ...]


class FindCommitted(msgspec.Struct, frozen=True):
    durable: str


class Positions(msgspec.Struct, frozen=True):
    positions: tuple[Position, ...]


class FindOffsets(msgspec.Struct, frozen=True):
    topic: str
    start: Start


class Refused(msgspec.Struct, frozen=True):
    """A batch that was not stored. `expected_sequence` is what the broker waits for.
    `retry_after_seconds` goes with the code `rate_limited`."""

    number: int
    partition: int
    first_sequence: int
    expected_sequence: int
    code: str
    message: str
    retry_after_seconds: float = 0.0


class ErrorAnswer(msgspec.Struct, frozen=True):
    code: str
    message: str
    first: int = 0
    next: int = 0
    retry_after_seconds: float = 0.0


class Unsubscribe(msgspec.Struct, frozen=True):
    """With `keep`, a worker leaves its queue and keeps its jobs until their time is up. Clients
    that know its name can settle them."""

    keep: bool = False


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


# Operators


class ConnectionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for open connections of this process, or closes them. With an `id` it is that one;
    without, all that fit: of a `user`, from an `address` (a host, or a host and a port), at a
    `listener`. A list is in the order of ids, in pages: `after` is the last id of the page
    before. HTTP connections that only send requests are listed with `requests`."""

    kind: Literal["list", "close"] = "list"
    id: str = ""
    user: str | None = None
    address: str = ""
    listener: str = ""
    after: str = ""
    limit: int = 100
    reason: str = ""
    reconnect: bool = False
    requests: bool = False


class ConnectionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Connections that were found, or closed. `total` are all that fit. With `next` there are
    more."""

    connections: tuple[ConnectionInfo, ...]
    total: int
    next: str = ""


# Consumer groups


class Claim(Position, frozen=True):
    """A partition that a member had before it lost its connection, with the next offset that it
    wants. `committed` is the group's offset there, as the member knows it: where it got the
    partition, or its last acknowledged commit; -1 if it does not say."""

    committed: int = -1


class JoinGroup(msgspec.Struct, frozen=True, kw_only=True):
    """`member` is a name of the member's own (`static`), or one that its client made up. `claims`
    says what it had, and where it was, before it lost its connection; `epoch` which membership that
    was. With a `start`, the group begins there in all partitions that exist and that it has no
    position in; `reset` is for the others."""

    group: str
    member: str
    target: str
    wildcard: bool = False
    reset: ResetPolicy = "latest"
    session_seconds: float = 10.0
    window_bytes: int = 0
    static: bool = False
    claims: tuple[Claim, ...] = ()
    epoch: int = 0
    missing: MissingPolicy = "wait"
    start: Start | None = None


class GroupJoined(msgspec.Struct, frozen=True):
    """The member has joined. What it is to read follows in JOINED frames."""

    epoch: int


class Revoke(msgspec.Struct, frozen=True):
    """The member must let these partitions go, and say RELEASE when it has. Those that are `lost`
    it does not have any more. It answers each of those with a RELEASE that says so too: until then
    it can't commit there, not even if it gets them again."""

    topic: str
    partitions: tuple[int, ...]
    lost: bool = False


class Release(msgspec.Struct, frozen=True):
    """The member has let these partitions go; or, with `lost`, it knows that they were taken from
    it, and its commits from now on are only about what it has read after that."""

    topic: str
    partitions: tuple[int, ...]
    lost: bool = False


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """Moves a member's own cursors: of all its partitions, of one topic's, or of some of them."""

    start: Start
    topic: str = ""
    partitions: tuple[int, ...] | None = None


class ListGroups(msgspec.Struct, frozen=True):
    """`after` is the `next` of the page before."""

    pattern: str = ">"
    after: str = ""


class GroupPage(msgspec.Struct, frozen=True):
    """Some groups and queues, by name. With `next` there are more."""

    groups: tuple[GroupInfo, ...]
    next: str = ""


class NamedGroup(msgspec.Struct, frozen=True):
    """DESCRIBE_GROUP and DELETE_GROUP."""

    name: str


class ResetGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Moves an inactive group; without a topic, in every one that it has committed in."""

    group: str
    start: Start
    topic: str = ""
    partitions: tuple[int, ...] | None = None
    dry_run: bool = False


class GroupOffsets(msgspec.Struct, frozen=True):
    """What a member commits; `epoch` is that of its membership."""

    group: str
    member: str
    epoch: int
    positions: tuple[Position, ...]


# Producers


class RegisterProducer(msgspec.Struct, frozen=True):
    """`id` and `epoch` are what it was given before, on a connection that it lost."""

    name: str
    id: int = 0
    epoch: int = 0


class ProducerRegistered(msgspec.Struct, frozen=True):
    id: int
    epoch: int


# Queues


class HeldJobs(msgspec.Struct, frozen=True, array_like=True):
    """Jobs `first` up to, not including, `next` that a worker has in hand."""

    number: int
    partition: int
    first: int
    next: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Joins a queue as a worker, `named` if its name is not one that its client made up.

    `prefetch` is how many jobs it may have at a time. `settings` are those of `QueueSettings` that
    are to change. `holds` are the jobs that it still has when it comes back on a new connection:
    others that were sent to it were lost on the way, and go to other workers."""

    queue: str
    worker: str
    target: str
    wildcard: bool = False
    named: bool = False
    prefetch: int = 1
    settings: dict[str, int | float | str | bool] = {}
    holds: tuple[HeldJobs, ...] = ()
    missing: MissingPolicy = "wait"


class Working(msgspec.Struct, frozen=True):
    """What the queue's settings are; the topics follow in JOINED frames."""

    settings: QueueSettings


class OutcomeKind(IntEnum):
    ACK = 0
    NACK = 1
    EXTEND = 2
    REJECT = 3


class JobOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of the jobs `first` up to, not including, `next`. `verb`: 0 ack, 1 nack (again
    after `delay_ms`; -1: after the queue's own delay), 2 extend (`delay_ms` more from now),
    3 reject (a dead letter at once)."""

    number: int
    partition: int
    verb: int
    first: int
    next: int
    delay_ms: int = 0
    reason: str = ""


class Settle(msgspec.Struct, frozen=True):
    """`epoch` is the broker's when the jobs were handed out; 0: it has not changed. With `queue`
    it is about jobs of a worker of that name, who has left the queue and kept them."""

    outcomes: tuple[JobOutcome, ...]
    epoch: int = 0
    queue: str = ""
    worker: str = ""


class Settled(msgspec.Struct, frozen=True):
    """Which of the outcomes came too late, as far as they did."""

    late: tuple[JobOutcome, ...] = ()


# Transactions


class BeginTransaction(msgspec.Struct, frozen=True):
    """`id` is the caller's own name for what is to happen once; empty, the broker makes one up.
    With a `ticket`, nothing is begun: the answer says which transaction that is."""

    id: str = ""
    timeout_seconds: float = 60.0
    ticket: str = ""


class TransactionBegun(msgspec.Struct, frozen=True):
    """`committed` says that a transaction of this id was committed before."""

    ticket: str
    id: str
    committed: bool = False


class CommitTransaction(msgspec.Struct, frozen=True):
    """`tickets` are further ones, whose messages are committed with it, all or none."""

    ticket: str
    id: str = ""
    offsets: tuple[GroupOffsets, ...] = ()
    tickets: tuple[str, ...] = ()


class TransactionCommitted(msgspec.Struct, frozen=True):
    """`already`: this id was committed before, and nothing was done now."""

    id: str
    already: bool
    records: int = 0


class AbortTransaction(msgspec.Struct, frozen=True):
    ticket: str


# Delayed messages


class CancelScheduled(msgspec.Struct, frozen=True):
    ids: tuple[str, ...]


class Cancelled(msgspec.Struct, frozen=True):
    """Of each id, whether its message was still waiting."""

    cancelled: tuple[bool, ...]


class ListScheduled(msgspec.Struct, frozen=True):
    """`after` is the `next` of the page before. Without a topic: messages for all topics."""

    topic: str = ""
    after: str = ""
    count: int = 500


class ScheduledPage(msgspec.Struct, frozen=True):
    """Some of the messages that wait, the first due in front. With `next` there are more, even if
    there are none on this page. `total` is how many wait, for whatever topic."""

    messages: tuple[PendingMessage, ...]
    next: str = ""
    total: int = 0


class AddSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Adds a schedule, or changes the one of its name. Either `cron`, in `timezone`, or
    `every_seconds`. `missed` says what happens to runs that were due while the broker was down:
    one for all of them (`once`), or none (`skip`)."""

    name: str
    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] = {}
    cron: str = ""
    timezone: str = "UTC"
    every_seconds: float = 0.0
    missed: str = "once"


class ListSchedules(msgspec.Struct, frozen=True):
    """`after` is the `next` of the page before."""

    after: str = ""


class SchedulePage(msgspec.Struct, frozen=True):
    """Some schedules, by name. With `next` there are more."""

    schedules: tuple[ScheduleInfo, ...]
    next: str = ""


class RemoveSchedule(msgspec.Struct, frozen=True):
    name: str


class ScheduleRemoved(msgspec.Struct, frozen=True):
    """Whether there was one."""

    removed: bool


# Records


class DeleteRecords(msgspec.Struct, frozen=True):
    """Deletes what is before these offsets."""

    topic: str
    offsets: tuple[PartitionOffset, ...]


# Backups


class BackupRequest(msgspec.Struct, frozen=True):
    """`begin` takes a point. `read` wants some bytes of one of its files, by its number; file -1 is
    the list of files. `end` lets the point go; so does the end of the connection."""

    action: Literal["begin", "read", "end"]
    point: str = ""
    file: int = -1
    at: int = 0
    bytes: int = 0


class BackupBegun(msgspec.Struct, frozen=True):
    """A point, the size of the list of its files, and the folder where they are, for a client on
    the broker's machine."""

    point: str
    list_bytes: int
    folder: str


class BackupData(msgspec.Struct, frozen=True):
    """The bytes; fewer than were asked for at the end of the file, or if that were too many."""

    data: bytes


@lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def decode(kind: type[T], payload: bytes | memoryview) -> T:
    """A payload as the struct that its frame must carry, or a ProtocolError that says why not."""
    try:
        return _decoder(kind).decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ProtocolError(f"The frame's content does not fit its kind: {fault}.") from fault
