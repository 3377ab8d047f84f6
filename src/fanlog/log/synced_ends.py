"""How far each log with durability fsync was synced itself: the file `<data>/journal/ends`.

What was acknowledged past it is in the journal. So a start knows what nobody was promised, and may
cut it where a crash tore it. Little-endian, replaced whole and synced:

| at | bytes | field      | meaning                                                              |
| -- | ----- | ---------- | -------------------------------------------------------------------- |
|  0 | 8     | magic      | `FANLEND1`                                                           |
|  8 | 4     | crc        | CRC-32C of everything from byte 12 on                                |
| 12 | 4     | count      | n entries                                                            |
| 16 | 8     | generation | groups of the journal with a lower one are of no more use            |
| 24 | 8     | next topic | a topic from this number on that has no entry was never synced       |
| 32 | 16n   | entries    | each: topic (4), partition (4), end offset (8)                       |

Law: it is written after the logs are synced, and before the journal forgets what it has of them.
A log of an older topic without an entry, or a file that is damaged or missing, means that nobody
knows: then nothing is cut.
"""

from __future__ import annotations

from struct import Struct
from threading import Lock

from fanlog.errors import ChecksumError, FormatError
from fanlog.format.checksum import crc32c
from fanlog.log.faults import is_full
from fanlog.log.files import read_file, remove_if_there, replace_file, sync_folder
from fanlog.log.scan import Owner

_MAGIC = b"FANLEND1"
_HEADER = Struct("<8sIIQQ")
_ENTRY = Struct("<IIQ")
_CRC_FROM = 12


class SyncedEnds:
    """The table in memory. Safe from any thread."""

    def __init__(self, generation: int, next_topic: int, ends: dict[Owner, int]) -> None:
        self.generation = generation
        self.next_topic = next_topic
        self._ends = ends
        self._lock = Lock()
        self._saving = Lock()

    def end_of(self, owner: Owner) -> int | None:
        """The synced end of a log; None if unknown."""
        return self._ends.get(owner, 0 if owner.topic >= self.next_topic else None)

    def note(self, owner: Owner, end_offset: int) -> None:
        with self._lock:
            self._ends[owner] = max(end_offset, self._ends.get(owner, 0))

    def forget(self, topic: int) -> None:
        """The topic with this number is another one from now on."""
        with self._lock:
            for owner in [owner for owner in self._ends if owner.topic == topic]:
                del self._ends[owner]

    def lower(self, owner: Owner, end_offset: int) -> None:
        """The log was cut: nothing from `end_offset` on was ever promised."""
        with self._lock:
            if owner in self._ends:
                self._ends[owner] = min(end_offset, self._ends[owner])

    def items(self) -> list[tuple[Owner, int]]:
        with self._lock:
            return list(self._ends.items())

    def save(self, folder: str) -> None:
        """Makes the table durable. On a full disk it is removed instead: better none than an old
        one."""
        path = f"{folder}/ends"
        with self._saving:
            # Here and not before: an older table must not replace a newer one.
            data = encode_ends(self)
            try:
                replace_file(path, data, durable=True)
            except OSError as fault:
                if not is_full(fault):
                    raise
                remove_if_there(path)
                sync_folder(folder)


def encode_ends(ends: SyncedEnds) -> bytes:
    entries = [_ENTRY.pack(*owner, end_offset) for owner, end_offset in ends.items()]
    fields = len(entries), ends.generation, ends.next_topic
    body = _HEADER.pack(_MAGIC, 0, *fields)[_CRC_FROM:] + b"".join(entries)
    return _HEADER.pack(_MAGIC, crc32c(body), *fields)[:_CRC_FROM] + body


def decode_ends(data: bytes) -> SyncedEnds:
    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise FormatError("this is not a table of synced ends")
    _, crc, count, generation, next_topic = _HEADER.unpack_from(data)
    if crc32c(data[_CRC_FROM:]) != crc:
        raise ChecksumError("its checksum does not fit")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise FormatError(f"{len(data)} bytes do not fit {count} entries")
    entries = _ENTRY.iter_unpack(data[_HEADER.size :])
    ends = {Owner(topic, partition): end for topic, partition, end in entries}
    return SyncedEnds(generation, next_topic, ends)


def load_ends(folder: str) -> SyncedEnds | None:
    """None if there is no table. Raises `FormatError` if it is damaged."""
    try:
        return decode_ends(read_file(f"{folder}/ends"))
    except FileNotFoundError:
        return None
