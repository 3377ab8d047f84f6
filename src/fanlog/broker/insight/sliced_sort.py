"""Sorting on the loop, in steps. One `sort` of 100,000 entries would hold the interpreter for some
30 ms, in a thread as well: here no `sort` gets more than a few hundred."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Generator, Sequence

# Values sorted, or put into buckets, in one step: about 100 µs.
_AT_ONCE = 512


def order_of(
    values: Sequence[float], *, descending: bool = False
) -> Generator[None, None, list[int]]:
    """The indices that sort the values. Equal values keep their order.

    >>> from fanlog.broker.insight.sliced_sort import order_of
    >>> steps = order_of([3, 1, 2, 1])
    >>> try:
    ...     while True:
    ...         next(steps)
    ... except StopIteration as done:
    ...     print(done.value)
    [1, 3, 2, 0]
    """
    indexes: dict[float, list[int]] = {}
    for i, value in enumerate(values):
        if not i % _AT_ONCE:
            yield
        known = indexes.get(value)
        if known is None:
            indexes[value] = [i]
        else:
            known.append(i)
    ordered = yield from _sorted(list(indexes))
    found: list[int] = []
    for i, value in enumerate(reversed(ordered) if descending else ordered):
        if not i % _AT_ONCE:
            yield
        found += indexes[value]
    return found


def _sorted(values: list[float]) -> Generator[None, None, list[float]]:
    """Distinct values, sorted."""
    yield
    if len(values) <= _AT_ONCE:
        return sorted(values)
    # A random sample divides the others evenly enough.
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
