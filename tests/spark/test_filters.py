"""Filters: what the log answers by itself, and what is left to Spark."""

from __future__ import annotations

import datetime as dt

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from fanlog.spark.filters import FilterBounds, narrow

TOPIC, PARTITION, OFFSET, TIMESTAMP = ("topic",), ("partition",), ("offset",), ("timestamp",)
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


def test_offsets_are_narrowed_from_both_sides() -> None:
    filters = [GreaterThan(OFFSET, 9), LessThanOrEqual(OFFSET, 19), GreaterThanOrEqual(OFFSET, 5)]
    bounds, left = narrow(filters)
    assert bounds.offsets == (10, 20)
    assert left == []
    assert narrow([EqualTo(OFFSET, 7)])[0].offsets == (7, 8)
    assert narrow([LessThan(OFFSET, 7)])[0].offsets == (None, 7)


def test_partitions_are_chosen_by_number_or_from_a_list() -> None:
    bounds, left = narrow([In(PARTITION, (0, 2, 4)), GreaterThan(PARTITION, 0)])
    assert [p for p in range(6) if bounds.has_partition(p)] == [2, 4]
    assert left == []


def test_topics_are_chosen_by_name_list_or_prefix() -> None:
    bounds, left = narrow([In(TOPIC, ("a.1", "a.2", "b")), StringStartsWith(TOPIC, "a.")])
    assert [name for name in ("a.1", "a.2", "a.3", "b") if bounds.has_topic(name)] == ["a.1", "a.2"]
    assert left == []
    assert not narrow([EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b")])[0].has_topic("a")


def test_times_are_narrowed_and_looked_at_again_by_spark() -> None:
    filters: list[Filter] = [GreaterThanOrEqual(TIMESTAMP, NOON), LessThan(TIMESTAMP, NOON)]
    bounds, left = narrow(filters)
    assert bounds.times_us == (NOON_US, NOON_US)
    assert left == filters
    assert narrow([GreaterThan(TIMESTAMP, NOON)])[0].times_us == (NOON_US + 1, None)


def test_what_the_log_does_not_know_is_left_to_spark() -> None:
    filters: list[Filter] = [
        Not(EqualTo(OFFSET, 3)),
        EqualTo(("value",), b"x"),
        EqualTo(("event_time",), NOON),
        IsNull(("key",)),
        IsNotNull(("key",)),
        In(OFFSET, (1, 2)),
        EqualTo(("headers", "key"), "x"),
    ]
    bounds, left = narrow(filters)
    assert bounds == FilterBounds()
    assert left == filters


def test_what_is_never_null_needs_no_look() -> None:
    assert narrow([IsNotNull(OFFSET), IsNotNull(TOPIC)])[1] == []
