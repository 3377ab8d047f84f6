"""A batch's body: its records as columns that are Arrow buffers as they stand.

| part         | there when            | bytes                                                     |
| ------------ | --------------------- | --------------------------------------------------------- |
| deltas       | flag SPARSE           | uint64 span, int32 delta[n]; never compressed             |
| time range   | flag EVENT_TIMES      | int64 earliest, int64 latest; never compressed            |
| sizes        | codec is not none     | uint32 unpacked, uint32 packed bytes of what follows      |
| values       | always                | [validity] int32 offsets[n+1], data                       |
| keys         | flag KEYS             | [validity] int32 offsets[n+1], data                       |
| headers      | flag HEADERS          | int32 first entry[n+1], names: offsets[m+1] and data,     |
|              |                       | contents: offsets[m+1] and data                           |
| event times  | flag EVENT_TIMES      | int64[n], microseconds since 1970                         |

Every piece is padded with zeros to a multiple of 8. A validity bitmap (Arrow's, bit set: there)
exists only under the flags VALUE_NULLS and KEY_NULLS. The headers are Arrow's
`list<struct<name: utf8, content: binary>>`. What is absent costs no byte.

A sparse batch is what compaction leaves of one: it covers `span` offsets from its base offset on,
and record i has the offset base + delta[i]. All others have the records' count for a span.

It is long because writing and reading of one layout stay side by side.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, repeat
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from fanlog.errors import FormatError
from fanlog.format.codecs import FORMAT_LIMITS, Codec, UnpackLimits, pack, unpack

KEYS = 0x01
KEY_NULLS = 0x02
VALUE_NULLS = 0x04
HEADERS = 0x08
EVENT_TIMES = 0x10
SPARSE = 0x20
# Flags that a client may send. Only compaction makes a sparse batch.
KNOWN_FLAGS = KEYS | KEY_NULLS | VALUE_NULLS | HEADERS | EVENT_TIMES

EncodedHeaders = Mapping[str, bytes]

SPAN = Struct("<Q")
TIME_RANGE = Struct("<qq")
SIZES = Struct("<II")
_PADDING = [b"\0" * n for n in range(8)]
_SWAP = sys.byteorder == "big"
assert array("i").itemsize == 4


def padding(size: int) -> bytes:
    return _PADDING[-size % 8]


def _ints(typecode: str, numbers: Sequence[int]) -> bytes:
    return _little_endian(array(typecode, numbers))


def _little_endian(column: array[int]) -> bytes:
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def _bitmap(items: Sequence[bytes | None]) -> bytes:
    bits = bytearray(-(-len(items) // 64) * 8)
    for i, item in enumerate(items):
        if item is not None:
            bits[i >> 3] |= 1 << (i & 7)
    return bytes(bits)


def _binary_column(parts: list[bytes], items: Sequence[bytes]) -> None:
    """Appends offsets and data, each padded."""
    try:
        offsets = array("i", list(accumulate(map(len, items), initial=0)))
    except OverflowError:
        raise FormatError("A column of a batch can't hold 2 GiB or more.") from None
    parts += pack_binary(offsets, b"".join(items))


def pack_binary(offsets: array[int], data: bytes) -> tuple[bytes, ...]:
    """A column without nulls: offsets and data, each padded. The offsets are not used any more."""
    packed = _little_endian(offsets)
    return packed, padding(len(packed)), data, padding(len(data))


def _nullable_column(parts: list[bytes], items: Sequence[bytes | None]) -> bool:
    """Appends a column; True if it has nulls, and so a bitmap in front."""
    try:
        # A null has no length: the cheapest way to learn that there is one.
        _binary_column(parts, items)  # pyright: ignore[reportArgumentType]
    except TypeError:
        parts.append(_bitmap(items))
        _binary_column(parts, [item or b"" for item in items])
        return True
    return False


class _Entries(NamedTuple):
    """All records' headers: how many each has, and the names and contents of all of them."""

    counts: Sequence[int]
    names: Sequence[bytes]
    contents: Sequence[bytes]


def _header_column(parts: list[bytes], entries: _Entries) -> None:
    first_entry = _ints("i", list(accumulate(entries.counts, initial=0)))
    parts += (first_entry, padding(len(first_entry)))
    _binary_column(parts, entries.names)
    _binary_column(parts, entries.contents)


class Packed(NamedTuple):
    """A body and its header fields. The codec may differ from the requested one."""

    codec: Codec
    flags: int
    body: bytes


def pack_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[EncodedHeaders | None] | None,
    event_times_us: Sequence[int] | None,
    codec: Codec,
) -> Packed:
    """The body of a batch of these records."""
    entries = None
    if headers is not None:
        entries = _Entries(
            [len(h) if h else 0 for h in headers],
            [name.encode() for h in headers if h for name in h],
            [content for h in headers if h for content in h.values()],
        )
    return _pack(values, keys, entries, event_times_us, codec)


def _pack(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: _Entries | None,
    event_times_us: Sequence[int] | None,
    codec: Codec,
) -> Packed:
    flags = 0
    parts: list[bytes] = []
    if _nullable_column(parts, values):
        flags |= VALUE_NULLS
    if keys is not None:
        flags |= KEYS
        if _nullable_column(parts, keys):
            flags |= KEY_NULLS
    if headers is not None:
        flags |= HEADERS
        _header_column(parts, headers)
    if event_times_us is not None:
        flags |= EVENT_TIMES
        parts.append(_ints("q", event_times_us))
    front: list[bytes] = []
    if event_times_us is not None:
        front.append(TIME_RANGE.pack(min(event_times_us), max(event_times_us)))
    if codec is not Codec.NONE:
        unpacked = b"".join(parts)
        codec, packed = pack(codec, unpacked)
        if codec is not Codec.NONE:
            front.append(SIZES.pack(len(unpacked), len(packed)))
        parts = [packed, padding(len(packed))]
    return Packed(codec, flags, b"".join(front + parts))


def pack_offsets(span: int, deltas: Sequence[int]) -> bytes:
    """The first part of a sparse batch's body."""
    return SPAN.pack(span) + _ints("i", deltas) + padding(4 * len(deltas))


def offsets_bytes(flags: int, count: int) -> int:
    """How much of a body the offsets of the records take: nothing in a dense batch."""
    return SPAN.size + -(-4 * count // 8) * 8 if flags & SPARSE else 0


def read_deltas(body: memoryview, span: int, count: int) -> list[int]:
    """The deltas of a sparse batch's records, checked: rising, and within the span."""
    column = array("i")
    column.frombytes(body[SPAN.size : SPAN.size + 4 * count])
    if _SWAP:
        column.byteswap()
    deltas = column.tolist()
    if len(deltas) != count:
        raise FormatError("it is too short for the offsets of its records")
    if count and (deltas[0] < 0 or deltas[-1] >= span or any(a >= b for a, b in pairwise(deltas))):
        raise FormatError("a sparse batch's records must lie within its span, in order")
    return deltas


def time_range(body: memoryview, flags: int, count: int) -> tuple[int, int] | None:
    """The range of event times before the columns, if there are any."""
    if not flags & EVENT_TIMES:
        return None
    at = offsets_bytes(flags, count)
    if len(body) < at + TIME_RANGE.size:
        raise FormatError("The batch is too short for its time range.")
    return TIME_RANGE.unpack_from(body, at)


def columns_bytes_min(count: int) -> int:
    """The minimum size of the columns of `count` records: the values' offsets."""
    return 4 * (count + 1)


def sizes_at(flags: int, count: int) -> int:
    """The position of the sizes in a packed batch's body."""
    return offsets_bytes(flags, count) + (TIME_RANGE.size if flags & EVENT_TIMES else 0)


def read_sizes(data: bytes | bytearray | memoryview, at: int, end: int) -> tuple[int, int]:
    """The unpacked and packed bytes of a batch that ends at `end`, as stated at `at`."""
    if at + SIZES.size > end:
        raise FormatError("it ends before it says how large its columns are")
    unpacked_bytes, packed_bytes = SIZES.unpack_from(data, at)
    if at + SIZES.size + packed_bytes > end:
        raise FormatError(f"{packed_bytes} packed bytes are claimed, and are not there")
    return unpacked_bytes, packed_bytes


def _rising(offsets: memoryview) -> list[int]:
    """Offsets that begin with 0, as numbers, checked: none is below the one before it. One that is
    would let a few bytes pass for many records."""
    numbers = offsets.tolist()
    # For sorted data, sorting is the fastest check.
    if sorted(numbers) != numbers:
        raise FormatError("a column's offsets fall")
    return numbers


class BinaryColumn:
    """One column: `offsets` and `data` as memory, and `validity` where it has nulls. Its offsets
    are checked before the first entry is cut, and once."""

    __slots__ = ("_checked", "data", "offsets", "validity")

    def __init__(self, offsets: memoryview, data: memoryview, validity: memoryview | None) -> None:
        self.offsets = offsets
        self.data = data
        self.validity = validity
        self._checked = False

    def check(self) -> None:
        """Raises FormatError where entries can't be cut."""
        if not self._checked:
            _rising(self.offsets)
            self._checked = True

    def is_null(self, i: int) -> bool:
        return self.validity is not None and not self.validity[i >> 3] >> (i & 7) & 1

    def __getitem__(self, i: int) -> bytes | None:
        if self.is_null(i):
            return None
        self.check()
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def to_bytes_list(self) -> list[bytes]:
        """All entries; a null is empty bytes."""
        offsets = self.offsets.tolist() if self._checked else _rising(self.offsets)
        self._checked = True
        data = self.data.tobytes()
        return [data[a:b] for a, b in pairwise(offsets)]

    def to_list(self) -> list[bytes | None]:
        entries = self.to_bytes_list()
        if self.validity is None:
            return [*entries]
        return [None if self.is_null(i) else entry for i, entry in enumerate(entries)]


class _Cuts:
    """Takes pieces off the front of a body, checking every bound."""

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise FormatError(f"its columns end at {len(self.data)}, but {end} bytes are claimed")
        piece = self.data[self.at : end]
        self.at = end + (-end % 8)
        return piece

    def offsets(self, count: int) -> memoryview:
        raw = self.take(4 * (count + 1))
        if _SWAP:
            swapped = array("i", raw.tobytes())
            swapped.byteswap()
            raw = memoryview(swapped.tobytes())
        offsets = raw.cast("i")
        if offsets[0] != 0 or offsets[count] < 0:
            raise FormatError("a column's offsets must begin with 0 and not fall")
        return offsets

    def binary(self, count: int, nullable: bool) -> BinaryColumn:
        validity = self.take(-(-count // 64) * 8) if nullable else None
        offsets = self.offsets(count)
        return BinaryColumn(offsets, self.take(offsets[count]), validity)


class ColumnReader:
    """The columns of one body, cut out of its memory without a loop over records."""

    __slots__ = (
        "_content",
        "_count",
        "_event_times",
        "_keys",
        "_names",
        "_slots",
        "_slots_checked",
        "_values",
    )

    def __init__(
        self,
        body: memoryview,
        flags: int,
        codec: int,
        count: int,
        limits: UnpackLimits = FORMAT_LIMITS,
    ) -> None:
        if flags & ~(KNOWN_FLAGS | SPARSE):
            raise FormatError(f"it has flags {flags:#04x} that this version can't read")
        cuts = _Cuts(body)
        if flags & SPARSE:
            cuts.take(offsets_bytes(flags, count))
        if flags & EVENT_TIMES:
            cuts.take(TIME_RANGE.size)
        if codec:
            cuts = _Cuts(self._unpacked(cuts, codec, count, limits))
        self._count = count
        self._slots: memoryview | None = None
        self._slots_checked = False
        self._names: BinaryColumn | None = None
        self._content: BinaryColumn | None = None
        self._keys: BinaryColumn | None = None
        self._event_times: memoryview | None = None
        try:
            self._values = cuts.binary(count, bool(flags & VALUE_NULLS))
            if flags & KEYS:
                self._keys = cuts.binary(count, bool(flags & KEY_NULLS))
            if flags & HEADERS:
                self._slots = cuts.offsets(count)
                entries = self._slots[count]
                self._names = cuts.binary(entries, nullable=False)
                self._content = cuts.binary(entries, nullable=False)
            if flags & EVENT_TIMES:
                self._event_times = cuts.take(8 * count).cast("q")
        except (StructError, TypeError, ValueError) as fault:
            raise FormatError(f"its columns don't fit together: {fault}") from fault

    @staticmethod
    def _unpacked(cuts: _Cuts, codec: int, count: int, limits: UnpackLimits) -> memoryview:
        unpacked_bytes, packed_bytes = SIZES.unpack(cuts.take(SIZES.size))
        if unpacked_bytes < columns_bytes_min(count):
            raise FormatError(f"{count} records don't fit into {unpacked_bytes} bytes")
        packed = cuts.take(packed_bytes).tobytes()
        return memoryview(unpack(codec, packed, unpacked_bytes, limits))

    def check(self) -> None:
        """Checks everything that was not checked yet: after this, every entry can be read."""
        for found in (self._values, self._keys, self._names, self._content):
            if found is not None:
                found.check()
        self._checked_slots()

    def _checked_slots(self) -> memoryview | None:
        if self._slots is not None and not self._slots_checked:
            _rising(self._slots)
            self._slots_checked = True
        return self._slots

    @property
    def value_column(self) -> BinaryColumn:
        return self._values

    @property
    def key_column(self) -> BinaryColumn | None:
        return self._keys

    @property
    def event_times_us(self) -> memoryview | None:
        return self._event_times

    @property
    def header_columns(self) -> tuple[memoryview, BinaryColumn, BinaryColumn] | None:
        """First entry of each record, names, contents: an Arrow list of structs."""
        if self._slots is None or self._names is None or self._content is None:
            return None
        return self._slots, self._names, self._content

    def values(self) -> list[bytes | None]:
        return self._values.to_list()

    def keys(self) -> list[bytes | None]:
        return list(repeat(None, self._count)) if self._keys is None else self._keys.to_list()

    def headers(self, i: int) -> dict[str, bytes]:
        columns = self.header_columns
        if columns is None:
            return {}
        slots, names, content = columns
        self._checked_slots()
        return {
            (names[j] or b"").decode(errors="replace"): content[j] or b""
            for j in range(slots[i], slots[i + 1])
        }

    def header(self, i: int, name: bytes) -> bytes | None:
        """One header of a record, without reading the others. `name` is in lower case, and fits
        however the publisher wrote it."""
        columns = self.header_columns
        if columns is None:
            return None
        slots, names, content = columns
        self._checked_slots()
        for j in range(slots[i], slots[i + 1]):
            found = names[j] or b""
            if found == name or found.lower() == name:
                return content[j] or b""
        return None

    def pack_some(self, kept: Sequence[int], codec: Codec) -> Packed:
        """The body of a batch of only these records; names of headers stay as they are."""
        values = self.values()
        keys = None if self._keys is None else self._keys.to_list()
        times = self._event_times
        return _pack(
            [values[i] for i in kept],
            None if keys is None else [keys[i] for i in kept],
            self._entries_of(kept),
            None if times is None else [times[i] for i in kept],
            codec,
        )

    def _entries_of(self, kept: Sequence[int]) -> _Entries | None:
        columns = self.header_columns
        if columns is None:
            return None
        slots, names, contents = columns
        self._checked_slots()
        all_names, all_contents = names.to_bytes_list(), contents.to_bytes_list()
        bounds = [(slots[i], slots[i + 1]) for i in kept]
        return _Entries(
            [end - first for first, end in bounds],
            [all_names[j] for first, end in bounds for j in range(first, end)],
            [all_contents[j] for first, end in bounds for j in range(first, end)],
        )
