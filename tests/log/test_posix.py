"""What the log does on systems that lack a call of Linux's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fanlog.errors import UnsupportedSystemError
from fanlog.log import posix


def test_data_is_synced_by_fsync_where_there_is_no_fdatasync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    posix.sync_data(7)
    assert synced == [7]


def test_macos_is_asked_to_write_its_disks_own_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    assert posix.fcntl is not None
    monkeypatch.setattr(posix.fcntl, "fcntl", lambda fd, what: asked.append((fd, what)))
    monkeypatch.setattr(posix, "_FULL_SYNC", 51)
    posix.sync_file(7)
    assert asked == [(7, 51)]


def test_a_disk_of_macos_that_has_no_cache_to_write_is_synced_as_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(fd: int, what: int) -> None:
        raise OSError(fault, os.strerror(fault))

    synced: list[int] = []
    assert posix.fcntl is not None
    monkeypatch.setattr(posix.fcntl, "fcntl", ask)
    monkeypatch.setattr(posix, "_FULL_SYNC", 51)
    monkeypatch.setattr(os, "fsync", synced.append)
    fault = errno.ENOTSUP
    posix.sync_file(7)
    assert synced == [7]
    fault = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        posix.sync_file(7)


def test_a_system_that_allocates_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with pytest.raises(OSError, match="not supported") as raised:
        posix.allocate(7, 0, 4096)
    assert raised.value.errno == errno.EOPNOTSUPP


def test_a_system_without_locks_runs_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "fcntl", None)
    with pytest.raises(UnsupportedSystemError, match="Linux and macOS"):
        posix.require()


def test_a_lock_has_one_holder_or_several_that_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("ab") as one, path.open("ab") as two, path.open("ab") as three:
        posix.lock_file(one.fileno(), shared=True)
        posix.lock_file(two.fileno(), shared=True)
        with pytest.raises(BlockingIOError):
            posix.lock_file(three.fileno())
