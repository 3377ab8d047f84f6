"""The header of a batch: its layout, written once. All numbers are little-endian.

| at | bytes | field          | made by | meaning                                              |
| -- | ----- | -------------- | ------- | ---------------------------------------------------- |
|  0 | 4     | length         | client  | of the whole batch, padding included                 |
|  4 | 1     | kind           | client  | 0x42: a batch is a frame of the native protocol      |
|  5 | 1     | version        | client  | 1                                                    |
|  6 | 2     | producer epoch | client  | fences an older producer with the same id            |
|  8 | 4     | topic          | client  | the topic's number on this broker                    |
| 12 | 4     | leader epoch   | broker  | which reign of the log the offsets belong to         |
| 16 | 8     | base offset    | broker  | where it begins; records follow without gaps, unless |
|    |       |                |         | the batch is sparse                                  |
| 24 | 8     | append time    | broker  | microseconds since 1970, never falling in a log      |
| 32 | 8     | producer id    | client  | 0: the producer is unknown                           |
| 40 | 8     | first sequence | client  | the producer's number of the first record            |
| 48 | 4     | header crc     | broker  | CRC-32C of all fields before it                      |
| 52 | 4     | body crc       | client  | CRC-32C from the partition to the end                |
| 56 | 2     | partition      | client  |                                                      |
| 58 | 1     | packing        | client  | lower 4 bits the codec: 0 none, 1 zlib, 2 zstd,      |
|    |       |                |         | 3 lz4; upper 4 bits the priority: 0 to 9             |
| 59 | 1     | flags          | client  | which columns there are                              |
| 60 | 4     | record count   | client  | at least 1; in a sparse batch also 0                 |

What the client makes and the broker never touches is one stretch under one checksum; what the
broker stamps is another.
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import NamedTuple

from fanlog.errors import ChecksumError, FormatError
from fanlog.format.checksum import crc32c
from fanlog.format.columns import SPAN, SPARSE, offsets_bytes

Bytes = bytes | bytearray | memoryview

KIND_BATCH = 0x42
VERSION = 1
ALIGNMENT = 8
RECORDS_MAX = 1 << 20
CODEC_BITS = 0x0F
PRIORITY_MAX = 9
# No batch reaches past this offset.
OFFSET_MAX = (1 << 63) - 1

_LAYOUT = {
    "length": "I",
    "kind": "B",
    "version": "B",
    "producer_epoch": "H",
    "topic": "I",
    "leader_epoch": "I",
    "base_offset": "Q",
    "append_time_us": "q",
    "producer_id": "Q",
    "first_sequence": "Q",
    "header_crc": "I",
    "body_crc": "I",
    "partition": "H",
    "packing": "B",
    "flags": "B",
    "record_count": "I",
}
_NAMES = list(_LAYOUT)


def _byte_of(name: str) -> int:
    """Where a field begins."""
    return calcsize("<" + "".join(_LAYOUT[one] for one in _NAMES[: _NAMES.index(name)]))


def select(*names: str) -> Struct:
    """These fields of a header, in their order; the others are passed over.

    >>> select("length", "version").format
    '<I1xB'
    """
    layout, at = "<", 0
    for name in names:
        gap = _byte_of(name) - at
        layout += f"{gap}x" * (gap > 0) + _LAYOUT[name]
        at = calcsize(layout)
    return Struct(layout)


def _stretch(first: str, last: str) -> Struct:
    """All fields from `first` to `last`, without those before them."""
    names = _NAMES[_NAMES.index(first) : _NAMES.index(last) + 1]
    return Struct("<" + "".join(_LAYOUT[name] for name in names))


_HEADER = select(*_NAMES)
HEADER_BYTES = _HEADER.size
BATCH_BYTES_MIN = HEADER_BYTES + SPAN.size
# The fields of an incoming batch that the broker reads: all but those that it stamps.
_BY_BROKER = ("leader_epoch", "base_offset", "append_time_us", "header_crc")
INCOMING = select(*(name for name in _NAMES if name not in _BY_BROKER))
# The fields that the broker writes, under the header crc; the two checksums; and the first fields
# under the client's checksum.
STAMPED = _stretch("length", "first_sequence")
CHECKSUMS = _stretch("header_crc", "body_crc")
CLIENT_PART = _stretch("partition", "record_count")
CLIENT_PART_AT = _byte_of("partition")
KIND_AT = _byte_of("kind")
PACKING_AT = _byte_of("packing")


class BatchHeader(NamedTuple):
    """The fields of a header in their order, and how many offsets the batch covers."""

    length: int
    kind: int
    version: int
    producer_epoch: int
    topic: int
    leader_epoch: int
    base_offset: int
    append_time_us: int
    producer_id: int
    first_sequence: int
    header_crc: int
    body_crc: int
    partition: int
    packing: int
    flags: int
    record_count: int
    span: int

    @property
    def codec(self) -> int:
        return self.packing & CODEC_BITS

    @property
    def priority(self) -> int:
        """How urgent its records are to a queue: 0 to 9."""
        return self.packing >> 4

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.span


# Reading


def read_header(data: Bytes, at: int = 0) -> BatchHeader:
    """The header at `at`, its fields within their ranges. `check_header` also verifies its
    checksum."""
    if len(data) - at < HEADER_BYTES:
        raise FormatError(f"A batch header needs {HEADER_BYTES} bytes; {len(data) - at} are left.")
    fields = _HEADER.unpack_from(data, at)
    header = BatchHeader._make((*fields, fields[-1]))
    if header.kind != KIND_BATCH:
        raise FormatError(f"Byte 4 is {header.kind:#04x}, not a batch's {KIND_BATCH:#04x}.")
    if header.version != VERSION:
        raise FormatError(f"The batch has version {header.version}; this release reads {VERSION}.")
    if header.length < BATCH_BYTES_MIN or header.length % ALIGNMENT:
        raise FormatError(f"A batch can't be {header.length} bytes long.")
    if header.flags & SPARSE:
        return header._replace(span=_read_span(data, header, at))
    if not 1 <= header.record_count <= RECORDS_MAX:
        raise FormatError(f"A batch can't hold {header.record_count} records.")
    return header


def _read_span(data: Bytes, header: BatchHeader, at: int) -> int:
    """How many offsets a sparse batch covers."""
    count = header.record_count
    if len(data) - at < BATCH_BYTES_MIN:
        raise FormatError(f"A sparse batch begins with {BATCH_BYTES_MIN} bytes at least.")
    span: int = SPAN.unpack_from(data, at + HEADER_BYTES)[0]
    if (
        count > RECORDS_MAX
        or header.length < HEADER_BYTES + offsets_bytes(SPARSE, count)
        or not max(1, count) <= span <= OFFSET_MAX - header.base_offset
    ):
        raise FormatError(f"A sparse batch can't hold {count} records within {span} offsets.")
    return span


def check_header(data: Bytes, at: int = 0) -> BatchHeader:
    """The header at `at` of a stamped batch, with its own checksum verified."""
    header = read_header(data, at)
    if crc32c(data[at : at + STAMPED.size]) != header.header_crc:
        raise ChecksumError("The batch header's checksum does not fit: the header is damaged.")
    return header


# Writing


def pack_stamped(
    length: int,
    *,
    topic: int,
    producer_epoch: int = 0,
    leader_epoch: int = 0,
    base_offset: int = 0,
    append_time_us: int = 0,
    producer_id: int = 0,
    first_sequence: int = 0,
) -> bytes:
    """The fields under the header crc. The intake packs them by itself: it is the hot path."""
    return STAMPED.pack(
        length,
        KIND_BATCH,
        VERSION,
        producer_epoch,
        topic,
        leader_epoch,
        base_offset,
        append_time_us,
        producer_id,
        first_sequence,
    )


def repack(header: BatchHeader, **changes: int) -> bytes:
    """The same for a header, with some fields changed."""
    return STAMPED.pack(*header._replace(**changes)[: _NAMES.index("header_crc")])


def seal(head: bytes, client_part: bytes, *, stamped: bool) -> bytes:
    """A whole batch with its checksums. A client leaves the header's to the broker."""
    sums = CHECKSUMS.pack(crc32c(head) if stamped else 0, crc32c(client_part))
    return b"".join((head, sums, client_part))
