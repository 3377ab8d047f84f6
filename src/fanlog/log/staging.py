"""Staged bytes of a transaction. They stay in memory until `spill` moves them to a file,
`<data>/transactions/<ticket>`, or, without a data folder, one that has no name. A checksum runs
along, which shows whether a file that a crash left behind is complete.

`read` and `sync` block and may run in any thread; the rest is the broker's loop thread's.
"""

from __future__ import annotations

import os
import tempfile

import google_crc32c

from fanlog.errors import DamagedError
from fanlog.log import posix
from fanlog.log.faults import write_error
from fanlog.log.files import read_at, remove_if_there, sync_folder, write_all
from fanlog.model import MIB

_READ_BYTES = 4 * MIB
_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC


class StagedBytes:
    """Bytes that only grow. `path` is where they go when there are many; empty: nowhere that
    outlives the broker."""

    __slots__ = ("_fd", "_parts", "crc", "length", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.length = 0
        self.crc = 0
        self._parts: list[bytes] = []
        self._fd = -1

    @classmethod
    def reopen(cls, path: str, length: int, crc: int) -> StagedBytes:
        """What an earlier start left in a file. Blocks while it looks whether all is there."""
        staged = cls(path)
        try:
            staged._fd = os.open(path, os.O_RDWR)
            staged.length = length
            at = 0
            while data := staged.read(at, _READ_BYTES):
                staged.crc = google_crc32c.extend(staged.crc, data)
                at += len(data)
        except OSError as fault:
            staged.close()
            raise write_error(fault, path, "Reading") from fault
        if at != length or staged.crc != crc:
            staged.close()
            raise DamagedError(
                f"{path} differs from what was staged there: put it back from a backup, then "
                "restart the broker."
            )
        return staged

    @property
    def in_file(self) -> bool:
        return self._fd >= 0

    @property
    def memory_bytes(self) -> int:
        return 0 if self.in_file else self.length

    def append(self, data: bytes) -> None:
        """Adds all of it, or raises and adds nothing."""
        if self.in_file:
            try:
                write_all(self._fd, data, self.length)
            except OSError as fault:
                raise write_error(fault, self.path or "a temporary file") from fault
        else:
            self._parts.append(data)
        self.length += len(data)
        self.crc = google_crc32c.extend(self.crc, data)

    def spill(self) -> None:
        """Moves what is in memory to the file, where all that comes is put from now on."""
        if self.in_file:
            return
        fd = -1
        try:
            fd = self._open_file()
            write_all(fd, self.data(), 0)
        except OSError as fault:
            if fd >= 0:
                os.close(fd)
            self._remove()
            raise write_error(fault, self.path or "a temporary file") from fault
        self._fd = fd
        self._parts = []

    def _open_file(self) -> int:
        if not self.path:
            with tempfile.TemporaryFile() as unnamed:
                return os.dup(unnamed.fileno())
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        return os.open(self.path, _NEW, 0o666)

    def data(self) -> bytes:
        """All that is in memory."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    def read(self, at: int, size: int) -> bytes:
        """Bytes of the file. Blocks; raises `OSError`."""
        return read_at(self._fd, at, min(size, self.length - at))

    def sync(self) -> None:
        """Makes the file and its name durable. Blocks; raises `OSError`."""
        if self.in_file and self.path:
            posix.sync_data(self._fd)
            folder = os.path.dirname(self.path)
            sync_folder(folder)
            sync_folder(os.path.dirname(folder))

    def close(self) -> None:
        """Lets go of it; a file with a name stays."""
        self._parts = []
        if self.in_file:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Drops the bytes and their file: the transaction has ended."""
        in_file = self.in_file
        self.close()
        if in_file:
            self._remove()

    def _remove(self) -> None:
        if self.path:
            remove_if_there(self.path)


def sweep_staged(folder: str, kept: set[str]) -> None:
    """Removes the files in `folder` that no transaction will ever ask for."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        if name not in kept:
            remove_if_there(f"{folder}/{name}")
