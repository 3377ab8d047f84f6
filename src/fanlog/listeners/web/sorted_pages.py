"""Sorts one page of a long list without blocking the loop: Python sorts a list in one go, so short
runs are sorted one by one, and merged as far as the page goes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fanlog.broker.slices import Slices

T = TypeVar("T")

_RUN = 500


async def page_of(
    slices: Slices,
    items: Sequence[T],
    key: Callable[[T], Any],
    *,
    offset: int,
    limit: int,
    descending: bool = False,
) -> list[T]:
    """The items from `offset` on, at most `limit`. No two of them may have the same key: pages
    would overlap."""
    first, last = min(offset, len(items)), min(offset + limit, len(items))
    if first == last:
        return []
    # From the end that is nearer.
    flipped = last > len(items) // 2 and len(items) - first < last
    if flipped:
        first, last = len(items) - last, len(items) - first
    backwards = descending is not flipped
    runs = [
        sorted(items[at : at + _RUN], key=key, reverse=backwards)
        async for at in slices.each(range(0, len(items), _RUN))
    ]
    merged = heapq.merge(*runs, key=key, reverse=backwards)
    page: list[T] = []
    async for at, item in slices.each(enumerate(islice(merged, last))):
        if at >= first:
            page.append(item)
    return page[::-1] if flipped else page
