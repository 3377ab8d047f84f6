"""Every error of Fanlog, in one tree.

Each class has a stable `code` that travels on the wire, and every message says what to do. The
branches separate the faults: a wrong request of the caller (`RequestError`), wrong bytes from a
peer (`FormatError`), a named limit (`LimitError`), and faults on our side (`StorageError`,
`LinkError`).

FanlogError
├── FormatError            bytes that are not what they claim to be
│   ├── ChecksumError
│   ├── DecodeError        a message's value is not of the type that was asked for
│   ├── UnreadableError    a batch that its producer made wrong
│   └── ProtocolError
│       ├── BadMagicError
│       ├── UnknownCommandError
│       └── UnsupportedVersionError
├── RequestError           a request that can't be answered as asked
│   ├── InvalidArgumentError
│   ├── InvalidNameError
│   ├── TopicNotFoundError
│   ├── TopicExistsError
│   │   └── TopicDiffersError
│   ├── TopicDeletedError
│   ├── PartitionNotFoundError
│   ├── OffsetOutOfRangeError
│   ├── MessageTooLargeError
│   ├── OutOfSequenceError
│   ├── UnknownProducerError
│   ├── FencedError
│   ├── UnauthenticatedError   no login, or a wrong one
│   ├── ForbiddenError
│   ├── NoPositionError
│   ├── AccountNotFoundError
│   ├── AccountExistsError
│   ├── GroupNotFoundError
│   ├── GroupActiveError
│   ├── LeaseLostError
│   ├── KeyReusedError
│   ├── NotSupportedError
│   ├── DeadLetterNotFoundError
│   ├── TaskNotFoundError
│   ├── ScheduleNotFoundError
│   ├── NoRespondersError
│   ├── RequestFailedError     whoever answers a request said that it failed
│   ├── StreamEndedError       a resumable stream has ended, and takes nothing more
│   ├── StreamFailedError      a resumable stream ended with an error
│   │   ├── StreamSilentError
│   │   └── StreamGoneError
│   └── TransactionNotFoundError
├── LimitError             a named limit was reached
│   ├── OverloadedError
│   ├── TooManyConnectionsError
│   │   └── ConnectionQuotaError   of one user or address
│   ├── TooManyTopicsError
│   ├── RateLimitedError
│   ├── QuotaExceededError
│   └── SlowReaderError
├── StorageError           the disk, or what is on it
│   ├── DiskFullError
│   ├── OutOfResourcesError
│   ├── UnavailableError   a cluster can't store or answer it at present
│   ├── LogFailedError
│   ├── DamagedError
│   ├── FolderInUseError
│   ├── FolderUnusableError
│   └── BackupError        a backup that is not whole, or a point that is gone
├── LinkError              the way to the broker
│   ├── ConnectError
│   ├── ConnectionLostError
│   ├── RequestTimeoutError
│   ├── DrainingError
│   ├── ClosedError
│   └── CoordinationError  the way to etcd
│       └── CoordinationRefusedError
├── MessagesLostError      a gap in a subscription: these offsets will not come
├── ConfigError
└── UnsupportedSystemError  this operating system can't do it

The module is long because the whole tree belongs in one file: a reader compares errors with each
other.
"""

from __future__ import annotations

import shlex
from typing import ClassVar


class FanlogError(Exception):
    """The root of every error that Fanlog raises. The code `internal` itself means a fault inside
    the broker, or a code that this client does not know yet.

    What to do: Read the message, and the broker's log. If the code is new, update the client.
    """

    code: ClassVar[str] = "internal"

    @property
    def message(self) -> str:
        """The sentence that says what happened and what to do."""
        return str(self)


class FormatError(FanlogError):
    """Bytes that are not a valid batch or frame.

    What to do: Check that client and broker are both Fanlog, and that no proxy changes the
    bytes between them.
    """

    code = "bad_format"


class ChecksumError(FormatError):
    """The checksum of a batch or frame does not match its bytes. They were changed on the
    way.

    What to do: Publish again. If it happens again, check the network and the memory of the
    machines.
    """

    code = "bad_checksum"


class DecodeError(FormatError, ValueError):
    """The value of a message is not of the type that the application asked for. `expected`
    is that type. `reason` says what is wrong, and where in the value.

    What to do: Use `message.value` for the bytes as they are, and fix the publisher.
    """

    code = "bad_value"

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = 0,
        offset: int = 0,
        expected: str = "",
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.expected = expected
        self.reason = reason


class UnreadableError(FormatError):
    """A batch has valid checksums, but its columns do not decode, or it would unpack to more than
    is allowed. This is a fault of its producer. Its records are `first` up to, not including,
    `next`.

    What to do: Fix the producer. Readers continue after the batch.
    """

    code = "unreadable"

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = 0,
        first: int = 0,
        next: int = 0,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.first = first
        self.next = next


class ProtocolError(FormatError):
    """A peer broke the protocol. Its connection is closed.

    What to do: Connect to the native port with a Fanlog client, and to the Redis port with a
    Redis client.
    """

    code = "bad_frame"


class BadMagicError(ProtocolError):
    """The peer does not speak this protocol: its first bytes are wrong.

    What to do: Check the port. The native port is 7420, the port for Redis clients is 7421.
    """

    code = "bad_magic"


class UnknownCommandError(ProtocolError):
    """The peer sent a frame of a kind that this side does not know.

    What to do: Update the older of the two, client or broker.
    """

    code = "unknown_command"


class UnsupportedVersionError(ProtocolError):
    """Client and broker have no version of the protocol in common.

    What to do: Update the older of the two.
    """

    code = "unsupported_version"


class RequestError(FanlogError):
    """The broker can't do this request. A client also raises it when a worker fails a request, with
    the worker's reason.

    What to do: Change what the message names.
    """

    code = "bad_request"


class InvalidArgumentError(RequestError):
    """An argument has the wrong type or value.

    What to do: Change the argument that the message names.
    """

    code = "invalid_argument"


class InvalidNameError(RequestError):
    """A name of a topic, group or queue is not allowed.

    What to do: Choose another name by the rule in the message.
    """

    code = "invalid_name"


class TopicNotFoundError(RequestError):
    """There is no topic of this name.

    What to do: Check the name with `fanlog topic list`, or create the topic.
    """

    code = "topic_not_found"


class TopicExistsError(RequestError):
    """A topic of this name exists already.

    What to do: Use the topic as it is, or choose another name.
    """

    code = "topic_exists"


class TopicDiffersError(TopicExistsError):
    """The topic exists already with other settings than those of the request. The message lists the
    differences.

    What to do: Use `exist_ok="any"` to accept the topic as it is, ask for its settings, or change
    it with `fanlog topic alter`.
    """

    code = "topic_differs"


class TopicDeletedError(RequestError):
    """The topic was deleted while it was in use.

    What to do: Create the topic again if it is still needed. A topic that was created again is
    new, and starts at offset 0.
    """

    code = "topic_deleted"


class PartitionNotFoundError(RequestError):
    """The topic has no partition of this number.

    What to do: Check the partitions with `fanlog topic describe`.
    """

    code = "partition_not_found"


class OffsetOutOfRangeError(RequestError):
    """The offset is before the first record of the partition, or after its end.

    What to do: Start at `earliest` or `latest`, or at an offset that `fanlog topic describe`
    shows.
    """

    code = "offset_out_of_range"


class MessageTooLargeError(RequestError):
    """A message is larger than the topic allows.

    What to do: Send less, or raise `message_bytes_max` of the topic.
    """

    code = "message_too_large"


class OutOfSequenceError(RequestError):
    """A producer's batch does not follow its last one. Nothing of it was stored.

    What to do: Close the client and connect again. The new client gets a new producer id.
    """

    code = "out_of_sequence"


class UnknownProducerError(RequestError):
    """The broker has forgotten this producer, so it can't distinguish a repeat from a new message.
    Nothing was stored.

    What to do: Connect again, and check whether the last message was stored before you send it
    again.
    """

    code = "unknown_producer"


class FencedError(RequestError):
    """Another client, member or transaction has taken over. The broker did not do this request.

    What to do: Stop this one. If both should run, give them different names.
    """

    code = "fenced"


class ForbiddenError(RequestError):
    """This user may not do that. `verb` is the missing permission, and `name` the topic, group or
    queue. Nothing was done.

    What to do: Ask the broker's operator for the permission, or use another user.
    """

    code = "forbidden"

    def __init__(self, message: str, *, verb: str = "", name: str = "") -> None:
        super().__init__(message)
        self.verb = verb
        self.name = name


class UnauthenticatedError(RequestError):
    """The client has not logged in: it sent no key, password or token, or a wrong, expired or
    revoked one. Nothing was done.

    What to do: Pass a valid one: `fanlog.connect(url, key=...)`, or FANLOG_KEY for commands. The
    operator creates keys with `fanlog key create`.
    """

    code = "unauthenticated"


class KeyReusedError(RequestError):
    """The same idempotency key came with other messages before. Nothing was stored this time.

    What to do: Use a new key for each request. Use the same key only to repeat the same request.
    """

    code = "key_reused"


class NotSupportedError(RequestError):
    """The system behind this listener can't do that: for example, groups on an edge over Redis.

    What to do: Connect to a Fanlog broker, or to an edge of one.
    """

    code = "not_supported"


class NoPositionError(RequestError):
    """A group has no committed offset, and its reset policy is `none`.

    What to do: Set an offset with `fanlog group reset`, or join with `reset="earliest"` or
    `"latest"`.
    """

    code = "no_position"


class AccountNotFoundError(RequestError):
    """There is no key or user of this name.

    What to do: Check the name with `fanlog key list` and `fanlog user list`.
    """

    code = "account_not_found"


class AccountExistsError(RequestError):
    """A key or user of this name exists already. A key and a user can't have the same name.

    What to do: Choose another name, or change the existing key or user.
    """

    code = "account_exists"


class GroupNotFoundError(RequestError):
    """There is no group or queue of this name.

    What to do: Check the name with `fanlog group list`.
    """

    code = "group_not_found"


class GroupActiveError(RequestError):
    """A group with members can't be reset, deleted or used as a queue.

    What to do: Stop its members first, or choose another name.
    """

    code = "group_active"


class LeaseLostError(RequestError):
    """This worker no longer holds the job: its lease expired, and another worker may have the job.

    What to do: Finish jobs within `visibility_seconds`, or raise it. Give each job one outcome
    only.
    """

    code = "lease_lost"


class NoRespondersError(RequestError):
    """The topic of a request has no worker and no reader, so no answer can come. Nothing was
    published.

    What to do: Start a worker with `client.serve(...)`, and check the topic's name.
    """

    code = "no_responders"


class RequestFailedError(RequestError):
    """The service that answers a request reported a failure. The message comes from the service.

    What to do: Read the message, and the log of the service that answers.
    """

    code = "request_failed"


class DeadLetterNotFoundError(InvalidArgumentError):
    """The dead-letter topic has no dead letter with this id: it was replayed or deleted, or it
    never existed.

    What to do: List the ids with `fanlog dead list`.
    """

    code = "dead_letter_not_found"


class TaskNotFoundError(RequestError):
    """There is no task with this id: it ended some time ago, or it belongs to somebody else.

    What to do: List your tasks with `GET /v1/tasks`.
    """

    code = "task_not_found"


class ScheduleNotFoundError(RequestError):
    """There is no schedule of this name: it was removed, or it never existed.

    What to do: List the schedules with `fanlog schedule list`.
    """

    code = "schedule_not_found"


class StreamEndedError(RequestError):
    """A resumable stream has ended, so nothing can be appended to it.

    What to do: Write to a new stream, under another name.
    """

    code = "stream_ended"


class StreamFailedError(RequestError):
    """A resumable stream ended with an error: its writer failed before it had written everything.

    What to do: Show that the text is incomplete. To try again, write a new stream.
    """

    code = "stream_failed"


class StreamSilentError(StreamFailedError):
    """Nothing came from a resumable stream for `idle_seconds`. Its writer seems to have died.

    What to do: To try again, write a new stream. If the writer is only slow, raise `idle_seconds`,
    or write inside `async with`, which keeps a stream alive.
    """

    code = "stream_silent"


class StreamGoneError(StreamFailedError):
    """A resumable stream was deleted before it had ended, while a client read it: it expired, or it
    was in memory and the broker was restarted.

    What to do: To try again, write a new stream. Use `durability="os"` for streams that must
    survive a restart.
    """

    code = "stream_gone"


class TransactionNotFoundError(RequestError):
    """The transaction was never begun, was aborted, or timed out. Nothing of it is stored.

    What to do: Do its work again in a new transaction. `client.run_transaction` does this for you.
    """

    code = "transaction_not_found"


class LimitError(FanlogError):
    """A named limit was reached. The message names it.

    What to do: Ask for less, or raise the setting that the message names.
    """

    code = "limit"


class OverloadedError(LimitError):
    """The broker has more work waiting for the disk than it accepts.

    What to do: Wait a moment and try again. If it happens often, use a faster disk or publish
    larger batches.
    """

    code = "overloaded"


class TooManyConnectionsError(LimitError):
    """The broker has as many connections as it accepts.

    What to do: Close connections that are not needed, or raise `connections_max` and the limit
    of open files.
    """

    code = "too_many_connections"


class ConnectionQuotaError(TooManyConnectionsError):
    """This user, key or address has as many connections as it may. The broker has room for
    others.

    What to do: Close connections that are not needed, share one between threads, or ask the
    operator for more.
    """

    code = "connection_quota"


class TooManyTopicsError(LimitError):
    """The broker has as many topics as it accepts.

    What to do: Delete topics that are not needed, or raise `broker.topics_max`.
    """

    code = "too_many_topics"


class RateLimitedError(LimitError):
    """This user, key or address is above its rate of messages, bytes, connections or wrong logins.
    Nothing was done. Retry after `retry_after_seconds`.

    What to do: Wait that long, and send less; or ask the operator for a higher rate.
    """

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaExceededError(LimitError):
    """A user or a prefix has reached its quota of topics or stored bytes. Nothing was done.

    What to do: Delete or truncate topics, shorten their retention, or ask the operator for a
    higher quota.
    """

    code = "quota_exceeded"


class SlowReaderError(LimitError):
    """The reader chose the policy `disconnect` and fell behind.

    What to do: Read faster, or use the policy `catch-up` or `skip`.
    """

    code = "slow_reader"


class StorageError(FanlogError):
    """The disk, or a file on it, has a fault.

    What to do: Read the message and the broker's log.
    """

    code = "storage"


class DiskFullError(StorageError):
    """There is no room on the disk. Nothing was stored. Reading still works.

    What to do: Free some space, or shorten the retention of topics. The broker accepts messages
    again by itself.
    """

    code = "disk_full"


class OutOfResourcesError(StorageError):
    """The system has no file descriptor or memory left for this. Nothing was stored.

    What to do: Raise the limit that the message names, then try again.
    """

    code = "out_of_resources"


class UnavailableError(StorageError):
    """The cluster can't do it at present: too few replicas are connected, or this node is not the
    primary. Nothing was stored. Reading still works.

    What to do: Try again. If it lasts, look which nodes of the cluster are connected.
    """

    code = "unavailable"


class LogFailedError(StorageError):
    """A write or sync of the log failed. The log accepts no more writes until the broker is
    restarted.

    What to do: Check the disk, then restart the broker. It recovers what was acknowledged.
    """

    code = "log_failed"


class DamagedError(StorageError):
    """Records `first` up to, not including, `next` can't be read: the file is damaged
    there.

    What to do: Continue after `next`. The damaged file is kept beside the log; restore it from
    a backup if there is one.
    """

    code = "damaged"

    def __init__(self, message: str, first: int = 0, next: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.next = next


class FolderInUseError(StorageError):
    """Another process uses the data folder.

    What to do: Stop the other broker, or start this one with another `--data` folder.
    """

    code = "folder_in_use"


class FolderUnusableError(StorageError):
    """The broker can't use the data folder: it does not exist, is not readable, comes from a newer
    Fanlog, or belongs to a node of a cluster.

    What to do: Read the message. It names the folder and its fault.
    """

    code = "folder_unusable"


class BackupError(StorageError):
    """A backup is damaged or incomplete, or it stopped before everything was copied.

    What to do: Read the message. Earlier points of the same backup are still valid.
    """

    code = "backup"


class LinkError(FanlogError):
    """The connection to the broker failed.

    What to do: Check that the broker runs, with `fanlog health`.
    """

    code = "link"


class ConnectError(LinkError):
    """No broker answers at this address.

    What to do: Start a broker with `fanlog serve`, and check host and port.
    """

    code = "connect"


class ConnectionLostError(LinkError):
    """The connection was lost. It is unknown whether the broker did the last request.

    What to do: Repeat the request. The client reconnects by itself, and publishing again is safe.
    """

    code = "connection_lost"


class RequestTimeoutError(LinkError):
    """No answer came in time. It is unknown whether the broker did the request.

    What to do: Repeat the request, or allow more time. Publishing again through the same client is
    safe: the broker stores the message once.
    """

    code = "timeout"


class DrainingError(LinkError):
    """The broker is stopping and accepts nothing new.

    What to do: Nothing. The client reconnects by itself when a broker answers.
    """

    code = "draining"


class ClosedError(LinkError):
    """The client, subscription or worker was closed.

    What to do: Open a new one.
    """

    code = "closed"


class CoordinationError(LinkError):
    """A node of a cluster can't reach etcd, or etcd can't answer now. Clients notice only if a node
    fails meanwhile.

    What to do: Check etcd, and the network between it and this node. The node tries again by
    itself.
    """

    code = "coordination"


class CoordinationRefusedError(CoordinationError):
    """etcd refuses what a node of a cluster asks. Trying again does not help.

    What to do: Read the message. Usually a user, a password, a permission or a certificate is
    wrong, or etcd is older than 3.4.
    """

    code = "coordination_refused"


class MessagesLostError(FanlogError):
    """A subscription will not get the records `first` up to, not including, `next`. The
    iterator raises it once; iterate again to continue after the gap.

    What to do: Decide whether your program can continue without them. Pass `on_gap` to get a
    call instead of an error.
    """

    code = "messages_lost"

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = 0,
        first: int = 0,
        next: int = 0,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.first = first
        self.next = next
        self.reason = reason


class ConfigError(FanlogError):
    """A setting is wrong: in the file, in a variable, or in a flag.

    What to do: Change the setting that the message names. `fanlog config check` checks a file.
    """

    code = "bad_config"


class UnsupportedSystemError(FanlogError):
    """A broker does not run on this operating system.

    What to do: Run the broker on Linux or macOS. Clients also run on Windows.
    """

    code = "unsupported_system"


def allow_more(*settings: str) -> str:
    """The last sentence of a `LimitError`: the settings of the broker that allow more."""
    return (
        f"To allow more, raise {' or '.join(settings)} in the broker's settings (fanlog.toml, or "
        "Config in a program) and restart it."
    )


def wrong_value(said: str) -> str:
    """The error of msgspec about a value, with the name first: `linger_ms: expected float, got
    str`. msgspec writes ``Expected `float`, got `str` - at `$.linger_ms` ``."""
    sentence, _, path = said.replace("`", "").partition(" - at ")
    name = path.removeprefix("$").removeprefix(".")
    sentence = sentence[:1].lower() + sentence[1:]
    return f"{name}: {sentence}" if name else sentence


def no_partition(topic: str, partitions: int, wanted: int) -> PartitionNotFoundError:
    """The error for a partition that a topic does not have."""
    has = "one partition, 0" if partitions == 1 else f"the partitions 0 to {partitions - 1}"
    return PartitionNotFoundError(f"Topic {topic!r} has {has}; there is no partition {wanted}.")


def too_large(what: str, topic: str, most: int) -> MessageTooLargeError:
    """The error for a message that is too large for its topic."""
    return MessageTooLargeError(
        f"{what}; topic {topic!r} takes {most} (message_bytes_max). Send less at once, or allow "
        f"more with: fanlog topic alter {shlex.quote(topic)} --message-bytes-max BYTES"
    )


def _tree(root: type[FanlogError]) -> dict[str, type[FanlogError]]:
    found = {root.code: root}
    for branch in root.__subclasses__():
        found.update(_tree(branch))
    return found


BY_CODE: dict[str, type[FanlogError]] = _tree(FanlogError)


def from_wire(
    code: str, message: str, first: int = 0, next: int = 0, retry_after_seconds: float = 0.0
) -> FanlogError:
    """The error that a peer named. A code from a newer peer becomes a plain `FanlogError`."""
    kind = BY_CODE.get(code, FanlogError)
    if kind is DamagedError:
        return DamagedError(message, first, next)
    if kind is RateLimitedError and retry_after_seconds:
        return RateLimitedError(message, retry_after_seconds=retry_after_seconds)
    return kind(message)
