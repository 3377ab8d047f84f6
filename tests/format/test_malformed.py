"""Batches whose checksums fit and whose columns do not: an error that says where, within bounds
that the batch's own claims can't move."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import FormatError, UnreadableError
from fanlog.format.batch import Batch, check_body, encode_batch, stamp
from fanlog.format.codecs import RATIO_FREE_BYTES, RATIO_MAX, Codec, UnpackLimits
from fanlog.format.columns import HEADERS, KEYS, SIZES
from fanlog.format.header import RECORDS_MAX, read_header
from fanlog.format.sparse import thinned
from fanlog.model import KIB, MIB
from tests.format.crafted import bomb, column, crafted, flipped, squeezed

PACKED = (Codec.ZLIB, Codec.ZSTD, Codec.LZ4)


def at(data: bytes, base_offset: int = 7) -> Batch:
    made = stamp(data, base_offset=base_offset, append_time_us=1, leader_epoch=1, topic=3)
    return Batch(made, topic_name="orders")


def peak_bytes(batch: Batch) -> int:
    """The most memory that reading a batch takes, before it is found to be unreadable."""
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError):
            batch.check()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_error_names_topic_partition_and_offsets() -> None:
    batch = at(crafted(column([0, 9, 3], b"abc"), count=2))
    with pytest.raises(UnreadableError) as caught:
        batch.check()
    fault = caught.value
    assert (fault.topic, fault.partition, fault.first, fault.next) == ("orders", 0, 7, 9)
    assert "orders" in str(fault)
    assert "7 to 8" in str(fault)


@pytest.mark.parametrize("offsets", [[0, 4, 2, 6], [0, -5, 2, 6], [0, 7, 7, 6], [1, 2, 3, 6]])
def test_offsets_that_fall_are_found_in_every_column(offsets: list[int]) -> None:
    good, bad = column([0, 2, 4, 6], b"abcdef"), column(offsets, b"abcdef")
    slots = column([0, 1, 2, 3])
    for body, flags in (
        (bad, 0),
        (good + bad, KEYS),
        (good + slots + bad + good, HEADERS),
        (good + slots + good + bad, HEADERS),
        (good + column(offsets) + column([0] * 7) + column([0] * 7), HEADERS),
    ):
        batch = at(crafted(body, count=3, flags=flags))
        with pytest.raises(FormatError):
            batch.check()


def test_falling_offsets_do_not_multiply_the_data() -> None:
    """Each second entry claims all of the data, in a batch without any compression."""
    count, size = 20_000, 100 * KIB
    offsets = [size * (i % 2) for i in range(count)] + [size]
    batch = at(crafted(column(offsets, bytes(size)), count=count))
    assert peak_bytes(batch) < 4 * MIB


def test_a_count_without_records_behind_it_takes_no_memory() -> None:
    for body in (column([0, 0]), SIZES.pack(8, 8) + bytes(8)):
        codec = Codec.NONE if len(body) == 8 else Codec.ZSTD
        batch = at(crafted(body, count=RECORDS_MAX, codec=codec))
        assert peak_bytes(batch) < 64 * KIB


@pytest.mark.parametrize("codec", PACKED)
def test_a_batch_that_claims_more_than_is_allowed_is_not_unpacked(codec: Codec) -> None:
    data = stamp(
        bomb(8 * MIB, codec=codec), base_offset=0, append_time_us=0, leader_epoch=1, topic=1
    )
    assert Batch(data).unpacked_bytes > 8 * MIB
    limited = Batch(data, limits=UnpackLimits(bytes_max=8 * MIB))
    assert peak_bytes(limited) < 1 * MIB
    with pytest.raises(UnreadableError, match="limit is 8388608"):
        limited.check()


def test_a_batch_that_is_packed_too_tightly_is_not_unpacked() -> None:
    data = bomb(64 * MIB)
    assert 64 * MIB / len(data) > RATIO_MAX
    batch = at(data)
    assert peak_bytes(batch) < 1 * MIB
    with pytest.raises(UnreadableError, match="to 1"):
        batch.check()
    # Up to this size the ratio does not matter: a batch of zeros may be as small as it likes.
    at(bomb(RATIO_FREE_BYTES - KIB)).check()


@pytest.mark.parametrize("codec", PACKED)
def test_a_claim_that_is_a_lie_is_found(codec: Codec) -> None:
    columns = column([0, 900], random.Random(1).randbytes(900))
    for claimed in (0, 8, len(columns) - 8, len(columns) + 8, 500 * KIB):
        batch = at(crafted(squeezed(codec, columns, claimed=claimed), codec=codec))
        assert peak_bytes(batch) < 1 * MIB
    at(crafted(squeezed(codec, columns), codec=codec)).check()


def test_a_second_zstd_frame_is_refused() -> None:
    columns = column([0, 8], b"abcdefgh")
    body = squeezed(Codec.ZSTD, columns)
    packed = body[SIZES.size :] * 2
    batch = at(crafted(SIZES.pack(len(columns), len(packed)) + packed, codec=Codec.ZSTD))
    with pytest.raises(UnreadableError):
        batch.check()


@pytest.mark.parametrize("codec", PACKED)
def test_what_packs_too_tightly_is_sent_as_it_is(codec: Codec) -> None:
    data = encode_batch([bytes(4 * MIB)], codec=codec)
    header = read_header(data)
    expected = codec if codec is Codec.LZ4 else Codec.NONE
    assert header.codec == expected
    assert Batch(data).values == [bytes(4 * MIB)]


@given(
    st.sampled_from(Codec),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 255)), min_size=1, max_size=6),
)
def test_whatever_is_flipped_a_batch_is_read_whole_or_not_at_all(
    codec: Codec, flips: list[tuple[int, int]]
) -> None:
    data = encode_batch(
        [b"one", None, b"", b"four" * 20],
        keys=[b"a", b"b", None, b"a"],
        headers=[{"x": b"1"}, None, {"y": b"2", "z": b""}, None],
        event_times_us=[1, 2, 3, 4],
        codec=codec,
    )
    batch = at(flipped(data, flips))
    check_body(batch.data, batch.header)
    try:
        batch.check()
    except UnreadableError:
        return
    assert len(batch.values) == len(batch.keys) == 4
    assert all(isinstance(batch.columns.headers(i), dict) for i in range(4))
    assert len(Batch(thinned(batch, [1, 3])).values) == 2
