"""Pinning a point: giving its files second names, `<data>/.pinned/<ticket>/`, so that retention,
compaction and deletion can't remove them during the copy.

It runs in a thread. Meanwhile nothing is removed (`Removals.hold`). On a file system without hard
links the files are copied, which takes room and time.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from fanlog.log.backup.point import BackupPoint, FileEntry, TopicEntry, TopicMoment, log_entry
from fanlog.log.catalog import DELETED_PREFIX
from fanlog.log.files import write_all
from fanlog.log.segment_names import LOG_SUFFIX
from fanlog.model import MIB

# A start removes this folder, so nothing else may use its name.
PINS = ".pinned"
_COPY_BYTES = 4 * MIB


class StagedLink:
    """A staged file of a committed transaction, pinned in the moment of the point: a transaction
    that is stored removes its file at once."""

    def __init__(self, path: str, ticket: str, pins: str) -> None:
        self.ticket = ticket
        self.bytes = os.stat(path).st_size
        self._fd = -1
        target = f"{pins}/transactions"
        os.makedirs(target, exist_ok=True)
        try:
            os.link(path, f"{target}/{ticket}")
        except OSError:
            self._fd = os.open(path, os.O_RDONLY)

    def finish(self, pins: str) -> FileEntry:
        """Copies what could not be linked. Any thread."""
        path = f"transactions/{self.ticket}"
        if self._fd >= 0:
            try:
                _copy(self._fd, f"{pins}/{path}", self.bytes)
            finally:
                self.close()
        return _entry(FileEntry(path, self.bytes, sealed=True), f"{pins}/{path}")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def pin(
    point: BackupPoint, topics: list[TopicMoment], staged: list[StagedLink], pins: str
) -> BackupPoint:
    """Fills in a point's files, and gives each a second name. Blocks; raises `OSError`."""
    for name, number, settings, path, moments in topics:
        folder = os.path.basename(path)
        entry = TopicEntry(name, number, folder, settings)
        for moment in moments:
            log = log_entry(moment)
            if log.files:
                relative = f"topics/{folder}/{log.partition}"
                os.makedirs(f"{pins}/{relative}", exist_ok=True)
                log.files = [
                    found
                    for file in log.files
                    if (found := _pin_file(path, relative, file, pins)) is not None
                ]
            entry.logs.append(log)
        point.topics.append(entry)
    point.staged = [link.finish(pins) for link in staged]
    return point


def _pin_file(topic: str, relative: str, file: FileEntry, pins: str) -> FileEntry | None:
    """None for a file that need not be there: an index, or who the producers were."""
    partition = os.path.basename(relative)
    source = f"{topic}/{partition}/{file.path}"
    target = f"{pins}/{relative}/{file.path}"
    entry = FileEntry(f"{relative}/{file.path}", file.bytes, file.sealed)
    try:
        _link(source, target, file)
    except FileNotFoundError:
        # The topic was deleted meanwhile: its folder has another name, and its files are there.
        parent, name = os.path.split(topic)
        try:
            _link(f"{parent}/{DELETED_PREFIX}{name}/{partition}/{file.path}", target, file)
        except FileNotFoundError:
            if not file.path.endswith(LOG_SUFFIX):
                return None
            if file.bytes:
                raise
            # The newest segment was empty, and went when offsets were skipped past it.
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o666))
    return _entry(entry, target)


def _link(source: str, target: str, file: FileEntry) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise
    except OSError:
        # No hard links here, or too many of one file.
        fd = os.open(source, os.O_RDONLY)
        try:
            _copy(fd, target, file.bytes or os.fstat(fd).st_size)
        finally:
            os.close(fd)


def _entry(entry: FileEntry, path: str) -> FileEntry:
    found = os.stat(path)
    entry.inode, entry.mtime_ns = found.st_ino, found.st_mtime_ns
    if not entry.bytes and not entry.path.endswith(LOG_SUFFIX):
        entry.bytes = found.st_size
    return entry


def _copy(source: int, target: str, size: int) -> None:
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        at = 0
        while at < size and (data := os.pread(source, min(_COPY_BYTES, size - at), at)):
            write_all(fd, data, at)
            at += len(data)
    finally:
        os.close(fd)


def unpin(pins: str) -> None:
    """Lets the files of a point go. Any thread."""
    shutil.rmtree(pins, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(os.path.dirname(pins))
