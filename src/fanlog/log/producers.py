"""Who wrote last: the producers' sequences as the log shows them, and the file that keeps them.

The broker rebuilds from it what makes a retry after a restart safe. Batches of one producer whose
sequence and offsets both go on are one run, so that the list stays short. With every new segment
the runs before it become `<base>.producers`, so that a start need not read the earlier ones:

| at       | bytes | field       | meaning                                                   |
| -------- | ----- | ----------- | --------------------------------------------------------- |
|  0       | 8     | magic       | `FANLPRD1`                                                |
|  8       | 4     | crc         | CRC-32C of everything from byte 12 on                     |
| 12       | 4     | count       | n producers                                               |
| 16       | 8     | base offset | the segment's, as in its name; all runs end by it         |
| 24       | 16n   | producers   | each: id (8), epoch (2), 0 (2), how many runs it has (4)  |
| 24 + 16n | 24m   | runs        | in the producers' order, each: first sequence (8), base   |
|          |       |             | offset (8), records (8)                                   |
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
from fanlog.log.files import read_file, replace_file
from fanlog.log.scan import Found

# A producer's oldest runs are left out past this many: its retries concern the newest.
RUNS_PER_PRODUCER_MAX = 1024

_MAGIC = b"FANLPRD1"
_HEADER = Struct("<8sIIQ")
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
    its first sequence, base offset and records. Whoever asked for it may change `numbers`."""

    producer_id: int
    epoch: int
    numbers: array[int]


class ProducerRuns:
    """Collects runs in the order of the log."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[int, deque[ProducerRun]] = {}

    def add(self, batches: Iterable[Found]) -> None:
        for batch in batches:
            producer = batch.producer_id
            if batch.span != batch.record_count:
                # Compaction was here. Whose records went nobody can tell, and a producer that is
                # known as it once was would be worse than one that is not known.
                self._runs.clear()
            elif producer:
                epoch, sequence = batch.producer_epoch, batch.first_sequence
                self._add(producer, epoch, sequence, batch.record_count, batch.base_offset)

    def add_runs(self, runs: Iterable[ProducerRun]) -> None:
        """Takes over what a file has kept."""
        for run in runs:
            self._add(*run)

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
            # A new epoch begins its numbers anew: those of the one before are of no more use.
            epoch = runs[-1].producer_epoch
            numbers = array("Q")
            for run in runs:
                if run.producer_epoch == epoch:
                    numbers.extend((run.first_sequence, run.base_offset, run.record_count))
            yield ProducerHistory(producer_id, epoch, numbers)

    def in_order(self) -> list[ProducerRun]:
        """All runs, by their place in the log."""
        everything = [run for runs in self._runs.values() for run in runs]
        everything.sort(key=lambda run: run.base_offset)
        return everything


def _clip(numbers: array[int], end: int) -> None:
    """Takes back what the runs have from offset `end` on."""
    while numbers and numbers[-2] >= end:
        del numbers[-3:]
    if numbers:
        numbers[-1] = min(numbers[-1], end - numbers[-2])


def encode_producers(base: int, histories: Iterable[ProducerHistory]) -> bytes:
    """The file of the segment that begins with `base`: what was before it."""
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
    body = _HEADER.pack(_MAGIC, 0, *fields)[_CRC_FROM:] + b"".join(producers) + b"".join(runs)
    return _HEADER.pack(_MAGIC, crc32c(body), *fields)[:_CRC_FROM] + body


def decode_producers(data: bytes, base: int) -> list[ProducerRun]:
    """What `encode_producers` wrote for the segment that begins with `base`."""
    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise FormatError("This is no file of producers.")
    _, crc, count, found_base = _HEADER.unpack_from(data)
    if crc32c(data[_CRC_FROM:]) != crc:
        raise ChecksumError("The producers are damaged: their checksum does not fit.")
    if found_base != base:
        raise FormatError(f"The producers are those before offset {found_base}, not {base}.")
    runs_at = _HEADER.size + count * _PRODUCER.size
    producers = list(_PRODUCER.iter_unpack(data[_HEADER.size : runs_at]))
    if len(data) != runs_at + _RUN_BYTES * sum(runs for _, _, runs in producers):
        raise FormatError(f"The file has {len(data)} bytes, which do not fit its producers.")
    numbers = array("Q", data[runs_at:])
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


def write_producers(path: str, base: int, histories: Iterable[ProducerHistory]) -> None:
    replace_file(path, encode_producers(base, histories), durable=False)


def read_producers(path: str, base: int) -> list[ProducerRun]:
    return decode_producers(read_file(path), base)
