"""Compaction: the last record of each key stays in a log's sealed segments. A run works in a thread
on files that do not change, and never holds up a writer. It reads the keys of what is new since the
run before, then goes through the segments in their order and writes anew those that lose something;
small neighbours become one. A new file is durable before it takes the old one's place, and that is
durable before the next one is written: a tombstone never goes before what it deletes. Only the swap
itself belongs to the loop thread.

A record stays if it has no key, or if it is the last one of its key and no tombstone (a record
without a value) that is older than the topic's `tombstone_seconds`.

A batch that does not decode, whatever its producer put under its checksums, stays as it is. Nobody
can say whose records it holds: its keys take no other record's place, and tombstones behind it
stay.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress

from fanlog.errors import UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.codecs import FORMAT_LIMITS, UnpackLimits
from fanlog.format.columns import KEYS, VALUE_NULLS
from fanlog.format.keys import short_key
from fanlog.log.disk import DiskLog
from fanlog.log.faults import write_error
from fanlog.log.files import sync_file, sync_folder
from fanlog.log.lookup import quarantine
from fanlog.log.rewrite import Rewriter, Rewritten
from fanlog.log.scan import Damage, walk_file
from fanlog.log.segment import Segment, log_path, write_index
from fanlog.model import KIB, DamagedRange

logger = logging.getLogger("fanlog.log")

_SECOND_US = 1_000_000
_READ_BYTES = 256 * KIB
# About a millisecond's work between two pauses.
_PAUSE_BYTES = 16 * KIB
# A run reads the whole log, so the new part should be a fair share of it.
_CLEAN_PER_NEW_MAX = 4
# Number of such batches of one log that are reported.
_UNREADABLE_NOTED_MAX = 100


def is_due(disk: DiskLog, visible_end: int, now_us: int) -> bool:
    """Whether a run is worthwhile: enough is new, or tombstones have served their time."""
    settings, compacted = disk.settings, disk.compacted
    new, clean = disk.position, 0
    for segment in disk.segments[:-1]:
        if segment.next_offset <= compacted.until:
            clean += segment.bytes
        elif segment.next_offset <= visible_end:
            new += segment.bytes
    if new >= max(settings.compact_after_bytes, clean // _CLEAN_PER_NEW_MAX):
        return True
    grace_us = settings.tombstone_seconds * _SECOND_US
    return (
        0 < compacted.tombstone_us < now_us - grace_us
        # Where tombstones come all the time, those of a while go together.
        and compacted.ran_us <= now_us - grace_us // 2
    )


class Compaction:
    """One run over a log. `step` works in a thread until a file is ready, `swap` puts it in its
    place on the loop thread, and so on until `step` has nothing more.

    It is about the sealed segments before the offset `end`. Tombstones from `tombstones_end` on
    stay: somebody who copies the log has not had them. The thread calls `stopped` all the time: a
    run can end anywhere and lose nothing.
    """

    def __init__(
        self,
        disk: DiskLog,
        visible_end: int,
        now_us: int,
        stopped: Callable[[], bool],
        *,
        limits: UnpackLimits = FORMAT_LIMITS,
        tombstones_end: int = sys.maxsize,
    ) -> None:
        self._disk = disk
        self._tombstones_end = tombstones_end
        self._limits = limits
        self._visible_end = visible_end
        self._tombstones_before_us = now_us - disk.settings.tombstone_seconds * _SECOND_US
        self._stopped = stopped
        sealed = [s.next_offset for s in disk.segments[:-1] if s.next_offset <= visible_end]
        self.end = max(sealed, default=0)
        self._keys = _Keys(disk.shared.options.compaction_keys_max, self._is_readable)
        self._damaged = False
        self._oldest_tombstone_us = 0
        self._accepted = False
        self._unpaused_bytes = 0
        self._steps = self._run()
        self.now_us = now_us
        self.freed_bytes = 0
        self.removed_records = 0
        # Tombstones have gone before this offset, the next file's among them.
        self.tombstones_until = 0

    def step(self) -> Rewritten | None:
        """The next file that is ready; None at the end of the run. Blocks.

        Raises `OSError` if one can't be written, which does no harm, and `StorageError` if the
        log itself can't be synced.
        """
        try:
            return next(self._steps, None)
        except _StoppedError:
            return None
        except FileNotFoundError:
            # Retention, or the deletion of the topic, was faster.
            return None

    def swap(self, rewritten: Rewritten) -> None:
        """On the loop thread: readers find the new file from now on. Raises `OSError`, and then
        the run is over."""
        try:
            self._accepted = self._disk.swap(
                rewritten.sources, rewritten.made, rewritten.facts, rewritten.path
            )
        except BaseException:
            # Now, and not when the object is freed: its files may belong to another run then.
            self._steps.close()
            raise
        if self._accepted:
            before = sum(segment.bytes for segment in rewritten.sources)
            self.freed_bytes += before - rewritten.made.bytes

    # In the thread

    def _run(self) -> Generator[Rewritten, None, None]:
        disk = self._disk
        self._sync_sources()
        new_from = disk.compacted.until
        if disk.compacted.read_until < self._visible_end:
            disk.note_compacted(read_until=self._visible_end)
        while True:
            self._keys.read(self._batches(disk.segments, new_from), self._visible_end)
            self._oldest_tombstone_us = 0
            yield from self._rewrite_all()
            new_from = min(self._keys.end, self.end)
            # While a damaged batch stays, the tombstones after it stay too.
            tombstone_us = 0 if self._damaged else self._oldest_tombstone_us
            until = max(new_from, disk.compacted.until)
            disk.note_compacted(
                until=until,
                tombstone_us=tombstone_us,
                ran_us=self.now_us,
                read_until=self._visible_end,
            )
            if new_from >= self.end:
                return

    def _sync_sources(self) -> None:
        """Makes the replacement of an older record durable, so that no power cut can lose it."""
        disk = self._disk
        try:
            for segment in disk.segments:
                if segment.next_offset > disk.compacted.until:
                    sync_file(log_path(disk.folder, segment))
            sync_folder(disk.folder)
        except FileNotFoundError:
            raise
        except OSError as fault:
            # The kernel reports a lost write only once: this error must be acted on.
            raise write_error(fault, disk.folder) from fault

    def _rewrite_all(self) -> Iterator[Rewritten]:
        """Goes through the segments, in groups that become one file each."""
        disk = self._disk
        group: Rewriter | None = None
        try:
            for segment in disk.segments[:-1]:
                if segment.base >= min(self._keys.end, self.end):
                    break
                if group is not None and not self._fits(group, segment):
                    yield from self._finish(group)
                    group = None
                if group is None:
                    group = Rewriter(disk.folder, disk.shared.options.index_interval_bytes)
                if not self._rewrite(group, segment):
                    self._damaged = True
                    yield from self._finish(group)
                    group = None
            if group is not None:
                yield from self._finish(group)
                group = None
        finally:
            if group is not None:
                group.discard()

    def _fits(self, group: Rewriter, segment: Segment) -> bool:
        """Whether a segment may be merged with those before it. Not one with its own file of
        producers: that is found by the segment's name."""
        return (
            group.position + segment.bytes <= self._disk.segment_limit()
            and segment.base not in (self._disk.producers_base, self._disk.producers_due)
        )

    def _rewrite(self, group: Rewriter, segment: Segment) -> bool:
        """False if the segment is damaged: then it stays unchanged."""
        mark = group.begin(segment)
        for batch in self._batches((segment,), 0):
            if batch is None:
                group.forget(mark)
                return False
            group.take(batch, self._staying)
        return True

    def _finish(self, group: Rewriter) -> Iterator[Rewritten]:
        """Has a group's file swapped in; then, once that is durable, the old ones go."""
        rewritten = group.finish()
        if rewritten is None:
            return
        self._accepted = False
        try:
            yield rewritten
        finally:
            if not self._accepted:
                group.discard()
        if not self._accepted:
            raise _StoppedError
        disk = self._disk
        sync_folder(disk.folder)
        # An index is a shortcut: without it the file is read when it is first needed.
        with suppress(OSError):
            write_index(disk.folder, rewritten.made, rewritten.facts)
        if not disk.shared.removals.wait(self._stopped):
            # The next start removes them: the new file has the higher generation.
            return
        for segment in rewritten.sources:
            disk.remove_files(segment)

    def _batches(self, segments: Sequence[Segment], from_offset: int) -> Iterator[Batch | None]:
        """The batches from an offset on, below the visible end; None for a damaged stretch."""
        disk = self._disk
        for segment in segments:
            stop = min(segment.next_offset, self._visible_end)
            if stop <= from_offset or stop <= segment.base:
                continue
            fd = os.open(log_path(disk.folder, segment), os.O_RDONLY)
            try:
                for part in walk_file(
                    fd,
                    disk.owner,
                    at=0,
                    expected=segment.base,
                    stop=stop,
                    limit=os.fstat(fd).st_size,
                    chunk_bytes=_READ_BYTES,
                ):
                    if isinstance(part, Damage):
                        quarantine(disk, segment, part, stop)
                        yield None
                        continue
                    view = memoryview(part.data)
                    at = 0
                    for found in part.batches:
                        end = at + found.length
                        if found.base_offset + found.span > from_offset:
                            self._worked(found.length)
                            yield Batch(view[at:end], limits=self._limits)
                        at = end
            finally:
                os.close(fd)

    def _worked(self, size: int) -> None:
        """Releases the interpreter now and then: the loop comes first."""
        self._unpaused_bytes += size
        if self._unpaused_bytes < _PAUSE_BYTES:
            return
        self._unpaused_bytes = 0
        if self._stopped():
            raise _StoppedError
        time.sleep(0)

    def _is_readable(self, batch: Batch) -> bool:
        """Whether a batch decodes. One that does not is recorded, and logged the first time."""
        try:
            batch.check()
        except UnreadableError as fault:
            self._note(fault)
            return False
        return True

    def _note(self, fault: UnreadableError) -> None:
        self._disk.shared.troubled.add(self._disk.owner)
        known = self._disk.unreadable
        if fault.first in known or len(known) >= _UNREADABLE_NOTED_MAX:
            return
        known[fault.first] = DamagedRange(fault.first, fault.next, reason=str(fault))
        self._disk.shared.troubled.add(self._disk.owner)
        logger.warning(
            "compaction of %s leaves a batch as it is, and all tombstones behind it: %s",
            self._disk.folder,
            fault,
        )

    def _staying(self, batch: Batch) -> list[int] | None:
        """The indexes of a batch's records that stay; None for all of them. Raises
        `UnreadableError` if it does not decode."""
        try:
            batch.check()
        except UnreadableError:
            self._damaged = True
            raise
        stay = self._keys.staying(batch)
        if batch.header.flags & VALUE_NULLS:
            stay = self._without_old_tombstones(batch, stay)
        if len(stay) == len(batch):
            return None
        self.removed_records += len(batch) - len(stay)
        return stay

    def _without_old_tombstones(self, batch: Batch, stay: list[int]) -> list[int]:
        columns, time_us = batch.columns, batch.append_time_us
        keys, values = columns.key_column, columns.value_column
        if keys is None:
            return stay
        tombstones = {i for i in stay if values.is_null(i) and not keys.is_null(i)}
        # All older records of its key have gone before, unless something damaged had to stay, or
        # its keys are yet to be read.
        end = min(self._keys.end, self._tombstones_end)
        may_go = not self._damaged and batch.next_offset <= end
        if may_go and time_us < self._tombstones_before_us:
            if tombstones:
                self.tombstones_until = max(self.tombstones_until, batch.next_offset)
            return [i for i in stay if i not in tombstones]
        if tombstones and not self._oldest_tombstone_us:
            self._oldest_tombstone_us = time_us
        return stay


class _Keys:
    """The last offset of each key in a stretch of the log that ends with `end`."""

    def __init__(self, keys_max: int, is_readable: Callable[[Batch], bool]) -> None:
        self._keys_max = keys_max
        self._is_readable = is_readable
        self._last: dict[bytes | None, int] = {}
        self.end = 0

    def read(self, batches: Iterator[Batch | None], end: int) -> None:
        """Takes keys in until there are too many, which ends the stretch, or to its end."""
        last: dict[bytes | None, int] = {}
        self._last = last
        for batch in batches:
            if batch is None or not self._is_readable(batch) or not batch.header.flags & KEYS:
                continue
            last.update(zip(_held(batch), batch.offsets, strict=True))
            if len(last) >= self._keys_max:
                self.end = batch.next_offset
                return
        self.end = end

    def staying(self, batch: Batch) -> list[int]:
        """The indexes of the records that have no key, or no later record of theirs here."""
        everything = range(len(batch))
        if not batch.header.flags & KEYS:
            return list(everything)
        last = self._last
        last.pop(None, None)
        return [
            i
            for i, key, offset in zip(everything, _held(batch), batch.offsets, strict=True)
            if last.get(key, offset) <= offset
        ]


def _held(batch: Batch) -> list[bytes | None]:
    """A batch's keys as they are held in memory."""
    return [None if key is None else short_key(key) for key in batch.keys]


class _StoppedError(Exception):
    """The run has to end here."""
