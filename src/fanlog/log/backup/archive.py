"""A backup in one tar file: one point, and all its files. It has the layout of a backup folder."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO

import google_crc32c

from fanlog.errors import BackupError
from fanlog.log.backup import manifest
from fanlog.log.backup.findings import Advance
from fanlog.log.backup.keeping import BackupSource, Kept
from fanlog.log.backup.point import BackupPoint, FileEntry
from fanlog.model import MIB

_READ_BYTES = 1 * MIB
# What tarfile raises for a file that is not whole. A disk that fails says so with an errno.
_CUT = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


def write_archive(
    source: BackupSource,
    target: IO[bytes],
    *,
    compress: bool = False,
    advance: Advance | None = None,
) -> Kept:
    """Writes a point to a stream. The manifest comes last: a stream that was cut off has none."""
    total = 0
    point = source.point
    with tarfile.open(fileobj=target, mode="w|gz" if compress else "w|") as tar:
        _add(tar, manifest.MARK, manifest.encode_mark(), point)
        for index, entry in enumerate(point.files()):
            entry.kept_as = manifest.kept_name(entry.path, 1)
            reader = _ArchiveStream(source, index, entry)
            info = tarfile.TarInfo(entry.kept_as)
            info.size, info.mtime = entry.bytes, point.taken_us // 1_000_000
            tar.addfile(info, reader)
            entry.crc = reader.crc
            total += entry.bytes
            if advance is not None:
                advance(total)
        _add(tar, manifest.point_name(1), manifest.encode_point(point), point)
    return Kept(1, point, len(point.files()), 0, total, 0, 0)


def _add(tar: tarfile.TarFile, name: str, data: bytes, point: BackupPoint) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(data), point.taken_us // 1_000_000
    tar.addfile(info, io.BytesIO(data))


class _ArchiveStream(io.RawIOBase):
    """A file of a point as a stream that tarfile reads, with a checksum that runs along."""

    def __init__(self, source: BackupSource, index: int, entry: FileEntry) -> None:
        super().__init__()
        self._source = source
        self._index = index
        self._entry = entry
        self._at = 0
        self._rest = b""
        self.crc = 0

    def read(self, size: int = -1) -> bytes:
        parts: list[bytes] = []
        wanted = self._entry.bytes if size < 0 else size
        while wanted:
            if not self._rest:
                self._fill()
            part, self._rest = self._rest[:wanted], self._rest[wanted:]
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def _fill(self) -> None:
        size = min(_READ_BYTES, self._entry.bytes - self._at)
        self._rest = self._source.read(self._index, self._at, size)
        if not self._rest:
            raise BackupError(
                f"{self._entry.path} ends at byte {self._at}, before {self._entry.bytes}: its disk "
                "has lost the rest. Check the data folder with fanlog verify."
            )
        self._at += len(self._rest)
        self.crc = google_crc32c.extend(self.crc, self._rest)


def _open(path: str) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:*")
    except _CUT as fault:
        raise BackupError(
            f"{path} is not a backup, or it was cut off: {fault}. Use another one."
        ) from fault


class Archive:
    """A tar file that is read."""

    def __init__(self, path: str) -> None:
        self._tar = _open(path)
        try:
            self.numbers = self._find_points(path)
        except BaseException:
            self._tar.close()
            raise

    def _find_points(self, path: str) -> list[int]:
        try:
            names = self._tar.getnames()
        except _CUT as fault:
            raise BackupError(f"{path} was cut off: {fault}. Use another backup.") from fault
        if manifest.MARK not in names:
            raise BackupError(f"{path} is not a Fanlog backup: it has no {manifest.MARK}.")
        found = [manifest.number_of_point(n) for n in names if n.startswith(manifest.POINTS)]
        numbers = sorted(number for number in found if number is not None)
        if not numbers:
            raise BackupError(f"{path} was cut off: it has no point. Take the backup again.")
        return numbers

    def read_whole(self, name: str) -> bytes:
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a file in it. Raises `BackupError` where they end too early."""
        try:
            file = self._tar.extractfile(name)
            if file is None:
                raise KeyError(name)
            with file:
                while data := file.read(_READ_BYTES):
                    yield data
        except KeyError as fault:
            raise BackupError(f"{name} is missing in the backup. Use another backup.") from fault
        except _CUT as fault:
            raise BackupError(f"{name} can't be read: {fault}. Use another backup.") from fault

    def close(self) -> None:
        self._tar.close()
