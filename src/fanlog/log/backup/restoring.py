"""Restoring a point into an empty data folder.

A restored folder is a history that went back: readers may know messages behind the point, and other
messages get their offsets from now on. So the next start gets an epoch that is higher than all that
the old history can have used, and numbers of topics continue far behind. A reader that was past the
point gets one `reset`, as after a crash that took the end of a log ("Epochs" in `docs/log.md`).

Law: the catalog is written last. A folder without it that is not empty is refused by every start.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import google_crc32c
import msgspec

from fanlog.errors import BackupError, FanlogError, FolderUnusableError, InvalidArgumentError
from fanlog.log import small_files
from fanlog.log.backup import manifest
from fanlog.log.backup.archive import Archive
from fanlog.log.backup.findings import Advance
from fanlog.log.backup.keeping import all_numbers, is_backup_folder, sync_all
from fanlog.log.backup.point import BackupPoint, FileEntry, LogEntry, TopicEntry
from fanlog.log.catalog import (
    UNFINISHED_RESTORE,
    CatalogFile,
    TopicFile,
    create_topic_folder,
    save_catalog,
)
from fanlog.log.files import make_folders, read_file, replace_file, sync_folder, write_all
from fanlog.log.partition_notes import RANKED_FILE
from fanlog.log.scan import Owner
from fanlog.log.synced_ends import SyncedEnds
from fanlog.model import MIB

_READ_BYTES = 1 * MIB
# More starts, and more topics, than the old history can have had behind the point.
_AHEAD = 1 << 16
# A time this far ahead of the point's epoch is past all of them.
_TIME_AHEAD = 1 << 12
_EPOCH_MAX = (1 << 32) - _AHEAD


class Backup(Protocol):
    """A backup that is read: a folder or a tar file."""

    numbers: list[int]

    def read_whole(self, name: str) -> bytes: ...
    def pieces(self, name: str) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class FolderBackup:
    """A backup folder that is read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.numbers = all_numbers(folder)
        if not self.numbers:
            raise BackupError(
                f"{folder} has no point: no backup into it was ever completed. Use another backup."
            )

    def read_whole(self, name: str) -> bytes:
        return read_file(f"{self._folder}/{name}")

    def pieces(self, name: str) -> Iterator[bytes]:
        try:
            with open(f"{self._folder}/{name}", "rb") as file:
                while data := file.read(_READ_BYTES):
                    yield data
        except FileNotFoundError as fault:
            raise BackupError(f"{name} is missing in the backup. Use another point.") from fault

    def note_epoch(self, epoch: int) -> None:
        """A restore gives this epoch away; the next one has to go past it."""
        with suppress(OSError):  # a backup may be read-only
            path = f"{self._folder}/{manifest.MARK}"
            replace_file(path, manifest.encode_mark(epoch), durable=True)

    def close(self) -> None:
        return


def open_backup(path: str) -> Archive | FolderBackup:
    if os.path.isdir(path):
        if not is_backup_folder(path):
            raise BackupError(f"{path} is not a backup: it has no {manifest.MARK}.")
        return FolderBackup(path)
    return Archive(path)


def load_point(backup: Backup, number: int | None) -> tuple[int, BackupPoint]:
    """A point by its number, or the newest that is whole."""
    if number is not None and number not in backup.numbers:
        known = ", ".join(map(str, backup.numbers))
        raise InvalidArgumentError(f"The backup has no point {number}. It has: {known}.")
    fault: FanlogError | None = None
    for wanted in reversed(backup.numbers) if number is None else [number]:
        name = manifest.point_name(wanted)
        try:
            return wanted, manifest.decode_point(backup.read_whole(name), name)
        except FanlogError as found:
            fault = fault or found
    raise fault or BackupError("The backup has no point.")


class Restored(NamedTuple):
    number: int
    point: BackupPoint
    epoch: int
    files: int
    bytes: int


def restore(
    path: str,
    data: str,
    now_seconds: int,
    number: int | None = None,
    advance: Advance | None = None,
) -> Restored:
    """Makes a data folder of a point. Blocks; raises `OSError`."""
    backup = open_backup(path)
    try:
        number, point = load_point(backup, number)
        epoch = next_epoch(point.epoch, _given_away(backup), now_seconds)
        _begin(data)
        if isinstance(backup, FolderBackup):
            backup.note_epoch(epoch)
        count = _Restoring(backup, point, data, advance).run()
        catalog = CatalogFile(
            point.next_topic + _AHEAD, epoch, secrets.token_hex(16), restored_from=point.history
        )
        save_catalog(f"{data}/catalog.json", catalog)
        os.unlink(f"{data}/{UNFINISHED_RESTORE}")
        sync_folder(data)
    finally:
        backup.close()
    return Restored(number, point, epoch, len(point.files()), count)


def next_epoch(epoch: int, given_away: int, now_seconds: int) -> int:
    """The epoch of a restored folder's catalog: higher than any that the old history, or another
    restore of the same point, can have used.

    Usually it is the time, which rises from one restore to the next, even without a note of the
    last one. If the clock was set back, another epoch is used.
    """
    least = max(epoch, given_away)
    found = now_seconds if now_seconds >= least + _TIME_AHEAD else least + _AHEAD
    return min(found, _EPOCH_MAX)


def _given_away(backup: Backup) -> int:
    try:
        return manifest.decode_mark(backup.read_whole(manifest.MARK))
    except FanlogError:
        return 0


def _begin(data: str) -> None:
    """Refuses a folder that is not empty. Until the end, no broker starts in it."""
    if os.path.exists(data) and (not os.path.isdir(data) or set(os.listdir(data)) - {"lost+found"}):
        raise FolderUnusableError(
            f"{data} is not empty: name a new folder, or move away what is there. To repeat an "
            "interrupted restore, start again in an empty folder."
        )
    make_folders(data)
    replace_file(f"{data}/{UNFINISHED_RESTORE}", b"", durable=True)


class _Restoring:
    def __init__(
        self, backup: Backup, point: BackupPoint, data: str, advance: Advance | None
    ) -> None:
        self._backup = backup
        self._point = point
        self._data = data
        self._advance = advance
        self._written: list[str] = []
        self._bytes = 0

    def run(self) -> int:
        """All files of the point, durable; how many bytes they have."""
        os.makedirs(f"{self._data}/topics")
        ends = SyncedEnds(0, self._point.next_topic, {})
        for topic in self._point.topics:
            folder = f"{self._data}/topics/{topic.folder}"
            described = TopicFile(topic.name, topic.number, topic.settings)
            create_topic_folder(folder, described, durable=False)
            self._written.append(f"{folder}/topic.json")
            for log in topic.logs:
                self._restore_log(topic, log)
                if topic.settings.durability == "fsync":
                    ends.note(Owner(topic.number, log.partition), log.end_offset)
        for entry in self._point.staged:
            self._restore_file(entry)
        sync_all(self._written)
        self._sync_folders()
        make_folders(f"{self._data}/journal")
        ends.save(f"{self._data}/journal")
        return self._bytes

    def _restore_log(self, topic: TopicEntry, log: LogEntry) -> None:
        folder = f"{self._data}/topics/{topic.folder}/{log.partition}"
        if log.files or log.deleted_before:
            os.makedirs(folder)
        for entry in log.files:
            self._restore_file(entry)
        if log.deleted_before:
            self._write(f"{folder}/start.json", {"start_offset": log.deleted_before})
        if log.compacted is not None:
            self._write(f"{folder}/compacted.json", log.compacted._asdict())
        if log.damaged:
            damaged = [msgspec.structs.asdict(r) for r in log.damaged]
            self._write(f"{folder}/damaged.json", {"damaged": damaged})
        if log.ranked and log.files:
            replace_file(f"{folder}/{RANKED_FILE}", b"", durable=False)

    def _write(self, path: str, fields: dict[str, Any]) -> None:
        small_files.save(path, fields, durable=False)
        self._written.append(path)

    def _restore_file(self, entry: FileEntry) -> None:
        path = f"{self._data}/{entry.path}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        at = crc = 0
        try:
            for piece in self._backup.pieces(entry.kept_as):
                # A later point may have more of the same file.
                data = piece[: entry.bytes - at]
                write_all(fd, data, at)
                crc = google_crc32c.extend(crc, data)
                at += len(data)
                if at >= entry.bytes:
                    break
        finally:
            os.close(fd)
        if (at, crc) != (entry.bytes, entry.crc):
            raise BackupError(
                f"{entry.kept_as} is damaged in the backup: its checksum does not fit. Find an "
                "intact point with fanlog verify, and restore it with --point."
            )
        self._written.append(path)
        self._bytes += at
        if self._advance is not None:
            self._advance(self._bytes)

    def _sync_folders(self) -> None:
        for folder, _, _ in os.walk(self._data, topdown=False):
            sync_folder(folder)
