"""A ledger: state of the broker's own that must survive, kept in the log like everything else.

It is an internal topic of keyed records. The last record of a key counts, and one without a value
deletes its key. Their meaning is up to their owner. When enough records have piled up, everything
that counts is written once more and older records are deleted, so that a ledger stays as small as
its content. That snapshot is written in slices, with the turns of others between them. A slice has
the state at the time when it is written, so a change between two slices is either in the next one
or behind the last.

An entry takes effect when it is durable: its owner changes its state then, and not before. So state
lags behind the log, and a slice must not put an old value behind a new one. It leaves out keys with
an entry that has not taken effect: that entry is behind the snapshot's begin, and stays. Where
entries say what has changed (`deltas`), a slice waits until all entries have taken effect.

A large change is one batch, so that a crash leaves all of it or nothing, but it takes effect in
slices. Until it has done so its keys are left out like those of pending entries, a slice of changes
waits, and no snapshot begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.broker.state.ledger_reading import TakeEntry, read_ledger, snapshot_mark
from fanlog.errors import DiskFullError, FanlogError
from fanlog.format.batch import encode_batch
from fanlog.format.large_batch import LargeBatch
from fanlog.log.group_commit import Done
from fanlog.model import INTERNAL_PREFIX, KIB, TopicSettings

logger = logging.getLogger("fanlog.broker")

Entry = tuple[bytes, bytes | None]

LEDGER_SETTINGS = TopicSettings(
    durability="fsync", segment_bytes=1024 * KIB, tail_bytes=4 * KIB, retention_seconds=0
)
_SNAPSHOT_AFTER_RECORDS = 20_000
_SNAPSHOT_AFTER_BYTES = 4096 * KIB
# Entries written at once: about a millisecond of the loop.
_SLICE_RECORDS = 1000
_SLICE_BYTES = 256 * KIB


class LedgerHost(Protocol):
    """The broker, as far as a ledger needs it."""

    def find_internal(self, name: str) -> Partition | None: ...
    def make_internal(self, name: str, settings: TopicSettings) -> Partition | None:
        """The topic's partition, made if need be; None where nothing is kept on disk."""
        ...

    def alter_internal(self, name: str, settings: TopicSettings) -> None:
        """Gives a topic other retention, if it exists. Never raises."""
        ...

    def write_internal(self, partition: Partition, batch: bytes, done: Done | None) -> None:
        """Appends at once, and raises what keeps it from that. `done` runs when the turn that the
        batch belongs to is as safe as the topic's durability says, or with the fault."""
        ...

    def make_durable(self, partition: Partition) -> None:
        """Gives a topic of an older release durability fsync. Blocks, and never raises."""
        ...

    def sync_internal_now(self, partition: Partition) -> None:
        """Makes everything written durable. Blocks: for a start."""
        ...

    def soon(self, call: Callable[[], None], /) -> object:
        """Runs `call` after what is ready now."""
        ...

    def end_known(self, name: str) -> int:
        """An offset that the topic's log has reached before; 0 if none is known."""
        ...

    def loaded(self, ledger: Ledger) -> None:
        """A ledger was read. The host repairs it when all ledgers are read."""
        ...

    def may_have_lost(self, ledger: str, topic: int) -> bool:
        """Whether a ledger has lost entries, not cleared yet, that may be about a topic of this
        number."""
        ...

    def report_loss(self, name: str, said: str, partition: Partition | None, before: int) -> None:
        """Reports the loss until it is cleared, and sets the log's segments that end by offset
        `before` aside."""
        ...


class _Snapshot:
    """A snapshot in progress. When it ends, all valid entries are at or after `begins_at`."""

    def __init__(self, begins_at: int, entries: Iterable[tuple[bytes, bytes]]) -> None:
        self.begins_at = begins_at
        self.records = 0
        self.bytes = 0
        self._entries: Iterator[tuple[bytes, bytes]] = iter(entries)

    def next_slice(self, *without: Container[bytes]) -> list[Entry]:
        some: list[Entry] = []
        size = 0
        for entry in self._entries:
            if any(entry[0] in keys for keys in without):
                continue
            some.append(entry)
            size += len(entry[0]) + len(entry[1])
            if len(some) >= _SLICE_RECORDS or size >= _SLICE_BYTES:
                break
        return some


class Ledger:
    """`everything` gives all entries that count, for a snapshot. Other entries may be written
    between two of them. So it must go through its own list of keys, and give the current entry of
    each. `loss` is the end of a sentence: what it means to users that entries are lost. With
    `deltas` an entry has only a change, and one of `everything` the whole state of its key.

    Entries are in the log on return, and become durable by group commit: `write` says when, and its
    owner has them take effect then.
    """

    def __init__(
        self,
        host: LedgerHost,
        name: str,
        everything: Callable[[], Iterable[tuple[bytes, bytes]]],
        loss: str,
        settings: TopicSettings | None = None,
        *,
        deltas: bool = False,
    ) -> None:
        self._host = host
        self._deltas = deltas
        self.name = INTERNAL_PREFIX + name
        # How many entries could not be read at the start.
        self.lost = 0
        self._unmarked = False
        self._everything = everything
        self._loss = loss
        self._settings = settings or LEDGER_SETTINGS
        self._owed: list[Entry] = []
        self._records = 0
        self._bytes = 0
        self._kept_records = 0
        self._kept_bytes = 0
        self._snapshot: _Snapshot | None = None
        # Keys with entries that have not taken effect, and how many batches of them there are.
        self._pending_keys: dict[bytes, int] = {}
        # The keys of large changes that have not taken effect as a whole.
        self._large: list[Container[bytes]] = []
        self._pending = 0
        self._slice_waits: Callable[[], None] | None = None

    # At a start

    def load(self, take: TakeEntry) -> None:
        """Calls `take` with every entry, in the order of writing. Never raises: entries that can't
        be read or understood are counted in `lost`."""
        partition = self._host.find_internal(self.name)
        end_known = self._host.end_known(self.name)
        self._host.loaded(self)
        if partition is None:
            self.lost = end_known
            return
        self._host.make_durable(partition)
        log = partition.log
        reading = read_ledger(log, take)
        self._records, self._bytes = reading.records, reading.bytes
        self.lost = reading.lost + max(0, end_known - log.end_offset)
        self._unmarked = reading.cut
        if reading.cut and end_known:
            # Its first segments are gone. Only a log of an older release has no marks.
            self.lost += log.start_offset
        try:
            log.drop_before(reading.start)
        except FanlogError as fault:
            logger.warning("the snapshot of %s is postponed: %s", self.name, fault)

    def repair(self) -> None:
        """After a loss: writes the recovered entries again, sets the damaged files aside, and
        reports the loss. Blocks, and never raises."""
        if not self.lost and not self._unmarked:
            return
        partition = self._host.find_internal(self.name)
        before = 0
        try:
            if partition is not None:
                before = partition.log.begin_segment()
                self._snapshot = snapshot = _Snapshot(before, self._everything())
                while some := snapshot.next_slice():
                    self._append(partition, some)
                self._host.write_internal(partition, snapshot_mark(before), None)
                self._snapshot = None
                self._host.sync_internal_now(partition)
        except FanlogError as fault:
            before = 0
            logger.error("%s is not repaired yet: %s", self.name, fault)
        if not self.lost:
            return
        said = f"The ledger {self.name} has lost {self.lost} of its entries: {self._loss}."
        self._host.report_loss(self.name, said, partition, before)

    def may_have_lost(self, topic: int = 0) -> bool:
        """Whether there may have been an entry about a topic of this number that is lost."""
        return self._host.may_have_lost(self.name, topic)

    # From then on

    def write(self, entries: Sequence[Entry], done: Done | None = None) -> None:
        """Writes entries, all or none of them: together they are one batch. `done` runs when they
        are durable, and has them take effect; or with the fault, if they can't be.

        Raises what the log raises; then nothing was written, and `done` does not run.
        """
        partition = self._host.make_internal(self.name, self._settings)
        if partition is None:
            if done is not None:
                done(None)
            return
        # Before the entries, which their owner takes in only once they are written.
        if self._snapshot is None and not self._large and self._piled_up():
            self._begin_snapshot(partition)
        owed = len(self._owed)
        self._append(partition, [*self._owed, *entries], done)
        del self._owed[:owed]

    def write_large(self, batch: LargeBatch, keys: Container[bytes], done: Done) -> None:
        """The same for very many entries, whose batch is made already. When `done` runs they need
        not take effect at once: the owner calls `has_taken_in` with their keys when all have."""
        partition = self._host.make_internal(self.name, self._settings)
        if partition is None:
            done(None)
            return
        if self._owed:
            self.write(())
        self._large.append(keys)
        try:
            self._append_batch(partition, batch.encode(), batch.count, (), done)
        except BaseException:
            self.has_taken_in(keys)
            raise

    def has_taken_in(self, keys: Container[bytes]) -> None:
        """All entries of a large change have taken effect, or can't become durable."""
        self._large = [known for known in self._large if known is not keys]
        self._resume_slice()

    def write_or_owe(self, entries: Sequence[Entry]) -> None:
        """The same for something that has already happened: if there is no room now, it is written
        before the next entry."""
        try:
            self.write(entries)
        except DiskFullError as fault:
            logger.warning("entries of %s are written later: %s", self.name, fault)
            self._owed.extend(entries)
        except FanlogError as fault:
            logger.error("entries of %s are lost with the next restart: %s", self.name, fault)

    def _append(
        self, partition: Partition, entries: Sequence[Entry], done: Done | None = None
    ) -> None:
        keys = [key for key, _ in entries]
        batch = encode_batch([value for _, value in entries], keys=keys)
        self._append_batch(partition, batch, len(keys), keys, done)

    def _append_batch(
        self,
        partition: Partition,
        batch: bytes,
        records: int,
        keys: Sequence[bytes],
        done: Done | None,
    ) -> None:
        self._host.write_internal(partition, batch, lambda fault: self._durable(keys, done, fault))
        self._records += records
        self._bytes += len(batch)
        self._pending += 1
        for key in keys:
            self._pending_keys[key] = self._pending_keys.get(key, 0) + 1

    def _durable(self, keys: Sequence[bytes], done: Done | None, fault: FanlogError | None) -> None:
        self._pending -= 1
        for key in keys:
            left = self._pending_keys[key] - 1
            if left:
                self._pending_keys[key] = left
            else:
                del self._pending_keys[key]
        try:
            if done is not None:
                done(fault)
            elif fault is not None:
                logger.error("entries of %s were not made durable: %s", self.name, fault)
        finally:
            self._resume_slice()

    def _resume_slice(self) -> None:
        if self._slice_waits is not None and not self._pending and not self._large:
            write, self._slice_waits = self._slice_waits, None
            write()

    # Snapshots

    def _piled_up(self) -> bool:
        return (
            self._records >= _SNAPSHOT_AFTER_RECORDS + 2 * self._kept_records
            or self._bytes >= _SNAPSHOT_AFTER_BYTES + 2 * self._kept_bytes
        )

    def _begin_snapshot(self, partition: Partition) -> None:
        self._records = self._bytes = 0
        # Entries that have not taken effect are after it.
        self._snapshot = snapshot = _Snapshot(partition.visible_end, self._everything())
        self._host.soon(lambda: self._write_slice(partition, snapshot))

    def _write_slice(self, partition: Partition, snapshot: _Snapshot) -> None:
        """The next slice goes when this one is durable, so that they never crowd the disk."""
        before = self._bytes

        def durable(fault: FanlogError | None) -> None:
            if fault is not None:
                self._give_up(snapshot, fault)
            elif some:
                self._host.soon(lambda: self._write_slice(partition, snapshot))
            else:
                self._end_snapshot(partition, snapshot)

        if self._snapshot is not snapshot:
            return
        if self._deltas and (self._pending or self._large):
            self._slice_waits = lambda: self._write_slice(partition, snapshot)
            return
        some = snapshot.next_slice(self._pending_keys, *self._large)
        try:
            if some:
                self._append(partition, some, durable)
                snapshot.records += len(some)
                snapshot.bytes += self._bytes - before
            else:
                mark = snapshot_mark(snapshot.begins_at)
                self._host.write_internal(partition, mark, durable)
        except FanlogError as fault:
            self._give_up(snapshot, fault)

    def _give_up(self, snapshot: _Snapshot, fault: FanlogError) -> None:
        """Without its end mark a snapshot is only a set of repeated entries."""
        logger.warning("the snapshot of %s is postponed: %s", self.name, fault)
        if self._snapshot is snapshot:
            self._snapshot = None

    def _end_snapshot(self, partition: Partition, snapshot: _Snapshot) -> None:
        if self._snapshot is snapshot:
            self._snapshot = None
            self._kept_records, self._kept_bytes = snapshot.records, snapshot.bytes
            try:
                partition.log.drop_before(snapshot.begins_at)
            except FanlogError as fault:
                logger.warning("the snapshot of %s is postponed: %s", self.name, fault)
