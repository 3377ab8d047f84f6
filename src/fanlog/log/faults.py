"""What the operating system said, as an error of Fanlog whose sentence says what to do.

Three kinds are kept apart. A full disk and a lack of descriptors or memory may pass: what was asked
for did not happen, and may be tried again. A failed sync never passes, whatever its number is: the
kernel tells of a lost write only once. Every other failed write stops its log too.
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

_ADVICE = {
    errno.EROFS: "The file system is read-only: mount it writable, then restart the broker.",
    errno.EACCES: "Give the broker's user the right to write there, then restart the broker.",
    errno.EPERM: "Give the broker's user the right to write there, then restart the broker.",
    errno.EIO: "The disk reports a fault: check or replace it, then restart the broker.",
    errno.ENOENT: "Files of the data folder are gone: put them back, then restart the broker.",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f), then restart the broker.",
}
_OTHER = "Check the disk and the data folder, then restart the broker."
_RELIEF = {
    errno.EMFILE: "Close connections, or raise the limit of open files (ulimit -n).",
    errno.ENFILE: "Close files of other programs, or raise the system's limit (fs.file-max).",
    errno.ENOMEM: "Free memory.",
}


ROOM_ADVICE = (
    "Free disk space, or delete messages: fanlog topic alter NAME --retention 1d, fanlog topic "
    "truncate, fanlog topic delete. Publishing goes on by itself then."
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
    """The error of a write or a read. A full disk and a lack of resources may pass; anything else
    that happens to a write stops the log."""
    if is_full(fault):
        return DiskFullError(f"There is no room for {path}: {says(fault)}. {ROOM_ADVICE}")
    if is_temporary(fault):
        return _out_of_resources(fault, f"{what} {path}")
    advice = _ADVICE.get(fault.errno or 0, _OTHER)
    return LogFailedError(f"{what} {path} failed: {says(fault)}. {advice}")


def folder_error(fault: OSError, path: str) -> StorageError:
    """The error of a data folder that can't be made, read or written."""
    if is_full(fault):
        return DiskFullError(f"There is no room for {path}: {says(fault)}. Free disk space.")
    if is_temporary(fault):
        return _out_of_resources(fault, f"Using {path}")
    return FolderUnusableError(
        f"The data folder can't be used: {path}: {says(fault)}. "
        f"Make it writable for this user, or give another --data."
    )


def _out_of_resources(fault: OSError, what: str) -> OutOfResourcesError:
    relief = _RELIEF[fault.errno or 0]
    return OutOfResourcesError(
        f"{what} is not possible for now: {says(fault)}. Nothing was done; try again. {relief}"
    )


def commit_error(fault: OSError, path: str) -> LogFailedError:
    """The error of a commit that failed. What the disk holds then, nobody knows: it is for good."""
    advice = _ADVICE.get(fault.errno or 0, _OTHER)
    if is_temporary(fault):
        advice = f"{_RELIEF[fault.errno or 0]} Then restart the broker."
    return LogFailedError(
        f"Committing to {path} failed: {says(fault)}. Topics with durability fsync take no more "
        f"messages. {advice}"
    )
