"""Staged files in the stream. A large transaction is staged in a file of its primary, which no
other node has. So before its intent is written, the file's bytes go through the stream, as records
of an internal topic with the ticket as key. A later primary makes the file again.

Law: no intent without its staged bytes: they are before it in the stream."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence

from fanlog.broker.messages.topics import Partition
from fanlog.broker.ports import Runtime
from fanlog.broker.state.internal import InternalTopics
from fanlog.errors import FanlogError, OffsetOutOfRangeError
from fanlog.format.batch import Batch, encode_batch, split_batches
from fanlog.log.staging import StagedBytes
from fanlog.model import INTERNAL_PREFIX, MIB, TopicSettings

logger = logging.getLogger("fanlog.broker")

STAGED_TOPIC = INTERNAL_PREFIX + "staged"
_SETTINGS = TopicSettings(
    durability="fsync", retention_seconds=0, segment_bytes=64 * MIB, tail_bytes=MIB
)
_CHUNK_BYTES = MIB
# A staged file that is being made again. A start removes what a crash leaves of it.
_UNFINISHED = ".copy"

CopiesDone = Callable[[FanlogError | None], None]


class StagedCopies:
    """Copies of staged files, until their transactions are stored."""

    def __init__(self, internal: InternalTopics, runtime: Runtime) -> None:
        self._internal = internal
        self._runtime = runtime
        # Copies that are being written.
        self._writing = 0

    def write(self, files: Sequence[tuple[str, StagedBytes]], done: CopiesDone) -> None:
        """Puts files into the stream, by their tickets. `done` is called when all of it is as safe
        as an intent, or with the fault."""
        self._writing += 1
        chunks = _chunks(files)

        def ended(fault: FanlogError | None) -> None:
            self._writing -= 1
            done(fault)

        def next_chunk(fault: FanlogError | None) -> None:
            if fault is not None:
                ended(fault)
                return
            chunk = next(chunks, None)
            if chunk is None:
                ended(None)
                return
            ticket, staged, at = chunk
            self._runtime.in_background(
                lambda: staged.read(at, _CHUNK_BYTES), lambda data: append(ticket, data)
            )

        def append(ticket: str, data: bytes | Exception) -> None:
            if isinstance(data, Exception):
                ended(FanlogError(f"Reading what was staged failed: {data!r}."))
                return
            try:
                partition = self._internal.make_kept(STAGED_TOPIC, _SETTINGS)
                batch = encode_batch([data], keys=[ticket.encode()])
                self._internal.write_internal(partition, batch, next_chunk)
            except FanlogError as fault:
                ended(fault)

        next_chunk(None)

    def restore(self, ticket: str, path: str) -> None:
        """Makes a staged file again, if there is a copy. Blocks: for a start. Raises OSError and
        StorageError."""
        partition = self._internal.find_internal(STAGED_TOPIC)
        if partition is None:
            return
        key, copy = ticket.encode(), StagedBytes(path + _UNFINISHED)
        try:
            for batch in _batches(partition):
                for batch_key, value in zip(batch.keys, batch.values, strict=True):
                    if batch_key == key and value is not None:
                        copy.append(value)
                        copy.spill()
            if copy.in_file:
                copy.sync()
                os.replace(copy.path, path)
        finally:
            copy.close()

    def forget(self) -> None:
        """All transactions with staged files are stored: nobody needs a copy."""
        partition = self._internal.find_internal(STAGED_TOPIC)
        if partition is None or self._writing:
            return
        log = partition.log
        if log.start_offset == log.end_offset or partition.visible_end < log.end_offset:
            return
        try:
            log.drop_before(log.begin_segment())
        except FanlogError as fault:
            logger.warning("copies of staged files stay for now: %s", fault)


def _chunks(files: Sequence[tuple[str, StagedBytes]]) -> Iterator[tuple[str, StagedBytes, int]]:
    for ticket, staged in files:
        for at in range(0, staged.length, _CHUNK_BYTES):
            yield ticket, staged, at


def _batches(partition: Partition) -> Iterator[Batch]:
    log = partition.log
    at = log.start_offset
    while at < log.end_offset:
        try:
            block = log.read(at, log.end_offset, _CHUNK_BYTES)
        except OffsetOutOfRangeError:
            return
        data = bytes(block.data)
        for begin, header in split_batches(data):
            yield Batch(memoryview(data)[begin : begin + header.length], header)
        at = block.next_offset
