"""The batch: the one form of messages on the wire, in memory, on disk and in Spark.

A batch is a header of 64 bytes (`header.py`) and columns of records (`columns.py`). Every column
starts on a multiple of 8, and so does every batch, because its length is one too.

Between socket and log only the header is read. Only compaction makes sparse batches (`sparse.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fanlog.errors import ChecksumError, FormatError, UnreadableError
from fanlog.format.checksum import crc32c
from fanlog.format.codecs import FORMAT_LIMITS, Codec, UnpackLimits
from fanlog.format.columns import (
    SPARSE,
    ColumnReader,
    EncodedHeaders,
    pack_columns,
    read_deltas,
    read_sizes,
    sizes_at,
    time_range,
)
from fanlog.format.header import (
    CHECKSUMS,
    CLIENT_PART,
    CLIENT_PART_AT,
    HEADER_BYTES,
    RECORDS_MAX,
    STAMPED,
    BatchHeader,
    Bytes,
    check_header,
    pack_stamped,
    read_header,
    repack,
    seal,
)


def check_body(data: Bytes, header: BatchHeader, at: int = 0) -> None:
    """Checks that the body is complete and is what the producer's client sent."""
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
    headers: Sequence[EncodedHeaders | None] | None = None,
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
    head = pack_stamped(
        HEADER_BYTES + len(body),
        topic=topic,
        producer_epoch=producer_epoch,
        producer_id=producer_id,
        first_sequence=first_sequence,
    )
    return seal(head, client_part, stamped=False)


def stamp(
    data: bytes, *, base_offset: int, append_time_us: int, leader_epoch: int, topic: int
) -> bytes:
    """The batch as the log keeps it. The broker's hot path does the same steps in place."""
    header = read_header(data)
    head = repack(
        header,
        topic=topic,
        leader_epoch=leader_epoch,
        base_offset=base_offset,
        append_time_us=append_time_us,
    )
    checksums = CHECKSUMS.pack(crc32c(head), header.body_crc)
    return b"".join((head, checksums, data[CLIENT_PART_AT:]))


def retarget(data: bytes, *, topic: int, first_sequence: int) -> bytes:
    """A client's batch for another topic number or sequence; its body checksum stays true."""
    header = read_header(data)
    head = pack_stamped(
        header.length,
        topic=topic,
        producer_epoch=header.producer_epoch,
        producer_id=header.producer_id,
        first_sequence=first_sequence,
    )
    return head + data[STAMPED.size :]


def assign(
    data: bytes, at: int, header: BatchHeader, *, producer_id: int, first_sequence: int
) -> bytes:
    """The client's batch at `at` as one of another producer; its body checksum stays true."""
    head = pack_stamped(
        header.length, topic=header.topic, producer_id=producer_id, first_sequence=first_sequence
    )
    return head + data[at + STAMPED.size : at + header.length]


class Batch:
    """A stamped batch. It decodes the columns that are used, and never past `limits`. A producer
    may have put anything under its checksums: whatever decodes raises `UnreadableError`.

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
        """The columns as buffers, ready for Arrow or NumPy. Contents are checked when they are
        read; `check` checks all of them."""
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
        """Drops the unpacked columns; they are unpacked again when needed."""
        self._columns = None
        self._checked = False

    def unreadable(self, fault: FormatError) -> UnreadableError:
        """The fault, with the batch's topic, partition and offset."""
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
        """The size of the batch with unpacked columns, from its own fields: no work."""
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
