"""The batch: what goes in comes out, and no damage goes unseen."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.errors import ChecksumError, FormatError
from fanlog.format.batch import Batch, check_batch, encode_batch, retarget, split_batches, stamp
from fanlog.format.codecs import Codec
from fanlog.format.header import ALIGNMENT, HEADER_BYTES, read_header

maybe_bytes = st.one_of(st.none(), st.binary(max_size=40))
headers = st.one_of(st.none(), st.dictionaries(st.text(max_size=8), st.binary(max_size=8)))
times = st.integers(-(2**62), 2**62)


@st.composite
def record_columns(draw: st.DrawFn) -> dict[str, object]:
    count = draw(st.integers(1, 20))

    def column(item: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(item, min_size=count, max_size=count))

    columns: dict[str, object] = {"values": column(maybe_bytes)}
    if draw(st.booleans()):
        columns["keys"] = column(maybe_bytes)
    if draw(st.booleans()):
        columns["headers"] = column(headers)
    if draw(st.booleans()):
        columns["event_times_us"] = column(times)
    return columns


def stamped(data: bytes) -> bytes:
    return stamp(
        data, base_offset=1000, append_time_us=1_700_000_000_000_000, leader_epoch=3, topic=9
    )


@given(record_columns(), st.sampled_from(Codec))
def test_every_column_comes_back_as_it_went_in(columns: dict, codec: Codec) -> None:
    values = columns.pop("values")
    data = stamped(encode_batch(values, codec=codec, partition=7, **columns))
    check_batch(data)
    batch = Batch(data)
    assert len(data) % ALIGNMENT == 0
    assert batch.values == values
    assert batch.keys == columns.get("keys", [None] * len(values))
    wanted = [h or {} for h in columns.get("headers", [None] * len(values))]
    assert [batch.columns.headers(i) for i in range(len(values))] == wanted
    event_times = columns.get("event_times_us")
    if event_times is None:
        assert batch.columns.event_times_us is None
        assert batch.time_range_us == (batch.append_time_us, batch.append_time_us)
    else:
        assert batch.columns.event_times_us is not None
        assert batch.columns.event_times_us.tolist() == event_times
        assert batch.time_range_us == (min(event_times), max(event_times))


def test_one_small_message_costs_the_header_and_eight_bytes() -> None:
    assert len(encode_batch([b"x" * 128])) == HEADER_BYTES + 8 + 128


def test_stamping_changes_only_what_is_the_brokers() -> None:
    sent = encode_batch([b"a"], producer_id=5, producer_epoch=2, first_sequence=77, partition=3)
    kept = stamped(sent)
    header = read_header(kept)
    assert (header.base_offset, header.leader_epoch, header.topic) == (1000, 3, 9)
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (5, 2, 77)
    assert kept[52:] == sent[52:]


def test_a_batch_can_be_retargeted_without_a_new_body_checksum() -> None:
    moved = retarget(encode_batch([b"a"], topic=1), topic=2, first_sequence=40)
    header = check_batch(stamped(moved))
    assert header.first_sequence == 40


def test_columns_are_arrow_buffers_as_they_stand() -> None:
    values = [b"one", None, b"three"]
    column = Batch(encode_batch(values)).columns.value_column
    array = pa.Array.from_buffers(
        pa.binary(),
        len(values),
        [pa.py_buffer(column.validity), pa.py_buffer(column.offsets), pa.py_buffer(column.data)],
    )
    assert array.to_pylist() == values


def test_headers_are_an_arrow_list_of_structs() -> None:
    rows = [{"a": b"1", "b": b"2"}, None, {"c": b"3"}]
    columns = Batch(encode_batch([b""] * 3, headers=rows)).columns.header_columns
    assert columns is not None
    slots, names, contents = columns

    def child(column, kind):
        buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        return pa.Array.from_buffers(kind, len(column.offsets) - 1, buffers)

    entries = pa.StructArray.from_arrays(
        [child(names, pa.utf8()), child(contents, pa.binary())], ["name", "content"]
    )
    array = pa.ListArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(slots), [None, pa.py_buffer(slots)]), entries
    )
    assert [len(row) for row in array.to_pylist()] == [2, 0, 1]
    assert array.to_pylist()[2] == [{"name": "c", "content": b"3"}]


@settings(max_examples=300)
@given(st.data(), record_columns(), st.sampled_from(Codec))
def test_every_flipped_bit_is_found(data: st.DataObject, columns: dict, codec: Codec) -> None:
    whole = stamped(encode_batch(columns.pop("values"), codec=codec, **columns))
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    damaged = bytearray(whole)
    damaged[at // 8] ^= 1 << (at % 8)
    with pytest.raises(FormatError):
        check_batch(bytes(damaged))


@settings(max_examples=300)
@given(st.data(), record_columns(), st.sampled_from(Codec))
def test_cuts_and_insertions_are_found(data: st.DataObject, columns: dict, codec: Codec) -> None:
    whole = stamped(encode_batch(columns.pop("values"), codec=codec, **columns))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        size = data.draw(st.integers(1, len(whole) - at))
        damaged = whole[:at] + whole[at + size :]
    else:
        inserted = data.draw(st.binary(min_size=1, max_size=40))
        damaged = whole[:at] + inserted + whole[at:]
        if damaged[: len(whole)] == whole:
            return
    with pytest.raises(FormatError):
        check_batch(damaged)


def test_a_thousand_random_damages_raise_nothing_but_the_formats_own_error() -> None:
    """Damage below a valid checksum, as a hostile client can make it."""
    dice = random.Random(7)
    for _ in range(3000):
        codec = dice.choice(list(Codec))
        values = [dice.randbytes(dice.randrange(30)) for _ in range(dice.randrange(1, 8))]
        body = bytearray(
            encode_batch(
                values,
                keys=values,
                headers=[{"h": b"1"}] * len(values),
                event_times_us=[1] * len(values),
                codec=codec,
            )
        )
        for _ in range(dice.randrange(1, 6)):
            body[dice.randrange(56, len(body))] = dice.randrange(256)
        try:
            batch = Batch(bytes(body))
            _ = batch.values, batch.keys, batch.time_range_us
            _ = [batch.columns.headers(i) for i in range(len(batch))]
        except FormatError:
            pass


def test_a_decompression_bomb_is_refused_before_it_is_unpacked() -> None:
    data = bytearray(encode_batch([b"\0" * 100_000], codec=Codec.ZSTD))
    data[64:68] = struct.pack("<I", 2**31)
    with pytest.raises(FormatError, match="limit"):
        _ = Batch(bytes(data)).values


def test_a_damaged_body_and_a_damaged_header_are_told_apart() -> None:
    whole = stamped(encode_batch([b"hello"]))
    with pytest.raises(ChecksumError, match="body"):
        check_batch(whole[:-8] + b"\xff" + whole[-7:])
    with pytest.raises(ChecksumError, match="header"):
        check_batch(whole[:16] + b"\xff" + whole[17:])


def test_a_run_of_batches_is_split_where_they_meet() -> None:
    first, second = stamped(encode_batch([b"a"])), stamped(encode_batch([b"b", b"c"]))
    found = list(split_batches(first + second))
    assert [at for at, _ in found] == [0, len(first)]
    with pytest.raises(FormatError):
        list(split_batches(first + second[:-8]))
