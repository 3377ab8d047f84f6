"""Histograms of plain ints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanlog.telemetry.histograms import DELAY_US, SYNC_BYTES, SYNC_US, TURN_US, Histogram


def test_bounds_go_up() -> None:
    for bounds in (TURN_US, SYNC_US, SYNC_BYTES, DELAY_US):
        assert list(bounds) == sorted(set(bounds))


@given(values=st.lists(st.integers(0, 200)))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[int]) -> None:
    histogram = Histogram((10, 50, 100))
    for value in values:
        histogram.observe(value)
    read = histogram.read()
    assert read.counts == (
        sum(value <= 10 for value in values),
        sum(10 < value <= 50 for value in values),
        sum(50 < value <= 100 for value in values),
        sum(value > 100 for value in values),
    )
    assert (read.count, read.total) == (len(values), sum(values))


def test_a_quantile_is_a_bucket_s_bound() -> None:
    histogram = Histogram((10, 50, 100))
    assert histogram.read().quantile(0.99) == 0
    for value in [*range(1, 99), 60, 5000]:
        histogram.observe(value if value < 11 or value > 50 else 20)
    assert histogram.read().quantile(0.1) == 10
    assert histogram.read().quantile(0.5) == 50
    assert histogram.read().quantile(1) == 100


def test_what_came_since_another_reading_is_told_apart() -> None:
    histogram = Histogram((10, 50))
    histogram.observe(5)
    before = histogram.read()
    histogram.observe(20)
    since = histogram.read().since(before)
    assert (since.counts, since.total) == ((0, 1, 0), 20)
    # After a restart of the broker there is less than before.
    assert before.since(histogram.read()) == before
