"""A partition's files, seen by the one thread that writes them.

The list of segments is a tuple that is replaced, never changed: a reader in another thread works
on the one it took. A write either happens or leaves everything as it was. `OSError` goes up as
it is; `partition.py` makes an error with a sentence of it.

It is long because rolling, deletion, cutting and compaction all replace the same list of
segments.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Lock

from fanlog.config import LogOptions
from fanlog.errors import FanlogError, TopicDeletedError
from fanlog.log import posix
from fanlog.log.background import BackgroundWork, InlineWork, Removals
from fanlog.log.damage import Quarantine, damaged_error
from fanlog.log.epochs import Epochs, since
from fanlog.log.faults import is_full
from fanlog.log.files import FdPool, remove_if_there, sync_file, sync_folder, write_all
from fanlog.log.index import Index, IndexCache, SealedIndex
from fanlog.log.partition_notes import Compacted, save_compacted, save_ranked, save_start
from fanlog.log.producers import ProducerHistory, write_producers
from fanlog.log.reserve import Reserve
from fanlog.log.scan import Owner
from fanlog.log.segment import (
    Segment,
    index_path,
    load_index,
    log_path,
    plain_path,
    producers_path,
    write_index,
)
from fanlog.log.tail import Piece
from fanlog.model import KIB, DamagedRange, TopicSettings

logger = logging.getLogger("fanlog.log")

_NO_PREALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
Proven = Callable[[Exception | None], None]

_SEGMENT_BYTES_MIN = 64 * KIB
# A small retention_bytes is kept by small segments: a file is only ever deleted whole.
_SEGMENTS_PER_RETENTION = 4


class LogResources:
    """Resources that all logs of a store share."""

    __slots__ = (
        "background",
        "damaged_error",
        "indexes",
        "noting",
        "options",
        "pool",
        "problems",
        "removals",
        "reserve",
        "start_moved",
        "syncing",
        "troubled",
    )

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self.pool = FdPool(options.open_segments_max)
        self.indexes = IndexCache(options.index_cache_bytes)
        self.syncing = Lock()
        # Held while a note of compaction changes.
        self.noting = Lock()
        # Runs slow work.
        self.background: BackgroundWork = InlineWork()
        self.removals = Removals()
        self.reserve = Reserve()
        # Logs that have, or had, a failure, damage, or batches that do not decode. This list saves
        # asking every log.
        self.troubled: set[Owner] = set()
        # What readers of damage get.
        self.damaged_error: Callable[[DamagedRange], FanlogError] = damaged_error
        # Problems with the data folder that the start found, for users.
        self.problems: list[str] = []
        # Called when a log has lost its oldest records: with its new start.
        self.start_moved: Callable[[Owner, int], None] = _nothing

    def for_opening(self) -> LogResources:
        """A copy for a thread that opens logs: with its own descriptors and syncs."""
        own = LogResources(self.options)
        own.indexes, own.removals = self.indexes, self.removals
        own.problems, own.troubled, own.reserve = self.problems, self.troubled, self.reserve
        own.start_moved, own.damaged_error = self.start_moved, self.damaged_error
        return own

    def report(self, problem: str) -> None:
        """Records a problem that the start found: in the log file, and for `health`."""
        logger.error("%s", problem)
        self.problems.append(problem)


class DiskLog:
    """The segments of one partition, and the position of the next piece. It has many fields,
    because the active segment is open here, so that an append takes no further object."""

    __slots__ = (
        "allocated",
        "closed",
        "compacted",
        "deleted",
        "deleted_before",
        "epochs",
        "fd",
        "fd_used",
        "folder",
        "index_at",
        "last_time_us",
        "owner",
        "position",
        "producers",
        "producers_base",
        "producers_due",
        "proven",
        "quarantine",
        "ranked",
        "sealed_bytes",
        "segments",
        "settings",
        "shared",
        "to_delete",
        "tracks_unsynced",
        "unreadable",
        "unsynced",
        "unsynced_folders",
    )

    def __init__(
        self, folder: str, owner: Owner, settings: TopicSettings, shared: LogResources
    ) -> None:
        self.folder = folder
        self.owner = owner
        self.settings = settings
        self.shared = shared
        self.quarantine = Quarantine(folder, owner, shared.troubled)
        self.segments: tuple[Segment, ...] = ()
        self.sealed_bytes = 0
        # Records before this offset were deleted, even where their segment is still there.
        self.deleted_before = 0
        self.compacted = Compacted()
        # Whether it is recorded on disk that some batches have a priority.
        self.ranked = False
        # The broker starts (epochs) that wrote the log.
        self.epochs: Epochs = ()
        # Batches that compaction could not decode, by their first offsets.
        self.unreadable: dict[int, DamagedRange] = {}
        self.position = 0
        self.allocated = 0
        self.index_at = 0
        self.last_time_us = 0
        self.fd = -1
        self.fd_used = False
        self.closed = self.deleted = False
        self.tracks_unsynced = settings.durability == "fsync"
        self.unsynced: list[int] = []
        self.unsynced_folders = False
        self.producers: Callable[[], Iterable[ProducerHistory]] | None = None
        # The segment with a durable file of producers, and the one whose file is being written. -1
        # for none.
        self.producers_base = -1
        self.producers_due = -1
        # Segments that were dropped from the list, but still have files.
        self.to_delete: tuple[Segment, ...] = ()
        # Callbacks that wait for the file of producers of the active segment.
        self.proven: list[Proven] = []

    @property
    def start_offset(self) -> int:
        segments = self.segments
        return max(segments[0].base, self.deleted_before) if segments else self.deleted_before

    @property
    def bytes(self) -> int:
        return self.sealed_bytes + self.position

    @property
    def fd_path(self) -> str:
        return log_path(self.folder, self.segments[-1])

    def write(self, piece: Piece, base: int, first_time_us: int, last_time_us: int) -> None:
        """Appends a piece that begins with offset `base`."""
        size = len(piece)
        at = self.position
        if at + size > self.allocated:
            self._make_room(size, base)
            at = self.position
        fd = self.fd
        if fd < 0:
            fd = self.shared.pool.open(self)
        self.fd_used = True
        written = os.pwrite(fd, piece, at)
        if written != size:
            write_all(fd, memoryview(piece)[written:], at + written)
        if at >= self.index_at:
            index = self.segments[-1].index
            assert index is not None
            index.add(base, at, first_time_us)
            self.index_at = at + self.shared.options.index_interval_bytes
        self.position = at + size
        self.last_time_us = last_time_us

    def roll(self, base: int, first_bytes: int = 0) -> None:
        """Begins a new segment at offset `base`, with room for `first_bytes`."""
        path = plain_path(self.folder, base)
        if not self.segments:
            os.makedirs(self.folder, exist_ok=True)
            self.unsynced_folders = True
        fd = self.shared.pool.create(path)
        try:
            # Without a first piece not even a full disk is in the way.
            allocated = self._allocate(fd, 0, first_bytes) if first_bytes else 0
        except OSError:
            os.close(fd)
            remove_if_there(path)
            raise
        sealed = self._sealed(base)
        self.shared.pool.close(self)
        self.segments = (*sealed, Segment(base, index=Index()))
        self.shared.pool.adopt(self, fd)
        self.position = 0
        self.allocated = allocated
        self.index_at = 0
        self.save_producers()

    def note_compacted(self, **changes: int) -> None:
        """Changes these fields of `compacted`, durably. Blocks; any thread."""
        with self.shared.noting:
            changed = self.compacted._replace(**changes)
            save_compacted(self.folder, changed)
            self.compacted = changed

    def note_thinned(self, until: int) -> None:
        """Compacted batches up to an offset are about to be copied into this log. Durable before
        them: who follows this copy later may have a value and no tombstone."""
        if until <= self.compacted.thinned_until:
            return
        if not self.segments:
            os.makedirs(self.folder, exist_ok=True)
            self.unsynced_folders = True
        self.note_compacted(thinned_until=until)

    def restart_at(self, offset: int) -> None:
        """Skips to `offset`, durably, and deletes everything before it. After a crash in between,
        `start.json` hides what is left."""
        os.makedirs(self.folder, exist_ok=True)
        save_start(self.folder, offset)
        self.unsynced_folders = True
        self._keep_folders()
        self.deleted_before = offset
        self.epochs = ()
        if self.position or not self.segments or self.segments[-1].base != offset:
            self.roll(offset)
        self.drop_before(offset)

    def mark_ranked(self, *, at_once: bool) -> bool:
        """Writes down that some batches have a priority. Without it, queues that begin after the
        next start hand them out in the order of the log."""
        if self.ranked or self.deleted:
            return True
        if not self.segments:
            return False
        self.ranked = True
        folder = self.folder
        background = InlineWork() if at_once else self.shared.background
        background.in_background(lambda: save_ranked(folder), self._marked)
        return True

    def _marked(self, fault: Exception | None) -> None:
        if fault is not None and not self.deleted:
            logger.warning(
                "The note that %s has priorities could not be written: %s", self.folder, fault
            )

    def save_producers(self) -> None:
        """Starts to save the producers before the active segment, unless they are saved. There may
        be thousands: they are collected in slices, and a thread writes them."""
        base = self.segments[-1].base
        if base and self.producers_base != base and self.producers_due < 0:
            self.producers_due = base
            self.shared.background.in_slices(self._saving(base))

    def _saving(self, base: int) -> Iterator[None]:
        # Meanwhile there is more of all of it, at offsets past the base: that is left out.
        epochs = self.epochs
        known: list[ProducerHistory] = []
        for history in () if self.producers is None else self.producers():
            known.append(history)
            yield
        path = producers_path(self.folder, base)
        self.shared.background.in_background(
            lambda: write_producers(path, base, known, epochs, self.shared.reserve),
            lambda fault: self._saved(base, fault),
        )

    def _saved(self, base: int, fault: Exception | None) -> None:
        if self.closed:
            return
        if self.deleted or base <= self.producers_base:
            self._remove_outdated(base)
            return
        self.producers_due = -1
        if fault is not None:
            # The one before is still there, and so are the batches: a start can read both.
            logger.warning("The producers of %s could not be saved: %s", self.folder, fault)
            self._tell_proven(fault)
            return
        before, self.producers_base = self.producers_base, base
        if before >= 0:
            old = producers_path(self.folder, before)
            self.shared.removals.add(lambda: remove_if_there(old))
        self._delete_segments()
        if base == self.segments[-1].base:
            self._tell_proven(None)
        # Another segment may have begun meanwhile.
        self.save_producers()

    def _remove_outdated(self, base: int) -> None:
        """Removes a file of producers that was written late."""
        if base < self.producers_base:
            outdated = producers_path(self.folder, base)
            self.shared.removals.add(lambda: remove_if_there(outdated))

    def renew_producers(self) -> None:
        """Saves the producers before the active segment again: they have been replaced. Raises
        `OSError` if they can't be saved."""
        base = self.segments[-1].base
        # What is under way for an earlier segment ends in an older file.
        self.producers_base = self.producers_due = -1
        self.save_producers()
        if self.producers_base != base:
            raise OSError(errno.EIO, "The producers could not be saved", self.folder)

    def when_proven(self, call: Proven) -> None:
        """Calls back when the producers before the active segment are durable, or with the error.
        After that, the batches before it are not needed to recover producers."""
        if not self.segments or self.segments[-1].base in (0, self.producers_base):
            call(None)
            return
        self.proven.append(call)
        self.save_producers()

    def _tell_proven(self, fault: Exception | None) -> None:
        calls, self.proven = self.proven, []
        for call in calls:
            call(fault)

    def _sealed(self, next_offset: int) -> tuple[Segment, ...]:
        """The segments with the active one sealed, or left out when it is empty."""
        if not self.segments:
            return ()
        *others, active = self.segments
        if not self.position:
            # An empty one is only in the list when offsets were skipped past it.
            remove_if_there(log_path(self.folder, active))
            if others and others[-1].next_offset < next_offset:
                # The offsets between them are missing, and readers must see that.
                others[-1] = others[-1].reaching(next_offset)
            return tuple(others)
        assert active.index is not None
        facts = SealedIndex(
            active.index, active.base, next_offset, self.last_time_us, self.position
        )
        path = log_path(self.folder, active)
        try:
            os.truncate(path, self.position)
            write_index(self.folder, active, facts)
        except OSError as fault:
            # Both are comforts: a reader stops at the end offset, and an index can be rebuilt.
            logger.warning("The segment %s could not be sealed: %s", path, fault)
        self.shared.indexes.put(path, facts)
        if self.tracks_unsynced:
            self.unsynced.append(active.base)
        self.sealed_bytes += self.position
        segment = Segment(
            active.base,
            next_offset=next_offset,
            bytes=self.position,
            last_time_us=self.last_time_us,
        )
        return (*others, segment)

    def _make_room(self, size: int, base: int) -> None:
        if not self.segments or (self.position and self.position + size > self.segment_limit()):
            self.roll(base, size)
            return
        if self.fd < 0:
            self.shared.pool.open(self)
        self.allocated = self._allocate(self.fd, self.allocated, self.position + size)

    def segment_limit(self) -> int:
        """How large a segment of several pieces may become."""
        settings = self.settings
        limit = settings.segment_bytes
        if settings.retention_bytes:
            share = settings.retention_bytes // _SEGMENTS_PER_RETENTION
            limit = min(limit, max(_SEGMENT_BYTES_MIN, share))
        return limit

    def _allocate(self, fd: int, allocated: int, needed: int) -> int:
        """Grows the file by doubling until `needed` bytes fit; its new size."""
        target = self.shared.options.segment_first_bytes
        while target < needed:
            target *= 2
        target = max(needed, min(target, self.segment_limit()))
        try:
            posix.allocate(fd, allocated, target - allocated)
        except OSError as fault:
            if is_full(fault) and allocated < needed < target:
                posix.allocate(fd, allocated, needed - allocated)
                return needed
            if fault.errno not in _NO_PREALLOCATION:
                raise
        return target

    def sealed_index(self, segment: Segment) -> SealedIndex:
        """A sealed segment's index, from memory, its file, or a scan. Blocks; any thread."""
        path = log_path(self.folder, segment)
        sealed = self.shared.indexes.get(path)
        if sealed is None:
            interval_bytes = self.shared.options.index_interval_bytes
            sealed = load_index(self.folder, segment, self.owner, interval_bytes)
            self.shared.indexes.put(path, sealed)
        segment.last_time_us = sealed.last_time_us
        return sealed

    def last_time_of(self, segment: Segment) -> int:
        """When a sealed segment got its last batch."""
        known = segment.last_time_us
        return self.sealed_index(segment).last_time_us if known is None else known

    def retain(self, oldest_us: int, bytes_max: int, end_offset: int, visible_end: int) -> None:
        """Deletes sealed segments: by age when `oldest_us` is given, by size past `bytes_max`.
        Those that reach past the visible end stay."""
        if not self.segments:
            return
        if self.to_delete:
            # Maybe there was no room for the file of producers that they wait for.
            self.save_producers()
        self._drop_sealed(oldest_us, bytes_max, visible_end)
        if oldest_us and self.position and self.last_time_us < oldest_us:
            self.roll(end_offset)
            self._drop_sealed(oldest_us, bytes_max, visible_end)

    def _drop_sealed(self, oldest_us: int, bytes_max: int, visible_end: int) -> None:
        count = 0
        kept = self.bytes
        for segment in self.segments[:-1]:
            if segment.next_offset > visible_end:
                break
            too_old = oldest_us and self.last_time_of(segment) < oldest_us
            if not too_old and not (bytes_max and self._too_much(segment, kept, bytes_max)):
                break
            kept -= segment.bytes
            count += 1
        if count:
            self._drop_first(count)

    def _too_much(self, segment: Segment, kept: int, bytes_max: int) -> bool:
        """Whether retention by size deletes the oldest segment. A segment written before
        `retention_bytes` was reduced may be a large part of the log: it stays until others are
        there."""
        if kept <= bytes_max:
            return False
        share = bytes_max // _SEGMENTS_PER_RETENTION
        return segment.bytes <= self.segment_limit() or kept - segment.bytes >= bytes_max - share

    def drop_before(self, offset: int) -> None:
        """Deletes the sealed segments that end by `offset`."""
        count = sum(segment.next_offset <= offset for segment in self.segments[:-1])
        if count:
            self._drop_first(count)

    def move_before(self, offset: int, folder: str) -> None:
        """Takes the sealed segments that end by `offset` out of the log, and their files into a
        folder."""
        count = sum(segment.next_offset <= offset for segment in self.segments[:-1])
        gone, self.segments = self.segments[:count], self.segments[count:]
        self.sealed_bytes -= sum(segment.bytes for segment in gone)
        for segment in gone:
            for path in (log_path(self.folder, segment), index_path(self.folder, segment)):
                with suppress(FileNotFoundError):
                    os.rename(path, f"{folder}/{os.path.basename(path)}")
            self.shared.indexes.forget(log_path(self.folder, segment))
        self.quarantine.drop_before(self.start_offset)
        self.save_producers()
        self.shared.start_moved(self.owner, self.start_offset)

    def prepare_deletion(self, offset: int, end_offset: int) -> None:
        """Before records are deleted exactly up to `offset`: seals the active segment, if it goes
        as a whole."""
        if offset == end_offset and self.position:
            self.roll(end_offset)

    def save_deletion(self, offset: int) -> None:
        """Writes down, durably, that the log begins at `offset`. Blocks; any thread."""
        save_start(self.folder, offset)
        self._keep_folders()

    def end_deletion(self, offset: int) -> None:
        """Lets the records before `offset` go: files as far as they are wholly before it."""
        self.deleted_before = offset
        self.drop_before(offset)
        self.epochs = since(self.epochs, self.start_offset)
        self.quarantine.drop_before(offset)
        self.shared.start_moved(self.owner, offset)

    def swap(self, gone: tuple[Segment, ...], made: Segment, facts: SealedIndex, path: str) -> bool:
        """Replaces segments with a compacted one, whose file is at `path`.

        False if some of the old segments are gone. The caller removes the old files when the new
        name is durable.
        """
        segments = self.segments
        first = next((i for i, segment in enumerate(segments) if segment is gone[0]), -1)
        end = first + len(gone)
        if self.deleted or first < 0 or segments[first:end] != gone:
            return False
        if gone[-1].next_offset > self.producers_base:
            # The old files prove the producers; the compacted file does not.
            return False
        new_path = log_path(self.folder, made)
        os.rename(path, new_path)
        self.shared.indexes.put(new_path, facts)
        self.segments = (*segments[:first], made, *segments[end:])
        self.sealed_bytes += made.bytes - sum(segment.bytes for segment in gone)
        return True

    def remove_files(self, segment: Segment) -> None:
        """Deletes the files of a segment that is no longer in the list. Any thread."""
        path = log_path(self.folder, segment)
        remove_if_there(path)
        remove_if_there(index_path(self.folder, segment))
        self.shared.indexes.forget(path)

    def _drop_first(self, count: int) -> None:
        gone = self.segments[:count]
        # First the list, then the files, oldest first: a crash must not leave a gap.
        self.segments = self.segments[count:]
        self.sealed_bytes -= sum(segment.bytes for segment in gone)
        self.quarantine.drop_before(self.start_offset)
        self.epochs = since(self.epochs, self.start_offset)
        self.to_delete += gone
        self.save_producers()
        self._delete_segments()
        self.shared.start_moved(self.owner, self.start_offset)

    def _delete_segments(self) -> None:
        """Deletes the files of dropped segments when their producers are durable."""
        count = sum(segment.next_offset <= self.producers_base for segment in self.to_delete)
        if count:
            gone, self.to_delete = self.to_delete[:count], self.to_delete[count:]
            self.shared.removals.add(lambda: self._remove(gone))

    def _remove(self, gone: tuple[Segment, ...]) -> None:
        """Deletes the files of segments that are no longer in the list. Any thread."""
        if self.deleted:
            return
        # The names that keep the offsets going must outlive the files that go.
        with suppress(FileNotFoundError):
            sync_folder(self.folder)
        for segment in gone:
            self.remove_files(segment)

    def join(self, shared: LogResources) -> None:
        """Shares with all other logs from now on. A log is opened apart from them."""
        self.close()
        self.closed = False
        self.shared = shared

    def track_unsynced(self) -> None:
        """From now on `sync` covers sealed segments too; the existing ones count as unsynced. A log
        with durability fsync does this from the start."""
        if not self.tracks_unsynced:
            self.tracks_unsynced = True
            self.unsynced = [segment.base for segment in self.segments[:-1]]
            self.unsynced_folders = True

    def note_unsynced(self, synced_end: int | None, end_offset: int) -> None:
        """Data past `synced_end` may be only in the kernel's memory, and readers see it from now
        on: the next sync includes it. None means all of the log."""
        if not self.segments or synced_end == end_offset:
            self.unsynced = []
            self.unsynced_folders = False
            return
        self.unsynced = [s.base for s in self.segments[:-1] if s.next_offset > (synced_end or 0)]
        self.unsynced_folders = True

    def sync(self) -> None:
        """Makes everything written before the call durable. For a log that does not
        `track_unsynced`, only the active segment. Blocks; any thread."""
        # One at a time: a segment that another thread took off the list is durable only when that
        # thread ends.
        with self.shared.syncing:
            self._sync()

    def _sync(self) -> None:
        segments = self.segments
        # Also a segment that is being deleted: a crash may bring it back whole.
        if not segments:
            return
        # The active one is looked up first: if it is sealed meanwhile, it is still in the list.
        unsynced = list(self.unsynced)
        bases = [segments[-1].base, *unsynced]
        folders = [self.folder, *self._folders_above()]
        for base in bases:
            # Deleted meanwhile by retention or with its topic: nothing to keep. Or compacted: its
            # replacement is durable.
            with suppress(FileNotFoundError):
                sync_file(plain_path(self.folder, base))
        for folder in folders:
            with suppress(FileNotFoundError):
                sync_folder(folder)
        # Only now: a retry after a fault has to sync them all. The loop thread may have added
        # others at the end meanwhile.
        del self.unsynced[: len(unsynced)]
        self.unsynced_folders = False

    def _folders_above(self) -> list[str]:
        """The folders above the log in which a new name may not be durable: the topic's folder, and
        the folder of all topics."""
        topic = os.path.dirname(self.folder)
        return [topic, os.path.dirname(topic)] if self.unsynced_folders else []

    def _keep_folders(self) -> None:
        """A file that is durable in a folder that is not goes with the folder."""
        for folder in self._folders_above():
            with suppress(FileNotFoundError):
                sync_folder(folder)

    def close(self) -> None:
        if self.producers_due >= 0 and not self.deleted:
            # The work did not start, or its callback may come when the folder is another's.
            due, self.producers_due = self.producers_due, -1
            self.save_producers()
            self._remove_outdated(due)
        self.closed = True
        self.shared.pool.close(self)

    def abandon(self) -> None:
        """Closes the files. The log gets no writes and no reads after this."""
        self.deleted = True
        self.close()
        self._tell_proven(TopicDeletedError("The topic was deleted."))

    def forget_indexes(self) -> None:
        """Drops the cached indexes of a deleted log. Any thread."""
        for segment in self.segments:
            self.shared.indexes.forget(log_path(self.folder, segment))

    def delete(self) -> None:
        """Removes every file of the log, and its folder."""
        self.abandon()
        self.shared.removals.add(self._remove_all)

    def _remove_all(self) -> None:
        self.forget_indexes()
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
                remove_if_there(f"{self.folder}/{name}")
            os.rmdir(self.folder)


def _nothing(owner: Owner, start: int) -> None:
    del owner, start
