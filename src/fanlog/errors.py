"""Every error of Fanlog, in one tree.

Each class has a stable `code` that travels on the wire, and every message says what to do.
The branches keep faults apart: what the caller asked wrongly (`RequestError`), what a peer sent
wrongly (`FormatError`), a named limit (`LimitError`), and what is wrong on our side
(`StorageError`, `LinkError`).

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
│   ├── NoPositionError
│   ├── GroupNotFoundError
│   ├── GroupActiveError
│   ├── LeaseLostError
│   ├── NoRespondersError
│   └── TransactionNotFoundError
├── LimitError             a named limit was reached
│   ├── OverloadedError
│   ├── TooManyConnectionsError
│   ├── TooManyTopicsError
│   └── SlowReaderError
├── StorageError           the disk, or what is on it
│   ├── DiskFullError
│   ├── OutOfResourcesError
│   ├── LogFailedError
│   ├── DamagedError
│   ├── FolderInUseError
│   └── FolderUnusableError
├── LinkError              the way to the broker
│   ├── ConnectError
│   ├── ConnectionLostError
│   ├── RequestTimeoutError
│   ├── DrainingError
│   └── ClosedError
├── MessagesLostError      a gap in a subscription: these offsets will not come
├── ConfigError
└── UnsupportedSystemError  this operating system can't do it
"""

from __future__ import annotations

from typing import ClassVar


class FanlogError(Exception):
    """The root of every error that Fanlog raises."""

    code: ClassVar[str] = "internal"

    @property
    def message(self) -> str:
        return str(self)


class FormatError(FanlogError):
    """Bytes that are not a valid batch or frame."""

    code = "bad_format"


class ChecksumError(FormatError):
    code = "bad_checksum"


class DecodeError(FormatError, ValueError):
    """A message's value is not of the type that the application asked for. `expected` is that
    type, and `reason` says what is wrong, and where in the value."""

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
    """A batch whose checksums fit, and whose columns do not decode: its producer made it so, or it
    would unpack to more than is allowed. Its records are `first` up to, not including, `next`."""

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
    """A peer broke the protocol; its connection is closed."""

    code = "bad_frame"


class BadMagicError(ProtocolError):
    code = "bad_magic"


class UnknownCommandError(ProtocolError):
    code = "unknown_command"


class UnsupportedVersionError(ProtocolError):
    code = "unsupported_version"


class RequestError(FanlogError):
    """The caller asked for something that can't be done as asked."""

    code = "bad_request"


class InvalidArgumentError(RequestError):
    code = "invalid_argument"


class InvalidNameError(RequestError):
    code = "invalid_name"


class TopicNotFoundError(RequestError):
    code = "topic_not_found"


class TopicExistsError(RequestError):
    code = "topic_exists"


class TopicDiffersError(TopicExistsError):
    """A topic that may exist already does, and its settings are not those that were asked for."""

    code = "topic_differs"


class TopicDeletedError(RequestError):
    code = "topic_deleted"


class PartitionNotFoundError(RequestError):
    code = "partition_not_found"


class OffsetOutOfRangeError(RequestError):
    code = "offset_out_of_range"


class MessageTooLargeError(RequestError):
    code = "message_too_large"


class OutOfSequenceError(RequestError):
    """A producer's batch does not follow its last one; nothing was stored."""

    code = "out_of_sequence"


class UnknownProducerError(RequestError):
    """The broker does not know this producer's numbers, so it can't tell a repeat from news."""

    code = "unknown_producer"


class FencedError(RequestError):
    """Somebody else has taken over; what this one asked for was not done."""

    code = "fenced"


class NoPositionError(RequestError):
    """A group has no committed position, and its reset policy is `none`."""

    code = "no_position"


class GroupNotFoundError(RequestError):
    code = "group_not_found"


class GroupActiveError(RequestError):
    """A group with members can't be reset or deleted, or be of another kind."""

    code = "group_active"


class LeaseLostError(RequestError):
    """The job is no longer this worker's: its time ran out, and others may have it."""

    code = "lease_lost"


class NoRespondersError(RequestError):
    """Nobody works on the topic that a request was for."""

    code = "no_responders"


class TransactionNotFoundError(RequestError):
    """The transaction was never begun, was aborted, or ran out of time: nothing of it is stored."""

    code = "transaction_not_found"


class LimitError(FanlogError):
    """A named limit was reached. The message names it."""

    code = "limit"


class OverloadedError(LimitError):
    code = "overloaded"


class TooManyConnectionsError(LimitError):
    code = "too_many_connections"


class TooManyTopicsError(LimitError):
    code = "too_many_topics"


class SlowReaderError(LimitError):
    """The reader chose the `disconnect` policy and fell behind."""

    code = "slow_reader"


class StorageError(FanlogError):
    """The disk, or what is on it."""

    code = "storage"


class DiskFullError(StorageError):
    code = "disk_full"


class OutOfResourcesError(StorageError):
    """The system has no file descriptor or memory left for it. Nothing was stored; it may be tried
    again."""

    code = "out_of_resources"


class LogFailedError(StorageError):
    """A write or fdatasync failed: the log takes no more writes until a restart."""

    code = "log_failed"


class DamagedError(StorageError):
    """Records `first` up to, not including, `next` can't be read: the file is damaged there."""

    code = "damaged"

    def __init__(self, message: str, first: int = 0, next: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.next = next


class FolderInUseError(StorageError):
    code = "folder_in_use"


class FolderUnusableError(StorageError):
    code = "folder_unusable"


class LinkError(FanlogError):
    """The way to the broker failed."""

    code = "link"


class ConnectError(LinkError):
    code = "connect"


class ConnectionLostError(LinkError):
    code = "connection_lost"


class RequestTimeoutError(LinkError):
    """No answer in time. The outcome is unknown; publishing again is safe."""

    code = "timeout"


class DrainingError(LinkError):
    code = "draining"


class ClosedError(LinkError):
    code = "closed"


class MessagesLostError(FanlogError):
    """A subscription will not get the records `first` up to, not including, `next`.

    Raised once by the iterator; iterating again goes on after the gap.
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
    code = "bad_config"


class UnsupportedSystemError(FanlogError):
    """This operating system lacks what a broker needs."""

    code = "unsupported_system"


def _tree(root: type[FanlogError]) -> dict[str, type[FanlogError]]:
    found = {root.code: root}
    for branch in root.__subclasses__():
        found.update(_tree(branch))
    return found


BY_CODE: dict[str, type[FanlogError]] = _tree(FanlogError)


def from_wire(code: str, message: str, first: int = 0, next: int = 0) -> FanlogError:
    """The error that a peer named. A code from a newer peer becomes a plain `FanlogError`."""
    kind = BY_CODE.get(code, FanlogError)
    if kind is DamagedError:
        return DamagedError(message, first, next)
    return kind(message)
