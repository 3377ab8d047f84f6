"""A machine whose power can be cut: a file system, and brokers that run on it.

`FuseMachine` loses exactly what its `Disk` says. `Ext4Machine` is a real ext4 on a loop device,
shut down under the broker. `OrdinaryMachine` is a folder: there an outage is `kill -9` and no more.

Law: whatever happens to a test, its file system is unmounted and its processes are gone.
"""

from __future__ import annotations

import abc
import ctypes
import errno
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.power.disk import Mode
from tests.scenarios.broker_process import BrokerProcess

MOUNT_SECONDS = 60.0
EXT4_BYTES = 256 << 20
# _IOR('X', 125, __u32): the file system stops at once, and its journal is not flushed.
EXT4_IOC_SHUTDOWN = 0x8004587D
SHUTDOWN_NOLOGFLUSH = 2
MNT_DETACH = 2

Backend = Literal["fuse", "ext4", "kill"]
# For tests that take a `machine`: what they claim, they claim of both.
OUTAGES: tuple[Backend, ...] = ("kill", "fuse")


class Machine(abc.ABC):
    """`root` is on the disk, durable and empty. `data` is where brokers keep their folder."""

    backend: Backend

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.cuts = 0

    def broker(self, *flags: str, env: dict[str, str] | None = None) -> PoweredBroker:
        return PoweredBroker(self, *flags, env=env)

    @abc.abstractmethod
    def cut(self) -> None:
        """The power goes and comes back. Nothing runs on the disk."""


class PoweredBroker(BrokerProcess):
    """A broker that is killed by cutting the machine's power."""

    def __init__(self, machine: Machine, *flags: str, env: dict[str, str] | None = None) -> None:
        log = machine.root.parent / "broker.log"
        super().__init__(machine.data, *flags, env=env, log=log)
        self._machine = machine

    def kill(self) -> None:
        """A dead process writes no more: to lose then what it had not synced is a power cut."""
        if self.running:
            super().kill()
            self._machine.cut()


class OrdinaryMachine(Machine):
    backend = "kill"

    def cut(self) -> None:
        self.cuts += 1


class FuseMachine(Machine):
    """Cuts in the given mode, each with a seed of its own that follows from the first."""

    backend = "fuse"

    def __init__(self, root: Path, control: Path, mode: Mode = "drop", seed: int = 0) -> None:
        super().__init__(root)
        self._control = control
        self.mode = mode
        self.seed = seed

    def cut(self) -> None:
        self.tell(cut=self.mode, seed=self.seed * 1_000_003 + self.cuts)
        self.cuts += 1

    def kill_at(
        self, broker: BrokerProcess, op: str, path: str = "", *, nth: int = 1, after: bool = False
    ) -> None:
        """Kills the broker at its Nth call from now, before that takes effect or after it."""
        self.tell(trap=op, path=path, nth=nth, after=after, pid=broker.pid)

    def fail(self, op: str, path: str = "", *, code: int = errno.EIO, times: int = 1) -> None:
        self.tell(fail=op, path=path, errno=code, times=times)

    def limit(self, limit_bytes: int | None) -> None:
        self.tell(limit=limit_bytes)

    @property
    def sprung(self) -> bool:
        """Whether `kill_at` has come to that call."""
        return self.tell()["frozen"]

    def tell(self, **command: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fspath(self._control))
            with connection.makefile("rw") as lines:
                lines.write(json.dumps(command) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
        if "error" in answer:
            raise AssertionError(f"the file system could not do it: {answer['error']}")
        return answer


@contextmanager
def fuse_machine(folder: Path, mode: Mode = "drop", seed: int = 0) -> Iterator[FuseMachine]:
    """Mounted under `folder` as long as the block lasts."""
    _need_fuse()
    root, control, log = folder / "disk", folder / "control", folder / "mount.log"
    root.mkdir()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.power.mount", str(root), str(control)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            env=os.environ | {"FUSE_LIBRARY_NAME": "fuse3"},
        )
    try:
        _until_mounted(root, process, log)
        yield FuseMachine(root, control, mode, seed)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _detach(root)


def _until_mounted(root: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + MOUNT_SECONDS
    while not os.path.ismount(root):
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"the file system was not mounted:\n{log.read_text()}")
        time.sleep(0.01)


class Ext4Machine(Machine):
    backend = "ext4"

    def __init__(self, root: Path, image: Path) -> None:
        super().__init__(root)
        self._image = image

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.root))

    def cut(self) -> None:
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", SHUTDOWN_NOLOGFLUSH))
        finally:
            os.close(fd)
        _run("umount", str(self.root))
        self.mount()
        self.cuts += 1


@contextmanager
def ext4_machine(folder: Path) -> Iterator[Ext4Machine]:
    _need("mkfs.ext4", "Debian's package e2fsprogs has it")
    _need("losetup", "Debian's package mount has it")
    if os.geteuid() != 0:
        go_without("Only root can mount a loop device.")
    root, image = folder / "ext4", folder / "ext4.image"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(EXT4_BYTES)
    _run("mkfs.ext4", "-q", "-F", str(image))
    machine = Ext4Machine(root, image)
    try:
        machine.mount()
    except subprocess.CalledProcessError as fault:
        go_without(f"A loop device can't be mounted here: {fault.stderr}")
    try:
        yield machine
    finally:
        _detach(root)
        image.unlink()


@contextmanager
def machine_of(
    backend: Backend, folder: Path, mode: Mode = "any", seed: int = 0
) -> Iterator[Machine]:
    if backend == "fuse":
        with fuse_machine(folder, mode, seed) as made:
            yield made
    elif backend == "ext4":
        with ext4_machine(folder) as made:
            yield made
    else:
        yield OrdinaryMachine(folder)


def _need_fuse() -> None:
    _need("fusermount3", "Debian's package fuse3 has it")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        go_without("/dev/fuse can't be opened: power cuts need FUSE.")


def _need(program: str, hint: str) -> None:
    # Those of an administrator are not on everybody's path.
    if shutil.which(program) is None and shutil.which(program, path="/usr/sbin:/sbin") is None:
        go_without(f"{program} is not installed: {hint}.")


def go_without(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _run(program: str, *args: str) -> None:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin") or program
    subprocess.run([path, *args], check=True, capture_output=True, text=True, timeout=60)


def _detach(root: Path) -> None:
    """At once, whoever may still use it; nothing if it is unmounted."""
    ctypes.CDLL(None).umount2(os.fsencode(root), MNT_DETACH)
