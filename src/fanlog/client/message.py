"""Messages as a subscriber sees them. A batch is decoded once, at the first access to one of its
messages. A message is then its value and an index into that batch."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Iterator
from itertools import repeat
from typing import Any, TypeVar, overload

import msgspec

from fanlog.client import values
from fanlog.errors import DecodeError
from fanlog.format.batch import Batch

T = TypeVar("T")
_CONTENT_TYPE = values.CONTENT_TYPE.encode()
_decode_json = msgspec.json.Decoder().decode


class Message(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One message.

    `value` and `offset` are plain attributes; the rest is looked up in the batch when asked for.
    """

    value: bytes
    offset: int
    batch: Batch
    index: int

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.batch.topic_name

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.batch.header.partition

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        column = self.batch.columns.key_column
        return None if column is None else column[self.index]

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers, by name."""
        return self.batch.columns.headers(self.index)

    @property
    def is_tombstone(self) -> bool:
        """Whether the message has no value at all, as opposed to an empty one."""
        return self.batch.columns.value_column.is_null(self.index)

    @property
    def priority(self) -> int:
        """The priority from its publisher, 0 to 9. Queues hand out urgent jobs first."""
        return self.batch.header.priority

    @property
    def timestamp(self) -> dt.datetime:
        """When the broker appended it."""
        return _time(self.batch.header.append_time_us)

    @property
    def event_time(self) -> dt.datetime:
        """The event time from its publisher; without one, the append time."""
        times = self.batch.columns.event_times_us
        return self.timestamp if times is None else _time(times[self.index])

    @property
    def text(self) -> str:
        """The value as text, in UTF-8."""
        return self.value.decode()

    def json(self) -> Any:
        """The value, decoded as JSON. Raises `DecodeError`, which names the message.

        >>> message.json()
        {'tea': 1}
        """
        try:
            return _decode_json(self.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise DecodeError(
                f"The value of {self.topic}/{self.partition}@{self.offset} is not JSON: {fault}. "
                "Use message.value for the bytes as they are.",
                topic=self.topic,
                partition=self.partition,
                offset=self.offset,
                expected="JSON",
                reason=str(fault),
            ) from fault

    @overload
    def decode(self, type: type[T], /) -> T: ...
    @overload
    def decode(self, type: Any = Any, /) -> Any: ...
    def decode(self, type: Any = Any, /) -> Any:
        """The value as an object of a type: a dataclass, a msgspec Struct, an attrs class, a
        pydantic model, or what these are made of. Without a type it is dicts, lists and the like.
        The header `content-type` says whether it is JSON or msgpack; without one it is JSON.

        Raises `DecodeError`, which names the message and what is wrong with it.

        >>> order = message.decode(Order)  # doctest: +SKIP
        """
        value = self.value
        said = self.batch.columns.header(self.index, _CONTENT_TYPE)
        content = "" if said is None else values.essence(said)
        tombstone = not value and self.is_tombstone
        try:
            return values.decode(None if tombstone else value, content, type)
        except values.FAULTS as fault:
            raise values.decode_error(
                fault,
                type,
                content,
                topic=self.topic,
                partition=self.partition,
                offset=self.offset,
                has_value=not tombstone,
            ) from fault

    def __repr__(self) -> str:
        shown = self.value if len(self.value) <= 60 else self.value[:57] + b"..."
        return f"<Message {self.topic}/{self.partition}@{self.offset} {shown!r}>"


class MessageBatch:
    """A run of messages of one partition, as the log holds them.

    In a compacted topic, it may have gaps or be empty.
    """

    __slots__ = ("_messages", "batch", "first")

    def __init__(self, batch: Batch, first: int = 0) -> None:
        self.batch = batch
        self.first = first
        self._messages: list[Message] | None = None

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.batch.topic_name

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.batch.header.partition

    @property
    def base_offset(self) -> int:
        """The offset of the first message; in an empty batch, the next offset."""
        offsets = self.batch.offsets
        return offsets[self.first] if self.first < len(offsets) else self.next_offset

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.batch.next_offset

    @property
    def values(self) -> list[bytes | None]:
        """The values of the messages. None is a tombstone."""
        return self.batch.values[self.first :]

    @property
    def messages(self) -> list[Message]:
        """The messages."""
        if self._messages is None:
            batch = self.batch
            batch.check()
            values = batch.columns.value_column.to_bytes_list()
            everything = map(Message, values, batch.offsets, repeat(batch), range(len(values)))
            self._messages = list(everything)[self.first :]
        return self._messages

    def from_offset(self, offset: int) -> MessageBatch:
        """The same batch without the records before an offset."""
        if offset <= self.batch.header.base_offset:
            return self
        return self.from_record(bisect_left(self.batch.offsets, offset))

    def from_record(self, first: int) -> MessageBatch:
        """The same batch without its first records. There may be fewer records than offsets."""
        return self if first <= self.first else MessageBatch(self.batch, first)

    def __len__(self) -> int:
        return self.batch.header.record_count - self.first

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __repr__(self) -> str:
        return f"<MessageBatch of {self.batch!r}>"


def _time(us: int) -> dt.datetime:
    """A time as a datetime, or the nearest one that a datetime can hold."""
    try:
        return dt.datetime.fromtimestamp(us / 1e6, tz=dt.UTC)
    except (OverflowError, ValueError, OSError):
        return (dt.datetime.max if us > 0 else dt.datetime.min).replace(tzinfo=dt.UTC)
