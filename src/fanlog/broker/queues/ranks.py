"""The partitions of a queue by the most urgent job of each. One pass of handing out looks at every
partition once, and then only at those that it took jobs from: there may be thousands of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fanlog.format.header import PRIORITY_MAX

if TYPE_CHECKING:
    from fanlog.broker.queues.queue_partition import QueuePartition


class Ranks:
    """Of several partitions with the same priority, the one added first is next."""

    __slots__ = ("_by_priority", "_tops")

    def __init__(self) -> None:
        self._by_priority: list[dict[QueuePartition, None]] = [{} for _ in range(PRIORITY_MAX + 1)]
        self._tops: dict[QueuePartition, int] = {}

    def put(self, part: QueuePartition, now_us: int) -> None:
        """Moves a partition to the end of its priority, which may have changed."""
        self.drop(part)
        top = self._tops[part] = part.top(now_us) if part.is_ranked else 0
        self._by_priority[top][part] = None

    def drop(self, part: QueuePartition) -> None:
        top = self._tops.pop(part, None)
        if top is not None:
            del self._by_priority[top][part]

    def __iter__(self) -> Iterator[QueuePartition]:
        """The most urgent first. They may be put and dropped meanwhile."""
        for parts in reversed(self._by_priority):
            yield from list(parts)
