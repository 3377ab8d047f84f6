"""What a simulated process sees of the operating system: `os`, `shutil`, `open` and `fcntl` on the
disk of its machine.

Law: each call is one step of the simulation. It may be the last one of its process, before it
has done anything, after, or in the middle of a write. A thread gives way at each.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.power.disk import Disk, File, Folder, Node, fail
from tests.simulation.process import Process
from tests.simulation.world import Killed, active

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_DISK_BYTES = 1 << 40


@dataclass(slots=True, eq=False)
class OpenFile:
    node: Node
    path: str


class DirEntry:
    def __init__(self, folder: str, name: str, node: Node) -> None:
        self.name = name
        self.path = f"{folder}/{name}"
        self._node = node

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, Folder)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, File)

    def stat(self) -> Any:
        return _status(self._node)


class Entries:
    """What `scandir` returns: an iterator that is closed by `with`."""

    def __init__(self, entries: list[DirEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[DirEntry]:
        return self._entries

    def __enter__(self) -> Iterator[DirEntry]:
        return self._entries

    def __exit__(self, *_: object) -> None: ...


class _Call:
    """One call of the operating system: where it happens, and the trap that may be set for it."""

    def __init__(self, kind: str, path: str, detail: str = "") -> None:
        process = active().current
        if process is None or not process.alive:
            raise Killed
        self.process = process
        process.threads.step()
        process.world.note(f"{process.name} {kind} {path} {detail}")
        self._trap = process.machine.trap
        if self._trap is not None and not self._trap.armed(kind, path):
            self._trap = None
        self._spring("before")

    @property
    def disk(self) -> Disk:
        return self.process.machine.disk

    def _spring(self, stage: str) -> None:
        trap = self._trap
        if trap is not None and trap.stage == stage:
            self.process.machine.trap = None
            trap.spring()
            if not self.process.alive:
                raise Killed

    def tears(self) -> bool:
        return self._trap is not None and self._trap.stage == "torn"

    def torn(self) -> None:
        self._spring("torn")

    def done(self) -> None:
        self._spring("after")


def _status(node: Node) -> Any:
    is_folder = isinstance(node, Folder)
    return SimpleNamespace(
        st_size=0 if is_folder else len(node.live),
        st_mode=node.mode | (stat.S_IFDIR if is_folder else stat.S_IFREG),
        st_mtime_ns=0,
        st_mtime=0.0,
        st_dev=1,
        st_ino=1,
        st_nlink=1,
    )


class SimulatedPath:
    """`os.path`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os.path, name)

    def _maybe_find(self, path: str) -> Node | None:
        process = active().current
        if process is None or not process.alive:
            raise Killed
        try:
            return process.machine.disk.find(os.fspath(path))
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        return self._maybe_find(path) is not None

    def isdir(self, path: str) -> bool:
        return isinstance(self._maybe_find(path), Folder)

    def isfile(self, path: str) -> bool:
        return isinstance(self._maybe_find(path), File)

    def getsize(self, path: str) -> int:
        return _status(active_process().machine.disk.find(path)).st_size


def active_process() -> Process:
    process = active().current
    if process is None or not process.alive:
        raise Killed
    return process


class SimulatedOs:
    """`os`, as far as the log needs it."""

    path = SimulatedPath()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def getpid(self) -> int:
        return 1

    # Names

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        path = os.fspath(path)
        call = _Call("open", path, str(flags))
        disk = call.disk
        try:
            node = disk.find(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            node = disk.create(path, mode)
        else:
            if flags & os.O_CREAT and flags & os.O_EXCL:
                fail(errno.EEXIST)
            if flags & os.O_DIRECTORY and not isinstance(node, Folder):
                fail(errno.ENOTDIR)
            if flags & os.O_TRUNC and isinstance(node, File) and node.live:
                disk.resize(node, 0)
        number = call.process.take_number()
        call.process.files[number] = OpenFile(node, path)
        call.done()
        return number

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        call = _Call("mkdir", path)
        call.disk.make_folder(path, mode)
        call.done()

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        parent = os.path.dirname(path)
        if parent != path and not self.path.exists(parent):
            self.makedirs(parent, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except FileExistsError:
            if not exist_ok:
                raise

    def rename(self, old: str, new: str) -> None:
        call = _Call("rename", old, new)
        call.disk.rename(old, new)
        call.done()

    replace = rename

    def unlink(self, path: str) -> None:
        call = _Call("unlink", path)
        call.disk.unlink(path)
        call.done()

    remove = unlink

    def rmdir(self, path: str) -> None:
        call = _Call("rmdir", path)
        call.disk.remove_folder(path)
        call.done()

    def listdir(self, path: str) -> list[str]:
        if path == "/dev/fd":
            return [str(number) for number in range(10)]
        return list(_Call("listdir", path).disk.folder(path).live)

    def scandir(self, path: str) -> Entries:
        live = _Call("scandir", path).disk.folder(path).live
        return Entries([DirEntry(path, name, node) for name, node in live.items()])

    def stat(self, path: str) -> Any:
        return _status(_Call("stat", path).disk.find(path))

    def statvfs(self, path: str) -> Any:
        blocks = _DISK_BYTES // 4096
        return SimpleNamespace(f_bavail=blocks, f_blocks=blocks, f_bfree=blocks, f_frsize=4096)

    # Open files

    def close(self, fd: int) -> None:
        if active_process().files.pop(fd, None) is None:
            fail(errno.EBADF)

    def dup(self, fd: int) -> int:
        process = active_process()
        number = process.take_number()
        process.files[number] = _opened(process, fd)
        return number

    def fstat(self, fd: int) -> Any:
        return _status(_opened(active_process(), fd).node)

    def pread(self, fd: int, size: int, at: int) -> bytes:
        process = active_process()
        call = _Call("pread", _opened(process, fd).path, f"{at} {size}")
        file = _file(call.process, fd)
        return bytes(file.live[at : at + size])

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> int:
        opened = _opened(active_process(), fd)
        content = bytes(data)
        call = _Call("pwrite", opened.path, f"{at} {len(content)} {zlib.crc32(content)}")
        file = _file(call.process, fd)
        if call.tears() and content:
            part = call.process.machine.chance.randrange(len(content))
            call.disk.write(file, at, content[:part])
            call.torn()
        call.disk.write(file, at, content)
        call.done()
        return len(content)

    def pwritev(self, fd: int, buffers: Sequence[bytes | memoryview], at: int) -> int:
        return self.pwrite(fd, b"".join(buffers), at)

    def ftruncate(self, fd: int, size: int) -> None:
        call = _Call("truncate", _opened(active_process(), fd).path, str(size))
        call.disk.resize(_file(call.process, fd), size)
        call.done()

    def truncate(self, path: str, size: int) -> None:
        call = _Call("truncate", path, str(size))
        call.disk.resize(call.disk.file(path), size)
        call.done()

    def posix_fallocate(self, fd: int, at: int, length: int) -> None:
        file = _file(active_process(), fd)
        if len(file.live) < at + length:
            self.ftruncate(fd, at + length)

    def fsync(self, fd: int) -> None:
        opened = _opened(active_process(), fd)
        call = _Call("fsync", opened.path)
        # What is written while it takes its time may miss it.
        covered = {id(change) for change in opened.node.pending}
        call.process.threads.sleep(call.process.machine.sync_seconds())
        _sync(call.disk, opened.node, covered)
        call.done()

    fdatasync = fsync


def _sync(disk: Disk, node: Node, covered: set[int]) -> None:
    pending: list[Any] = node.pending
    later = [change for change in pending if id(change) not in covered]
    node.pending = [change for change in pending if id(change) in covered]
    disk.sync(node)
    node.pending = later


def _opened(process: Process, fd: int) -> OpenFile:
    opened = process.files.get(fd)
    if opened is None:
        if not process.alive:
            raise Killed
        fail(errno.EBADF)
    return opened


def _file(process: Process, fd: int) -> File:
    node = _opened(process, fd).node
    if isinstance(node, Folder):
        fail(errno.EISDIR)
    return node


def simulated_open(path: str, mode: str = "r", *_: Any, **__: Any) -> io.BytesIO:
    """`open` for reading; nothing in the log writes with it."""
    assert mode == "rb", mode
    process = active_process()
    if path == _BOOT_ID:
        return io.BytesIO(process.machine.boot_id.encode())
    call = _Call("read", os.fspath(path))
    return io.BytesIO(bytes(call.disk.file(path).live))


class SimulatedShutil:
    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def rmtree(self, path: str, ignore_errors: bool = False) -> None:
        system = SimulatedOs()
        try:
            for entry in list(system.scandir(path)):
                if entry.is_dir():
                    self.rmtree(entry.path, ignore_errors)
                else:
                    system.unlink(entry.path)
            system.rmdir(path)
        except OSError:
            if not ignore_errors:
                raise


class SimulatedFcntl:
    """Locks of files end with their process, and the simulation starts one at a time."""

    LOCK_SH, LOCK_EX, LOCK_NB = 1, 2, 4

    def flock(self, fd: int, operation: int) -> None:
        _opened(active_process(), fd)
