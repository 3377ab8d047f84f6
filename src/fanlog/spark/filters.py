"""Filters that the log can answer by itself: on topic, partition, offset and timestamp.

`narrow` takes what it knows into `FilterBounds` and gives the rest back to Spark. What is only
narrowed by a filter, and not decided by it, is given back too: Spark then looks at what is left.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_NEVER_NULL = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """What filters leave over. Ranges are from the first to, not including, the second."""

    topics: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    partitions: tuple[int | None, int | None] = (None, None)
    among: frozenset[int] | None = None
    offsets: tuple[int | None, int | None] = (None, None)
    times_us: tuple[int | None, int | None] = (None, None)

    def has_topic(self, name: str) -> bool:
        return (self.topics is None or name in self.topics) and name.startswith(self.prefixes or "")

    def has_partition(self, partition: int) -> bool:
        first, end = self.partitions
        return (
            (first is None or partition >= first)
            and (end is None or partition < end)
            and (self.among is None or partition in self.among)
        )


def narrow(filters: Iterable[Filter]) -> tuple[FilterBounds, list[Filter]]:
    """The bounds that these filters set, all of them together, and those for Spark to look at."""
    bounds = FilterBounds()
    left: list[Filter] = []
    for some in filters:
        bounds, decided = _narrow(bounds, some)
        if not decided:
            left.append(some)
    return bounds, left


def _narrow(bounds: FilterBounds, given: Filter) -> tuple[FilterBounds, bool]:
    column = _column(given)
    if isinstance(given, IsNotNull):
        return bounds, column in _NEVER_NULL
    if column == "topic":
        return _narrow_topic(bounds, given)
    if column == "partition" and isinstance(given, In):
        among = frozenset(given.value)
        return replace(bounds, among=among if bounds.among is None else bounds.among & among), True
    if column in ("partition", "offset"):
        found = _range(given, int)
        if found is None:
            return bounds, False
        if column == "partition":
            return replace(bounds, partitions=_both(bounds.partitions, found)), True
        return replace(bounds, offsets=_both(bounds.offsets, found)), True
    if column == "timestamp":
        found = _range(given, _time_us)
        if found is not None:
            # Left to Spark as well: it decides by the clock's last digit, and there is little.
            return replace(bounds, times_us=_both(bounds.times_us, found)), False
    return bounds, False


def _narrow_topic(bounds: FilterBounds, given: Filter) -> tuple[FilterBounds, bool]:
    match given:
        case EqualTo(value=str(name)) | EqualNullSafe(value=str(name)):
            wanted = frozenset((name,))
        case In(value=names):
            wanted = frozenset(names)
        case StringStartsWith(value=prefix) if not bounds.prefixes:
            return replace(bounds, prefixes=(prefix,)), True
        case _:
            return bounds, False
    return replace(bounds, topics=wanted if bounds.topics is None else bounds.topics & wanted), True


def _column(given: Filter) -> str:
    """The column that a filter is about; one inside another is none of ours."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _range(
    given: Filter, number: Callable[[Any], int | None]
) -> tuple[int | None, int | None] | None:
    """From, and up to but not including, as a comparison with a number has it."""
    compared: Any = getattr(given, "value", None)
    value = None if compared is None or isinstance(compared, tuple | str) else number(compared)
    if value is None:
        return None
    match given:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + 1
        case _:
            return None


def _time_us(value: Any) -> int | None:
    if not isinstance(value, dt.datetime):
        return None
    time = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _both(
    a: tuple[int | None, int | None], b: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    first = b[0] if a[0] is None else a[0] if b[0] is None else max(a[0], b[0])
    end = b[1] if a[1] is None else a[1] if b[1] is None else min(a[1], b[1])
    return first, end
