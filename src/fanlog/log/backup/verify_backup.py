"""`fanlog verify` of a backup: every manifest, every file's checksum for every point that needs it,
and every batch in the segments."""

from __future__ import annotations

import os
import re

import google_crc32c

from fanlog.errors import FanlogError
from fanlog.log.backup import manifest
from fanlog.log.backup.findings import Advance, CheckReport, Meaning
from fanlog.log.backup.point import FileEntry
from fanlog.log.backup.restoring import Backup, FolderBackup, open_backup
from fanlog.log.scan import NO_STOP, Damage, Owner, walk_file
from fanlog.log.segment_names import LOG_SUFFIX, maybe_segment_name

_LOG_FILE = re.compile(r"topics/(\d+)-[^/]*/(\d+)/([^/]+)")


def verify_backup(path: str, advance: Advance | None = None) -> CheckReport:
    """Checks a backup folder, or a tar file."""
    report = CheckReport(path, advance)
    backup = open_backup(path)
    try:
        wanted = _wanted(backup, report)
        for kept_as, entries in sorted(wanted.items()):
            whole = _check_file(backup, kept_as, entries, report)
            if whole and isinstance(backup, FolderBackup):
                _check_batches(f"{path}/{kept_as}", entries[-1], report)
    finally:
        backup.close()
    return report


def _wanted(backup: Backup, report: CheckReport) -> dict[str, list[FileEntry]]:
    """The files by their names, each with what the points want of it, the shortest first."""
    wanted: dict[str, dict[int, FileEntry]] = {}
    _check_mark(backup, report)
    for number in backup.numbers:
        name = manifest.point_name(number)
        try:
            data = backup.read_whole(name)
            report.checked(len(data))
            point = manifest.decode_point(data, name)
            if manifest.encode_point(point) != data:
                raise ValueError("its text is not as it was written")
        except (FanlogError, ValueError) as fault:
            report.add(name, 0, Meaning.LOST, str(fault).rstrip("."))
            continue
        for entry in point.files():
            # Two points that differ about the same bytes: one of them will be wrong.
            wanted.setdefault(entry.kept_as, {})[entry.bytes] = entry
    return {name: [by[size] for size in sorted(by)] for name, by in wanted.items()}


def _check_mark(backup: Backup, report: CheckReport) -> None:
    try:
        data = backup.read_whole(manifest.MARK)
        if manifest.encode_mark(manifest.decode_mark(data)) != data:
            raise ValueError("its text is not as it was written")
    except (FanlogError, ValueError) as fault:
        report.add(manifest.MARK, 0, Meaning.REBUILT, str(fault).rstrip("."))


def _check_file(backup: Backup, name: str, entries: list[FileEntry], report: CheckReport) -> bool:
    """Whether a file has the checksum that each point wants, up to the length that it wants."""
    at = crc = 0
    left = list(entries)
    try:
        for piece in backup.pieces(name):
            begin = 0
            while left and at + len(piece) - begin >= left[0].bytes:
                entry = left.pop(0)
                end = begin + entry.bytes - at
                crc = google_crc32c.extend(crc, piece[begin:end])
                begin, at = end, entry.bytes
                if crc != entry.crc:
                    sentence = f"the checksum of its first {entry.bytes} bytes does not fit"
                    report.add(name, 0, Meaning.LOST, sentence)
                    return False
            crc = google_crc32c.extend(crc, piece[begin:])
            at += len(piece) - begin
            report.read(len(piece))
            if not left:
                break
    except FanlogError as fault:
        report.add(name, at, Meaning.LOST, str(fault).rstrip("."))
        return False
    report.checked(0)
    if any(entry.bytes for entry in left):
        report.add(name, at, Meaning.LOST, f"it ends before byte {left[-1].bytes}")
        return False
    return True


def _check_batches(path: str, entry: FileEntry, report: CheckReport) -> None:
    """What was damaged when the backup was taken has a fitting checksum, and is damaged."""
    match = _LOG_FILE.fullmatch(entry.path)
    name = None if match is None else maybe_segment_name(match[3])
    if match is None or name is None or name.suffix != LOG_SUFFIX or not entry.bytes:
        return
    owner = Owner(int(match[1]), int(match[2]))
    fd = os.open(path, os.O_RDONLY)
    try:
        for part in walk_file(fd, owner, at=0, expected=name.base, stop=NO_STOP, limit=entry.bytes):
            # The end of what counts is no damage.
            if isinstance(part, Damage) and part.at < entry.bytes:
                sentence = f"messages were damaged when it was taken: {part.reason}"
                report.add(path, part.at, Meaning.LOST, sentence)
    finally:
        os.close(fd)
