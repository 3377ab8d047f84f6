"""Real file systems of a few megabytes, which can be filled to the last byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1024 * 1024


class SmallDisk:
    """A mounted file system; `fill` takes all that is free, as another program would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            size = 1 * MIB
            while size:
                try:
                    file.write(bytes(size))
                    os.fsync(file.fileno())
                except OSError:
                    size //= 2

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(kind: str, where: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A `tmpfs`, or an `ext4` in a file. Skips where we may not mount."""
    folder = where / kind
    folder.mkdir()
    try:
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
        else:
            image = where / "image"
            with image.open("wb") as file:
                file.truncate(size_bytes)
            _run("mkfs.ext4", "-q", "-m", "0", str(image))
            _run("mount", "-o", "loop", str(image), str(folder))
    except (OSError, subprocess.CalledProcessError) as fault:
        reason = f"mounting {kind} needs root and its tools: {fault}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield SmallDisk(folder)
    finally:
        _run("umount", "-l", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
