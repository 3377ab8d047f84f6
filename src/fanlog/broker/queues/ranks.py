"""The lanes of a queue by the most urgent job of each. A pass of handing out looks at every lane
once, and then only at those that it took jobs from: there may be thousands, and as many leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fanlog.format.header import PRIORITY_MAX

if TYPE_CHECKING:
    from fanlog.broker.queues.lanes import Lane


class Ranks:
    """Of lanes that have the same priority, the one that was put here first is the next."""

    __slots__ = ("_lanes", "_tops")

    def __init__(self) -> None:
        self._lanes: list[dict[Lane, None]] = [{} for _ in range(PRIORITY_MAX + 1)]
        self._tops: dict[Lane, int] = {}

    def put(self, lane: Lane, now_us: int) -> None:
        """Puts a lane behind the others of its priority, which may have changed."""
        self.drop(lane)
        top = self._tops[lane] = lane.top(now_us) if lane.is_ranked else 0
        self._lanes[top][lane] = None

    def drop(self, lane: Lane) -> None:
        top = self._tops.pop(lane, None)
        if top is not None:
            del self._lanes[top][lane]

    def __iter__(self) -> Iterator[Lane]:
        """The most urgent first. They may be put and dropped meanwhile."""
        for lanes in reversed(self._lanes):
            yield from list(lanes)
