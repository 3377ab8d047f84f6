"""Log batches as Arrow record batches. The columns of a batch are Arrow buffers as they stand, so
that they are pointed at, not copied; what a batch says once for all its records is repeated by
NumPy. Nothing here loops over records.

Batches of the log may be small, and each batch of Arrow costs Spark a while: small ones are put
together, which is a copy of memory.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fanlog.errors import FormatError, UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.columns import SPAN, SPARSE, BinaryColumn
from fanlog.format.header import HEADER_BYTES

_BINARY = pa.binary()
_STRING = pa.string()
_NO_LIMIT = sys.maxsize


Ints = npt.NDArray[np.int64]


class _BatchPart(NamedTuple):
    """Records `low` up to, not including, `high` of a batch; `offsets` are those of all of its
    records where compaction has left gaps between them. `columns` are those of the batch that are
    wanted, checked."""

    batch: Batch
    low: int
    high: int
    offsets: Ints | None
    columns: dict[str, pa.Array | None]

    @property
    def size(self) -> int:
        return self.high - self.low


class RowsBuilder:
    """Collects batches of one partition, and makes one record batch of them.

    `schema` says which columns are wanted, in Spark's own Arrow types. A record batch is full with
    `rows_max` rows, or before it would have more than `bytes_max` bytes, counted as they are
    unpacked: what compresses well must not grow past what Arrow and memory can hold.
    """

    def __init__(
        self,
        schema: pa.Schema,
        topic: str,
        partition: int,
        *,
        rows_max: int = _NO_LIMIT,
        bytes_max: int = _NO_LIMIT,
    ) -> None:
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._parts: list[_BatchPart] = []
        self._constants: dict[str, pa.Array] = {}
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self.rows = 0
        self.bytes = 0

    def add(self, batch: Batch, first: int, end: int) -> list[pa.RecordBatch]:
        """Adds those of a batch's records whose offsets lie from `first` up to `end`. Returns
        what is full with them: a batch that is too large by itself comes in several pieces. One
        that does not decode raises `UnreadableError`, and nothing of it is added."""
        offsets = None
        if batch.header.flags & SPARSE:
            offsets = _sparse_offsets(batch)
            low, high = np.searchsorted(offsets, (first, end)).tolist()
        else:
            base = batch.base_offset
            low, high = max(0, first - base), min(len(batch), end - base)
        if high <= low:
            return []
        columns = self._checked_columns(batch)
        size = high - low
        total_bytes = batch.unpacked_bytes * size // len(batch)
        count = min(size, max(1, -(-total_bytes // self._bytes_max)))
        full: list[pa.RecordBatch] = []
        for begin, stop in pairwise(low + size * i // count for i in range(count + 1)):
            part = _BatchPart(batch, begin, stop, offsets, columns)
            if self.rows and self.bytes + total_bytes // count > self._bytes_max:
                full.append(self.take())
            self._parts.append(part)
            self.rows += part.size
            self.bytes += total_bytes // count
            if self.rows >= self._rows_max or self.bytes >= self._bytes_max:
                full.append(self.take())
        return full

    def _checked_columns(self, batch: Batch) -> dict[str, pa.Array | None]:
        """The wanted columns of a batch, as Arrow has them; None for one that it does not have."""
        made: dict[str, pa.Array | None] = {}
        try:
            given = batch.columns
            for field in self._schema:
                if field.name in ("value", "key"):
                    column = given.value_column if field.name == "value" else given.key_column
                    made[field.name] = (
                        None if column is None else _binary_array(column, len(batch), _BINARY)
                    )
                elif field.name == "headers":
                    made[field.name] = _headers_array(batch, field.type)
        except UnreadableError:
            raise
        except FormatError as fault:
            raise batch.unreadable(fault) from fault
        return made

    def take(self) -> pa.RecordBatch:
        """The rows that were added since the last time."""
        arrays = [self._column(field) for field in self._schema]
        self._parts = []
        self.rows = self.bytes = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field) -> pa.Array:
        match field.name:
            case "value" | "key" | "headers":
                return self._made(field)
            case "topic" | "partition":
                return self._constant(field)
            case "offset":
                return self._offsets()
            case "timestamp":
                return self._times(field.type)
            case _:
                return self._event_times(field.type)

    def _made(self, field: pa.Field) -> pa.Array:
        """A column that was made with its batch; without it, nulls."""
        name, type = field.name, _BINARY if field.name != "headers" else field.type
        if all(part.columns[name] is None for part in self._parts):
            return pa.nulls(self.rows, type)
        return _joined(
            [
                pa.nulls(part.size, type) if made is None else _cut(made, part)
                for part in self._parts
                for made in (part.columns[name],)
            ]
        )

    def _constant(self, field: pa.Field) -> pa.Array:
        """The same value for every row; made once, for as many as were needed so far."""
        made = self._constants.get(field.name)
        if made is None or len(made) < self.rows:
            value = self._topic if field.name == "topic" else self._partition
            made = pa.repeat(pa.scalar(value, field.type), self.rows)
            self._constants[field.name] = made
        return made.slice(0, self.rows)

    def _offsets(self) -> pa.Array:
        first, last = self._parts[0], self._parts[-1]
        begin, end = first.batch.base_offset + first.low, last.batch.base_offset + last.high
        if end - begin == self.rows and all(part.offsets is None for part in self._parts):
            # The usual case: neither compaction nor damage has left a gap.
            return pa.array(np.arange(begin, end))
        runs = [
            np.arange(part.batch.base_offset + part.low, part.batch.base_offset + part.high)
            if part.offsets is None
            else part.offsets[part.low : part.high]
            for part in self._parts
        ]
        return pa.array(runs[0] if len(runs) == 1 else np.concatenate(runs))

    def _times(self, type: pa.DataType) -> pa.Array:
        times = np.array([part.batch.append_time_us for part in self._parts], np.int64)
        return _times_array(np.repeat(times, [part.size for part in self._parts]), type)

    def _event_times(self, type: pa.DataType) -> pa.Array:
        if all(part.batch.columns.event_times_us is None for part in self._parts):
            return self._times(type)
        runs: list[Ints] = []
        for part in self._parts:
            given = part.batch.columns.event_times_us
            if given is None:
                runs.append(np.full(part.size, part.batch.append_time_us, np.int64))
            else:
                runs.append(np.frombuffer(given, np.int64)[part.low : part.high])
        return _times_array(runs[0] if len(runs) == 1 else np.concatenate(runs), type)


def _sparse_offsets(batch: Batch) -> Ints:
    """The offsets of a compacted batch's records, checked: rising, and within its span."""
    header = batch.header
    deltas = np.frombuffer(batch.data, np.int32, header.record_count, HEADER_BYTES + SPAN.size)
    if len(deltas) and (
        deltas[0] < 0 or deltas[-1] >= header.span or not bool(np.all(np.diff(deltas) > 0))
    ):
        raise FormatError("A sparse batch's records must lie within its span, in order.")
    return header.base_offset + deltas.astype(np.int64)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _cut(array: pa.Array, part: _BatchPart) -> pa.Array:
    return array if part.size == len(array) else array.slice(part.low, part.size)


def _binary_array(column: BinaryColumn, count: int, type: pa.DataType) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return _checked(pa.Array.from_buffers(type, count, buffers))


def _checked(array: pa.Array) -> pa.Array:
    """The array, if its offsets stay within its data. They are as a publisher made them, and
    Arrow trusts them."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as fault:
        raise FormatError(f"A batch's columns don't fit together: {fault}.") from fault
    return array


def _times_array(times: Ints, type: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type, len(times), [None, pa.py_buffer(times)])


def _headers_array(batch: Batch, type: pa.DataType) -> pa.Array | None:
    """The log's `list<struct<name, content>>` under the names that Spark has for it."""
    columns = batch.columns.header_columns
    if columns is None:
        return None
    slots, names, contents = columns
    entries = slots[-1]
    try:
        keys = _binary_array(names, entries, _STRING)
    except FormatError:
        # A name that is not UTF-8: rare enough to check one by one.
        texts = [name.decode(errors="replace") for name in names.to_bytes_list()]
        keys = pa.array(texts, _STRING)
    pairs = pa.StructArray.from_arrays(
        [keys, _binary_array(contents, entries, _BINARY)], fields=list(type.value_type)
    )
    buffers = [None, pa.py_buffer(slots)]
    return _checked(pa.Array.from_buffers(type, len(batch), buffers, children=[pairs]))
