"""Histograms of plain ints: to record a turn, a sync or a late timer costs the loop one bisection.

Bounds are upper bounds, in the unit of the values; the last bucket has none.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

# A turn is some ten µs; past 100 ms people notice.
TURN_US = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000)
# A good disk syncs in 0.1 ms, and one that is about to fail in seconds.
SYNC_US = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
)
SYNC_BYTES = tuple(1024 * 4**power for power in range(10))
DELAY_US = (
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
)


class HistogramData(msgspec.Struct, frozen=True):
    """Counts of values per bucket, each bucket alone. `counts` has one more entry, for values above
    all bounds."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The value that a share of the observations does not exceed: a bucket's upper bound, or
        the highest bound for values past it. 0 if there are none."""
        wanted, seen = share * self.count, 0
        if not wanted:
            return 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return float(bound)
        return float(self.bounds[-1])

    def since(self, before: HistogramData) -> HistogramData:
        """The observations since another reading of the same histogram."""
        if before.bounds != self.bounds or before.count > self.count:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return HistogramData(self.bounds, counts, self.total - before.total)


class Histogram:
    """Only one thread observes; any may read."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0

    def observe(self, value: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> HistogramData:
        return HistogramData(self._bounds, tuple(self._counts), self._total)
