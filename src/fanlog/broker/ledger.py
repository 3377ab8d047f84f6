"""A ledger: state of the broker's own that must survive, kept in the log like everything else.

It is an internal topic of keyed records, of which the last of each key counts and one without a
value takes its key back. What they mean is their owner's. When enough has piled up, all that
counts is written once more and what is before it goes, so that a ledger stays as small as what it
holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fanlog.broker.topics import Partition
from fanlog.errors import FanlogError
from fanlog.format.batch import Batch, encode_batch, split_batches
from fanlog.model import INTERNAL_PREFIX, KIB, TopicSettings

logger = logging.getLogger("fanlog.broker")

Entry = tuple[bytes, bytes | None]
Done = Callable[[FanlogError | None], None]

LEDGER_SETTINGS = TopicSettings(
    durability="os", segment_bytes=256 * KIB, tail_bytes=4 * KIB, retention_seconds=0
)
_SNAPSHOT_AFTER_RECORDS = 20_000
_SNAPSHOT_AFTER_BYTES = 4096 * KIB
_BATCH_RECORDS = 1000
_BATCH_BYTES = 256 * KIB


class LedgerHost(Protocol):
    """The broker, as far as a ledger needs it."""

    def find_internal(self, name: str) -> Partition | None: ...
    def make_internal(self, name: str, settings: TopicSettings) -> Partition | None:
        """The topic's partition, made if need be; None where nothing is kept on disk."""
        ...

    def write_internal(self, partition: Partition, batch: bytes, done: Done | None) -> None:
        """Appends at once. `done` hears when it is as safe as the topic's durability says."""
        ...

    def sync_internal(self, partition: Partition, done: Done) -> None:
        """Makes all that was written durable, in a thread."""
        ...

    def sync_internal_now(self, partition: Partition) -> None:
        """The same, and waits for it."""
        ...


class Ledger:
    """`everything` gives all entries that count, for a snapshot.

    With durability `fsync` entries go through group commit, and `write` can say when they are
    durable; with `os` they are written on return, which outlives the process.
    """

    def __init__(
        self,
        host: LedgerHost,
        name: str,
        everything: Callable[[], Iterable[tuple[bytes, bytes]]],
        settings: TopicSettings = LEDGER_SETTINGS,
    ) -> None:
        self._host = host
        self._name = INTERNAL_PREFIX + name
        self._everything = everything
        self._settings = settings
        self._owed: list[Entry] = []
        self._records = 0
        self._bytes = 0
        self._kept_records = 0
        self._kept_bytes = 0
        self._dropping = False

    def load(self, take: Callable[[bytes, bytes | None], None]) -> None:
        """Hands every entry to `take`, in the order they were written."""
        partition = self._host.find_internal(self._name)
        if partition is None:
            return
        log = partition.log
        offset = log.start_offset
        while offset < log.end_offset:
            block = log.read(offset, log.end_offset)
            for at, header in split_batches(block.data):
                batch = Batch(block.data[at : at + header.length], header)
                for key, value in zip(batch.keys, batch.values, strict=True):
                    take(key or b"", value)
                self._records += len(batch)
                self._bytes += header.length
            offset = block.next_offset

    def write(self, entries: Sequence[Entry], done: Done | None = None) -> None:
        """Writes entries, all or none of them: together they are one batch.

        Raises what the log raises; then nothing was written, and `done` is not called.
        """
        partition = self._host.make_internal(self._name, self._settings)
        if partition is None:
            if done is not None:
                done(None)
            return
        # Before the entries, which their owner takes in only once they are written.
        if not self._dropping and self._piled_up():
            try:
                self._snapshot(partition)
            except FanlogError as fault:
                logger.warning("%s is not made smaller now: %s", self._name, fault)
        owed = len(self._owed)
        self._write(partition, [*self._owed, *entries], done)
        del self._owed[:owed]

    def write_or_owe(self, entries: Sequence[Entry]) -> None:
        """The same for what has happened already: if it can't be written now, it is written
        before the next entry."""
        try:
            self.write(entries)
        except FanlogError as fault:
            logger.warning("entries of %s are to be written later: %s", self._name, fault)
            self._owed.extend(entries)

    def sync(self, done: Done) -> None:
        """Makes all that was written durable, in a thread."""
        partition = self._host.find_internal(self._name)
        if partition is None:
            done(None)
        else:
            self._host.sync_internal(partition, done)

    def sync_now(self) -> None:
        """The same, and waits: for what is rare, and has to be durable before all that follows."""
        partition = self._host.find_internal(self._name)
        if partition is not None:
            self._host.sync_internal_now(partition)

    def _write(
        self, partition: Partition, entries: Sequence[Entry], done: Done | None = None
    ) -> None:
        batch = encode_batch([value for _, value in entries], keys=[key for key, _ in entries])
        self._host.write_internal(partition, batch, done)
        self._records += len(entries)
        self._bytes += len(batch)

    def _piled_up(self) -> bool:
        return (
            self._records >= _SNAPSHOT_AFTER_RECORDS + 2 * self._kept_records
            or self._bytes >= _SNAPSHOT_AFTER_BYTES + 2 * self._kept_bytes
        )

    def _snapshot(self, partition: Partition) -> None:
        """Writes all that counts anew; what is before it goes once that is durable."""
        begins_at = partition.log.end_offset
        self._records = self._bytes = 0
        some: list[Entry] = []
        size = 0
        for key, value in self._everything():
            some.append((key, value))
            size += len(key) + len(value)
            if len(some) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                self._write(partition, some)
                some, size = [], 0
        if some:
            self._write(partition, some)
        self._kept_records, self._kept_bytes = self._records, self._bytes
        self._dropping = True

        def synced(fault: FanlogError | None) -> None:
            self._dropping = False
            if fault is None:
                partition.log.drop_before(begins_at)

        self._host.sync_internal(partition, synced)
