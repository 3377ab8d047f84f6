"""What the operating system said, as an error of Fanlog whose sentence says what to do."""

from __future__ import annotations

import errno
import os

from fanlog.errors import DiskFullError, FolderUnusableError, LogFailedError, StorageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_ADVICE = {
    errno.EROFS: "The file system is read-only: mount it writable, then restart the broker.",
    errno.EACCES: "Give the broker's user the right to write there, then restart the broker.",
    errno.EPERM: "Give the broker's user the right to write there, then restart the broker.",
    errno.EIO: "The disk reports a fault: check or replace it, then restart the broker.",
    errno.ENOENT: "Files of the data folder are gone: put them back, then restart the broker.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n), then restart the broker.",
    errno.ENFILE: "Raise the system's limit of open files, then restart the broker.",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f), then restart the broker.",
}
_OTHER = "Check the disk and the data folder, then restart the broker."


def is_full(fault: OSError) -> bool:
    return fault.errno in _FULL


def says(fault: OSError) -> str:
    """`No space left on device (ENOSPC)`."""
    number = fault.errno or 0
    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"


def write_error(fault: OSError, path: str, what: str = "Writing") -> StorageError:
    """The error of a write: a full disk may pass, anything else stops the log."""
    if is_full(fault):
        return DiskFullError(
            f"There is no room for {path}: {says(fault)}. Free disk space or shorten the "
            f"retention; publishing goes on by itself then."
        )
    advice = _ADVICE.get(fault.errno or 0, _OTHER)
    return LogFailedError(f"{what} {path} failed: {says(fault)}. {advice}")


def folder_error(fault: OSError, path: str) -> StorageError:
    """The error of a data folder that can't be made, read or written."""
    if is_full(fault):
        return DiskFullError(f"There is no room for {path}: {says(fault)}. Free disk space.")
    return FolderUnusableError(
        f"The data folder can't be used: {path}: {says(fault)}. "
        f"Make it writable for this user, or give another --data."
    )


def commit_error(fault: OSError, path: str) -> LogFailedError:
    """The error of a commit that failed. What the disk holds then, nobody knows: it is for good."""
    advice = _ADVICE.get(fault.errno or 0, _OTHER)
    return LogFailedError(
        f"Committing to {path} failed: {says(fault)}. Topics with durability fsync take no more "
        f"messages. {advice}"
    )
