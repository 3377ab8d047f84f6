"""Mounts a `Disk` with FUSE, in a process of its own: `python -m tests.power.mount FOLDER SOCKET`.

It ends, and unmounts, when its standard input does: so it never outlives the test that started it,
however that ended. The socket takes one command per connection, as a line of JSON.

cut: MODE, seed: N
    The power goes and comes back. Programs that had files open are gone already.
trap: CALL, path: REGEX, nth: N, after: BOOL, pid: PID
    Kills the process at the Nth such call, before or after the call takes effect. Then every call
    fails until the power is cut.
fail: CALL, path: REGEX, errno: N, times: N
    The next N such calls fail. What a failed sync was to keep is lost.
limit: BYTES
    How much the disk holds; null is no limit.

The answer counts the calls of each kind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import mfusepy

from tests.power.disk import Disk, File, Folder, Node, fail

BLOCK_BYTES = 4096
# What statvfs says of a disk without a limit.
PLENTY_BYTES = 1 << 40
MNT_DETACH = 2


class Trap:
    """A kind of call on some paths, counted down."""

    def __init__(self, command: dict[str, Any], op: str) -> None:
        self._op = op
        self._path = re.compile(command.get("path", ""))
        self.left: int = command.get("nth", command.get("times", 1))
        self.after: bool = command.get("after", False)
        self.pid: int = command.get("pid", 0)
        self.errno: int = command.get("errno", errno.EIO)

    def matches(self, op: str, path: str) -> bool:
        return self.left > 0 and op == self._op and bool(self._path.search(path))


class Bench(mfusepy.Operations):
    """The calls of FUSE, on a disk. One lock for all: commands come from another thread."""

    use_ns = True
    flag_nullpath_ok = True
    flag_nopath = True

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.ops: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._handles: dict[int, Node] = {}
        self._paths: dict[int, str] = {}
        self._next_handle = 1
        self._trap: Trap | None = None
        self._faults: list[Trap] = []
        self._frozen = False

    # Commands

    def command(self, command: dict[str, Any]) -> Any:
        with self._lock:
            if "cut" in command:
                self.disk.cut(command["cut"], command.get("seed", 0))
                self._frozen, self._trap, self._faults = False, None, []
            elif "trap" in command:
                self._trap = Trap(command, command["trap"])
            elif "fail" in command:
                self._faults.append(Trap(command, command["fail"]))
            elif "limit" in command:
                self.disk.limit_bytes = command["limit"]
            return {"ops": dict(self.ops), "frozen": self._frozen, "used": self.disk.used_bytes}

    # Around every call

    @contextlib.contextmanager
    def _call(self, op: str, path: str):
        with self._lock:
            if self._frozen:
                fail(errno.EIO)
            self.ops[op] += 1
            for fault in self._faults:
                if fault.matches(op, path):
                    fault.left -= 1
                    raise Injected(fault.errno)
            sprung = self._sprung(op, path)
            if sprung is not None and not sprung.after:
                self._spring(sprung)
                fail(errno.EIO)
            yield
            if sprung is not None:
                self._spring(sprung)

    def _sprung(self, op: str, path: str) -> Trap | None:
        trap = self._trap
        if trap is None or not trap.matches(op, path):
            return None
        trap.left -= 1
        return None if trap.left else trap

    def _spring(self, trap: Trap) -> None:
        self._frozen = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(trap.pid, signal.SIGKILL)

    def _handle(self, node: Node, path: str) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = node
        self._paths[handle] = path
        return handle

    def _node(self, path: str | None, handle: int | None) -> Node:
        if handle and handle in self._handles:
            return self._handles[handle]
        if path is None:
            fail(errno.ESTALE)
        return self.disk.find(path)

    def _open_file(self, handle: int) -> File:
        node = self._handles.get(handle)
        if not isinstance(node, File):
            fail(errno.EBADF)
        return node

    # Files

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        with self._call("create", path):
            return self._handle(self.disk.create(path, stat.S_IMODE(mode)), path)

    def open(self, path: str, flags: int) -> int:
        with self._call("open", path):
            file = self.disk.file(path)
            if flags & os.O_TRUNC and file.live:
                self.disk.resize(file, 0)
            return self._handle(file, path)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with self._call("read", self._paths.get(fh, "")):
            return bytes(memoryview(self._open_file(fh).live)[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        with self._call("write", self._paths.get(fh, "")):
            self.disk.write(self._open_file(fh), offset, data)
            return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        name = path or self._paths.get(fh or 0, "")
        with self._call("truncate", name):
            node = self._node(path, fh)
            if isinstance(node, Folder):
                fail(errno.EISDIR)
            self.disk.resize(node, length)
            return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        with self._call("fallocate", self._paths.get(fh, "")):
            if mode:
                fail(errno.EOPNOTSUPP)
            file = self._open_file(fh)
            if offset + size > len(file.live):
                self.disk.resize(file, offset + size)
            return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._sync("fsync", fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._sync("fsyncdir", fh)
        return 0

    def _sync(self, op: str, handle: int) -> None:
        node = self._handles.get(handle)
        if node is None:
            fail(errno.EBADF)
        try:
            with self._call(op, self._paths[handle]):
                self.disk.sync(node)
        except Injected:
            self.disk.forget_unsynced(node)
            raise

    def flush(self, path: str, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        with self._lock:
            self._handles.pop(fh, None)
            self._paths.pop(fh, None)
            return 0

    releasedir = release

    # Names

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        with self._call("getattr", path or ""):
            node = self._node(path, fh)
            size = len(node.live) if isinstance(node, File) else 0
            kind = stat.S_IFREG if isinstance(node, File) else stat.S_IFDIR
            times = dict.fromkeys(("st_mtime", "st_ctime", "st_atime"), node.modified_ns)
            return {
                "st_mode": kind | node.mode,
                "st_nlink": 1 if isinstance(node, File) else 2,
                "st_size": size,
                "st_blocks": -(-size // 512),
                "st_uid": os.getuid(),
                "st_gid": os.getgid(),
                **times,
            }

    def opendir(self, path: str) -> int:
        with self._call("opendir", path):
            return self._handle(self.disk.folder(path), path)

    def readdir(self, path: str, fh: int) -> list[str]:
        with self._call("readdir", self._paths.get(fh, "")):
            node = self._node(path, fh)
            return [".", "..", *(node.live if isinstance(node, Folder) else ())]

    def mkdir(self, path: str, mode: int) -> int:
        with self._call("mkdir", path):
            self.disk.make_folder(path, stat.S_IMODE(mode))
            return 0

    def unlink(self, path: str) -> int:
        with self._call("unlink", path):
            self.disk.unlink(path)
            return 0

    def rmdir(self, path: str) -> int:
        with self._call("rmdir", path):
            self.disk.remove_folder(path)
            return 0

    def rename(self, old: str, new: str) -> int:
        with self._call("rename", new):
            self.disk.rename(old, new)
            return 0

    def chmod(self, path: str, mode: int) -> int:
        with self._call("chmod", path):
            self.disk.find(path).mode = stat.S_IMODE(mode)
            return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        with self._call("statfs", path):
            limit = self.disk.limit_bytes
            total = PLENTY_BYTES if limit is None else limit
            free = max(0, total - self.disk.used_bytes) // BLOCK_BYTES
            return {
                "f_bsize": BLOCK_BYTES,
                "f_frsize": BLOCK_BYTES,
                "f_namemax": 255,
                "f_blocks": total // BLOCK_BYTES,
                **dict.fromkeys(("f_bfree", "f_bavail"), free),
                **dict.fromkeys(("f_files", "f_ffree", "f_favail"), 1 << 20),
            }


class Injected(OSError):
    """A fault that was asked for."""

    def __init__(self, code: int) -> None:
        super().__init__(code, os.strerror(code))


class Fuse(mfusepy.FUSE):
    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        """The binding leaves out the handle, and a file that is open may have no name any more."""
        handle = fip.contents.fh if fip else None
        name = None if path is None else path.decode(self.encoding, self.errors)
        return self.operations.truncate(name, length, handle)


def listen(bench: Bench, listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            try:
                answer = bench.command(json.loads(lines.readline()))
            except Exception as fault:  # noqa: BLE001 - whoever asked is told
                answer = {"error": repr(fault)}
            lines.write(json.dumps(answer) + "\n")


def unmount(folder: str) -> None:
    """At once, whoever may still use it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(folder), MNT_DETACH) != 0 and ctypes.get_errno() == errno.EPERM:
        subprocess.run(["fusermount3", "-uz", folder], check=False, capture_output=True)


def end_with_input(folder: str) -> None:
    while sys.stdin.buffer.read(1):
        pass
    unmount(folder)
    os._exit(0)


def main(folder: str, path: str) -> None:
    bench = Bench(Disk())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        threading.Thread(target=listen, args=(bench, listener), daemon=True).start()
        threading.Thread(target=end_with_input, args=(folder,), daemon=True).start()
        # Nothing is cached by the kernel: a cut changes everything behind its back.
        Fuse(
            bench,
            folder,
            foreground=True,
            nothreads=True,
            fsname="fanlog-power",
            direct_io=True,
            hard_remove=True,
            entry_timeout=0,
            negative_timeout=0,
            attr_timeout=0,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
