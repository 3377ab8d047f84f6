"""Published messages for tests, and the sentence for those that are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fanlog.client.aio import Client
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import DecodeError, OffsetOutOfRangeError, TopicNotFoundError
from fanlog.format.patterns import is_pattern
from fanlog.model import TopicInfo

_POLL_SECONDS = 0.01
# Messages that a failure shows: enough to see what is wrong, and the newest ones.
_SHOWN_MAX = 20
_SHOWN_CHARS = 200


class _Any:
    def __repr__(self) -> str:
        return "ANY"


# Whatever it is.
ANY: Any = _Any()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a test expects in a topic."""

    topic: str
    key: bytes | str | None = ANY
    value: Any = ANY
    json: Any = ANY
    headers: Mapping[str, bytes | str] | None = None
    count: int | None = None

    def fits(self, message: Message) -> bool:
        if self.key is not ANY and message.key != _bytes(self.key):
            return False
        if self.value is not ANY and not _has_value(message, self.value):
            return False
        if self.json is not ANY and not _has_json(message, self.json):
            return False
        own = message.headers if self.headers else {}
        return all(own.get(name) == _bytes(value) for name, value in (self.headers or {}).items())

    def is_met(self, found: int) -> bool:
        return found >= 1 if self.count is None else found == self.count

    def may_come(self, found: int) -> bool:
        """Whether waiting can help."""
        return self.count is None or found < self.count

    def describe(self) -> str:
        names = {"key": self.key, "value": self.value, "json": self.json}
        asked = [f"{name}={value!r}" for name, value in names.items() if value is not ANY]
        if self.headers:
            asked.append(f"headers={dict(self.headers)!r}")
        how_many = "at least 1 message" if self.count is None else _messages(self.count)
        return f"{how_many} in {self.topic!r}" + (f" with {', '.join(asked)}" if asked else "")


async def published(client: Client, topic: str) -> list[Message]:
    """All messages of a topic, or of the topics that fit a pattern, in the order in which they were
    published; none if there is no such topic."""
    if is_pattern(topic):
        infos = await client.topics(topic)
    else:
        try:
            infos = [await client.describe_topic(topic)]
        except TopicNotFoundError:
            return []
    found = [message for info in infos for message in await _messages_of(client, info)]
    return sorted(found, key=lambda message: message.timestamp)


async def assert_published(
    client: Client, expected: Expected, timeout_seconds: float
) -> list[Message]:
    """The messages that were expected. Waits for them, and raises AssertionError if they do not
    come."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while True:
        there = await published(client, expected.topic)
        fitting = [message for message in there if expected.fits(message)]
        if expected.is_met(len(fitting)):
            return fitting
        late = asyncio.get_running_loop().time() >= deadline
        if late or not expected.may_come(len(fitting)):
            raise AssertionError(await _failure(client, expected, there, len(fitting)))
        await asyncio.sleep(_POLL_SECONDS)


async def _messages_of(client: Client, info: TopicInfo) -> list[Message]:
    found: list[Message] = []
    for partition in info.partitions:
        offset = partition.start_offset
        while offset < partition.visible_end:
            try:
                got = await client.fetch(info.name, partition.partition, offset)
            except OffsetOutOfRangeError:
                break
            if not got.batches:
                break
            for batch in got.batches:
                found += MessageBatch(batch).from_offset(offset).messages
                offset = batch.next_offset
    return found


async def _failure(client: Client, expected: Expected, there: list[Message], fitting: int) -> str:
    lines = [f"expected {expected.describe()}, found {fitting}."]
    if there:
        lines.append(f"{expected.topic!r} has {_messages(len(there))}:")
        if len(there) > _SHOWN_MAX:
            lines.append(f"  … and {len(there) - _SHOWN_MAX} before these")
        lines += [f"  {shown(message)}" for message in there[-_SHOWN_MAX:]]
    else:
        topics = [info.name for info in await client.topics()]
        known = ", ".join(map(repr, topics[:_SHOWN_MAX])) or "none"
        state = "is empty" if expected.topic in topics else "does not exist"
        lines.append(f"{expected.topic!r} {state}. Topics: {known}.")
    return "\n".join(lines)


def shown(message: Message) -> str:
    """A message on one line."""
    where = f"{message.topic}/{message.partition}@{message.offset}"
    key = "" if message.key is None else f" key={_text(message.key)}"
    headers = {name: _text(value) for name, value in message.headers.items()}
    said = f" headers={{{', '.join(f'{k}: {v}' for k, v in headers.items())}}}" if headers else ""
    if message.is_tombstone:
        value = "a tombstone"
    else:
        try:
            value = repr(message.decode()) if message.value else "b''"
        except DecodeError:
            value = _text(message.value)
    return f"{where}{key}{said} {value}"[:_SHOWN_CHARS]


def _text(value: bytes) -> str:
    try:
        return repr(value.decode())
    except UnicodeDecodeError:
        return repr(value)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _has_value(message: Message, value: Any) -> bool:
    if value is None or message.is_tombstone:
        return value is None and message.is_tombstone
    if isinstance(value, str | bytes):
        return message.value == _bytes(value)
    kind = cast("type[object]", type(value))
    try:
        return bool(message.decode(kind) == value)
    except DecodeError:
        return False


def _has_json(message: Message, value: Any) -> bool:
    try:
        return not message.is_tombstone and bool(message.decode() == value)
    except DecodeError:
        return False


def _messages(count: int) -> str:
    return f"{count} message" if count == 1 else f"{count} messages"
