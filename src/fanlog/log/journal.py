"""The commit journal: one file to sync for all topics with durability fsync.

Two files in `<data>/journal/` are used in turn. Each is written with zeros ahead of use, so that
an fdatasync finds no metadata to write. A file is used again only when every log that has a piece
in it was synced itself (a checkpoint). A file is a row of groups, little-endian:

| at | bytes  | field      | meaning                                                             |
| -- | ------ | ---------- | ------------------------------------------------------------------- |
|  0 | 8      | magic      | `FANLJRN1`                                                          |
|  8 | 8      | generation | the broker's epoch << 32, and a count of files used since its start |
| 16 | 4      | length     | of the pieces; 0 in a file that holds nothing                       |
| 20 | 4      | crc        | CRC-32C of the pieces                                               |
| 24 | 4      |            | 0                                                                   |
| 28 | 4      | header crc | CRC-32C of bytes 0 to 28                                            |
| 32 | length | pieces     | batches as they are: topic and partition are in their headers       |

The generation of a file is that of its first group. The first group of another one ends it: what
follows is left from an earlier use and is never replayed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from threading import Thread

from fanlog.format.checksum import crc32c
from fanlog.log.faults import is_full, is_temporary
from fanlog.log.files import SyncError, read_file, sync_folder, write_all
from fanlog.log.partition import PartitionLog
from fanlog.log.patience import Patience
from fanlog.log.tail import Piece
from fanlog.model import MIB

Sync = Callable[[int], None]

_GROUP = Struct("<8sQIIII")
_MAGIC = b"FANLJRN1"
_CRC_AT = 28
_NAMES = ("0.journal", "1.journal")
# A file grows by doubling from here: one quiet topic should not cost what a busy broker needs.
_FIRST_BYTES = 1 * MIB
# Pieces are joined into groups of about this size: one write and one checksum for many.
_GROUP_BYTES = 4 * MIB
_ZEROS = bytes(1 * MIB)


def group_header(generation: int, pieces: bytes) -> bytes:
    header = _GROUP.pack(_MAGIC, generation, len(pieces), crc32c(pieces), 0, 0)[:_CRC_AT]
    return header + crc32c(header).to_bytes(4, "little")


def groups(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Generation and pieces of each group in a journal file, as far as they are whole."""
    at = 0
    first_generation: int | None = None
    while at + _GROUP.size <= len(data):
        magic, generation, length, crc, _, header_crc = _GROUP.unpack_from(data, at)
        if magic != _MAGIC or crc32c(data[at : at + _CRC_AT]) != header_crc:
            return
        if first_generation is None:
            first_generation = generation
        at += _GROUP.size
        pieces = memoryview(data)[at : at + length]
        if generation != first_generation or len(pieces) < length or crc32c(pieces) != crc:
            return
        yield generation, pieces
        at += length


def read_journal(folder: str) -> list[memoryview]:
    """The pieces of all whole groups, oldest first. Nothing when there is no journal."""
    files: list[tuple[int, list[memoryview]]] = []
    for name in _NAMES:
        try:
            found = list(groups(read_file(f"{folder}/{name}")))
        except FileNotFoundError:
            continue
        if found:
            files.append((found[0][0], [pieces for _, pieces in found if pieces]))
    files.sort(key=lambda file: file[0])
    return [pieces for _, found in files for pieces in found]


def newest_generation(folder: str) -> int:
    """The highest generation that a journal file begins with; 0 when there is none."""
    newest = 0
    for name in _NAMES:
        try:
            for generation, _ in groups(read_file(f"{folder}/{name}")):
                newest = max(newest, generation)
        except FileNotFoundError:
            continue
    return newest


def retire_journal(folder: str, generation: int) -> None:
    """Empties the journal for good: what it held is safe in the logs."""
    for name in _NAMES:
        try:
            fd = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            write_all(fd, group_header(generation, b""), 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)


class _File:
    __slots__ = ("fd", "size")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.size = os.fstat(self.fd).st_size

    def grow(self, size: int) -> None:
        """Writes zeros up to `size` and makes them, and the size itself, durable."""
        at = self.size
        while at < size:
            step = memoryview(_ZEROS)[: size - at]
            write_all(self.fd, step, at)
            at += len(step)
        os.fsync(self.fd)
        self.size = max(self.size, size)


class Journal:
    """Where pieces are made durable. After the constructor it belongs to the commit thread."""

    def __init__(self, folder: str, bytes_max: int, epoch: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        # Set by a failed commit: the next start has to replay what is here.
        self.failed = False
        self.generation = epoch << 32 | 1
        os.makedirs(folder, exist_ok=True)
        self._files = [_File(f"{folder}/{name}") for name in _NAMES]
        self._current = 0
        self._position = 0
        self._touched: set[PartitionLog] = set()
        self._checkpoint: Thread | None = None
        self._checkpoint_fault: OSError | None = None
        self.patience = Patience()
        try:
            for file in self._files:
                if file.size < (first_bytes := min(_FIRST_BYTES, bytes_max)):
                    file.grow(first_bytes)
            sync_folder(folder)
            sync_folder(os.path.dirname(folder))
        except OSError:
            self._close_files()
            raise

    def commit(self, entries: Sequence[tuple[PartitionLog, Piece]], sync: Sync) -> None:
        """Returns when all pieces are durable. Blocks, also as long as the system has no
        descriptor or memory for it; raises `OSError`, and is no use then.

        What has to be done again is done again in place: a piece must not be in the journal twice.
        """
        logs: list[PartitionLog] = []
        pieces: list[Piece] = []
        size = 0
        for log, piece in entries:
            if pieces and size + len(piece) > _GROUP_BYTES:
                self._write(logs, pieces, size, sync)
                logs, pieces, size = [], [], 0
            logs.append(log)
            pieces.append(piece)
            size += len(piece)
        if pieces:
            self._write(logs, pieces, size, sync)
        self._sync_file(sync)

    def _write(self, logs: list[PartitionLog], pieces: list[Piece], size: int, sync: Sync) -> None:
        needed = _GROUP.size + size
        if not self._has_room(needed, sync):
            self._switch(sync)
            if not self._has_room(needed, sync):
                # Larger than a whole file, or no disk space for it: the logs' own files will do.
                for log in set(logs):
                    self._sync_log(log)
                return
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.patience.until_done(lambda: self._write_group(body), "The journal")
        self._position += needed
        self._touched.update(logs)

    def _write_group(self, body: Piece) -> None:
        fd = self._files[self._current].fd
        header = group_header(self.generation, body)
        written = os.pwritev(fd, (header, body), self._position)
        if written < len(header) + len(body):
            write_all(fd, (header + body)[written:], self._position + written)

    def _sync_file(self, sync: Sync) -> None:
        try:
            sync(self._files[self._current].fd)
        except OSError as fault:
            raise SyncError(fault.errno, fault.strerror) from fault

    def _sync_log(self, log: PartitionLog) -> None:
        self.patience.until_done(log.sync, "A log's sync")

    def _has_room(self, needed: int, sync: Sync) -> bool:
        """Whether so many bytes fit into the current file, which grows if it may.

        What was written there is synced before: should the growth fail, it is about the growth.
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
        """Goes on in the other file, and has the logs of this one synced meanwhile."""
        if not self._position:
            return
        self._sync_file(sync)
        # The other file's logs: usually synced long ago.
        self._await_checkpoint()
        logs, self._touched = self._touched, set()
        self._checkpoint = Thread(
            target=self._sync_logs, args=(logs,), name="fanlog-checkpoint", daemon=True
        )
        try:
            self._checkpoint.start()
        except RuntimeError:
            # No thread for it now: then everybody waits.
            self._checkpoint = None
            self._sync_logs(logs)
        self._current = 1 - self._current
        self._position = 0
        self.generation += 1

    def _sync_logs(self, logs: set[PartitionLog]) -> None:
        try:
            for log in logs:
                self._sync_log(log)
        except OSError as fault:
            self._checkpoint_fault = fault

    def _await_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
            self._checkpoint = None
        if self._checkpoint_fault is not None:
            raise self._checkpoint_fault

    def close(self) -> None:
        """Syncs all logs and empties the journal, so that the next start has nothing to replay."""
        self.patience.hurry()
        try:
            self._await_checkpoint()
            if not self.failed:
                for log in self._touched:
                    self._sync_log(log)
                retire_journal(self.folder, self.generation + 1)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        for file in self._files:
            os.close(file.fd)
