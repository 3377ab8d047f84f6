"""What a log of a compacted topic has: the last record of each key. Nodes compact at moments of
their own, so that this is what has to be equal everywhere, and not the bytes."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from fanlog.format.batch import Batch, split_batches
from fanlog.log.partition import PartitionLog


class KeyContent(NamedTuple):
    """The offset and the checksum of the last record of each key. One whose last record deletes it
    is not among them: that record may go, too."""

    end: int
    last: dict[bytes, tuple[int, int]]
    has_hole: bool

    def agrees_with(self, other: object) -> bool:
        """What an operator's choice has lost on one node, another one may still have."""
        if not isinstance(other, KeyContent):
            return False
        return self.end == other.end and (
            self.has_hole or other.has_hole or self.last == other.last
        )

    def __str__(self) -> str:
        offsets = {key: offset for key, (offset, _) in sorted(self.last.items())}
        return f"the last records of keys up to {self.end}: {offsets}"


def keys_of(log: PartitionLog) -> KeyContent:
    last: dict[bytes, tuple[int, int]] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        block = log.read(offset, log.end_offset)
        for at, header in split_batches(block.data):
            batch = Batch(memoryview(block.data)[at : at + header.length])
            for record, key, value in zip(batch.offsets, batch.keys, batch.values, strict=True):
                if key is not None and value is not None:
                    last[key] = record, zlib.crc32(value)
                elif key is not None:
                    last.pop(key, None)
        offset = block.next_offset
    return KeyContent(log.end_offset, last, bool(log.damaged))
