"""The records of one batch, read one by one, and as rows for people.

It reads only the records that are needed: a batch may have a million, and a page shows a hundred.
It runs in threads.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fanlog.errors import FormatError
from fanlog.format.trace_context import TRACEPARENT, maybe_context
from fanlog.format.web import rfc3339, says_json

if TYPE_CHECKING:
    from fanlog.format.batch import Batch
    from fanlog.format.columns import BinaryColumn
    from fanlog.format.web import Pairs

# Bytes shown of a key and of each header. The request chooses the limit for values.
KEY_BYTES_MAX = 1024
_HEADER_BYTES_MAX = 512
_HEADERS_MAX = 32
_TRACEPARENT = TRACEPARENT.encode()
# A character has up to this number of bytes in UTF-8: a cut may leave all but one of them.
_CHARACTER_BYTES_MAX = 4
_encode = msgspec.json.Encoder().encode


class ExploredMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as a row: the start of its value, and the value's kind."""

    topic: str
    partition: int
    offset: int
    time: Annotated[str, Meta(description="When the broker appended it, RFC 3339 in UTC.")]
    event_time: Annotated[
        str, Meta(description="The time of the event, as its publisher gave it.")
    ] = ""
    key: str | None = None
    key_base64: Annotated[str, Meta(description="A key that is not text.")] | None = None
    key_bytes: Annotated[int, Meta(description="The size of the key.")] = 0
    headers: dict[str, str] = {}
    headers_base64: Annotated[
        dict[str, str], Meta(description="Headers that are not text, as base64.")
    ] = {}
    headers_cut: Annotated[bool, Meta(description="Whether a header is missing or cut off.")] = (
        False
    )
    trace: Annotated[
        str, Meta(description="The id of the trace in `traceparent`, if there is one.")
    ] = ""
    format: Annotated[
        str,
        Meta(
            description="json (it begins like JSON, or its headers say so), text, binary, or "
            "deleted."
        ),
    ] = "text"
    bytes: Annotated[int, Meta(description="The size of the whole value.")] = 0
    preview: Annotated[str, Meta(description="The beginning of a value that is text.")] = ""
    preview_base64: Annotated[
        str, Meta(description="The beginning of a value that is not text.")
    ] = ""
    truncated: Annotated[bool, Meta(description="Whether the value is cut off.")] = False


def cut(column: BinaryColumn, i: int) -> bytes | None:
    """One entry. Its bounds are checked, and those of no other entry."""
    if column.is_null(i):
        return None
    begin, end = column.offsets[i], column.offsets[i + 1]
    if not 0 <= begin <= end <= len(column.data):
        raise FormatError("a column's offsets fall")
    return column.data[begin:end].tobytes()


class BatchRecords:
    """A batch with its columns unpacked. Raises `FormatError` if they contradict each other."""

    __slots__ = ("_columns", "batch", "headers_column", "key_column", "value_column")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._columns = batch.columns
        self.value_column = self._columns.value_column
        self.key_column = self._columns.key_column
        self.headers_column = self._columns.header_columns

    def __len__(self) -> int:
        return self.batch.header.record_count

    def indexes(self, low: int, high: int) -> range:
        """The records from the offset `low` up to, not including, `high`."""
        offsets: Sequence[int] = self.batch.offsets
        return range(bisect_left(offsets, low), bisect_left(offsets, high))

    def key(self, i: int) -> bytes | None:
        return None if self.key_column is None else cut(self.key_column, i)

    def value(self, i: int) -> bytes | None:
        return cut(self.value_column, i)

    def headers(self, i: int) -> Pairs:
        if self.headers_column is None:
            return ()
        slots, names, contents = self.headers_column
        begin, end = slots[i], slots[i + 1]
        if not 0 <= begin <= end <= len(names.offsets) - 1:
            raise FormatError("a column's offsets fall")
        return tuple((cut(names, j) or b"", cut(contents, j) or b"") for j in range(begin, end))

    def row(self, topic: str, i: int, offset: int, preview_bytes: int) -> bytes:
        """The record as JSON, with at most this much of its value."""
        header = self.batch.header
        times = self._columns.event_times_us
        key, value, headers = self.key(i), self.value(i), self.headers(i)
        texts, others, headers_cut = _shown_headers(headers)
        shown, preview, preview_base64, truncated = _shown_value(value, headers, preview_bytes)
        key_text, key_base64 = _shown_key(key)
        return _encode(
            ExploredMessage(
                topic=topic,
                partition=header.partition,
                offset=offset,
                time=rfc3339(header.append_time_us),
                event_time="" if times is None else rfc3339(times[i]),
                key=key_text,
                key_base64=key_base64,
                key_bytes=0 if key is None else len(key),
                headers=texts,
                headers_base64=others,
                headers_cut=headers_cut,
                trace=trace_of(headers),
                format=shown,
                bytes=0 if value is None else len(value),
                preview=preview,
                preview_base64=preview_base64,
                truncated=truncated,
            )
        )


def trace_of(headers: Pairs) -> str:
    """The trace id in a record's headers; empty if there is none."""
    for name, content in headers:
        if name == _TRACEPARENT or name.lower() == _TRACEPARENT:
            found = maybe_context(content)
            return "" if found is None else found.trace_id.hex()
    return ""


def maybe_text(data: bytes, size: int) -> str | None:
    """The start of a text in UTF-8, cut between two characters; None if it is not UTF-8."""
    part = data[:size]
    for end in range(len(part), max(-1, len(part) - _CHARACTER_BYTES_MAX), -1):
        try:
            return part[:end].decode()
        except UnicodeDecodeError:
            if len(part) == len(data):
                return None
    return None


def value_format(value: bytes | None, headers: Pairs, size: int) -> tuple[str, str | None]:
    """The kind of a value, and its start if it is text. The start decides for a long value."""
    if value is None:
        return "deleted", None
    text = maybe_text(value, size)
    if text is None or "\x00" in text:
        return "binary", None
    said = says_json(headers)
    if said or (said is None and text.lstrip()[:1] in ("{", "[")):
        return "json", text
    return "text", text


def _shown_value(value: bytes | None, headers: Pairs, size: int) -> tuple[str, str, str, bool]:
    shown, text = value_format(value, headers, size)
    if value is None:
        return shown, "", "", False
    if text is not None:
        return shown, text, "", len(value) > size
    return shown, "", b64encode(value[:size]).decode(), len(value) > size


def _shown_key(key: bytes | None) -> tuple[str | None, str | None]:
    if key is None:
        return None, None
    text = maybe_text(key, KEY_BYTES_MAX)
    return (None, b64encode(key[:KEY_BYTES_MAX]).decode()) if text is None else (text, None)


def _shown_headers(headers: Pairs) -> tuple[dict[str, str], dict[str, str], bool]:
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    was_cut = len(headers) > _HEADERS_MAX
    for name, content in headers[:_HEADERS_MAX]:
        shown = name[:_HEADER_BYTES_MAX].decode(errors="replace")
        was_cut = was_cut or max(len(name), len(content)) > _HEADER_BYTES_MAX
        text = maybe_text(content, _HEADER_BYTES_MAX)
        if text is None:
            others[shown] = b64encode(content[:_HEADER_BYTES_MAX]).decode()
            texts.pop(shown, None)
        else:
            texts[shown] = text
            others.pop(shown, None)
    return texts, others, was_cut
