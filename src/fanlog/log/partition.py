"""The log of one partition: its tail in memory, and its segments on disk unless it is `memory`.

`append`, `retain`, `close` and `delete` belong to the broker's loop thread; `read` and
`offset_at` block and may run in any other thread meanwhile. The log sees pieces, never records;
only compaction does.

It is long because tail and disk are one log to everybody else: every operation is on both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from fanlog.errors import (
    ClosedError,
    FanlogError,
    OffsetOutOfRangeError,
    TopicDeletedError,
    UnavailableError,
)
from fanlog.format.codecs import FORMAT_LIMITS, UnpackLimits
from fanlog.format.header import read_header
from fanlog.log.backup.moment import LogMoment, moment_of
from fanlog.log.clean_stop import CleanLog, describe
from fanlog.log.compaction import Compaction, is_due
from fanlog.log.damage import LOST, LOST_EVERYWHERE
from fanlog.log.disk import DiskLog, LogResources
from fanlog.log.epochs import Epochs, with_batches, with_epoch
from fanlog.log.faults import is_full, is_temporary, read_error, write_error
from fanlog.log.lookup import (
    Block,
    find_append_time,
    find_time,
    look_for_damage,
    read_block,
)
from fanlog.log.producers import ProducerHistory, ProducerRun
from fanlog.log.recovery import bring_back
from fanlog.log.replay import Known
from fanlog.log.scan import FoundBatch, Owner
from fanlog.log.segment import SegmentNote, note_of
from fanlog.log.tail import Piece, Tail
from fanlog.model import DamagedRange, Durability, TopicSettings

__all__ = ["Block", "PartitionLog", "ProducerRun"]

_SECOND_US = 1_000_000


class PartitionLog:
    """A partition's batches from `start_offset` up to, not including, `end_offset`."""

    __slots__ = (
        "_deleted_before",
        "_disk",
        "_epoch_noted",
        "_settings",
        "durability",
        "failure",
        "last_time_us",
        "owner",
        "recovered",
        "tail",
    )

    def __init__(self, settings: TopicSettings, owner: Owner, disk: DiskLog | None = None) -> None:
        self._settings = settings
        self.owner = owner
        self.durability: Durability = settings.level
        self.tail = Tail()
        self.last_time_us = 0
        # The reason why the log takes no more writes. Only `fail` and the end of the log set it.
        self.failure: FanlogError | None = None
        # Producers that recovery found at start. The broker empties the list after use.
        self.recovered: list[ProducerRun] = []
        # Of a log in memory; one on disk keeps it there.
        self._deleted_before = 0
        self._disk = disk
        # Everything appended between two starts has the same epoch.
        self._epoch_noted = disk is None

    @classmethod
    def open(
        cls,
        folder: str,
        settings: TopicSettings,
        owner: Owner,
        shared: LogResources,
        known: Known | None = None,
        *,
        clean: CleanLog | None = None,
    ) -> PartitionLog:
        """Opens the log in `folder` and recovers it; an empty log if there is no folder yet.

        `known` is for a log with durability fsync: its batches in the journal, and its synced end.
        `clean` describes the log after a clean stop. The caller syncs the log if it `needs_sync`.
        """
        disk = DiskLog(folder, owner, settings, shared)
        log = cls(settings, owner, disk)
        found = bring_back(disk, known, clean)
        log.tail = Tail(found.end_offset)
        log.recovered = found.producers.in_order()
        log.last_time_us = disk.last_time_us
        return log

    def fail(self, failure: FanlogError) -> None:
        """Stops all further writes. The first failure stays the reason."""
        self.failure = self.failure or failure
        if self._disk is not None:
            self._disk.shared.troubled.add(self.owner)

    def join(self, shared: LogResources) -> None:
        """Shares resources with all other logs from now on. It was opened apart from them."""
        if self._disk is not None:
            self._disk.join(shared)

    def describe(self) -> CleanLog | None:
        """Describes the log at a clean stop. None if the next start has to scan it."""
        if self._disk is None or self.failure is not None or self.recovered:
            return None
        return describe(self._disk, self.end_offset)

    def moment(self) -> LogMoment | None:
        """The state of the log for a backup; None for a log without files."""
        disk = self._disk
        return None if disk is None else moment_of(disk, self.tail.end_offset)

    def keep_producers(self, histories: Callable[[], Iterable[ProducerHistory]]) -> None:
        """With each new segment, saves the producers that `histories` returns beside the log.
        Batches past the segment's first offset are not included."""
        if self._disk is not None:
            self._disk.producers = histories

    def producer_histories(self) -> Iterable[ProducerHistory]:
        """The producers of the log, one after the other, as they would be saved now."""
        disk = self._disk
        return () if disk is None or disk.producers is None else disk.producers()

    def replace_producers(self, histories: Callable[[], Iterable[ProducerHistory]]) -> None:
        """Saves other producers than the log's batches tell, durably, at its end. For a copy of a
        log whose batches do not tell them any more. Blocks; slow work is done at once."""
        self.keep_producers(histories)
        end = self.begin_segment()
        disk = self._disk
        if disk is None or not end:
            return
        if disk.producers_due == end:
            raise UnavailableError(f"The producers of {disk.folder} are being saved. Try again.")
        try:
            disk.renew_producers()
            disk.sync()
        except OSError as fault:
            self.refuse(fault)

    @property
    def is_ranked(self) -> bool:
        """Whether a start found that some of its batches have a priority."""
        return self._disk is not None and self._disk.ranked

    def mark_ranked(self, *, at_once: bool = False) -> bool:
        """Starts to record that some batches have a priority. Returns whether the write is under
        way. Call it again for a log without files."""
        return self._disk is None or self._disk.mark_ranked(at_once=at_once)

    @property
    def start_offset(self) -> int:
        if self._disk is None:
            return max(self.tail.start_offset, self._deleted_before)
        return self._disk.start_offset

    @property
    def end_offset(self) -> int:
        return self.tail.end_offset

    @property
    def bytes(self) -> int:
        """Size in bytes: on disk, or of the tail for a memory log."""
        return self.tail.bytes if self._disk is None else self._disk.bytes

    @property
    def segment_count(self) -> int:
        return 0 if self._disk is None else len(self._disk.segments)

    def segment_notes(self, first: int, count: int) -> list[SegmentNote]:
        """`count` segments, oldest first, from index `first` on."""
        disk = self._disk
        if disk is None:
            return []
        newest = len(disk.segments) - 1
        return [
            note_of(segment)._replace(
                next=None, bytes=disk.position, last_time_us=disk.last_time_us or None, active=True
            )
            if first + i == newest
            else note_of(segment)
            for i, segment in enumerate(disk.segments[first : first + count])
        ]

    @property
    def damaged(self) -> list[DamagedRange]:
        return [] if self._disk is None else self._disk.quarantine.ranges

    @property
    def epochs(self) -> Epochs:
        """The broker starts (epochs) that wrote the log; empty for a memory log, which has only
        one."""
        return () if self._disk is None else self._disk.epochs

    @property
    def compacted_until(self) -> int:
        """The offset before which compaction may have taken records: here, or where this log was
        copied from."""
        if self._disk is None:
            return 0
        # The note may be lost. The names of compacted files say it, too.
        made = (s.next_offset for s in reversed(self._disk.segments) if s.name)
        noted = self._disk.compacted
        return max(noted.until, noted.thinned_until, next(made, 0))

    @property
    def compacted_us(self) -> int:
        """When the log was compacted last; 0 for never."""
        return 0 if self._disk is None else self._disk.compacted.ran_us

    @property
    def read_until(self) -> int:
        """Compaction may have taken records because of others before this offset."""
        if self._disk is None:
            return 0
        return max(self.compacted_until, self._disk.compacted.read_until)

    @property
    def unreadable(self) -> list[DamagedRange]:
        """Batches that compaction could not decode, and has left as they are."""
        if self._disk is None or not self._disk.unreadable:
            return []
        found, start_offset = list(self._disk.unreadable.values()), self.start_offset
        return sorted((r for r in found if r.next > start_offset), key=lambda r: r.first)

    @property
    def settings(self) -> TopicSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._settings = settings
        if self._disk is not None:
            self._disk.settings = settings

    def append(self, piece: Piece, next_offset: int, first_time_us: int, last_time_us: int) -> None:
        """Appends whole stamped batches. The first one begins at `end_offset`.

        Here the tail only grows. The broker trims it, because it knows all tails together.
        """
        if self.failure is not None:
            self._raise_failure(self.failure)
        tail = self.tail
        disk = self._disk
        if disk is not None:
            disk.shared.reserve.check(disk.folder)
            try:
                disk.write(piece, tail.end_offset, first_time_us, last_time_us)
            except OSError as fault:
                self.refuse(fault)
            if not self._epoch_noted:
                self._note_epoch(piece, disk)
        tail.append(piece, next_offset, last_time_us)
        self.last_time_us = last_time_us

    def append_copy(self, piece: Piece, batches: Sequence[FoundBatch]) -> None:
        """Appends whole batches of another broker's copy of this log; `batches` are their headers.

        They may begin past `end_offset`, where that copy has lost records. Readers get the gap.
        """
        first, last = batches[0], batches[-1]
        if first.base_offset > self.end_offset:
            self.leave_out(first.base_offset)
        thinned = (b.base_offset + b.span for b in batches if b.span > b.record_count)
        self._note_thinned(max(thinned, default=0))
        # Of copied batches each brings its own epoch.
        self._epoch_noted = True
        next_offset = last.base_offset + last.span
        self.append(piece, next_offset, first.append_time_us, last.append_time_us)
        if self._disk is not None:
            self._disk.epochs = with_batches(self._disk.epochs, batches)

    def _note_thinned(self, until: int) -> None:
        disk = self._disk
        if until and disk is not None:
            disk.shared.reserve.check(disk.folder)
            try:
                disk.note_thinned(until)
            except OSError as fault:
                self.refuse(fault)

    def restart_at(self, offset: int) -> None:
        """Empties the log, durably. It continues at `offset`, which is not before its end."""
        if offset < self.end_offset:
            raise ValueError(f"The log ends at {self.end_offset}, after {offset}.")
        if self.failure is not None:
            self._raise_failure(self.failure)
        disk = self._disk
        if disk is not None:
            try:
                disk.shared.reserve.spend(lambda: disk.restart_at(offset))
            except OSError as fault:
                self.refuse(fault)
        else:
            self._deleted_before = offset
        self.tail = Tail(offset)

    def leave_out(self, offset: int) -> None:
        """Continues at `offset`: another broker's copy has lost the rest. Readers get the gap."""
        disk, end = self._disk, self.end_offset
        if self.failure is not None:
            self._raise_failure(self.failure)
        if disk is not None:
            disk.shared.reserve.check(disk.folder)
            try:
                disk.roll(offset)
            except OSError as fault:
                self.refuse(fault)
            disk.quarantine.add(DamagedRange(end, offset, disk.folder, LOST_EVERYWHERE))
        self.tail = Tail(offset)

    @property
    def lost_until(self) -> int:
        """The end of the first records, if no node has them; 0 if some has."""
        until = self.start_offset
        for damaged in self.damaged:
            if damaged.first <= until < damaged.next and damaged.reason in LOST:
                until = damaged.next
        return until if until > self.start_offset else 0

    def accept_losses(self) -> None:
        """No other node has what is damaged here: it is lost."""
        if self._disk is not None:
            self._disk.quarantine.accept()

    def _note_epoch(self, piece: Piece, disk: DiskLog) -> None:
        """Takes the epoch of the first piece since the start into the log's history."""
        epoch = read_header(piece).leader_epoch
        disk.epochs = with_epoch(disk.epochs, epoch, self.tail.end_offset)
        self._epoch_noted = True

    def read(self, offset: int, end: int, bytes_wanted: int = 0) -> Block:
        """Reads whole batches from disk: from the one with `offset`, below `end`, about as many
        bytes as wanted, and at least one block. Blocks.

        `end` is a visible end. After a compaction the last batch may reach past it, over offsets
        that have become visible meanwhile.

        Raises `DamagedError` if that batch can't be read, and `OffsetOutOfRangeError` if it was
        deleted.
        """
        if self._disk is None:
            raise OffsetOutOfRangeError(
                f"Offset {offset} is not kept any more: this topic lives in memory, and begins "
                f"at {self.start_offset}. Read from there."
            )
        try:
            return read_block(self._disk, offset, end, bytes_wanted)
        except OSError as fault:
            raise read_error(fault, self._disk.folder) from fault

    def look_for_damage(self) -> None:
        """Reads the log, and notes what is damaged. Blocks; any thread. Raises StorageError."""
        if self._disk is not None:
            try:
                look_for_damage(self._disk)
            except OSError as fault:
                raise read_error(fault, self._disk.folder) from fault

    def offset_at(self, time_us: int) -> int:
        """The first offset appended at or after a time; `end_offset` if there is none. Blocks."""
        end = self.end_offset
        disk = self._disk
        if disk is None:
            found = self.tail.offset_at(time_us)
            return end if found is None else max(found, self.start_offset)
        while True:
            before = disk.segments
            try:
                return max(find_time(disk, time_us, end), disk.start_offset)
            except FileNotFoundError as fault:
                if disk.deleted:
                    raise TopicDeletedError("The topic was deleted.") from None
                if disk.segments is before:
                    raise read_error(fault, disk.folder) from fault
            except OSError as fault:
                raise read_error(fault, disk.folder) from fault

    def append_time(self, offset: int, end: int) -> int | None:
        """When the record at an offset was appended; None if it is not on disk. Blocks."""
        if self._disk is None:
            return None
        try:
            return find_append_time(self._disk, offset, end)
        except FileNotFoundError:
            return None  # Retention, compaction or a deletion came between.
        except OSError as fault:
            raise read_error(fault, self._disk.folder) from fault

    def retain(self, now_us: int, visible_end: int | None = None) -> int:
        """Applies retention, in whole segments or pieces. Returns the number of deleted records.
        What is on disk past a visible end stays."""
        settings = self._settings
        before = self.start_offset
        age_us = settings.retention_seconds * _SECOND_US
        oldest_us = now_us - age_us if age_us else 0
        tail = self.tail
        if self._disk is None:
            if oldest_us:
                tail.drop_older(oldest_us)
            if settings.retention_bytes:
                tail.trim(settings.retention_bytes)
        elif self.failure is None:
            try:
                disk, end = self._disk, tail.end_offset
                visible = end if visible_end is None else visible_end
                disk.shared.reserve.spend(
                    lambda: disk.retain(oldest_us, settings.retention_bytes, end, visible)
                )
            except OSError as fault:
                if not is_full(fault):
                    self.refuse(fault)
            tail.drop_before(self._disk.start_offset)
        return self.start_offset - before

    def drop_before(self, offset: int) -> int:
        """Deletes whole sealed segments, or pieces, that end by `offset`; the records deleted."""
        before = self.start_offset
        if self._disk is not None and self.failure is None:
            try:
                self._disk.drop_before(offset)
            except OSError as fault:
                self.refuse(fault)
            offset = self._disk.start_offset
        self.tail.drop_before(offset)
        return self.start_offset - before

    def begin_segment(self) -> int:
        """Seals the active segment unless it is empty. Returns the first offset of the next
        segment. Raises the same errors as a write."""
        disk = self._disk
        if self.failure is not None:
            self._raise_failure(self.failure)
        if disk is not None and disk.position:
            try:
                disk.roll(self.end_offset)
            except OSError as fault:
                self.refuse(fault)
        return self.end_offset

    def seal_before(self, offset: int) -> int:
        """Seals the active segment if it has records before the offset. Where the log ends."""
        disk = self._disk
        if disk is not None and disk.segments and disk.segments[-1].base < offset:
            self.begin_segment()
        return self.end_offset

    def move_before(self, offset: int, folder: str) -> None:
        """Takes whole sealed segments that end by `offset` out of the log, and puts their files
        into a folder. Raises `OSError`."""
        if self._disk is not None:
            self._disk.move_before(offset, folder)
            self.tail.drop_before(self._disk.start_offset)

    def next_segment(self, offset: int) -> int:
        """First offset of the segment after the one with `offset`; the end of the log if there is
        none."""
        bases = () if self._disk is None else (segment.base for segment in self._disk.segments)
        return next((base for base in bases if base > offset), self.end_offset)

    def delete_before(self, offset: int) -> int:
        """Deletes the records before `offset`, which is not past the end; the log's new start.

        To readers it is exact. Files, or pieces, go as far as they are wholly before it.
        """
        save = self.begin_deletion(offset)
        if save is not None:
            try:
                save()
            except OSError as fault:
                self.refuse(fault)
        return self.end_deletion(offset)

    def begin_deletion(self, offset: int) -> Callable[[], None] | None:
        """The write that must precede the deletion of the records before `offset`, if any. It
        blocks and may run in any thread, one at a time; `end_deletion` follows."""
        if self.failure is not None:
            self._raise_failure(self.failure)
        if offset > self.end_offset:
            raise ValueError(f"The log ends at {self.end_offset}, before {offset}.")
        disk, end = self._disk, self.end_offset
        if disk is None or offset <= self.start_offset:
            return None
        try:
            disk.shared.reserve.spend(lambda: disk.prepare_deletion(offset, end))
        except OSError as fault:
            self.refuse(fault)
        return lambda: disk.shared.reserve.spend(lambda: disk.save_deletion(offset))

    def end_deletion(self, offset: int) -> int:
        """Lets the records before `offset` go; the log's new start."""
        if offset > self.start_offset:
            if self._disk is None:
                self._deleted_before = offset
            else:
                self._disk.end_deletion(offset)
            self.tail.drop_before(offset)
        return self.start_offset

    def compaction_due(self, visible_end: int, now_us: int) -> bool:
        """Whether a compaction run is worthwhile now."""
        disk = self._disk
        return disk is not None and self.failure is None and is_due(disk, visible_end, now_us)

    def compaction(
        self,
        visible_end: int,
        now_us: int,
        stopped: Callable[[], bool],
        *,
        everything: bool = False,
        limits: UnpackLimits = FORMAT_LIMITS,
        tombstones_end: int = sys.maxsize,
    ) -> Compaction | None:
        """A run over the sealed segments below the visible end; None for a log in memory. It
        unpacks no batch past the limits, and leaves tombstones from `tombstones_end` on.

        The active segment is sealed first if it holds enough, or if `everything` is wanted.
        """
        disk = self._disk
        if disk is None or self.failure is not None:
            return None
        enough = 1 if everything else self._settings.compact_after_bytes
        if disk.position >= enough:
            try:
                disk.roll(self.end_offset)
            except OSError as fault:
                self.refuse(fault)
        return Compaction(
            disk, visible_end, now_us, stopped, limits=limits, tombstones_end=tombstones_end
        )

    def when_proven(self, call: Callable[[Exception | None], None]) -> None:
        """Calls back when the producers before the active segment are durable, or with the error.
        Compaction must not start before that."""
        if self._disk is None:
            call(None)
        else:
            self._disk.when_proven(call)

    def track_unsynced(self) -> None:
        """Makes `sync` cover the whole log, also if its durability does not ask for it."""
        if self._disk is not None:
            self._disk.track_unsynced()

    @property
    def needs_sync(self) -> bool:
        """Whether recovery found data that may be only in the kernel's memory."""
        return self._disk is not None and self._disk.unsynced_folders

    def sync(self) -> None:
        """Makes everything appended so far durable. Blocks; raises `OSError`."""
        if self._disk is not None:
            self._disk.sync()

    def close(self) -> None:
        if self.failure is None:
            self.failure = ClosedError("The log is closed: the broker has stopped.")
        if self._disk is not None:
            self._disk.close()

    def refuse_all(self, deleted: TopicDeletedError) -> None:
        """Fails readers and writers with this error from now on; `abandon` follows soon."""
        self.failure = deleted
        if self._disk is not None:
            self._disk.deleted = True

    def abandon(self) -> None:
        """Fails readers and writers because the topic was deleted. The caller removes the files."""
        if not isinstance(self.failure, TopicDeletedError):
            self.failure = TopicDeletedError("The topic was deleted.")
        if self._disk is not None:
            self._disk.abandon()

    def forget_indexes(self) -> None:
        """Drops the cached indexes of an abandoned log. Any thread."""
        if self._disk is not None:
            self._disk.forget_indexes()

    def delete(self) -> None:
        """Deletes the log's files. Readers and writers get `TopicDeletedError`."""
        self.abandon()
        if self._disk is not None:
            self._disk.delete()

    def refuse(self, fault: OSError) -> NoReturn:
        """Turns a failed write into its error. A full disk, and a lack of descriptors or memory,
        may pass; every other fault is permanent."""
        disk = self._disk
        assert disk is not None
        error = write_error(fault, disk.folder)
        if is_full(fault):
            disk.shared.reserve.note_full()
        elif not is_temporary(fault):
            self.fail(error)
            self._raise_failure(error)
        raise error from fault

    def _raise_failure(self, failure: FanlogError) -> NoReturn:
        # A new one each time: an error that is raised again and again gathers tracebacks.
        raise type(failure)(str(failure))
