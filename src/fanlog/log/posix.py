"""Differences between systems. macOS has no fdatasync and no posix_fallocate, and Windows lacks
more than that: clients need nothing from here, and a broker asks `require` first."""

from __future__ import annotations

import errno
import os
import sys

from fanlog.errors import UnsupportedSystemError

# An if that pyright and every other checker understands, so that both halves have types.
if sys.platform != "win32":
    try:
        import fcntl
        import resource
    except ImportError:  # a POSIX system cut down to less, such as WebAssembly's
        fcntl = resource = None
else:
    fcntl = resource = None

# On macOS, fsync leaves data in the disk's own cache; this does not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NO_FULL_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)


def require() -> None:
    """Raises unless this system can run a broker."""
    if fcntl is None or resource is None:
        raise UnsupportedSystemError(
            f"Brokers and pipelines run on Linux and macOS, and not on this system "
            f"({sys.platform}). Clients run here: start the broker in WSL, in a container or on "
            f"another machine, and connect to it."
        )


def lock_file(fd: int, *, shared: bool = False) -> None:
    """Takes the file's lock for this process; raises BlockingIOError if another has it."""
    require()
    assert fcntl is not None
    fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def sync_data(fd: int) -> None:
    """Makes a file's data durable."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync_file(fd)


def sync_file(fd: int) -> None:
    """Makes a file durable: its data, and what the file system says of it."""
    if fcntl is not None and _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
        except OSError as fault:
            # Network disks, and some others, don't know it.
            if fault.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(fd)


def allocate(fd: int, at: int, length: int) -> None:
    """Gives a file room on the disk, or raises an `OSError` with EOPNOTSUPP."""
    if not hasattr(os, "posix_fallocate"):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    os.posix_fallocate(fd, at, length)


def open_files_max() -> int | None:
    """How many files the process may have open; None: as many as it likes."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_open_files_max() -> None:
    """Raises the process's limit as far as it may: each reader is a socket, and the usual soft
    limit of 1024 is for programs that call select()."""
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        # macOS calls the hard limit infinite, and refuses it. What there is has to do.
        return
