"""Offsets: how a checkpoint keeps them, and how a limit and many tasks share a range."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import InvalidArgumentError
from fanlog.spark.offsets import (
    LogPartition,
    Range,
    epochs_from_json,
    from_json,
    limited,
    split,
    to_json,
)

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


def ranges_of(sizes: list[int]) -> list[Range]:
    return [Range(LogPartition("t", "1", i), 10, 10 + size, 100.0) for i, size in enumerate(sizes)]


@given(st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), st.integers(0)))
def test_offsets_come_back_from_a_checkpoint_as_they_went_in(
    given_offsets: dict[tuple[str, int], int],
) -> None:
    offsets = {
        LogPartition(topic, f"log of {topic}", p): n for (topic, p), n in given_offsets.items()
    }
    epochs = {place: n + 1 for place, n in offsets.items() if n % 2}
    text = json.dumps(to_json(offsets, epochs))
    assert from_json(json.loads(text)) == offsets
    assert epochs_from_json(json.loads(text)) == epochs
    # Spark compares texts to see whether there is news.
    backwards = dict(reversed(offsets.items()))
    assert json.dumps(to_json(backwards, epochs)) == text


def test_a_checkpoint_of_another_source_is_told_from_ours() -> None:
    with pytest.raises(InvalidArgumentError, match="not from the source `fanlog`"):
        from_json({"orders": {"0": 23}})


@given(SIZES, st.integers(1, 2000))
def test_a_limit_on_records_is_kept_and_something_goes_on(sizes: list[int], most: int) -> None:
    ranges = ranges_of(sizes)
    ends = limited(ranges, records_max=most)
    taken = {some.tp: ends[some.tp] - some.first for some in ranges if some.size}
    total = sum(sizes)
    assert sum(taken.values()) <= max(1, min(most, total))
    assert all(0 <= taken[some.tp] <= some.size for some in ranges if some.size)
    assert sum(taken.values()) > 0 or not total
    if most >= len(taken):
        assert all(taken.values())
    if total <= most:
        assert sum(taken.values()) == total


@given(SIZES, st.integers(1, 100_000))
def test_a_limit_on_bytes_goes_by_what_a_record_takes(sizes: list[int], most: int) -> None:
    ranges = ranges_of(sizes)
    taken = sum(limited(ranges, bytes_max=most).values()) - 10 * sum(1 for size in sizes if size)
    assert taken * 100 <= max(100, most)


def test_no_partition_waits_for_another() -> None:
    ends = limited(ranges_of([1000, 10]), records_max=101)
    assert [end - 10 for end in ends.values()] == [99, 1]
    # However busy the other is: an event-time query's watermark goes by the slowest.
    ends = limited(ranges_of([1_000_000, 5]), records_max=1000, bytes_max=50_000)
    assert [end - 10 for end in ends.values()] == [498, 1]


def test_large_records_are_not_left_behind_for_ever() -> None:
    small, large = LogPartition("small", "1", 0), LogPartition("large", "2", 0)
    ranges = [Range(small, 0, 1000, 10.0), Range(large, 0, 2, 50_000.0)]
    assert limited(ranges, bytes_max=1000) == {small: 0, large: 1}


@given(SIZES, st.integers(0, 50))
def test_a_split_covers_every_record_once(sizes: list[int], tasks_min: int) -> None:
    ranges = ranges_of(sizes)
    pieces = split(ranges, tasks_min)
    for some in ranges:
        mine = [piece for piece in pieces if piece.tp == some.tp]
        covered = [offset for piece in mine for offset in range(piece.first, piece.end)]
        assert covered == list(range(some.first, some.end))
    assert all(piece.size for piece in pieces)
    assert len(pieces) >= min(tasks_min, sum(sizes))
