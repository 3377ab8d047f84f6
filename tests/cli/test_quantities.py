"""Sizes, durations and moments as people write them."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fanlog.cli.quantities import (
    parse_duration,
    parse_moment,
    parse_size,
    show_size,
    write_duration,
    write_size,
)

NOON = dt.datetime(2025, 1, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("128MB", 128_000_000), ("1.5 gib", 3 << 29)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1XB", "1.5", "MB", "1 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("500ms", 0.5), ("10m", 600), ("2h", 7200), ("7d", 604_800)]
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1y"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(some.integers(0, 1 << 50))
def test_a_size_that_was_written_can_be_given_back(size: int) -> None:
    assert parse_size(write_size(size)) == size


@given(some.integers(0, 10**9))
def test_a_duration_that_was_written_can_be_given_back(seconds: int) -> None:
    assert parse_duration(write_duration(seconds)) == seconds


def test_a_moment_is_iso_8601_or_an_age() -> None:
    assert parse_moment("10m", NOON) == NOON - dt.timedelta(minutes=10)
    assert parse_moment("2025-01-31T12:00:00Z", NOON) == NOON
    assert parse_moment("2025-01-31T13:00+01:00", NOON) == NOON
    assert parse_moment("2025-01-31", NOON).tzinfo is not None
    with pytest.raises(ValueError, match="is not a moment"):
        parse_moment("yesterday", NOON)


def test_sizes_for_people_are_short() -> None:
    assert [show_size(n) for n in (0, 1023, 1536, 5 << 20, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "1024.0 TiB",
    ]
