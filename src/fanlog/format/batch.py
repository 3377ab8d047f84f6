"""The batch: the one form that messages have on the wire, in memory, on disk and in Spark.

A batch is a header of 64 bytes and columns of records. All numbers are little-endian, every
column starts on a multiple of 8, and so does every batch, because its length is one too.

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
| 32 | 8     | producer id    | client  | 0: nobody counts                                     |
| 40 | 8     | first sequence | client  | the producer's number of the first record            |
| 48 | 4     | header crc     | broker  | CRC-32C of bytes 0 to 48                             |
| 52 | 4     | body crc       | client  | CRC-32C of bytes 56 to the end                       |
| 56 | 2     | partition      | client  |                                                      |
| 58 | 1     | packing        | client  | lower 4 bits the codec: 0 none, 1 zlib, 2 zstd,      |
|    |       |                |         | 3 lz4; upper 4 bits the priority: 0 to 9             |
| 59 | 1     | flags          | client  | which columns there are                              |
| 60 | 4     | record count   | client  | at least 1; in a sparse batch also 0                 |
| 64 |       | body           | client  | see `columns.py`                                     |

What the client makes and the broker never touches is one stretch under one checksum; what the
broker stamps is another. Between socket and log nobody looks past byte 64. Sparse batches come
from compaction alone (`sparse.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from fanlog.errors import ChecksumError, FormatError, UnreadableError
from fanlog.format.checksum import crc32c
from fanlog.format.codecs import FORMAT_LIMITS, Codec, UnpackLimits
from fanlog.format.columns import (
    SPAN,
    SPARSE,
    ColumnReader,
    Headers,
    pack_columns,
    places_bytes,
    read_deltas,
    read_sizes,
    sizes_at,
    time_range,
)

KIND_BATCH = 0x42
VERSION = 1
HEADER_BYTES = 64
ALIGNMENT = 8
BATCH_BYTES_MIN = HEADER_BYTES + 8
RECORDS_MAX = 1 << 20
CLIENT_PART_AT = 56
PACKING_AT = 58
CODEC_BITS = 0x0F
PRIORITY_MAX = 9
# No batch reaches past this offset.
OFFSET_MAX = (1 << 63) - 1

Bytes = bytes | bytearray | memoryview

_HEADER = Struct("<IBBHIIQqQQIIHBBI")
# What the broker needs of a batch that comes in: everything but what it will stamp itself.
INCOMING = Struct("<IBBHI20xQQ4xIHBBI")
# What the broker rewrites: bytes 0 to 48, under the header crc.
STAMPED = Struct("<IBBHIIQqQQ")
CHECKSUMS = Struct("<II")
CLIENT_PART = Struct("<HBBI")


class BatchHeader(NamedTuple):
    """The 64 bytes in front of every batch, in their order, and how many offsets it covers."""

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


def read_header(data: Bytes, at: int = 0) -> BatchHeader:
    """The header at `at`, its fields within their ranges; checksums are `check_batch`'s work."""
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
        or header.length < HEADER_BYTES + places_bytes(SPARSE, count)
        or not max(1, count) <= span <= OFFSET_MAX - header.base_offset
    ):
        raise FormatError(f"A sparse batch can't hold {count} records within {span} offsets.")
    return span


def check_header(data: Bytes, at: int = 0) -> BatchHeader:
    """The header at `at` of a stamped batch, with its own checksum verified."""
    header = read_header(data, at)
    if crc32c(data[at : at + 48]) != header.header_crc:
        raise ChecksumError("The batch header's checksum does not fit: the header is damaged.")
    return header


def check_body(data: Bytes, header: BatchHeader, at: int = 0) -> None:
    """That the whole body is there and is what the producer's client sent."""
    end = at + header.length
    if len(data) < end:
        raise FormatError(f"The batch is {header.length} bytes long; {len(data) - at} are there.")
    if crc32c(data[at + CLIENT_PART_AT : end]) != header.body_crc:
        raise ChecksumError("The batch body's checksum does not fit: the body is damaged.")


def check_batch(data: Bytes, at: int = 0) -> BatchHeader:
    """The header of the stamped batch at `at`, both checksums verified."""
    header = check_header(data, at)
    check_body(data, header, at)
    return header


def encode_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    event_times_us: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    topic: int = 0,
    partition: int = 0,
    producer_id: int = 0,
    producer_epoch: int = 0,
    first_sequence: int = 0,
    priority: int = 0,
) -> bytes:
    """A batch as a client sends it: body checksum made, the broker's fields zero."""
    count = len(values)
    if not 1 <= count <= RECORDS_MAX:
        raise FormatError(f"A batch holds 1 to {RECORDS_MAX} records, not {count}.")
    used, flags, body = pack_columns(values, keys, headers, event_times_us, codec)
    client_part = CLIENT_PART.pack(partition, used | priority << 4, flags, count) + body
    head = STAMPED.pack(
        HEADER_BYTES + len(body),
        KIND_BATCH,
        VERSION,
        producer_epoch,
        topic,
        0,
        0,
        0,
        producer_id,
        first_sequence,
    )
    return b"".join((head, CHECKSUMS.pack(0, crc32c(client_part)), client_part))


def stamp(
    data: bytes, *, base_offset: int, append_time_us: int, leader_epoch: int, topic: int
) -> bytes:
    """The batch as the log keeps it. The broker's hot path does the same steps in place."""
    header = read_header(data)
    head = STAMPED.pack(
        header.length,
        KIND_BATCH,
        VERSION,
        header.producer_epoch,
        topic,
        leader_epoch,
        base_offset,
        append_time_us,
        header.producer_id,
        header.first_sequence,
    )
    checksums = CHECKSUMS.pack(crc32c(head), header.body_crc)
    return b"".join((head, checksums, data[CLIENT_PART_AT:]))


def retarget(data: bytes, *, topic: int, first_sequence: int) -> bytes:
    """A client's batch for another topic number or sequence; its body checksum stays true."""
    header = read_header(data)
    head = STAMPED.pack(
        header.length,
        KIND_BATCH,
        VERSION,
        header.producer_epoch,
        topic,
        0,
        0,
        0,
        header.producer_id,
        first_sequence,
    )
    return head + data[48:]


def assign(
    data: bytes, at: int, header: BatchHeader, *, producer_id: int, first_sequence: int
) -> bytes:
    """The client's batch at `at` as one of another producer; its body checksum stays true."""
    head = STAMPED.pack(
        header.length, KIND_BATCH, VERSION, 0, header.topic, 0, 0, 0, producer_id, first_sequence
    )
    return head + data[at + STAMPED.size : at + header.length]


class Batch:
    """A stamped batch, decoded as far as it is asked for, and never past `limits`. A producer may
    have put anything under its checksums: whatever decodes raises `UnreadableError`.

    >>> data = encode_batch([b"a", b"bc"])
    >>> Batch(data).values
    [b'a', b'bc']
    """

    __slots__ = ("_checked", "_columns", "data", "header", "limits", "topic_name")

    def __init__(
        self,
        data: Bytes,
        header: BatchHeader | None = None,
        topic_name: str = "",
        limits: UnpackLimits = FORMAT_LIMITS,
    ) -> None:
        self.header = read_header(data) if header is None else header
        if len(data) != self.header.length:
            raise FormatError(f"The batch says {self.header.length} bytes and has {len(data)}.")
        self.data = data
        self.topic_name = topic_name
        self.limits = limits
        self._columns: ColumnReader | None = None
        self._checked = False

    @property
    def columns(self) -> ColumnReader:
        """The columns as buffers, ready for Arrow or NumPy. What is in them is checked as it is
        asked for; `check` looks at all of it."""
        if self._columns is None:
            header = self.header
            try:
                self._columns = ColumnReader(
                    memoryview(self.data)[HEADER_BYTES:],
                    header.flags,
                    header.codec,
                    header.record_count,
                    self.limits,
                )
            except FormatError as fault:
                raise self.unreadable(fault) from fault
        return self._columns

    def check(self) -> None:
        """Decodes the batch. Once this returns, all of it can be read."""
        if self._checked:
            return
        try:
            self.columns.check()
            if self.header.flags & SPARSE:
                read_deltas(
                    memoryview(self.data)[HEADER_BYTES:], self.header.span, self.header.record_count
                )
            self._checked = True
        except UnreadableError:
            raise
        except FormatError as fault:
            raise self.unreadable(fault) from fault

    def forget_columns(self) -> None:
        """Gives up what was unpacked; it is unpacked again when it is asked for."""
        self._columns = None
        self._checked = False

    def unreadable(self, fault: FormatError) -> UnreadableError:
        """The fault, with the batch's place."""
        where = repr(self.topic_name) if self.topic_name else f"topic number {self.header.topic}"
        first, last = self.base_offset, self.next_offset - 1
        return UnreadableError(
            f"Offsets {first} to {last} of partition {self.partition} of {where} can't be read. "
            f"Their producer made a batch that does not decode: {fault}.",
            topic=self.topic_name,
            partition=self.partition,
            first=first,
            next=last + 1,
        )

    @property
    def unpacked_bytes(self) -> int:
        """What the batch takes once its columns are unpacked, as it says itself: no work."""
        header = self.header
        if not header.codec:
            return header.length
        at = HEADER_BYTES + sizes_at(header.flags, header.record_count)
        try:
            return at + read_sizes(self.data, at, header.length)[0]
        except FormatError as fault:
            raise self.unreadable(fault) from fault

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def next_offset(self) -> int:
        return self.header.next_offset

    @property
    def offsets(self) -> Sequence[int]:
        """Each record's offset."""
        header = self.header
        base = header.base_offset
        if not header.flags & SPARSE:
            return range(base, base + header.record_count)
        body = memoryview(self.data)[HEADER_BYTES:]
        try:
            deltas = read_deltas(body, header.span, header.record_count)
        except FormatError as fault:
            raise self.unreadable(fault) from fault
        return [base + delta for delta in deltas]

    @property
    def partition(self) -> int:
        return self.header.partition

    @property
    def append_time_us(self) -> int:
        return self.header.append_time_us

    @property
    def values(self) -> list[bytes | None]:
        return self._read(ColumnReader.values)

    @property
    def keys(self) -> list[bytes | None]:
        return self._read(ColumnReader.keys)

    def _read(self, column: Callable[[ColumnReader], list[bytes | None]]) -> list[bytes | None]:
        try:
            return column(self.columns)
        except UnreadableError:
            raise
        except FormatError as fault:
            raise self.unreadable(fault) from fault

    @property
    def time_range_us(self) -> tuple[int, int]:
        """The earliest and the latest event time of the records."""
        header = self.header
        body = memoryview(self.data)[HEADER_BYTES:]
        given = time_range(body, header.flags, header.record_count)
        return given or (self.append_time_us, self.append_time_us)

    def __len__(self) -> int:
        return self.header.record_count

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic_name or self.header.topic}/{self.partition} "
            f"offsets {self.base_offset}..{self.next_offset - 1}>"
        )


def split_batches(data: Bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in a stretch of log bytes."""
    at = 0
    while at < len(data):
        header = read_header(data, at)
        if at + header.length > len(data):
            raise FormatError(f"The batch at {at} is cut: {header.length} bytes do not fit.")
        yield at, header
        at += header.length
