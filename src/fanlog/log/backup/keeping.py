"""Stores a point in a backup folder: files that it already has stay, new ones are linked or copied.

This runs where the backup is, which may be another machine than the broker's: bytes come through
a `BackupSource`. On the broker's machine the source also says where the files are. Then sealed
files are linked if both are on one file system, and read directly if not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

import google_crc32c

from fanlog.errors import BackupError, FanlogError, FolderInUseError
from fanlog.log import posix
from fanlog.log.backup import manifest
from fanlog.log.backup.findings import Advance
from fanlog.log.backup.point import BackupPoint, FileEntry
from fanlog.log.files import make_folders, read_file, replace_file, sync_folder, write_all
from fanlog.model import MIB

_READ_BYTES = 1 * MIB
_SYNC_THREADS = 8


class BackupSource(Protocol):
    """Where the files of a point are."""

    point: BackupPoint

    def read(self, file: int, at: int, size: int) -> bytes:
        """Bytes of a file, by its number; empty at its end."""
        ...

    def path_of(self, entry: FileEntry) -> str | None:
        """The file itself, if it is on this machine and may be read."""
        ...


class Kept(NamedTuple):
    """What a backup came to: `linked` bytes took no room, `copied` ones did, and `known` ones
    were there before."""

    number: int
    point: BackupPoint
    files: int
    linked: int
    copied: int
    known: int
    swept: int


class BackupFolder:
    """A folder with points, locked for as long as one is added."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = -1

    def __enter__(self) -> BackupFolder:
        folder = self.folder
        if os.path.isdir(folder) and os.listdir(folder) and not is_backup_folder(folder):
            raise BackupError(
                f"{folder} is not empty, and it is not a backup: name another folder."
            )
        _check_outside(folder)
        make_folders(folder)
        self._lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            posix.lock_file(self._lock)
        except BlockingIOError:
            self.__exit__()
            raise FolderInUseError(
                f"Another command is taking a backup to {folder}: wait for it, or name another "
                "folder."
            ) from None
        if not os.path.exists(f"{folder}/{manifest.MARK}"):
            replace_file(f"{folder}/{manifest.MARK}", manifest.encode_mark(), durable=True)
        for name in (manifest.POINTS, manifest.FILES):
            make_folders(f"{folder}/{name}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def add(self, source: BackupSource, advance: Advance | None = None) -> Kept:
        """Adds a point. All that it needs is durable on return."""
        points = dict(load_points(self.folder))
        _check_source(self.folder, source.point, list(points.values()))
        same = [n for n, point in points.items() if point.history == source.point.history]
        newest = points[max(same)] if same else None
        swept = self._sweep(list(points.values()))
        number = 1 + max([0, *all_numbers(self.folder)])
        keeping = _Keeping(self.folder, source, number, newest, advance)
        keeping.run()
        path = f"{self.folder}/{manifest.point_name(number)}"
        replace_file(path, manifest.encode_point(source.point), durable=True)
        counted = keeping.linked, keeping.copied, keeping.known
        return Kept(number, source.point, len(source.point.files()), *counted, swept)

    def keep_only(self, count: int) -> list[int]:
        """Removes all but the newest points; the numbers of those that went."""
        points = dict(load_points(self.folder))
        gone = sorted(points)[:-count]
        for number in gone:
            os.unlink(f"{self.folder}/{manifest.point_name(number)}")
            del points[number]
        if gone:
            sync_folder(f"{self.folder}/{manifest.POINTS}")
            self._sweep(list(points.values()))
        return gone

    def _sweep(self, points: list[BackupPoint]) -> int:
        """Removes files that no point names. If a point can't be read, its files are unknown, and
        nothing is removed."""
        if len(points) < len(all_numbers(self.folder)):
            return 0
        needed = {file.kept_as for point in points for file in point.files()}
        swept = 0
        for path, _, names in os.walk(f"{self.folder}/{manifest.FILES}", topdown=False):
            for name in names:
                found = f"{path}/{name}"
                if found.removeprefix(f"{self.folder}/") not in needed:
                    os.unlink(found)
                    swept += 1
            with suppress(OSError):
                os.rmdir(path)
        os.makedirs(f"{self.folder}/{manifest.FILES}", exist_ok=True)
        return swept


def _check_source(folder: str, point: BackupPoint, points: list[BackupPoint]) -> None:
    """A restored broker may add to the folder that it was restored from."""
    if points and not {point.history, point.restored_from} & {p.history for p in points}:
        raise BackupError(
            f"{folder} holds backups of another broker: name another folder for this one."
        )


def _check_outside(folder: str) -> None:
    """A backup in the data folder goes with it."""
    while (parent := os.path.dirname(folder)) != folder:
        folder = parent
        if os.path.exists(f"{folder}/catalog.json") and os.path.exists(f"{folder}/topics"):
            raise BackupError(
                f"{folder} is a data folder: keep the backup elsewhere, best on another disk."
            )


def is_backup_folder(folder: str) -> bool:
    return os.path.exists(f"{folder}/{manifest.MARK}")


def all_numbers(folder: str) -> list[int]:
    """The numbers of all points, whether they can be read or not."""
    names = os.listdir(f"{folder}/{manifest.POINTS}")
    return sorted(n for name in names if (n := manifest.number_of_point(name)) is not None)


def load_points(folder: str) -> Iterator[tuple[int, BackupPoint]]:
    """The points of a backup folder that are whole, the oldest first."""
    for number in all_numbers(folder):
        name = manifest.point_name(number)
        with suppress(FanlogError):
            yield number, manifest.decode_point(read_file(f"{folder}/{name}"), name)


class _Keeping:
    """One point on its way into a folder."""

    def __init__(
        self,
        folder: str,
        source: BackupSource,
        number: int,
        newest: BackupPoint | None,
        advance: Advance | None,
    ) -> None:
        self._folder = folder
        self._source = source
        self._number = number
        self._advance = advance
        self._known = {} if newest is None else {file.path: file for file in newest.files()}
        # Within one run of the broker, bytes before a log's end never change.
        self._same_run = newest is not None and newest.epoch == source.point.epoch
        self._may_link = True
        self._touched: set[str] = set()
        self._unsynced: list[str] = []
        self.linked = self.copied = self.known = 0

    def run(self) -> None:
        for index, entry in enumerate(self._source.point.files()):
            self._keep(index, entry)
            if self._advance is not None:
                self._advance(self.linked + self.copied + self.known)
        sync_all(self._unsynced)
        for folder in sorted(self._touched, reverse=True):
            sync_folder(folder)

    def _keep(self, index: int, entry: FileEntry) -> None:
        before = self._known.get(entry.path)
        begin = self._begin_of(entry, before)
        if before is not None and (
            _is_unchanged(entry, before) or (begin is not None and begin.bytes == entry.bytes)
        ):
            entry.kept_as, entry.crc = before.kept_as, before.crc
            self.known += entry.bytes
        elif entry.sealed and self._link(index, entry, begin):
            self.linked += entry.bytes
        else:
            self._copy(index, entry, begin)

    def _begin_of(self, entry: FileEntry, before: FileEntry | None) -> FileEntry | None:
        """What an earlier point has of a file that has grown since."""
        if before is None or before.sealed or not self._same_run:
            return None
        return before if before.inode == entry.inode and before.bytes <= entry.bytes else None

    def _link(self, index: int, entry: FileEntry, begin: FileEntry | None) -> bool:
        path = self._source.path_of(entry) if self._may_link else None
        if path is None:
            return False
        entry.kept_as = manifest.kept_name(entry.path, self._number)
        target = f"{self._folder}/{entry.kept_as}"
        self._make_folder(target)
        try:
            _remove_left(target)
            os.link(path, target)
        except OSError:
            # Another file system, or no right to: then it will not work for the next one either.
            self._may_link = False
            return False
        # The broker may not have synced it.
        self._unsynced.append(target)
        crc, at = (begin.crc, begin.bytes) if begin is not None else (0, 0)
        entry.crc = self._crc(index, entry, crc, at)
        return True

    def _crc(self, index: int, entry: FileEntry, crc: int, at: int) -> int:
        for data in self._pieces(index, entry, at):
            crc = google_crc32c.extend(crc, data)
        return crc

    def _copy(self, index: int, entry: FileEntry, begin: FileEntry | None) -> None:
        at = crc = 0
        if begin is None:
            entry.kept_as = manifest.kept_name(entry.path, self._number)
        else:
            entry.kept_as, crc, at = begin.kept_as, begin.crc, begin.bytes
            self.known += at
        target = f"{self._folder}/{entry.kept_as}"
        self._make_folder(target)
        if begin is None:
            _remove_left(target)
        fd = os.open(target, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # What an interrupted backup left behind the begin goes.
            os.ftruncate(fd, at)
            for data in self._pieces(index, entry, at):
                write_all(fd, data, at)
                crc = google_crc32c.extend(crc, data)
                at += len(data)
                self.copied += len(data)
        finally:
            os.close(fd)
        self._unsynced.append(target)
        entry.crc = crc

    def _pieces(self, index: int, entry: FileEntry, at: int) -> Iterator[bytes]:
        """The bytes of a file from a position on, as far as they count."""
        path = self._source.path_of(entry)
        file = None if path is None else open(path, "rb")  # noqa: SIM115 - closed below
        try:
            while at < entry.bytes:
                size = min(_READ_BYTES, entry.bytes - at)
                if file is None:
                    data = self._source.read(index, at, size)
                else:
                    file.seek(at)
                    data = file.read(size)
                if not data:
                    raise BackupError(
                        f"{entry.path} ends at byte {at}, before {entry.bytes}: its disk has lost "
                        "the rest. Check the data folder with fanlog verify."
                    )
                yield data
                at += len(data)
        finally:
            if file is not None:
                file.close()

    def _make_folder(self, path: str) -> None:
        folder = os.path.dirname(path)
        while folder not in self._touched and folder != self._folder:
            os.makedirs(folder, exist_ok=True)
            self._touched.add(folder)
            folder = os.path.dirname(folder)


def _remove_left(path: str) -> None:
    """Removes what an interrupted backup left under a name. It may be a link to a file of the
    broker's: to write into it would change the broker's data."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _is_unchanged(entry: FileEntry, before: FileEntry) -> bool:
    return (entry.sealed, entry.bytes, entry.inode, entry.mtime_ns) == (
        before.sealed,
        before.bytes,
        before.inode,
        before.mtime_ns,
    )


def sync_all(paths: list[str]) -> None:
    """Syncs many files. Several at a time share what the file system has to write for each."""

    def sync(path: str) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            posix.sync_file(fd)
        finally:
            os.close(fd)

    with ThreadPoolExecutor(_SYNC_THREADS) as threads:
        for _ in threads.map(sync, paths):
            pass
