"""What a partition's log, and whoever publishes to it, is expected to do: a plain list of records
whose index is the offset. Nothing is ever taken off it but by a power failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Record(NamedTuple):
    """`producer`, `epoch` and `sequence` are 0 for a record that nobody numbers."""

    value: bytes | None
    key: bytes | None
    time_us: int
    producer: int = 0
    epoch: int = 0
    sequence: int = 0


class Sent(NamedTuple):
    """A batch, as its publisher keeps it until it is acknowledged."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    producer: int = 0
    epoch: int = 0
    sequence: int = 0


class Stored(NamedTuple):
    """The answer to a batch that is in the log: where, and whether it was there before."""

    base_offset: int
    duplicate: bool


class Refused(NamedTuple):
    code: str


class PartitionModel:
    """`records[start:visible]` is what readers get. What is past `visible` waits for the disk."""

    def __init__(self, durability: str, *, compacted: bool = False) -> None:
        self.durability = durability
        self.compacted = compacted
        self.records: list[Record] = []
        self.start = 0
        self.visible = 0

    @property
    def end(self) -> int:
        return len(self.records)

    def numbered(self, producer: int, epoch: int) -> list[int]:
        """The offsets of a producer's records: the index is the sequence."""
        return [
            offset
            for offset, record in enumerate(self.records)
            if (record.producer, record.epoch) == (producer, epoch)
        ]

    def take(self, sent: Sent, time_us: int, newest_epoch: int) -> Stored | Refused:
        """What becomes of a batch. `newest_epoch` is that of its producer's name, if it has one."""
        if self.compacted and sent.keys is None:
            return Refused("invalid_argument")
        if not sent.producer:
            return self._store(sent, time_us)
        here = max((r.epoch for r in self.records if r.producer == sent.producer), default=0)
        if sent.epoch < max(here, newest_epoch):
            return Refused("fenced")
        offsets = self.numbered(sent.producer, sent.epoch)
        if sent.sequence == len(offsets):
            return self._store(sent, time_us)
        if sent.sequence + len(sent.values) <= len(offsets):
            return Stored(offsets[sent.sequence], True)
        return Refused("out_of_sequence" if offsets else "unknown_producer")

    def _store(self, sent: Sent, time_us: int) -> Stored:
        base_offset = self.end
        keys = sent.keys or [None] * len(sent.values)
        for i, (value, key) in enumerate(zip(sent.values, keys, strict=True)):
            sequence = sent.sequence + i if sent.producer else 0
            self.records.append(Record(value, key, time_us, sent.producer, sent.epoch, sequence))
        if self.durability != "fsync":
            self.visible = self.end
        return Stored(base_offset, False)

    def offset_at(self, time_us: int) -> int:
        """The first record that readers may see of a time, or of a later one."""
        for offset in range(self.start, self.visible):
            if self.records[offset].time_us >= time_us:
                return offset
        return self.visible

    def cut(self, end: int) -> None:
        """A power failure has left this much, and all of it can be seen."""
        del self.records[end:]
        self.visible = end

    # A compacted log

    def must_be_there(self, tombstones_since_us: int) -> set[int]:
        """Offsets that no compaction may take: those without a key, and the last of each key,
        unless it is a tombstone that is old."""
        last = {
            self.records[offset].key: offset
            for offset in range(self.start, self.visible)
            if self.records[offset].key is not None
        }
        return {
            offset
            for offset in range(self.start, self.visible)
            if self.records[offset].key is None
            or (
                last[self.records[offset].key] == offset
                and (
                    self.records[offset].value is not None
                    or self.records[offset].time_us >= tombstones_since_us
                )
            )
        }
