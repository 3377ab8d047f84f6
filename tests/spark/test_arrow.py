"""Rows of Arrow are the records of the log, whatever batches they came in."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import UnreadableError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.codecs import Codec
from fanlog.format.sparse import thinned
from fanlog.spark.arrow import RowsBuilder
from fanlog.spark.rows import SOURCE_SCHEMA, arrow_schema, source_schema

SCHEMA = arrow_schema(SOURCE_SCHEMA)
RECORD = st.tuples(
    st.none() | st.binary(max_size=12),
    st.none() | st.binary(max_size=6),
    st.dictionaries(st.text(max_size=4), st.binary(max_size=4), max_size=2),
    st.integers(0, 1 << 50),
)


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches one after another, each with the columns that it happens to have, some compacted;
    what is between two may have been damaged."""
    batches: list[Batch] = []
    base = draw(st.integers(0, 1000))
    for i in range(draw(st.integers(1, 5))):
        records = draw(st.lists(RECORD, min_size=1, max_size=12))
        values, keys, headers, times = (list(column) for column in zip(*records, strict=True))
        data = encode_batch(
            values,
            keys=keys if draw(st.booleans()) else None,
            headers=headers if draw(st.booleans()) else None,
            event_times_us=times if draw(st.booleans()) else None,
            codec=draw(st.sampled_from(Codec)),
        )
        batch = Batch(
            stamp(data, base_offset=base, append_time_us=1000 + i, leader_epoch=1, topic=1)
        )
        if draw(st.booleans()):
            kept = sorted(draw(st.sets(st.integers(0, len(records) - 1))))
            batch = Batch(thinned(batch, kept))
        batches.append(batch)
        base = batch.next_offset + draw(st.sampled_from((0, 0, 3)))
    return batches


def records_of(batch: Batch) -> list[dict[str, Any]]:
    """The slow way to the same rows."""
    columns = batch.columns
    times = columns.event_times_us
    return [
        {
            "key": columns.keys()[i],
            "value": columns.values()[i],
            "topic": "t",
            "partition": 3,
            "offset": offset,
            "timestamp": batch.append_time_us,
            "event_time": batch.append_time_us if times is None else times[i],
            "headers": [{"key": k, "value": v} for k, v in columns.headers(i).items()],
        }
        for i, offset in enumerate(batch.offsets)
    ]


def rows_of(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    plain = {
        field.name: column.cast(pa.int64()) if str(field.type).startswith("timestamp") else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    }
    return [row | {"headers": row["headers"] or []} for row in pa.record_batch(plain).to_pylist()]


@given(logs(), st.integers(0, 1100), st.integers(0, 80))
def test_rows_are_the_records_within_the_range(batches: list[Batch], first: int, size: int) -> None:
    builder = RowsBuilder(SCHEMA, "t", 3)
    for batch in batches:
        builder.add(batch, first, first + size)
    expected = [
        record
        for batch in batches
        for record in records_of(batch)
        if first <= record["offset"] < first + size
    ]
    assert builder.rows == len(expected)
    if expected:
        rows = builder.take()
        rows.validate(full=True)
        assert rows.schema.equals(SCHEMA)
        assert rows_of(rows) == expected
        assert builder.rows == 0


@given(logs(), st.integers(1, 20), st.integers(1, 500))
def test_rows_are_the_same_in_however_many_pieces(
    batches: list[Batch], rows_max: int, bytes_max: int
) -> None:
    builder = RowsBuilder(SCHEMA, "t", 3, rows_max=rows_max, bytes_max=bytes_max)
    pieces = [piece for batch in batches for piece in builder.add(batch, 0, 5000)]
    if builder.rows:
        pieces.append(builder.take())
    expected = [record for batch in batches for record in records_of(batch)]
    assert [row for piece in pieces for row in rows_of(piece)] == expected
    assert all(len(piece) for piece in pieces)


def test_what_compresses_well_comes_in_pieces_of_its_unpacked_size() -> None:
    builder = RowsBuilder(SCHEMA, "t", 0, bytes_max=500_000)
    chance = random.Random(1)
    pieces: list[pa.RecordBatch] = []
    base = 0
    for count in (1, 2, 3, 1, 40, 1, 1):
        values = [chance.randbytes(300) + b"z" * 99_700 for _ in range(count)]
        data = encode_batch(values, event_times_us=[1] * count, codec=Codec.ZSTD)
        assert len(data) < 500 * (count + 1)
        pieces += builder.add(
            Batch(stamp(data, base_offset=base, append_time_us=1, leader_epoch=1, topic=1)), 0, 99
        )
        base += count
    pieces.append(builder.take())
    assert [offset for piece in pieces for offset in piece.column("offset").to_pylist()] == list(
        range(base)
    )
    # The batch of forty is cut into nine; the others are put together as far as they go.
    assert [len(piece) for piece in pieces] == [3, 4, 4, 4, 5, 4, 5, 4, 5, 4, 5, 2]
    assert all(piece.nbytes < 502_000 for piece in pieces)


def test_a_single_batch_is_not_copied() -> None:
    data = stamp(
        encode_batch([b"abc"] * 100), base_offset=0, append_time_us=1, leader_epoch=1, topic=1
    )
    builder = RowsBuilder(SCHEMA, "t", 0)
    builder.add(Batch(data), 0, 100)
    (_, offsets, values) = builder.take().column("value").buffers()
    within = pa.py_buffer(data)
    for buffer in (offsets, values):
        assert buffer is not None
        assert within.address <= buffer.address < within.address + within.size


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    data = stamp(encode_batch([b"a"]), base_offset=5, append_time_us=1, leader_epoch=1, topic=1)
    builder = RowsBuilder(arrow_schema(source_schema(("offset", "value"))), "t", 0)
    builder.add(Batch(data), 0, 100)
    assert builder.take().to_pylist() == [{"offset": 5, "value": b"a"}]


def test_offsets_that_point_outside_are_found_before_arrow_follows_them() -> None:
    data = bytearray(encode_batch([b"ab", b"cd", b"ef"]))
    struct.pack_into("<i", data, 64 + 8, 1 << 20)
    builder = RowsBuilder(SCHEMA, "t", 0)
    with pytest.raises(UnreadableError, match="don't fit together"):
        builder.add(Batch(bytes(data)), 0, 100)
    assert not builder.rows


def test_a_headers_name_that_is_no_text_is_shown_as_far_as_it_is() -> None:
    data = encode_batch([b"a"], headers=[{"name": b"1"}]).replace(b"name", b"n\xffme")
    builder = RowsBuilder(SCHEMA, "t", 0)
    builder.add(Batch(data), 0, 100)
    assert builder.take().to_pylist()[0]["headers"] == [{"key": "n\ufffdme", "value": b"1"}]
