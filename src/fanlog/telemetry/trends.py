"""How figures have moved in the last minutes. Pure: the time is handed in, in seconds of a clock
that nobody can set.

Law: a series has a bounded number of points, however often it is fed and however long it runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

# A level that falls by less than this share, and rises again, still counts as rising.
_WOBBLE = 0.1


class TrendPoint(NamedTuple, Generic[T]):
    at: float
    value: T


class TrendSeries(Generic[T]):
    """Values by time, the oldest in front. Two points are at least `step_seconds` apart, except the
    newest, which takes the place of the one before it until it is."""

    __slots__ = ("_most", "_points", "_step")

    def __init__(self, step_seconds: float, points_max: int) -> None:
        self._step = step_seconds
        self._most = max(2, points_max)
        self._points: list[TrendPoint[T]] = []

    def __len__(self) -> int:
        return len(self._points)

    @property
    def points(self) -> list[TrendPoint[T]]:
        return self._points

    @property
    def last(self) -> TrendPoint[T] | None:
        return self._points[-1] if self._points else None

    def add(self, at: float, value: T) -> None:
        """A time before the newest one changes nothing."""
        points = self._points
        if points and at < points[-1].at:
            return
        if len(points) > 1 and points[-1].at - points[-2].at < self._step:
            points[-1] = TrendPoint(at, value)
        else:
            points.append(TrendPoint(at, value))
            if len(points) > self._most:
                del points[0]

    def before(self, seconds: float) -> TrendPoint[T] | None:
        """The newest point that is at least this time older than the last; otherwise the oldest."""
        if not self._points:
            return None
        wanted = self._points[-1].at - seconds
        found = bisect_right(self._points, wanted, key=lambda point: point.at)
        return self._points[max(0, found - 1)]


def growth(series: TrendSeries[int], seconds: float) -> int:
    """By how much a counter has grown in the last `seconds`, or since the first point."""
    last, then = series.last, series.before(seconds)
    if last is None or then is None:
        return 0
    return max(0, last.value - then.value)


class Rise(NamedTuple):
    """For how long a level has been rising, and by how much."""

    seconds: float
    amount: float

    @property
    def per_second(self) -> float:
        return self.amount / self.seconds if self.seconds else 0.0


_NO_RISE = Rise(0.0, 0.0)


def rise(series: TrendSeries[int]) -> Rise:
    """The longest stretch up to now in which a level has never fallen by more than a tenth. It is
    no rise if the level is not clearly higher now than it was then."""
    points = series.points
    if len(points) < 2:
        return _NO_RISE
    first = len(points) - 1
    lowest_later = points[-1].value
    for i in range(len(points) - 2, -1, -1):
        if points[i].value * (1 - _WOBBLE) > lowest_later:
            break
        lowest_later = min(lowest_later, points[i].value)
        first = i
    # A level that stood still before it began to rise did not rise then.
    lowest = min(point.value for point in points[first:])
    begin = max(i for i in range(first, len(points)) if points[i].value == lowest)
    amount = points[-1].value - lowest
    if amount <= _WOBBLE * lowest:
        return _NO_RISE
    return Rise(points[-1].at - points[begin].at, amount)


def slope(points: Iterable[TrendPoint[int]]) -> float:
    """What a level changes by in a second: the line through all points that fits them best."""
    known = list(points)
    if len(known) < 2:
        return 0.0
    count = len(known)
    mean_at = sum(point.at for point in known) / count
    mean = sum(point.value for point in known) / count
    spread = sum((point.at - mean_at) ** 2 for point in known)
    if not spread:
        return 0.0
    return sum((point.at - mean_at) * (point.value - mean) for point in known) / spread


def maybe_seconds_left(series: TrendSeries[int], over_seconds: float) -> float | None:
    """How long until a level reaches 0 at its present rate; None if it does not fall, or was not
    watched for `over_seconds`."""
    points = series.points
    if not points or points[-1].at - points[0].at < over_seconds:
        return None
    falls = -slope(points)
    return points[-1].value / falls if falls > 0 else None
