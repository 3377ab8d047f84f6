"""Space that is kept for freeing space: the file `<data>/reserve`.

A full disk must not block its own remedy. To delete records, to delete or change a topic and to
start a broker takes a few small files. When there is no room for them, the reserve is given up, and
refilled as soon as there is room. Until then publishing is refused, because messages would take the
freed space.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TypeVar

from fanlog.errors import DiskFullError
from fanlog.log import posix
from fanlog.log.faults import ROOM_ADVICE, is_full
from fanlog.log.files import remove_if_there
from fanlog.model import KIB, MIB

logger = logging.getLogger("fanlog.log")

T = TypeVar("T")

# A small disk is not kept for the most part.
_SHARE_OF_DISK = 16
# There is room again when this fits beside the reserve: less would be full at once.
_ROOM_BYTES = 1 * MIB
_STEP_BYTES = 64 * KIB


class Reserve:
    """`spent` says that the reserve is not whole: only what frees space may write. `full` says that
    somebody found the disk full, and that there is no room yet. Safe from any thread.

    Without a path there is no reserve, and nothing is ever full.
    """

    def __init__(self, path: str = "", bytes_wanted: int = 0) -> None:
        self._path = path
        self._bytes_wanted = bytes_wanted
        self._lock = Lock()
        # Of `full`. The other one is held while the disk is busy, and this one never.
        self._full_lock = Lock()
        self.spent = False
        self.full = False

    def check(self, path: str) -> None:
        """Raises if the free space is only for work that frees space."""
        if self.spent:
            raise DiskFullError(
                f"There is no room for {path}: the disk is full, and the rest of it is reserved "
                f"for deleting and for a start. {ROOM_ADVICE}"
            )

    def spend(self, work: Callable[[], T]) -> T:
        """Runs work that frees space, or that must be possible anyway. On a full disk it is
        repeated with the space of the reserve; it must allow that."""
        try:
            return work()
        except OSError as fault:
            if not self._path or not is_full(fault):
                raise
            self.note_full()
        self.release()
        try:
            return work()
        finally:
            self.refill()

    def note_full(self) -> None:
        """A write found no room. Logs it once, until there is room again."""
        if self._path and self._becomes(full=True):
            logger.error(
                "The disk of %s is full: messages for topics on disk are refused. %s",
                os.path.dirname(self._path),
                ROOM_ADVICE,
            )

    def _becomes(self, *, full: bool) -> bool:
        """Sets `full`. True if it was not set: of several threads, one reports it."""
        with self._full_lock:
            changes = self.full is not full
            self.full = full
            return changes

    def problem(self) -> str:
        """The problem, for `health`; empty if there is none."""
        if not self.full:
            return ""
        return f"the disk is full: messages for topics on disk are refused. {ROOM_ADVICE}"

    def release(self) -> None:
        """Gives the space up."""
        if not self._path or not self._bytes_wanted:
            return
        with self._lock:
            self.spent = True
            try:
                fd = os.open(self._path, os.O_WRONLY)
            except FileNotFoundError:
                return
            try:
                os.ftruncate(fd, 0)
                if self._is_short():
                    # Some file systems give blocks out again only when their freeing is durable.
                    posix.sync_file(fd)
            finally:
                os.close(fd)

    def refill(self) -> bool:
        """Takes the space back, as much as there is. True if that is all of it."""
        if not self._path or not self._bytes_wanted:
            return True
        with self._lock:
            try:
                wanted = self._wanted()
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
            except OSError as fault:
                logger.debug("the reserve can't be opened: %s", fault)
                self.spent = is_full(fault)
                return not self.spent
            try:
                self.spent = not _fill(fd, wanted)
            except OSError as fault:
                # Without a reserve, rather than without a broker.
                logger.warning("There is no reserve of disk space: %s", fault)
                self.spent = False
            finally:
                os.close(fd)
            return not self.spent

    def look_for_room(self) -> None:
        """Whether the disk has room again: then publishing resumes. Blocks a little."""
        if not self.full or not self.refill() or not self._has_room():
            return
        if self._becomes(full=False):
            logger.warning(
                "The disk of %s has room again: messages are accepted again.",
                os.path.dirname(self._path),
            )

    def _has_room(self) -> bool:
        probe = self._path + ".tmp"
        try:
            fd = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o666)
        except OSError:
            return False
        try:
            return _fill(fd, min(_ROOM_BYTES, self._wanted() or _STEP_BYTES))
        finally:
            os.close(fd)
            with suppress(OSError):
                remove_if_there(probe)

    def _is_short(self) -> bool:
        """Whether there is little beside the reserve. A start on a disk with much room should not
        wait for a sync."""
        disk = os.statvfs(os.path.dirname(self._path))
        return disk.f_bavail * disk.f_frsize < 2 * self._bytes_wanted

    def _wanted(self) -> int:
        disk = os.statvfs(os.path.dirname(self._path))
        return min(self._bytes_wanted, disk.f_blocks * disk.f_frsize // _SHARE_OF_DISK)


def _fill(fd: int, wanted: int) -> bool:
    """Gives a file that many bytes of the disk, or as many as there are. True for all of them."""
    size = os.fstat(fd).st_size
    if size > wanted:
        os.ftruncate(fd, wanted)
        return True
    while size < wanted:
        step = min(_STEP_BYTES, wanted - size)
        try:
            posix.allocate(fd, size, step)
        except OSError as fault:
            if not is_full(fault):
                raise
            os.ftruncate(fd, size)
            return False
        size += step
    return True
