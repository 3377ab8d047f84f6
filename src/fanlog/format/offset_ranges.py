"""Ranges of offsets: from the first one up to, and without, the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

OffsetRange = tuple[int, int]


def range_without(first: int, next: int, others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The parts of a range that are in none of the others."""
    left: list[OffsetRange] = []
    for other_first, other_next in sorted(others):
        if first < min(other_first, next):
            left.append((first, min(other_first, next)))
        first = max(first, other_next)
    return [*left, (first, next)] if first < next else left


def joined(ranges: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Merges ranges: the same offsets in as few as possible."""
    current: OffsetRange | None = None
    for first, next in sorted(ranges):
        if current is None or first > current[1]:
            if current is not None:
                yield current
            current = first, next
        elif next > current[1]:
            current = current[0], next
    if current is not None:
        yield current
