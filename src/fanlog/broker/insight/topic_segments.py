"""The files of a topic's log, page by page: a topic may have thousands of partitions."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import BrokerTopic

# Partitions scanned in one step: about 50 µs.
_A_STEP = 64


class TopicSegment(NamedTuple):
    """A file of one partition; see `log/segment.py`."""

    partition: int
    file: str
    base_offset: int
    next_offset: int | None
    bytes: int
    newest_us: int | None
    generation: int
    active: bool


def segments_in(
    topic: BrokerTopic, only: int | None, first: int, count: int
) -> Generator[None, None, tuple[list[TopicSegment], int]]:
    """A page of segments from index `first` on, of all partitions or `only` one, and the number of
    all."""
    rows: list[TopicSegment] = []
    total = 0
    for i, partition in enumerate(topic.partitions if only is None else [topic.partitions[only]]):
        if not (i + 1) % _A_STEP:
            yield
        skip = max(0, first - total)
        total += partition.log.segment_count
        if first < total and len(rows) < count:
            notes = partition.log.segment_notes(skip, count - len(rows))
            rows += [TopicSegment(partition.index, *note) for note in notes]
    return rows, total
