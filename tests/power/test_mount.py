"""The file system that loses what was not synced, used as programs use one."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.power.disk import CUTS, Mode
from tests.power.machine import FuseMachine, fuse_machine

OLD, NEW = b"old " * 3000, b"new " * 3000


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put(path: Path, content: bytes) -> None:
    """Durable, with its name."""
    path.write_bytes(content)
    sync(path)
    sync(path.parent)


def cut(fuse: FuseMachine, mode: Mode, seed: int = 0) -> None:
    fuse.tell(cut=mode, seed=seed)


@pytest.mark.parametrize("mode", CUTS)
def test_what_was_synced_with_its_name_survives_every_cut(fuse: FuseMachine, mode: Mode) -> None:
    folder = fuse.root / "a" / "b"
    folder.mkdir(parents=True)
    sync(fuse.root)
    sync(folder.parent)
    put(folder / "file", OLD)
    cut(fuse, mode)
    assert (folder / "file").read_bytes() == OLD
    cut(fuse, mode)
    assert (folder / "file").read_bytes() == OLD


def test_data_without_a_name_and_a_name_without_data_are_both_lost(fuse: FuseMachine) -> None:
    unnamed, unsynced = fuse.root / "unnamed", fuse.root / "unsynced"
    unsynced.write_bytes(NEW)
    sync(fuse.root)
    unnamed.write_bytes(NEW)
    sync(unnamed)
    cut(fuse, "drop")
    assert not unnamed.exists()
    assert unsynced.read_bytes() == b""


def test_a_folder_without_a_name_takes_all_in_it_along(fuse: FuseMachine) -> None:
    (fuse.root / "new").mkdir()
    put(fuse.root / "new" / "file", OLD)
    cut(fuse, "drop")
    assert list(fuse.root.iterdir()) == []


def test_names_come_before_data_or_data_before_names(fuse: FuseMachine) -> None:
    put(fuse.root / "file", OLD)
    (fuse.root / "file").write_bytes(NEW + NEW)
    (fuse.root / "new").write_bytes(NEW)
    cut(fuse, "names")
    assert (fuse.root / "file").read_bytes() in (OLD, OLD + bytes(len(NEW)))
    assert (fuse.root / "new").read_bytes() in (b"", bytes(len(NEW)))
    (fuse.root / "file").write_bytes(NEW)
    (fuse.root / "newer").write_bytes(NEW)
    cut(fuse, "data")
    assert (fuse.root / "file").read_bytes() == NEW
    assert not (fuse.root / "newer").exists()


@pytest.mark.parametrize("seed", range(10))
def test_a_rename_over_a_file_leaves_the_old_one_or_the_new_one(
    fuse: FuseMachine, seed: int
) -> None:
    path, aside = fuse.root / "file", fuse.root / "aside"
    put(path, OLD)
    aside.write_bytes(NEW)
    sync(aside)
    os.replace(aside, path)
    cut(fuse, "random", seed)
    assert path.read_bytes() in (OLD, NEW)
    os.replace(path, aside)
    sync(fuse.root)
    cut(fuse, "random", seed)
    assert [p.name for p in fuse.root.iterdir()] == ["aside"]


def test_a_random_cut_leaves_whole_sectors_and_repeats_with_its_seed(fuse: FuseMachine) -> None:
    size = 64 * 4096
    results: set[bytes] = set()
    for seed in [*range(20), *range(20)]:
        path = fuse.root / "file"
        put(path, b"o" * size)
        with path.open("r+b", buffering=0) as file:
            file.write(b"n" * size)
        cut(fuse, "random", seed)
        found = path.read_bytes()
        sectors = {found[at : at + 512] for at in range(0, size, 512)}
        assert sectors <= {b"o" * 512, b"n" * 512}
        results.add(found)
    assert 10 < len(results) <= 20


def test_it_does_what_programs_ask_of_files(fuse: FuseMachine) -> None:
    path = fuse.root / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.posix_fallocate(fd, 0, 10_000)
    assert os.pwritev(fd, (b"ab", b"cd"), 8_000) == 4
    assert os.fstat(fd).st_size == 10_000
    os.fdatasync(fd)
    os.ftruncate(fd, 8_003)
    fcntl.flock(fd, fcntl.LOCK_EX)
    again = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)
    os.unlink(path)
    assert os.pread(fd, 100, 7_999) == b"\0abc"
    os.ftruncate(fd, 8_001)
    assert os.pread(fd, 100, 7_999) == b"\0a"
    os.close(fd)
    assert list(fuse.root.iterdir()) == []
    (fuse.root / "large").write_bytes(os.urandom(3_000_000))
    assert len((fuse.root / "large").read_bytes()) == 3_000_000
    with (fuse.root / "large").open("ab") as file:
        file.write(b"end")
    assert (fuse.root / "large").read_bytes()[-3:] == b"end"
    (fuse.root / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        os.open(fuse.root / "folder", os.O_RDWR)
    (fuse.root / "folder" / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        (fuse.root / "folder").rmdir()


def test_a_full_disk_takes_no_more_until_there_is_room(fuse: FuseMachine) -> None:
    (fuse.root / "large").write_bytes(bytes(90_000))
    fuse.limit(100_000)
    assert os.statvfs(fuse.root).f_bavail * os.statvfs(fuse.root).f_frsize < 10_001
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (fuse.root / "more").write_bytes(bytes(20_000))
    (fuse.root / "large").unlink()
    (fuse.root / "more").write_bytes(bytes(20_000))


def test_a_sync_that_fails_loses_what_it_was_to_keep(fuse: FuseMachine) -> None:
    put(fuse.root / "file", OLD)
    (fuse.root / "file").write_bytes(NEW)
    fuse.fail("fsync", "file")
    with pytest.raises(OSError, match="Input/output"):
        sync(fuse.root / "file")
    sync(fuse.root / "file")
    assert (fuse.root / "file").read_bytes() == NEW
    cut(fuse, "drop")
    assert (fuse.root / "file").read_bytes() == OLD


@pytest.mark.parametrize("after", [False, True])
def test_a_process_is_killed_at_a_call_of_choice(fuse: FuseMachine, after: bool) -> None:
    program = (
        "import os, sys\n"
        "sys.stdin.readline()\n"
        "for name in 'abc':\n"
        "    fd = os.open(sys.argv[1] + '/' + name, os.O_WRONLY | os.O_CREAT)\n"
        "    os.write(fd, b'x')\n"
        "    os.fsync(fd)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(fuse.root)], stdin=subprocess.PIPE
    ) as process:
        fuse.tell(trap="fsync", nth=2, after=after, pid=process.pid)
        process.communicate(b"\n")
    assert process.returncode == -9
    assert fuse.sprung
    with pytest.raises(OSError, match="Input/output"):
        list(fuse.root.iterdir())
    cut(fuse, "names")
    sizes = {path.name: path.read_bytes() for path in fuse.root.iterdir()}
    assert sizes["a"] == b"x"
    assert (sizes["b"] == b"x") is after
    assert "c" not in sizes


def test_it_is_unmounted_when_a_test_ends_in_the_middle(tmp_path: Path) -> None:
    def fail() -> None:
        with fuse_machine(tmp_path) as fuse:
            (fuse.root / "file").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not os.path.ismount(tmp_path / "disk")
    assert list((tmp_path / "disk").iterdir()) == []
