"""Safe file operations: atomic replacement, synced folders, bounded descriptors.

Everything here takes paths as `str`, because hundreds of thousands of them are made.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from contextlib import suppress
from typing import Protocol

from fanlog.log import posix

_PAGE_BYTES = 4096
_WRITE = os.O_RDWR
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class SyncError(OSError):
    """An fsync or fdatasync failed. The contents of the disk are then unknown, and the next sync
    would report success, so the error is permanent. A file that could not be opened was not synced
    at all, which is an ordinary `OSError`."""


def sync_data(fd: int) -> None:
    """An fdatasync whose failure has an error type of its own."""
    try:
        posix.sync_data(fd)
    except OSError as fault:
        raise SyncError(fault.errno, fault.strerror) from fault


def sync_folder(path: str) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        posix.sync_file(fd)
    except OSError as fault:
        raise SyncError(fault.errno, fault.strerror, path) from fault
    finally:
        os.close(fd)


def make_folders(path: str, mode: int = 0o700) -> None:
    """Makes a folder and those above it that are missing; the names of all of them are durable.

    Also the name of one that existed before: the process that made it may not have synced it. The
    folder is for this user only, because it holds messages and hashes of passwords; those above are
    as usual.
    """
    parent = os.path.dirname(path)
    if parent != path and not os.path.isdir(path):
        make_folders(parent, 0o777)
        with suppress(FileExistsError):
            os.mkdir(path, mode)
    # A folder that we may not even read was made by somebody who may.
    with suppress(PermissionError):
        sync_folder(parent)


def sync_file(path: str) -> None:
    """Makes everything written to a file durable, from any writer."""
    fd = os.open(path, os.O_RDWR)
    try:
        sync_data(fd)
    finally:
        os.close(fd)


def sync_tree(folder: str) -> None:
    """Makes everything in a folder durable, from any writer. Files and folders that vanish
    meanwhile need not be."""
    with suppress(FileNotFoundError):
        with os.scandir(folder) as entries:
            inside = list(entries)
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                sync_tree(entry.path)
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    sync_file(entry.path)
        sync_folder(folder)


def write_all(fd: int, data: bytes | memoryview, at: int) -> None:
    """A `pwrite` that repeats until everything is written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        at += written
        view = view[written:]


def replace_file(path: str, data: bytes, *, durable: bool) -> None:
    """Replaces the content of `path` with `data`: after a crash there is the old file or the new
    one."""
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        try:
            write_all(fd, data, 0)
            if durable:
                posix.sync_file(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        # On a full disk half a file is in the way of the next try.
        remove_if_there(temporary)
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def remove_if_there(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def read_at(fd: int, at: int, size: int) -> bytes:
    """Up to `size` bytes at `at`; fewer only at the end of the file.

    Pages that the disk can't give come back as zeros, so that the checksums find exactly them
    and the rest of the file stays readable.
    """
    try:
        data = os.pread(fd, size, at)
    except OSError as fault:
        if fault.errno != errno.EIO:
            raise
        return _read_pages(fd, at, size)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        more = os.pread(fd, size - got, at + got)
        if not more:
            break
        parts.append(more)
        got += len(more)
    return b"".join(parts)


def _read_pages(fd: int, at: int, size: int) -> bytes:
    end = min(at + size, os.fstat(fd).st_size)
    parts: list[bytes] = []
    while at < end:
        step = min(_PAGE_BYTES - at % _PAGE_BYTES, end - at)
        try:
            part = os.pread(fd, step, at)
        except OSError as fault:
            if fault.errno != errno.EIO:
                raise
            part = bytes(step)
        parts.append(part.ljust(step, b"\0"))
        at += step
    return b"".join(parts)


class FdHolder(Protocol):
    """A log that holds a descriptor for writing; -1 when it is closed."""

    fd: int
    fd_used: bool

    @property
    def fd_path(self) -> str: ...


class FdPool:
    """Bounds the descriptors open for writing. The one that wasn't used for a round is closed."""

    __slots__ = ("_holders", "open_max")

    def __init__(self, open_max: int) -> None:
        self.open_max = open_max
        # In the order in which they are checked; one is taken out without a search.
        self._holders: OrderedDict[FdHolder, None] = OrderedDict()

    def open(self, holder: FdHolder) -> int:
        """Opens the holder's file, which exists, for writing."""
        fd = self._open(holder.fd_path, _WRITE)
        self.adopt(holder, fd)
        return fd

    def create(self, path: str) -> int:
        """A descriptor of a new, empty file, for a holder to adopt."""
        return self._open(path, _WRITE | os.O_CREAT | os.O_TRUNC)

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, 0o666)
        except OSError as fault:
            if fault.errno not in _TOO_MANY_OPEN or not self._holders:
                raise
            self._shrink_to(len(self._holders) // 2)
            return self._open(path, flags)

    def adopt(self, holder: FdHolder, fd: int) -> None:
        """Takes over a descriptor that is open already."""
        self._shrink_to(self.open_max - 1)
        holder.fd = fd
        holder.fd_used = True
        self._holders[holder] = None

    def close(self, holder: FdHolder) -> None:
        if holder.fd >= 0:
            os.close(holder.fd)
            holder.fd = -1
            del self._holders[holder]

    def _shrink_to(self, count: int) -> None:
        while len(self._holders) > count:
            holder, _ = self._holders.popitem(last=False)
            if holder.fd_used:
                holder.fd_used = False
                self._holders[holder] = None
            else:
                os.close(holder.fd)
                holder.fd = -1
