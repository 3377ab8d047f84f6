"""Sparse batches: some records go, and whatever stays is what and where it was."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.errors import FormatError
from fanlog.format.batch import Batch, check_batch, encode_batch, split_batches
from fanlog.format.checksum import crc32c
from fanlog.format.codecs import Codec
from fanlog.format.columns import SPARSE
from fanlog.format.header import ALIGNMENT, HEADER_BYTES, read_header
from fanlog.format.sparse import placeholder, thinned, widened
from tests.format.test_batch import record_columns, stamped

SAME = ("partition", "codec", "append_time_us", "leader_epoch", "producer_id", "first_sequence")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    columns = draw(record_columns())
    data = encode_batch(
        columns.pop("values"),  # type: ignore[arg-type]
        codec=draw(st.sampled_from(Codec)),
        partition=7,
        producer_id=draw(st.integers(0, 2**63)),
        producer_epoch=3,
        first_sequence=draw(st.integers(0, 2**62)),
        **columns,  # type: ignore[arg-type]
    )
    return Batch(stamped(data))


def some_of(draw: st.DataObject, batch: Batch) -> list[int]:
    chosen = draw.draw(st.sets(st.integers(0, len(batch) - 1), min_size=1))
    return sorted(chosen)


def records(batch: Batch) -> list[tuple[object, ...]]:
    times = batch.columns.event_times_us
    return [
        (offset, value, key, batch.columns.headers(i), None if times is None else times[i])
        for i, (offset, value, key) in enumerate(
            zip(batch.offsets, batch.values, batch.keys, strict=True)
        )
    ]


@settings(max_examples=200)
@given(st.data(), batches())
def test_what_stays_of_a_batch_is_what_it_was(data: st.DataObject, batch: Batch) -> None:
    kept = some_of(data, batch)
    made = thinned(batch, kept)
    check_batch(made)
    thin = Batch(made)
    assert len(made) % ALIGNMENT == 0
    assert records(thin) == [records(batch)[i] for i in kept]
    assert (thin.base_offset, thin.next_offset) == (batch.base_offset, batch.next_offset)
    for field in SAME:
        assert getattr(thin.header, field) == getattr(batch.header, field)
    times = [record[4] for record in records(thin)]
    if thin.columns.event_times_us is not None:
        assert thin.time_range_us == (min(times), max(times))  # type: ignore[type-var]


@settings(max_examples=100)
@given(st.data(), batches())
def test_a_batch_may_be_thinned_and_widened_again_and_again(
    data: st.DataObject, batch: Batch
) -> None:
    expected, end = records(batch), batch.next_offset
    for _ in range(3):
        if data.draw(st.booleans()):
            kept = some_of(data, batch)
            expected = [expected[i] for i in kept]
            batch = Batch(thinned(batch, kept))
        else:
            end += data.draw(st.integers(0, 2**40))
            batch = Batch(widened(batch, end))
        check_batch(batch.data)
        assert records(batch) == expected
        assert batch.next_offset == end


@given(batches(), st.integers(1, 2**60))
def test_a_placeholder_has_nothing_and_reaches_as_far_as_it_says(batch: Batch, more: int) -> None:
    end = batch.next_offset + more
    made = Batch(placeholder(batch.header, end))
    check_batch(made.data)
    assert len(made.data) == 80
    assert (len(made), made.values, made.keys, [*made.offsets]) == (0, [], [], [])
    assert (made.base_offset, made.next_offset) == (batch.base_offset, end)
    assert Batch(widened(made, end + 5)).next_offset == end + 5


def test_widening_unpacks_nothing() -> None:
    batch = Batch(stamped(encode_batch([b"same" * 100] * 5, codec=Codec.ZLIB)))
    wide = widened(batch, 2000)
    assert wide.endswith(batch.data[HEADER_BYTES:])


def test_batches_follow_each_other_by_their_spans() -> None:
    first = Batch(stamped(encode_batch([b"a", b"b", b"c"])))
    data = widened(first, 1010) + placeholder(first.header._replace(base_offset=1010), 1020)
    assert [header.next_offset for _, header in split_batches(data)] == [1010, 1020]


@settings(max_examples=200)
@given(st.data(), batches())
def test_every_flipped_bit_of_a_sparse_batch_is_found(data: st.DataObject, batch: Batch) -> None:
    whole = thinned(batch, some_of(data, batch))
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    damaged = bytearray(whole)
    damaged[at // 8] ^= 1 << (at % 8)
    with pytest.raises(FormatError):
        check_batch(bytes(damaged))


def forged(span: int, deltas: list[int], count: int | None = None) -> bytes:
    """A sparse batch that says so of itself, under fitting checksums."""
    dense = Batch(stamped(encode_batch([b"x"] * len(deltas))))
    data = bytearray(widened(dense, dense.next_offset + 10))
    data[64:72] = span.to_bytes(8, "little")
    for i, delta in enumerate(deltas):
        data[72 + 4 * i : 76 + 4 * i] = delta.to_bytes(4, "little", signed=True)
    if count is not None:
        data[60:64] = count.to_bytes(4, "little")
    data[52:56] = crc32c(bytes(data[56:])).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("deltas", [[1, 0], [2, 2], [-1, 0], [0, 10], [0, 11]])
def test_records_that_lie_outside_or_out_of_order_are_refused(deltas: list[int]) -> None:
    with pytest.raises(FormatError):
        _ = Batch(forged(10, deltas)).offsets


@pytest.mark.parametrize(("span", "count"), [(0, 0), (1, 2), (2**63, 2), (9, 1 << 20), (9, 1000)])
def test_a_span_that_cant_be_is_refused(span: int, count: int) -> None:
    with pytest.raises(FormatError):
        read_header(forged(span, [0, 1], count))


def test_a_batch_is_never_made_shorter() -> None:
    batch = Batch(stamped(encode_batch([b"a", b"b"])))
    with pytest.raises(FormatError):
        widened(batch, batch.next_offset - 1)


def test_a_dense_batch_knows_its_offsets_without_a_list() -> None:
    batch = Batch(stamped(encode_batch([b"a", b"b"])))
    assert batch.offsets == range(1000, 1002)
    assert not batch.header.flags & SPARSE
