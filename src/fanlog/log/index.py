"""The sparse index of one segment: where to begin looking for an offset or a time.

It grows in memory with its segment and becomes `<base>.idx` when that is sealed. Little-endian:

| at | bytes     | field            | meaning                                                  |
| -- | --------- | ---------------- | -------------------------------------------------------- |
|  0 | 8         | magic            | `FANLIDX1`                                               |
|  8 | 4         | crc              | CRC-32C of everything from byte 16 on                    |
| 12 | 4         | entry count      | n                                                        |
| 16 | 8         | base offset      | the segment's, as in its name                            |
| 24 | 8         | end offset       | the one after its last record                            |
| 32 | 8         | last append time | microseconds since 1970                                  |
| 40 | 8         | log bytes        | the size of the `.log`; another size means a stale index |
| 48 | 8n 8n 8n  | entries          | columns: first offsets, positions, first append times    |
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from struct import Struct
from threading import Lock
from typing import NamedTuple

from fanlog.errors import ChecksumError, FormatError
from fanlog.format.checksum import crc32c

_HEADER = Struct("<8sIIqqqq")
_MAGIC = b"FANLIDX1"
_CRC_FROM = 16
_ENTRY_BYTES = 24
# Memory of an index besides its entries.
_OBJECT_BYTES = 512


class Index:
    """Entries in the order of the log. One thread adds while others look."""

    __slots__ = ("offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")

    def add(self, offset: int, position: int, time_us: int) -> None:
        # The offset is written last: a reader that sees it also finds the other two.
        self.positions.append(position)
        self.times.append(time_us)
        self.offsets.append(offset)

    def before(self, offset: int) -> tuple[int, int] | None:
        """First offset and position of the last entry at or before `offset`."""
        i = bisect_right(self.offsets, offset) - 1
        return (self.offsets[i], self.positions[i]) if i >= 0 else None

    def before_time(self, time_us: int) -> tuple[int, int] | None:
        """First offset and position of the last entry appended before `time_us`."""
        i = bisect_left(self.times, time_us, 0, len(self.offsets)) - 1
        return (self.offsets[i], self.positions[i]) if i >= 0 else None

    @property
    def memory_bytes(self) -> int:
        return _OBJECT_BYTES + _ENTRY_BYTES * len(self.offsets)


class SealedIndex(NamedTuple):
    """The contents of an `.idx` file."""

    entries: Index
    base_offset: int
    end_offset: int
    last_time_us: int
    log_bytes: int


def _columns(index: Index) -> list[array[int]]:
    columns = [index.offsets, index.positions, index.times]
    if sys.byteorder == "big":
        columns = [array("q", column) for column in columns]
        for column in columns:
            column.byteswap()
    return columns


def encode_index(sealed: SealedIndex) -> bytes:
    entries = b"".join(column.tobytes() for column in _columns(sealed.entries))
    numbers = (len(sealed.entries.offsets), *sealed[1:])
    body = _HEADER.pack(_MAGIC, 0, *numbers)[_CRC_FROM:] + entries
    return _HEADER.pack(_MAGIC, crc32c(body), *numbers)[:_CRC_FROM] + body


def decode_index(data: bytes) -> SealedIndex:
    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise FormatError("This is not an index of a segment.")
    _, crc, count, base, end, last_time_us, log_bytes = _HEADER.unpack_from(data)
    if len(data) != _HEADER.size + _ENTRY_BYTES * count:
        raise FormatError(f"The index has {len(data)} bytes, which do not fit {count} entries.")
    if crc32c(data[_CRC_FROM:]) != crc:
        raise ChecksumError("The index is damaged: its checksum does not fit.")
    index = Index()
    at = _HEADER.size
    for column in (index.offsets, index.positions, index.times):
        column.frombytes(data[at : at + 8 * count])
        if sys.byteorder == "big":
            column.byteswap()
        at += 8 * count
    return SealedIndex(index, base, end, last_time_us, log_bytes)


class IndexCache:
    """The indexes of sealed segments that were used last, of all logs together."""

    __slots__ = ("_bytes", "_found", "_lock", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        self._found: OrderedDict[str, SealedIndex] = OrderedDict()
        self._lock = Lock()

    def get(self, path: str) -> SealedIndex | None:
        with self._lock:
            found = self._found.get(path)
            if found is not None:
                self._found.move_to_end(path)
            return found

    def put(self, path: str, sealed: SealedIndex) -> None:
        with self._lock:
            self._take_out(path)
            self._found[path] = sealed
            self._bytes += sealed.entries.memory_bytes
            while self._bytes > self.bytes_max and len(self._found) > 1:
                self._take_out(next(iter(self._found)))

    def forget(self, path: str) -> None:
        with self._lock:
            self._take_out(path)

    def _take_out(self, path: str) -> None:
        old = self._found.pop(path, None)
        if old is not None:
            self._bytes -= old.entries.memory_bytes
