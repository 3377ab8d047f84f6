"""The journal: one file to sync for all topics with durability fsync.

Two files in `<data>/journal/` take turns. Each is filled with zeros before use, so that fdatasync
has no metadata to write. A file is used again only after a checkpoint: every log with a piece in it
was synced itself, and `synced_ends.py` has recorded how far. `journal_file.py` describes the
contents.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from threading import Thread

from fanlog.log import posix
from fanlog.log.faults import is_full, is_temporary
from fanlog.log.files import SyncError, sync_folder, write_all
from fanlog.log.journal_file import (
    HEADER_BYTES,
    NAMES,
    SyncMark,
    encode_marks,
    group_header,
    retire_journal,
)
from fanlog.log.partition import PartitionLog
from fanlog.log.retrying import Retry
from fanlog.log.synced_ends import SyncedEnds
from fanlog.log.tail import Piece
from fanlog.model import MIB

logger = logging.getLogger("fanlog.log")

Sync = Callable[[int], None]

# A file starts at this size and doubles: one quiet topic should not cost as much as a busy broker.
_FIRST_BYTES = 1 * MIB
# Pieces are joined into groups of about this size: one write and one checksum for many.
_GROUP_BYTES = 4 * MIB
# Marks in one group at most: such a group fits the smallest file.
_MARKS_MAX = 128
_ZEROS = bytes(1 * MIB)


class _JournalFile:
    __slots__ = ("fd", "size")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.size = os.fstat(self.fd).st_size

    def grow(self, size: int) -> None:
        """Writes zeros up to `size` and makes them, and the size itself, durable."""
        at = self.size
        while at < size:
            step = memoryview(_ZEROS)[: size - at]
            write_all(self.fd, step, at)
            at += len(step)
        posix.sync_file(self.fd)
        self.size = max(self.size, size)


class Journal:
    """Where pieces are made durable. After the constructor it belongs to the sync thread."""

    def __init__(self, folder: str, bytes_max: int, epoch: int, ends: SyncedEnds) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.ends = ends
        # Set when a sync failed: the next start has to replay the journal.
        self.failed = False
        self.generation = epoch << 32 | 1
        os.makedirs(folder, exist_ok=True)
        self._files: list[_JournalFile] = []
        self._current = 0
        self._position = 0
        self._synced = 0
        # Logs that have pieces in the current file, in an order that repeats.
        self._touched: dict[PartitionLog, None] = {}
        self._checkpoint: Thread | None = None
        self._checkpoint_fault: Exception | None = None
        self.retry = Retry()
        try:
            for name in NAMES:
                file = _JournalFile(f"{folder}/{name}")
                self._files.append(file)
                if file.size < (first_bytes := min(_FIRST_BYTES, bytes_max)):
                    file.grow(first_bytes)
            sync_folder(folder)
            sync_folder(os.path.dirname(folder))
        except OSError:
            self._close_files()
            raise

    def make_durable(self, entries: Sequence[tuple[PartitionLog, Piece]], sync: Sync) -> None:
        """Writes pieces and returns when all of them are durable. Blocks, also while the system is
        out of descriptors or memory. Raises `OSError`; the journal is unusable after that.

        An empty piece waits for those before it: of a repeated batch nothing is stored again.
        Retries write to the same position: a piece must not be in the journal twice.
        """
        logs: list[PartitionLog] = []
        pieces: list[Piece] = []
        size = 0
        for log, piece in entries:
            if not piece:
                continue
            if pieces and size + len(piece) > _GROUP_BYTES:
                self._write(logs, pieces, size, sync)
                logs, pieces, size = [], [], 0
            logs.append(log)
            pieces.append(piece)
            size += len(piece)
        if pieces:
            self._write(logs, pieces, size, sync)
        self._sync_file(sync)

    def adopt(self, logs: Iterable[PartitionLog], sync: Sync) -> None:
        """Syncs the files of logs that had no pieces here so far, and notes how far they are
        synced; that is durable with the next `make_durable`. Blocks, and raises `OSError`."""
        self._bypass(dict.fromkeys(logs), sync)

    def _write(self, logs: list[PartitionLog], pieces: list[Piece], size: int, sync: Sync) -> None:
        needed = HEADER_BYTES + size
        if not self._has_room(needed, sync):
            if needed <= self.bytes_max:
                self._switch(sync)
            if not self._has_room(needed, sync):
                self._bypass(dict.fromkeys(logs), sync)
                return
        self._write_group(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self._touched.update(dict.fromkeys(logs))

    def _bypass(self, logs: dict[PartitionLog, None], sync: Sync) -> None:
        """For pieces larger than a whole file, or when there is no disk space for one: syncs the
        logs' own files instead, and records in the journal that they were synced."""
        marks = self._sync_logs(logs)
        for i in range(0, len(marks), _MARKS_MAX):
            group = encode_marks(marks[i : i + _MARKS_MAX])
            if not self._has_room(HEADER_BYTES + len(group), sync):
                self._switch(sync)
            self._write_group(group, is_marks=True)
        self._touched.update(logs)

    def _write_group(self, body: Piece, *, is_marks: bool = False) -> None:
        self.retry.until_done(lambda: self._write_at_position(body, is_marks), "The journal")
        self._position += HEADER_BYTES + len(body)

    def _write_at_position(self, body: Piece, is_marks: bool) -> None:
        fd = self._files[self._current].fd
        header = group_header(self.generation, body, synced=self._synced, is_marks=is_marks)
        written = os.pwritev(fd, (header, body), self._position)
        if written < len(header) + len(body):
            write_all(fd, (header + body)[written:], self._position + written)

    def _sync_file(self, sync: Sync) -> None:
        try:
            sync(self._files[self._current].fd)
        except OSError as fault:
            raise SyncError(fault.errno, fault.strerror) from fault
        self._synced = self._position

    def _sync_logs(self, logs: Iterable[PartitionLog]) -> list[SyncMark]:
        """Syncs logs; how far each of them is safe now at least."""
        marks: list[SyncMark] = []
        for log in logs:
            # Read before the sync: data that arrives meanwhile may miss it.
            marks.append(SyncMark(log.owner, log.end_offset))
            self.retry.until_done(log.sync, "A log's sync")
        return marks

    def _has_room(self, needed: int, sync: Sync) -> bool:
        """Whether `needed` bytes fit into the current file. It grows if it may.

        Data already in the file is synced first, so that a failure can only be about the growth.
        """
        file = self._files[self._current]
        end = self._position + needed
        if end <= file.size:
            return True
        if end > self.bytes_max:
            return False
        size = max(file.size, 1)
        while size < end:
            size *= 2
        if self._position:
            self._sync_file(sync)
        try:
            file.grow(min(size, self.bytes_max))
        except OSError as fault:
            if not is_full(fault) and not is_temporary(fault):
                raise
            return False
        return True

    def _switch(self, sync: Sync) -> None:
        """Switches to the other file, and has the logs of this one synced meanwhile."""
        if not self._position:
            return
        self._sync_file(sync)
        # The other file's logs: usually synced long ago.
        self._await_checkpoint()
        logs, self._touched = self._touched, {}
        generation = self.generation + 1
        self._checkpoint = Thread(
            target=self._make_checkpoint,
            args=(logs, generation),
            name="fanlog-checkpoint",
            daemon=True,
        )
        try:
            self._checkpoint.start()
        except RuntimeError:
            # No thread for it now: then everybody waits.
            self._checkpoint = None
            self._make_checkpoint(logs, generation)
        self._current = 1 - self._current
        self._position = self._synced = 0
        self.generation = generation

    def _make_checkpoint(self, logs: Iterable[PartitionLog], generation: int) -> None:
        """Syncs the logs that have pieces before a generation. After that those pieces are not
        needed."""
        try:
            self._forget_before(logs, generation)
        except Exception as fault:
            # The outermost edge of the thread. Whatever it is: those logs are not synced.
            logger.exception("A checkpoint of the journal failed.")
            self._checkpoint_fault = fault

    def _forget_before(self, logs: Iterable[PartitionLog], generation: int) -> None:
        for owner, end_offset in self._sync_logs(logs):
            self.ends.note(owner, end_offset)
        self.ends.generation = generation
        self.retry.until_done(lambda: self.ends.save(self.folder), "The journal's table of ends")

    def _await_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
            self._checkpoint = None
        if self._checkpoint_fault is not None:
            raise self._checkpoint_fault

    def close(self) -> None:
        """Syncs all logs and empties the journal, so that the next start has nothing to replay."""
        self.retry.hurry()
        try:
            self._await_checkpoint()
            if not self.failed:
                self._forget_before(self._touched, self.generation + 1)
                retire_journal(self.folder, self.generation + 1)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        for file in self._files:
            os.close(file.fd)
