"""Series of figures, and what they say about the last minutes."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fanlog.telemetry.trends import (
    TrendSeries,
    growth,
    maybe_seconds_left,
    rise,
    slope,
)

steps = st.lists(st.floats(0, 100), max_size=300)
levels = st.integers(0, 10**15)


def made(values: list[int], step: float = 10.0) -> TrendSeries[int]:
    series = TrendSeries[int](step, max(2, len(values)))
    for i, value in enumerate(values):
        series.add(i * step, value)
    return series


@given(steps, st.floats(0.1, 60), st.integers(1, 50))
def test_a_series_is_bounded_and_in_order(waits: list[float], step: float, most: int) -> None:
    series = TrendSeries[int](step, most)
    at = 0.0
    for i, wait in enumerate(waits):
        at += wait
        series.add(at, i)
        assert len(series) <= max(2, most)
        assert series.last == (at, i)
    times = [point.at for point in series.points]
    assert times == sorted(times)
    # Only the newest may be closer.
    assert all(b - a >= step for a, b in pairwise(times[:-1]))


@given(st.lists(levels, min_size=1, max_size=100), st.integers(0, 2000))
def test_growth_is_what_a_counter_gained(values: list[int], seconds: int) -> None:
    counter = sorted(values)
    series = made(counter)
    gained = growth(series, seconds)
    assert 0 <= gained <= counter[-1] - counter[0]
    assert gained == counter[-1] - counter[max(0, len(counter) - 1 - math.ceil(seconds / 10))]


def test_a_time_before_the_last_changes_nothing() -> None:
    series = made([1, 2, 3])
    series.add(5.0, 99)
    assert [point.value for point in series.points] == [1, 2, 3]


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=60), st.integers(0, 10))
def test_what_only_grows_has_risen_all_the_time(gains: list[int], first: int) -> None:
    values = [first]
    for gain in gains:
        values.append(values[-1] + gain)
    found = rise(made(values))
    if values[-1] - first > 0.1 * first:
        assert found.seconds == 10.0 * len(gains)
        assert found.amount == values[-1] - first
    else:
        assert found.seconds == 0


@given(levels, st.integers(1, 60))
def test_what_stands_still_does_not_rise(level: int, count: int) -> None:
    assert rise(made([level] * count)).seconds == 0


@given(st.lists(levels, min_size=2, max_size=60))
def test_what_falls_does_not_rise(values: list[int]) -> None:
    falling = sorted(values, reverse=True)
    assert rise(made(falling)).seconds == 0


@given(st.lists(levels, min_size=0, max_size=60))
def test_a_rise_is_within_what_was_seen(values: list[int]) -> None:
    found = rise(made(values))
    assert 0 <= found.seconds <= 10.0 * max(0, len(values) - 1)
    assert 0 <= found.amount <= max(values, default=0)
    assert (found.seconds > 0) == (found.amount > 0)


def test_a_consumer_that_takes_batches_does_not_rise_for_long() -> None:
    batches = [0, 100, 200, 300, 0, 100, 200, 300, 0, 100, 200]
    assert rise(made(batches)).seconds == 20.0


def test_a_little_less_now_and_then_is_still_a_rise() -> None:
    found = rise(made([100, 120, 115, 140, 138, 170]))
    assert found == (50.0, 70)
    assert found.per_second == 1.4


def test_a_level_that_stood_still_has_risen_since_then() -> None:
    assert rise(made([0, 0, 0, 0, 50, 100])).seconds == 20.0


@given(st.integers(0, 10**12), st.integers(-(10**6), 10**6), st.integers(2, 60))
def test_the_slope_of_a_line_is_the_line(first: int, gain: int, count: int) -> None:
    series = made([first + gain * i for i in range(count)])
    assert math.isclose(slope(series.points), gain / 10, rel_tol=1e-6, abs_tol=1e-3)


@given(st.lists(levels, max_size=30), st.floats(1, 1000))
def test_time_left_is_never_negative(values: list[int], over: float) -> None:
    left = maybe_seconds_left(made(values), over)
    assert left is None or left >= 0


def test_the_time_left_until_a_disk_is_full() -> None:
    falling = made([1000 - 10 * i for i in range(61)])
    assert maybe_seconds_left(falling, 300) == 400.0
    assert maybe_seconds_left(falling, 601) is None
    assert maybe_seconds_left(made([10] * 61), 300) is None
    assert maybe_seconds_left(made([]), 0) is None
