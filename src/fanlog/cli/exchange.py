"""Messages in files, for `fanlog export` and `fanlog import`: JSON lines, and Parquet.

| field        | JSON lines                                   | Parquet                   |
| ------------ | -------------------------------------------- | ------------------------- |
| `partition`  | number                                       | int32                     |
| `offset`     | number; an import does not read it           | int64                     |
| `timestamp`  | when it was appended, RFC 3339               | timestamp, us, UTC        |
| `event_time` | when it happened, if that is another time    | timestamp, us, UTC        |
| `priority`   | 1 to 9, if it has one                        | int8                      |
| `key`        | text, or base64 if `key_encoding` says so    | binary                    |
| `value`      | text; base64 or JSON if `encoding` says so;  | binary                    |
|              | null is no value                             |                           |
| `headers`    | object of texts, or of `{"base64": …}`       | map of string to binary   |
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

import msgspec

from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.client.documents import as_document
from fanlog.client.message import Message

FileFormat = Literal["jsonl", "parquet"]

# Rows that are read at once, and that a row group of a Parquet file has.
ROWS_AT_ONCE = 1000
_ROW_GROUP = 20_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class FileRow(NamedTuple):
    """A message of a file. `time_us` is when it happened; None: the file does not say."""

    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes]
    time_us: int | None
    partition: int | None
    priority: int

    @property
    def bytes(self) -> int:
        return len(self.value or b"") + len(self.key or b"")


class Writer(Protocol):
    def write(self, messages: list[Message]) -> None: ...
    def close(self) -> None: ...


def format_of(name: str, given: str) -> FileFormat:
    """The format from the flag, or from the file's name."""
    if given in ("jsonl", "parquet"):
        return "parquet" if given == "parquet" else "jsonl"
    if given:
        raise CommandError(f"--format is {given!r}, but must be jsonl or parquet.", ExitCode.USAGE)
    return "parquet" if name.endswith(".parquet") else "jsonl"


# JSON lines


class JsonLinesWriter:
    """`json_values`: a value that is JSON becomes a part of the line, not a text in it."""

    def __init__(self, target: IO[bytes], *, json_values: bool) -> None:
        self._target = target
        self._json_values = json_values
        self._encode = msgspec.json.Encoder().encode

    def write(self, messages: list[Message]) -> None:
        lines = [self._encode(self._document(message)) for message in messages]
        if lines:
            self._target.write(b"\n".join(lines) + b"\n")

    def _document(self, message: Message) -> dict[str, Any]:
        document = as_document(message)
        if self._json_values and not message.is_tombstone:
            try:
                msgspec.json.decode(message.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return document
            # As it was written: numbers keep their digits, and objects their order.
            document["value"] = msgspec.Raw(message.value)
            document["encoding"] = "json"
        return document

    def close(self) -> None:
        self._target.flush()


class _Document(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")
    encoding: Literal["base64", "json", "text"] | None = None
    key: str | None = None
    key_encoding: Literal["base64", "text"] | None = None
    headers: dict[str, str | dict[str, str]] = {}
    timestamp: dt.datetime | None = None
    event_time: dt.datetime | None = None
    partition: int | None = None
    priority: int = 0


_decode = msgspec.json.Decoder(_Document).decode


def read_line(line: bytes, number: int) -> FileRow:
    """A line as a message. A value that is not text is JSON, so that people can write lines
    themselves."""
    try:
        found = _decode(line)
        time = found.event_time or found.timestamp
        return FileRow(
            _value(found),
            _bytes(found.key, found.key_encoding == "base64"),
            {name: _header(value) for name, value in found.headers.items()},
            None if time is None else _microseconds(time),
            found.partition,
            found.priority,
        )
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        binascii.Error,
        ValueError,
        KeyError,
        RecursionError,
    ) as fault:
        raise CommandError(
            f"Line {number} is not a message: {fault}.", ExitCode.BAD_DATA
        ) from fault


def _value(found: _Document) -> bytes | None:
    raw = bytes(found.value)
    if found.encoding == "json":
        return raw
    if not raw.startswith((b'"', b"null")):
        return raw
    return _bytes(msgspec.json.decode(raw), found.encoding == "base64")


def _bytes(text: str | None, encoded: bool) -> bytes | None:
    if text is None:
        return None
    return base64.b64decode(text, validate=True) if encoded else text.encode()


def _header(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def _microseconds(time: dt.datetime) -> int:
    known = time if time.tzinfo else time.replace(tzinfo=dt.UTC)
    return (known - _EPOCH) // _MICROSECOND


# Parquet


def _pyarrow(name: str = "pyarrow") -> Any:
    """It is large, and an extra."""
    try:
        return importlib.import_module(name)
    except ImportError as fault:
        raise CommandError(
            "Parquet needs pyarrow: pip install 'fanlog[parquet]'", ExitCode.FAILED
        ) from fault


def _schema() -> Any:
    pa = _pyarrow()
    time = pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", time),
            pa.field("event_time", time),
            pa.field("priority", pa.int8()),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.map_(pa.string(), pa.binary())),
        ]
    )


class ParquetWriter:
    def __init__(self, target: IO[bytes]) -> None:
        self._pa = _pyarrow()
        self._schema = _schema()
        self._writer = _pyarrow("pyarrow.parquet").ParquetWriter(
            target, self._schema, compression="zstd"
        )
        self._rows: list[Message] = []

    def write(self, messages: list[Message]) -> None:
        self._rows += messages
        if len(self._rows) >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        columns = {
            "partition": [m.partition for m in rows],
            "offset": [m.offset for m in rows],
            "timestamp": [m.timestamp for m in rows],
            "event_time": [m.event_time for m in rows],
            "priority": [m.priority for m in rows],
            "key": [m.key for m in rows],
            "value": [None if m.is_tombstone else m.value for m in rows],
            "headers": [list(m.headers.items()) for m in rows],
        }
        self._writer.write_table(self._pa.table(columns, schema=self._schema))

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


_BYTES = ("binary", "large_binary", "fixed_size_binary", "string", "large_string", "null")
_TIMES = ("timestamp", "date", "null")
# The types that a column may have, by the names of pyarrow's questions.
_ALLOWED = {
    "partition": ("integer", "null"),
    "offset": ("integer", "null"),
    "timestamp": _TIMES,
    "event_time": _TIMES,
    "priority": ("integer", "null"),
    "key": _BYTES,
    "value": _BYTES,
    "headers": ("map", "null"),
}


class ParquetFile:
    """A Parquet file that is read: with our columns, or with a column `value` at least."""

    def __init__(self, path: Path) -> None:
        pa = _pyarrow()
        try:
            self._file = _pyarrow("pyarrow.parquet").ParquetFile(path)
        except pa.ArrowException as fault:
            raise CommandError(
                f"{path} is not a Parquet file: {fault}.", ExitCode.BAD_DATA
            ) from fault
        self.rows: int = self._file.metadata.num_rows
        names = set(self._file.schema_arrow.names)
        if "value" not in names:
            raise CommandError(f"{path} has no column `value`.", ExitCode.BAD_DATA)
        self._columns = [name for name in _schema().names if name in names]
        self._path = path
        self._check_types()

    def _check_types(self) -> None:
        types = _pyarrow("pyarrow.types")
        for name in self._columns:
            found = self._file.schema_arrow.field(name).type
            allowed = [getattr(types, f"is_{kind}") for kind in _ALLOWED[name]]
            if not any(is_it(found) for is_it in allowed):
                raise CommandError(
                    f"The column `{name}` of {self._path} has the type {found}, which "
                    "can't be imported. `fanlog export` shows the right types.",
                    ExitCode.BAD_DATA,
                )

    def read(self) -> Iterator[list[FileRow]]:
        """Raises CommandError for a file that is damaged."""
        try:
            yield from self._read()
        except (_pyarrow().ArrowException, OSError, ValueError) as fault:
            raise CommandError(
                f"{self._path} can't be read to its end: {fault}.", ExitCode.BAD_DATA
            ) from fault

    def _read(self) -> Iterator[list[FileRow]]:
        pa = _pyarrow()
        for batch in self._file.iter_batches(ROWS_AT_ONCE, columns=self._columns):
            found: dict[str, list[Any]] = {}
            for name in self._columns:
                column = batch.column(name)
                if name in ("event_time", "timestamp"):
                    column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
                found[name] = column.to_pylist()
            yield [_parquet_row(found, i) for i in range(batch.num_rows)]


def _parquet_row(found: dict[str, list[Any]], i: int) -> FileRow:
    def cell(name: str) -> Any:
        return found[name][i] if name in found else None

    time_us = cell("event_time")
    headers: list[tuple[str, bytes | None]] = cell("headers") or []
    return FileRow(
        _as_bytes(cell("value")),
        _as_bytes(cell("key")),
        {name: _as_bytes(value) or b"" for name, value in headers},
        cell("timestamp") if time_us is None else time_us,
        cell("partition"),
        cell("priority") or 0,
    )


def _as_bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
