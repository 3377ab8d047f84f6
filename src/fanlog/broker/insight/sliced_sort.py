"""Sorting on the loop, in steps. One `sort` of 100,000 entries would hold the interpreter for some
30 ms, in a thread as well: here none sorts more than a few hundred at once."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Generator, Sequence

# Values that are sorted, or put into buckets, in one step: some 100 µs.
_AT_ONCE = 512


def order_of(
    values: Sequence[float], *, descending: bool = False
) -> Generator[None, None, list[int]]:
    """The places of the values in the order of what they are; equal ones keep theirs.

    >>> from fanlog.broker.insight.sliced_sort import order_of
    >>> steps = order_of([3, 1, 2, 1])
    >>> try:
    ...     while True:
    ...         next(steps)
    ... except StopIteration as done:
    ...     print(done.value)
    [1, 3, 2, 0]
    """
    places: dict[float, list[int]] = {}
    for i, value in enumerate(values):
        if not i % _AT_ONCE:
            yield
        known = places.get(value)
        if known is None:
            places[value] = [i]
        else:
            known.append(i)
    ordered = yield from _sorted(list(places))
    found: list[int] = []
    for i, value in enumerate(reversed(ordered) if descending else ordered):
        if not i % _AT_ONCE:
            yield
        found += places[value]
    return found


def _sorted(values: list[float]) -> Generator[None, None, list[float]]:
    """Different values in their order."""
    yield
    if len(values) <= _AT_ONCE:
        return sorted(values)
    # Some of them, taken at random, divide the others evenly enough.
    count = min(_AT_ONCE, 2 * len(values) // _AT_ONCE)
    borders = sorted(random.sample(values, count))
    buckets: list[list[float]] = [[] for _ in range(count + 1)]
    for i, value in enumerate(values):
        if not i % _AT_ONCE:
            yield
        buckets[bisect_right(borders, value)].append(value)
    found: list[float] = []
    for bucket in buckets:
        found += yield from _sorted(bucket)
    return found
