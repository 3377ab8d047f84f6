"""A batch made of buffers is the batch that is made of the same records one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import FormatError
from fanlog.format.batch import Batch, encode_batch
from fanlog.format.buffers import BatchBuffers, Buffers, encode_buffers
from fanlog.format.codecs import Codec
from fanlog.spark.row_batches import buffers_of

NAMES = st.text(max_size=5)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=8),
        st.dictionaries(NAMES, st.binary(max_size=6), max_size=3),
        st.integers(-(1 << 40), 1 << 50),
    ),
    min_size=1,
    max_size=70,
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(RECORDS, st.sampled_from(Codec), st.integers(0, 5))
def test_rows_give_the_bytes_that_records_give(
    records: list[tuple[bytes | None, bytes | None, dict[str, bytes], int]],
    codec: Codec,
    cut: int,
) -> None:
    values, keys, headers, times = (list(column) for column in zip(*records, strict=True))
    rows = pa.record_batch(
        {
            "value": pa.array([b"not these"] * cut + values, pa.binary()),
            "key": pa.array([b"nor"] * cut + keys, pa.binary()),
            "headers": pa.array(
                [[{"key": "x", "value": b"y"}]] * cut
                + [[{"key": k, "value": v} for k, v in h.items()] for h in headers],
                HEADERS,
            ),
            "event_time": pa.array([0] * cut + times, pa.timestamp("us", tz="UTC")),
        }
    ).slice(cut)
    place = {"topic": 7, "partition": 3, "producer_id": 11, "first_sequence": 5}
    expected = encode_batch(
        values,
        keys=None if all(key is None for key in keys) else keys,
        headers=headers if any(headers) else None,
        event_times_us=times,
        codec=codec,
        **place,
    )
    assert encode_buffers(buffers_of(rows, 0), codec=codec, **place) == expected


def test_what_no_row_has_costs_no_byte() -> None:
    rows = pa.record_batch({"value": pa.array(["a", "bc"]), "key": pa.nulls(2, pa.string())})
    made = encode_buffers(buffers_of(rows, 0), codec=Codec.NONE, topic=1, partition=0)
    assert made == encode_batch([b"a", b"bc"], topic=1)


def test_a_row_without_an_event_time_happened_now() -> None:
    times = pa.array([5, None], pa.timestamp("us", tz="UTC"))
    rows = pa.record_batch({"value": pa.array(["a", "b"]), "event_time": times})
    made = Batch(encode_buffers(buffers_of(rows, 99), codec=Codec.NONE, topic=1, partition=0))
    assert np.frombuffer(made.columns.event_times_us or b"", np.int64).tolist() == [5, 99]
    assert made.time_range_us == (5, 99)


def test_a_batch_without_records_is_refused() -> None:
    nothing = BatchBuffers(0, Buffers(bytes(4), b""))
    with pytest.raises(FormatError, match="1 to 1048576 records, not 0"):
        encode_buffers(nothing, codec=Codec.NONE, topic=1, partition=0)
