"""Messages as JSON, for WebSocket, SSE and REST alike, and JSON messages to publish.

| field                        | there when                                                        |
| ---------------------------- | ----------------------------------------------------------------- |
| `topic`, `partition`         | they do not stand outside, as in a frame of one partition         |
| `offset`, `time`             | always; RFC 3339 in UTC, when the broker appended it              |
| `event_time`                 | the publisher gave one                                            |
| `key` or `key_base64`        | it has a key                                                      |
| `headers`, `headers_base64`  | it has headers; the latter holds those that are not UTF-8         |
| `json`, `text` or `base64`   | it has a value: JSON as it was published, UTF-8, or anything else |
| `deleted`                    | it has none: a tombstone                                          |

A value is JSON if its `content-type` says so, or it has none and begins like an object or a list,
and if it is well-formed. It then stands in the output byte by byte. A batch is rendered once:
`RenderedRecords` keeps what all views of a turn share.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from fanlog.errors import InvalidArgumentError, UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.header import BatchHeader
from fanlog.format.web_filters import Filter

CONTENT_TYPE = "content-type"
_CONTENT_TYPE = CONTENT_TYPE.encode()
JSON_TYPE = b"application/json"

_encode = msgspec.json.Encoder().encode
# It checks the syntax, without building anything; but not UTF-8.
_check_syntax = msgspec.json.Decoder(Raw).decode
_NOT_JSON = (msgspec.DecodeError, RecursionError)
# Fewer values are checked one by one.
_PLAIN_MIN = 4
# Seconds whose texts are remembered: those of the batches that are rendered now.
_SECONDS_MAX = 64
# What may begin JSON, and the quickest signs of text that needs escapes.
_NOT_PLAIN = ('"', "\\", "{", "[")
# A record's headers, in their order.
Pairs = tuple[tuple[bytes, bytes], ...]
_NO_HEADERS: Mapping[bytes, bytes] = {}


def quoted(text: str) -> str:
    """Text as JSON has it.

    >>> quoted('"a"')
    '"\\\\"a\\\\""'
    """
    return _encode(text).decode()


def rfc3339(us: int) -> str:
    """A time in microseconds since 1970; one that no date can have is the nearest one that can.

    >>> rfc3339(1_700_000_000_000_001)
    '2023-11-14T22:13:20.000001Z'
    """
    try:
        return f"{_second(us // 1_000_000)}.{us % 1_000_000:06d}Z"
    except (OverflowError, ValueError, OSError):
        nearest = dt.datetime.max if us > 0 else dt.datetime.min
        return f"{nearest.isoformat(timespec='microseconds')}Z"


@lru_cache(_SECONDS_MAX)
def _second(second: int) -> str:
    return dt.datetime.fromtimestamp(second, tz=dt.UTC).isoformat()[:-6]


def is_json_type(content_type: bytes) -> bool:
    """Whether a `content-type` says that a value is JSON."""
    if content_type == JSON_TYPE:
        return True
    essence = content_type.partition(b";")[0].strip().lower()
    return essence in (JSON_TYPE, b"text/json") or essence.endswith(b"+json")


def value_json(value: bytes | None, *, said: bool | None = None) -> str:
    """A value as a field of a message. `said`: whether its content type is JSON, if it has one."""
    if value is None:
        return '"deleted":true'
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f'"base64":"{b64encode(value).decode()}"'
    if said or (said is None and (text[:1] == "{" or text[:1] == "[")):
        try:
            _check_syntax(value)
        except _NOT_JSON:
            pass
        else:
            return f'"json":{text}'
    return f'"text":{quoted(text)}'


def _key_json(key: bytes | None) -> str:
    if key is None:
        return ""
    try:
        return f'"key":{quoted(key.decode())},'
    except UnicodeDecodeError:
        return f'"key_base64":"{b64encode(key).decode()}",'


def _headers_json(headers: Pairs) -> str:
    if not headers:
        return ""
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, content in headers:
        shown = name.decode(errors="replace")
        try:
            texts[shown] = content.decode()
            others.pop(shown, None)
        except UnicodeDecodeError:
            others[shown] = b64encode(content).decode()
            texts.pop(shown, None)
    return _object_json("headers", texts) + _object_json("headers_base64", others)


def _object_json(name: str, fields: dict[str, str]) -> str:
    if not fields:
        return ""
    shown = ",".join([f"{quoted(key)}:{quoted(text)}" for key, text in fields.items()])
    return f'"{name}":{{{shown}}},'


def says_json(headers: Pairs) -> bool | None:
    """Whether a value is JSON by its content type; None if it has none."""
    for name, content in headers:
        if name == _CONTENT_TYPE or name.lower() == _CONTENT_TYPE:
            return is_json_type(content)
    return None


class RenderedRecords:
    """A decoded batch, and what is made of it: each message as JSON, and which of them pass a
    filter. Raises `UnreadableError` for a batch that does not decode."""

    __slots__ = ("_headers", "_kept", "_keys", "_messages", "batch", "header", "offsets", "values")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.header: BatchHeader = batch.header
        if self.header.flags:
            # Without flags there are only values, and these are checked as they are cut.
            batch.check()
        self.offsets: Sequence[int] = batch.offsets
        self.values: list[bytes | None] = batch.values
        self._keys: Sequence[bytes | None] | None = None
        self._headers: Sequence[Pairs] | None = None
        self._messages: list[str] | None = None
        self._kept: dict[Filter, list[int]] = {}

    @property
    def keys(self) -> Sequence[bytes | None]:
        if self._keys is None:
            self._keys = self.batch.keys
        return self._keys

    @property
    def headers(self) -> Sequence[Pairs]:
        """Names and contents of each record's headers, in their order."""
        if self._headers is None:
            columns = self.batch.columns.header_columns
            if columns is None:
                self._headers = [()] * len(self.values)
            else:
                slots, names, contents = columns
                pairs = list(zip(names.to_bytes_list(), contents.to_bytes_list(), strict=True))
                at = slots.tolist()
                self._headers = [tuple(pairs[begin:end]) for begin, end in pairwise(at)]
        return self._headers

    @property
    def messages(self) -> list[str]:
        """Each message as a JSON object without its topic and partition. It is text, because a
        frame of many is encoded faster in one go."""
        if self._messages is None:
            self._messages = self._render()
        return self._messages

    def first(self, offset: int) -> int:
        """The index of the first record at or behind an offset."""
        if offset <= self.header.base_offset:
            return 0
        return bisect_left(self.offsets, offset)

    def kept(self, filter: Filter) -> list[int]:
        """The indexes of the records that pass. It is evaluated once for a filter."""
        found = self._kept.get(filter)
        if found is None:
            headers = (
                [{name.lower(): content for name, content in own} for own in self.headers]
                if filter.wants_headers
                else repeat(_NO_HEADERS)
            )
            passes = filter.passes
            both = zip(self.keys, headers, strict=False)
            found = [i for i, (key, own) in enumerate(both) if passes(key, own)]
            self._kept[filter] = found
        return found

    def _maybe_plain(self) -> list[str] | None:
        """The values, if all are text that needs no escapes: one look at the whole column."""
        column = self.batch.columns.value_column
        data = column.data.tobytes()
        if column.validity is not None or not data.isascii():
            return None
        text = data.decode()
        if any(sign in text for sign in _NOT_PLAIN) or len(_encode(text)) != len(text) + 2:
            return None
        return [text[begin:end] for begin, end in pairwise(column.offsets.tolist())]

    def _render(self) -> list[str]:
        columns = self.batch.columns
        time = rfc3339(self.header.append_time_us)
        times = columns.event_times_us
        if columns.key_column is None and columns.header_columns is None and times is None:
            plain = self._maybe_plain() if len(self.values) >= _PLAIN_MIN else None
            front = f',"time":"{time}",'
            if plain is not None:
                front += '"text":"'
                return [
                    f'{{"offset":{offset}{front}{text}"}}'
                    for offset, text in zip(self.offsets, plain, strict=True)
                ]
            return [
                f'{{"offset":{offset}{front}{value_json(value)}}}'
                for offset, value in zip(self.offsets, self.values, strict=True)
            ]
        event_times = (
            repeat("") if times is None else [f'"event_time":"{rfc3339(us)}",' for us in times]
        )
        # Records of one publisher mostly have the same headers.
        known = {own: (_headers_json(own), says_json(own)) for own in set(self.headers)}
        headers = [known[own] for own in self.headers]
        return [
            f'{{"offset":{offset},"time":"{time}",{event_time}{_key_json(key)}{shown}'
            f"{value_json(value, said=said)}}}"
            for offset, value, key, (shown, said), event_time in zip(
                self.offsets, self.values, self.keys, headers, event_times, strict=False
            )
        ]


class Unreadable:
    """A batch that does not decode, in the place of its records."""

    __slots__ = ("batch", "fault", "header")

    def __init__(self, batch: Batch, fault: UnreadableError) -> None:
        self.batch = batch
        self.header = batch.header
        self.fault = fault


def partition_json(topic: str, partition: int) -> str:
    """How a message with its topic and partition begins."""
    return f'{{"topic":{quoted(topic)},"partition":{partition},'


def messages_json(
    batch: Batch, first_offset: int = 0, limit: int | None = None, topic: str | None = None
) -> list[bytes]:
    """The messages of a batch from an offset on, as JSON."""
    records = RenderedRecords(batch)
    first = records.first(first_offset)
    messages = records.messages[first : None if limit is None else first + limit]
    if topic is None:
        return [message.encode() for message in messages]
    front = partition_json(topic, batch.partition)
    return [(front + message[1:]).encode() for message in messages]


def reply_json(value: bytes | None, headers: Mapping[str, bytes]) -> bytes:
    """A message that is in no log, as JSON: the reply to a request.

    >>> reply_json(b"pong", {"a": b"b"})
    b'{"headers":{"a":"b"},"text":"pong"}'
    """
    pairs = tuple((name.encode(), content) for name, content in headers.items())
    return f"{{{_headers_json(pairs)}{value_json(value, said=says_json(pairs))}}}".encode()


class OutgoingMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to publish. Its value is one of `json`, `text` and `base64`; `deleted` makes it a
    tombstone."""

    key: Annotated[str, Meta(description="The key, as text.")] | None = None
    key_base64: Annotated[bytes, Meta(description="The key, as base64.")] | None = None
    headers: Annotated[dict[str, str], Meta(description="Headers by name.")] | None = None
    headers_base64: (
        Annotated[dict[str, bytes], Meta(description="Headers that are not text, as base64.")]
        | None
    ) = None
    json: Raw | UnsetType = UNSET
    text: Annotated[str, Meta(description="The value, as text.")] | UnsetType = UNSET
    base64: Annotated[bytes, Meta(description="The value, as base64.")] | UnsetType = UNSET
    deleted: Annotated[
        bool, Meta(description="No value: deletes the key from a compacted topic.")
    ] = False

    def is_empty(self) -> bool:
        """Whether nothing of a message is given."""
        given = (self.key, self.key_base64, self.headers, self.headers_base64)
        values = (self.json, self.text, self.base64)
        return not self.deleted and given == (None,) * 4 and values == (UNSET,) * 3

    def record(self) -> tuple[bytes | None, bytes | None, dict[str, bytes] | None]:
        """Key, value and headers as they are published."""
        if self.key is not None and self.key_base64 is not None:
            raise InvalidArgumentError("A message has one key: give `key` or `key_base64`.")
        key = self.key_base64 if self.key is None else _utf8(self.key, "key")
        given = [
            name
            for name, there in (
                ("json", self.json is not UNSET),
                ("text", self.text is not UNSET),
                ("base64", self.base64 is not UNSET),
                ("deleted", self.deleted),
            )
            if there
        ]
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise InvalidArgumentError(
                f"A message has exactly one of `json`, `text`, `base64` and `deleted`, not {said}."
            )
        headers = {name: _utf8(text, "header") for name, text in (self.headers or {}).items()}
        headers |= self.headers_base64 or {}
        if isinstance(self.json, Raw):
            value: bytes | None = bytes(self.json)
            if not any(name.lower() == CONTENT_TYPE for name in headers):
                headers[CONTENT_TYPE] = JSON_TYPE
        elif isinstance(self.text, str):
            value = _utf8(self.text, "text")
        else:
            value = self.base64 if isinstance(self.base64, bytes) else None
        return key, value, headers or None


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise InvalidArgumentError(f"A {what} is text that UTF-8 can't hold: {fault}.") from fault
