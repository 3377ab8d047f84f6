"""Durable names: how far each has committed, per topic and partition.

The positions live in the log like everything else that must survive: each commit is a record of
an internal topic, its key the name, topic and partition, its value the position. They are read
back at start. When enough has piled up, a snapshot of all positions is written and what is
before it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from fanlog.format.batch import Batch, Bytes, encode_batch, split_batches
from fanlog.format.messages import Position
from fanlog.model import INTERNAL_PREFIX, KIB, TopicSettings

CURSOR_TOPIC = INTERNAL_PREFIX + "cursors"
CURSOR_SETTINGS = TopicSettings(
    durability="os", segment_bytes=256 * KIB, tail_bytes=4 * KIB, retention_seconds=0
)
_SNAPSHOT_AFTER_RECORDS = 20_000
_RECORDS_A_BATCH = 1000

_Key = tuple[str, str, int]
_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(tuple[str, str, int]).decode
_decode_position = msgspec.msgpack.Decoder(tuple[int, int]).decode


class DurableNames:
    """Positions in memory, and the records that bring them back."""

    def __init__(self) -> None:
        self._names: dict[str, dict[tuple[str, int], Position]] = {}
        self._records = 0
        self.count = 0

    def positions(self, name: str) -> tuple[Position, ...]:
        return tuple(self._names.get(name, {}).values())

    def position(self, name: str, topic: str, partition: int) -> Position | None:
        return self._names.get(name, {}).get((topic, partition))

    def commit(self, name: str, positions: Iterable[Position]) -> bytes:
        """Remembers the positions; returns the batch that makes them survive."""
        keys: list[bytes] = []
        values: list[bytes] = []
        for position in positions:
            self._set(name, position)
            keys.append(_encode((name, position.topic, position.partition)))
            values.append(_encode((position.offset, position.epoch)))
        return encode_batch(values, keys=keys)

    def forget_topic(self, topic: str) -> bytes | None:
        """A deleted topic's positions would be wrong for a new one of that name."""
        keys: list[bytes] = []
        for name, positions in self._names.items():
            for key in [key for key in positions if key[0] == topic]:
                del positions[key]
                self.count -= 1
                keys.append(_encode((name, *key)))
        return encode_batch([None] * len(keys), keys=keys) if keys else None

    def replay(self, data: Bytes) -> None:
        """Takes in records from the internal topic, in their order."""
        view = memoryview(data)
        for at, header in split_batches(data):
            batch = Batch(view[at : at + header.length], header)
            for key, value in zip(batch.keys, batch.values, strict=True):
                name, topic, partition = _decode_key(key or b"")
                if value is None:
                    if self._names.get(name, {}).pop((topic, partition), None) is not None:
                        self.count -= 1
                else:
                    offset, epoch = _decode_position(value)
                    self._set(name, Position(topic, partition, offset, epoch))

    def maybe_snapshot(self, write: Callable[[bytes], None]) -> bool:
        """Writes all positions anew if enough records have piled up."""
        if self._records < _SNAPSHOT_AFTER_RECORDS + 2 * self.count:
            return False
        everything = [
            (_encode((name, p.topic, p.partition)), _encode((p.offset, p.epoch)))
            for name, positions in self._names.items()
            for p in positions.values()
        ]
        for at in range(0, len(everything), _RECORDS_A_BATCH):
            some = everything[at : at + _RECORDS_A_BATCH]
            write(encode_batch([value for _, value in some], keys=[key for key, _ in some]))
        self._records = self.count
        return True

    def _set(self, name: str, position: Position) -> None:
        positions = self._names.setdefault(name, {})
        self.count += (position.topic, position.partition) not in positions
        positions[position.topic, position.partition] = position
        self._records += 1
