"""The files of the history, as bytes: records one after another, each with a checksum.

    file:    "FLMH", u8 version (1), 3 bytes 0, u32 step of the tier in seconds
    record:  u32 length of what follows the checksum, u32 CRC-32C of it, u8 kind, payload
    kind 1:  names of columns: JSON, a list of [column, name]; they hold from here on
    kind 2:  a row: i64 slot, then a float32 for each column (NaN: no value)

All numbers are little-endian. A file that ends within a record, or in zeros, was cut off by a
crash and is whole up to there; anything else that is wrong is damage.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fanlog.format.checksum import crc32c
from fanlog.telemetry.history import HistoryRow

_FILE = struct.Struct("<4sB3xI")
_HEAD = struct.Struct("<II")
_SLOT = struct.Struct("<q")
_MAGIC, _VERSION = b"FLMH", 1
_NAMES, _ROW = 1, 2
# A record of names stays small: a name has up to 255 bytes, and a few more as JSON.
_NAMES_IN_RECORD = 500
_RECORD_BYTES_MAX = 4 * 1024 * 1024
HEADER_BYTES = _FILE.size


class Contents(NamedTuple):
    """The content of a file: its rows with the names of their columns, the names at its end, the
    number of valid bytes, and whether there is damage that a crash does not explain."""

    rows: list[tuple[HistoryRow, tuple[str, ...]]]
    names: tuple[str, ...]
    good_bytes: int
    damaged: bool


def encode_header(step_seconds: int) -> bytes:
    return _FILE.pack(_MAGIC, _VERSION, step_seconds)


def encode_row(row: HistoryRow) -> bytes:
    values = row.values
    if sys.byteorder == "big":
        values = array("f", values)
        values.byteswap()
    return _record(_ROW, _SLOT.pack(row.slot) + values.tobytes())


def encode_names(before: Sequence[str], after: Sequence[str]) -> bytes:
    """Records that say which columns have other names than before. "" is a column without one."""
    changed = [
        (i, name) for i, name in enumerate(after) if (before[i] if i < len(before) else "") != name
    ]
    changed += [(i, "") for i in range(len(after), len(before)) if before[i]]
    return b"".join(
        _record(_NAMES, msgspec.json.encode(changed[at : at + _NAMES_IN_RECORD]))
        for at in range(0, len(changed), _NAMES_IN_RECORD)
    )


def _record(kind: int, payload: bytes) -> bytes:
    body = bytes((kind,)) + payload
    return _HEAD.pack(len(body), crc32c(body)) + body


def decode(data: bytes, step_seconds: int, columns_max: int) -> Contents:
    """Everything in a file up to the first thing that is wrong."""
    rows: list[tuple[HistoryRow, tuple[str, ...]]] = []
    names: list[str] = []
    held: tuple[str, ...] = ()
    if data[:HEADER_BYTES] != encode_header(step_seconds):
        cut = encode_header(step_seconds).startswith(data.rstrip(b"\0"))
        return Contents([], (), 0, damaged=not cut)
    at = HEADER_BYTES
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        body = data[at + _HEAD.size : end]
        whole = 0 < length <= _RECORD_BYTES_MAX and end <= len(data)
        if not whole or crc32c(body) != checksum:
            break
        if body[0] == _ROW and len(body) >= 9 and len(body) % 4 == 1:
            rows.append((HistoryRow(*_row(body)), held))
        elif body[0] == _NAMES and (changes := _names(body, columns_max)) is not None:
            _rename(names, changes)
            held = tuple(names)
        else:
            break
        at = end
    return Contents(rows, held, at, damaged=not _is_cut_off(data, at))


def _row(body: bytes) -> tuple[int, array[float]]:
    values = array("f")
    values.frombytes(body[1 + _SLOT.size :])
    if sys.byteorder == "big":
        values.byteswap()
    return _SLOT.unpack_from(body, 1)[0], values


def _names(body: bytes, columns_max: int) -> list[tuple[int, str]] | None:
    try:
        found = msgspec.json.decode(body[1:], type=list[tuple[int, str]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if all(0 <= column < columns_max for column, _ in found) else None


def _rename(names: list[str], changes: list[tuple[int, str]]) -> None:
    for column, name in changes:
        names.extend("" for _ in range(column + 1 - len(names)))
        names[column] = name


def _is_cut_off(data: bytes, at: int) -> bool:
    """Whether the rest is what a crash leaves: nothing, zeros, or the first part of a record."""
    rest = data[at:]
    if not rest.strip(b"\0") or len(rest) < _HEAD.size:
        return True
    length = _HEAD.unpack_from(rest)[0]
    if not 0 < length <= _RECORD_BYTES_MAX:
        return False
    # A record whose end is missing, or whose last pages were never written.
    return _HEAD.size + length > len(rest) or (
        _HEAD.size + length >= len(rest.rstrip(b"\0")) and rest.endswith(bytes(4))
    )
