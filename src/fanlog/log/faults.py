"""Turns errors of the operating system into Fanlog's errors, which say what to do. There are three
kinds. A full disk and a lack of descriptors or memory may pass: the operation did not happen, and
may be tried again. A failed sync never passes, whatever its number: the kernel reports a lost write
only once. Every other failed write stops its log too.
"""

from __future__ import annotations

import errno
import os

from fanlog.errors import (
    DiskFullError,
    FolderUnusableError,
    LogFailedError,
    OutOfResourcesError,
    StorageError,
)
from fanlog.log.files import SyncError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_TEMPORARY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

# The operator's remedy, by the system's error number.
_REMEDIES = {
    errno.EROFS: "The file system is read-only: mount it writable",
    errno.EACCES: "Give the broker's user the right to read and write there (chown, chmod)",
    errno.EPERM: "Give the broker's user the right to read and write there (chown, chmod)",
    errno.EIO: "The disk reports a fault: check or replace it",
    errno.ENOENT: "Files of the data folder are gone: put them back",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.ENOTDIR: "There is a file where a folder belongs: move it away",
    errno.EISDIR: "There is a folder where a file belongs: move it away",
    errno.EEXIST: "There is a file where a folder belongs: move it away",
    errno.ELOOP: "Symbolic links on the path lead in a circle: correct them",
    errno.ENAMETOOLONG: "The path is too long: use a data folder with a shorter path",
    errno.ESTALE: "The network file system lost the folder: mount it again",
}
_OTHER_REMEDY = "Check the disk and the data folder"
_RELIEF = {
    errno.EMFILE: "Close connections, or raise the broker's limit of open files (ulimit -n).",
    errno.ENFILE: "Close files of other programs, or raise the system's limit (fs.file-max).",
    errno.ENOMEM: "Free memory on the broker's machine.",
}
ANOTHER_FOLDER = "choose another data folder (--data DIR, or fanlog.Broker(DIR) in a program)"


ROOM_ADVICE = (
    "Free disk space, or delete messages: fanlog topic alter NAME --retention 1d, fanlog topic "
    "truncate, fanlog topic delete. Then publishing resumes by itself."
)


def is_full(fault: OSError) -> bool:
    """Whether there was no room, and nothing was written."""
    return fault.errno in _FULL and not isinstance(fault, SyncError)


def is_temporary(fault: OSError) -> bool:
    """Whether the system lacked a descriptor or memory, and nothing was done."""
    return fault.errno in _TEMPORARY and not isinstance(fault, SyncError)


def says(fault: OSError) -> str:
    """`No space left on device (ENOSPC)`."""
    number = fault.errno or 0
    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"


def write_error(fault: OSError, path: str, what: str = "Writing") -> StorageError:
    """The error of a write. A full disk and a lack of resources may pass; anything else stops the
    log."""
    if is_full(fault):
        return DiskFullError(f"There is no room for {path}: {says(fault)}. {ROOM_ADVICE}")
    if is_temporary(fault):
        return _out_of_resources(fault, f"{what} {path}")
    return LogFailedError(
        f"{what} {path} failed: {says(fault)}. {_remedy(fault)}, then restart the broker."
    )


def read_error(fault: OSError, path: str) -> StorageError:
    """The error of a read. It loses nothing, and the log continues."""
    if is_temporary(fault):
        return _out_of_resources(fault, f"Reading {path}")
    return StorageError(f"Reading {path} failed: {says(fault)}. {_remedy(fault)}, then read again.")


def folder_error(fault: OSError, path: str) -> StorageError:
    """The error of a start: its data folder can't be made, read or written."""
    if is_full(fault):
        return DiskFullError(
            f"There is no room for {path}: {says(fault)}. Free disk space, or {ANOTHER_FOLDER}."
        )
    if is_temporary(fault):
        return _out_of_resources(fault, f"Using {path}")
    return FolderUnusableError(
        f"The data folder can't be used: {path}: {says(fault)}. {_remedy(fault)}, or "
        f"{ANOTHER_FOLDER}."
    )


def topic_error(fault: OSError, path: str) -> StorageError:
    """The error of a topic whose files can't be made, changed or deleted, while the broker runs.
    Its reader may be far from the broker's machine."""
    if is_full(fault):
        return DiskFullError(f"There is no room for {path}: {says(fault)}. {ROOM_ADVICE}")
    if is_temporary(fault):
        return _out_of_resources(fault, f"Using {path}")
    return FolderUnusableError(
        f"The broker can't change its data folder: {path}: {says(fault)}. On its machine: "
        f"{_remedy(fault)}; then try again."
    )


def _remedy(fault: OSError) -> str:
    return _REMEDIES.get(fault.errno or 0, _OTHER_REMEDY)


def _out_of_resources(fault: OSError, what: str) -> OutOfResourcesError:
    relief = _RELIEF[fault.errno or 0]
    return OutOfResourcesError(
        f"{what} is not possible for now: {says(fault)}. Nothing was changed; try again. {relief}"
    )


def sync_error(fault: OSError, path: str) -> LogFailedError:
    """The error of a sync that failed. The contents of the disk are then unknown, so the error is
    permanent."""
    advice = f"{_remedy(fault)}, then restart the broker."
    if fault.errno in _FULL:
        advice = "Free disk space, then restart the broker."
    elif fault.errno in _TEMPORARY:
        advice = f"{_RELIEF[fault.errno]} Then restart the broker."
    return LogFailedError(
        f"Syncing {path} failed: {says(fault)}. Topics with durability fsync take no more "
        f"messages. {advice}"
    )
