"""The producers of a log: their last sequences, and the file that stores them together with the
log's epochs. With it, the broker recognises a retry after a restart. Consecutive batches of one
producer, by sequence and by offset, are one run, so that the list stays short. With every new
segment the runs before it become `<base>.producers`, so that a start need not read the earlier
ones:

| bytes | field       | meaning                                                               |
| ----- | ----------- | --------------------------------------------------------------------- |
| 8     | magic       | `FANLPRD2`                                                            |
| 4     | crc         | CRC-32C of everything from byte 12 on                                 |
| 4     | count       | n producers                                                           |
| 8     | base offset | the segment's, as in its name; all below is about what is before it   |
| 8     | epochs      | how many there are, k                                                 |
| 16k   | epochs      | each: epoch (8), offset of its first batch (8)                        |
| 16n   | producers   | each: id (8), epoch (2), 0 (2), how many runs it has (4)              |
| 24m   | runs        | in the producers' order, each: first sequence, base offset, records   |

`FANLPRD1` has neither the number of epochs nor the epochs.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from fanlog.errors import ChecksumError, FormatError
from fanlog.format.checksum import crc32c
from fanlog.log.epochs import Epochs, EpochStart, before
from fanlog.log.files import read_file, replace_file
from fanlog.log.reserve import Reserve
from fanlog.log.scan import FoundBatch

# A producer's oldest runs are left out past this many: its retries concern the newest.
RUNS_PER_PRODUCER_MAX = 1024

_MAGIC = b"FANLPRD2"
_MAGIC_WITHOUT_EPOCHS = b"FANLPRD1"
_HEADER = Struct("<8sIIQ")
_EPOCHS = Struct("<Q")
_EPOCH = Struct("<QQ")
_PRODUCER = Struct("<QH2xI")
_RUN_BYTES = 24
_CRC_FROM = 12


class ProducerRun(NamedTuple):
    """Records of one producer that follow each other in sequence and in the log."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    record_count: int
    base_offset: int


class ProducerHistory(NamedTuple):
    """One producer's runs of its present epoch, in their order, as they are written down: of each
    its first sequence, base offset and records. The caller may change `numbers`."""

    producer_id: int
    epoch: int
    numbers: array[int]


class ProducerRuns:
    """Collects runs in the order of the log."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[int, deque[ProducerRun]] = {}

    def add(self, batches: Iterable[FoundBatch]) -> None:
        # Most batches begin where the one before them ended: those become one run at once.
        id = epoch = first_sequence = base_offset = count = 0
        for batch in batches:
            producer = batch.producer_id
            if batch.span != batch.record_count:
                # Compaction has removed records, and their producers are unknown. An outdated
                # producer would be worse than a missing one.
                self._runs.clear()
                count = 0
            elif (
                count
                and producer == id
                and batch.base_offset == base_offset + count
                and batch.first_sequence == first_sequence + count
                and batch.producer_epoch == epoch
            ):
                count += batch.record_count
            elif producer:
                if count:
                    self._add(id, epoch, first_sequence, count, base_offset)
                id, epoch, first_sequence = producer, batch.producer_epoch, batch.first_sequence
                base_offset, count = batch.base_offset, batch.record_count
        if count:
            self._add(id, epoch, first_sequence, count, base_offset)

    def add_runs(self, runs: Iterable[ProducerRun]) -> None:
        """Loads the runs of a file."""
        for run in runs:
            self._add(*run)

    def add_missing(self, others: ProducerRuns, end: int) -> None:
        """Takes in the producers of `others` that are not known here, as far as they wrote before
        offset `end`."""
        for producer, runs in others._runs.items():
            if producer not in self._runs and runs[0].base_offset < end:
                self._runs[producer] = deque(
                    (run for run in runs if run.base_offset < end), maxlen=RUNS_PER_PRODUCER_MAX
                )

    def forget_idle(self, producers_max: int) -> None:
        """Forgets the producers that wrote longest ago, past a number of them."""
        if len(self._runs) > producers_max:
            newest = sorted(self._runs, key=lambda known: self._runs[known][-1].base_offset)
            for producer in newest[: len(self._runs) - producers_max]:
                del self._runs[producer]

    def _add(self, producer: int, epoch: int, sequence: int, count: int, base: int) -> None:
        runs = self._runs.get(producer)
        if runs is None:
            runs = self._runs[producer] = deque(maxlen=RUNS_PER_PRODUCER_MAX)
        elif (
            (last := runs[-1]).producer_epoch == epoch
            and last.first_sequence + last.record_count == sequence
            and last.base_offset + last.record_count == base
        ):
            runs[-1] = last._replace(record_count=last.record_count + count)
            return
        runs.append(ProducerRun(producer, epoch, sequence, count, base))

    def histories(self) -> Iterator[ProducerHistory]:
        for producer_id, runs in self._runs.items():
            # A new epoch starts its numbers again: the earlier runs are not needed.
            epoch = runs[-1].producer_epoch
            numbers = array("Q")
            for run in runs:
                if run.producer_epoch == epoch:
                    numbers.extend((run.first_sequence, run.base_offset, run.record_count))
            yield ProducerHistory(producer_id, epoch, numbers)

    def in_order(self) -> list[ProducerRun]:
        """All runs, in the order of the log."""
        everything = [run for runs in self._runs.values() for run in runs]
        everything.sort(key=lambda run: run.base_offset)
        return everything


def _clip(numbers: array[int], end: int) -> None:
    """Removes everything from offset `end` on from the runs."""
    while numbers and numbers[-2] >= end:
        del numbers[-3:]
    if numbers:
        numbers[-1] = min(numbers[-1], end - numbers[-2])


def encode_producers(base: int, histories: Iterable[ProducerHistory], epochs: Epochs = ()) -> bytes:
    """Encodes the file for the segment that begins with `base`: everything before it."""
    producers: list[bytes] = []
    runs: list[bytes] = []
    for producer_id, epoch, numbers in histories:
        _clip(numbers, base)
        if numbers:
            producers.append(_PRODUCER.pack(producer_id, epoch, len(numbers) // 3))
            if sys.byteorder == "big":
                numbers.byteswap()
            runs.append(numbers.tobytes())
    fields = (len(producers), base)
    epochs = before(epochs, base)
    parts = [_EPOCHS.pack(len(epochs)), *(_EPOCH.pack(*epoch) for epoch in epochs)]
    body = b"".join((_HEADER.pack(_MAGIC, 0, *fields)[_CRC_FROM:], *parts, *producers, *runs))
    return _HEADER.pack(_MAGIC, crc32c(body), *fields)[:_CRC_FROM] + body


class PrecedingState(NamedTuple):
    """The content of a file: the log before its segment."""

    runs: list[ProducerRun]
    epochs: Epochs


def decode_producers(data: bytes, base: int) -> PrecedingState:
    """Decodes the file for the segment that begins with `base`."""
    if len(data) < _HEADER.size or data[:8] not in (_MAGIC, _MAGIC_WITHOUT_EPOCHS):
        raise FormatError("This is not a file of producers.")
    magic, crc, count, found_base = _HEADER.unpack_from(data)
    if crc32c(data[_CRC_FROM:]) != crc:
        raise ChecksumError("The producers are damaged: their checksum does not fit.")
    if found_base != base:
        raise FormatError(f"The producers are those before offset {found_base}, not {base}.")
    at, epochs = _HEADER.size, ()
    if magic == _MAGIC:
        at, epochs = _decode_epochs(data, at)
    runs_at = at + count * _PRODUCER.size
    producers = list(_PRODUCER.iter_unpack(data[at:runs_at]))
    if len(data) != runs_at + _RUN_BYTES * sum(runs for _, _, runs in producers):
        raise FormatError(f"The file has {len(data)} bytes, which do not fit its producers.")
    return PrecedingState(_decode_runs(data[runs_at:], producers, base), epochs)


def _decode_epochs(data: bytes, at: int) -> tuple[int, Epochs]:
    """The epochs that begin at a byte of the file, and the byte after them."""
    count = _EPOCHS.unpack_from(data, at)[0] if len(data) >= at + _EPOCHS.size else 0
    first = at + _EPOCHS.size
    end = first + count * _EPOCH.size
    if end > len(data):
        raise FormatError(f"The file has {len(data)} bytes, which do not fit its epochs.")
    return end, tuple(EpochStart(*fields) for fields in _EPOCH.iter_unpack(data[first:end]))


def _decode_runs(
    data: bytes, producers: list[tuple[int, int, int]], base: int
) -> list[ProducerRun]:
    numbers = array("Q", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    runs: list[ProducerRun] = []
    at = 0
    for producer, epoch, how_many in producers:
        end = at + 3 * how_many
        columns = numbers[at:end:3], numbers[at + 1 : end : 3], numbers[at + 2 : end : 3]
        for sequence, offset, records in zip(*columns, strict=True):
            if offset + records > base:
                raise FormatError(f"A producer's records end past offset {base}.")
            runs.append(ProducerRun(producer, epoch, sequence, records, offset))
        at = end
    return runs


def write_producers(
    path: str,
    base: int,
    histories: Iterable[ProducerHistory],
    epochs: Epochs = (),
    reserve: Reserve | None = None,
) -> None:
    """Writes durably: the segments before may be removed after that, which frees space."""
    data = encode_producers(base, histories, epochs)
    (reserve or Reserve()).spend(lambda: replace_file(path, data, durable=True))


def read_producers(path: str, base: int) -> PrecedingState:
    return decode_producers(read_file(path), base)
