"""The offsets of a query: the next offset of each partition, as Spark stores it in a checkpoint.

    {"orders": {"log": "17", "offsets": {"0": 1200, "1": 1187}, "epochs": {"0": 3, "1": 5}}}

`log` tells a topic from another that has got its name since, and a topic in memory from what it
is after a restart: offsets of the one mean nothing in the other. `epochs` are those of the records
before the offsets: they tell whether a power cut has taken what was read. All here is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from fanlog.errors import InvalidArgumentError


class LogPartition(NamedTuple):
    """One partition of one log."""

    topic: str
    log: str
    partition: int


Offsets = dict[LogPartition, int]
# The epoch of the record before each offset; 0, or none, if it is not known.
PartitionEpochs = dict[LogPartition, int]


class _TopicOffsets(msgspec.Struct):
    log: str
    offsets: dict[str, int]
    epochs: dict[str, int] = {}


def to_json(
    offsets: Mapping[LogPartition, int], epochs: Mapping[LogPartition, int] | None = None
) -> dict[str, Any]:
    """Offsets as Spark stores them, always in the same order: it compares the text."""
    found: dict[str, Any] = {}
    for tp in sorted(offsets):
        topic = found.setdefault(tp.topic, {"log": tp.log, "offsets": {}})
        topic["offsets"][str(tp.partition)] = offsets[tp]
        if epochs and tp in epochs:
            topic.setdefault("epochs", {})[str(tp.partition)] = epochs[tp]
    return found


def from_json(given: Mapping[str, Any]) -> Offsets:
    return {
        LogPartition(name, topic.log, int(partition)): offset
        for name, topic in _topics(given).items()
        for partition, offset in topic.offsets.items()
    }


def epochs_from_json(given: Mapping[str, Any]) -> PartitionEpochs:
    return {
        LogPartition(name, topic.log, int(partition)): epoch
        for name, topic in _topics(given).items()
        for partition, epoch in topic.epochs.items()
    }


def _topics(given: Mapping[str, Any]) -> dict[str, _TopicOffsets]:
    try:
        topics = msgspec.convert(dict(given), dict[str, _TopicOffsets])
        for topic in topics.values():
            for partition in (*topic.offsets, *topic.epochs):
                int(partition)
        return topics
    except (msgspec.ValidationError, ValueError) as fault:
        raise InvalidArgumentError(
            f"The checkpoint's offsets are not from the source `fanlog` ({fault}): give each "
            "query its own checkpoint folder."
        ) from None


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `first` up to, not including, `end` of a partition. `record_bytes` is what a record
    takes there, more or less."""

    tp: LogPartition
    first: int
    end: int
    record_bytes: float = 0.0

    @property
    def size(self) -> int:
        return max(0, self.end - self.first)

    @property
    def bytes(self) -> float:
        return self.size * self.record_bytes


def limited(
    ranges: Iterable[Range], *, records_max: int = 0, bytes_max: int = 0
) -> dict[LogPartition, int]:
    """Up to where to read at once. Within the limits each partition gets one record, those with the
    most to read first, and then its share of the rest. So no partition waits for a busy one, and
    there is always progress. 0 is no limit."""
    chosen = [some for some in ranges if some.size]
    total = sum(some.size for some in chosen)
    total_bytes = sum(some.bytes for some in chosen)
    records_most = min(total, records_max or total)
    bytes_most = min(total_bytes, bytes_max or total_bytes)
    if records_most == total and bytes_most == total_bytes:
        return {some.tp: some.end for some in chosen}
    taken = {some.tp: 0 for some in chosen}
    got, got_bytes = 0, 0.0
    for some in sorted(chosen, key=lambda some: (some.bytes, some.size), reverse=True):
        if not got or (got < records_most and got_bytes + some.record_bytes <= bytes_most):
            taken[some.tp] = 1
            got += 1
            got_bytes += some.record_bytes
    left = [(records_most - got, total - got), (bytes_most - got_bytes, total_bytes - got_bytes)]
    for some in chosen:
        if taken[some.tp]:
            more = [(some.size - 1) * max(0, spare) / rest for spare, rest in left if rest > 0]
            taken[some.tp] += int(min(more, default=0))
    return {some.tp: some.first + taken[some.tp] for some in chosen}


def split(ranges: Iterable[Range], tasks_min: int) -> list[Range]:
    """The ranges in at least this number of pieces, if there are as many records: large ones are
    cut into equal parts."""
    chosen = [some for some in ranges if some.size]
    total = sum(some.size for some in chosen)
    if len(chosen) >= tasks_min:
        return chosen
    pieces: list[Range] = []
    for some in chosen:
        count = min(some.size, max(1, -(-some.size * tasks_min // total)))
        bounds = [some.first + some.size * i // count for i in range(count + 1)]
        pieces += [replace(some, first=first, end=end) for first, end in pairwise(bounds)]
    return pieces
