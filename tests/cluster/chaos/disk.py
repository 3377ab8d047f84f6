"""A node's disk: a small file system of its own, which may be full, lost, or have a bit flipped."""

from __future__ import annotations

import os
import random
import shutil
from itertools import pairwise
from pathlib import Path

from tests.cluster.chaos.isolation import find, run
from tests.scenarios.small_disk import MIB

_HEADER_BYTES = 64


class NodeDisk:
    """An ext4 in a file, or a tmpfs where there are no loop devices."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        self.root = root
        self.data = root / "data"
        self._ballast = root / "ballast"
        root.mkdir(parents=True)
        self.kind = "ext4"
        try:
            self._mount_ext4(root.with_suffix(".image"), size_bytes)
        except RuntimeError:
            self.kind = "tmpfs"
            run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(root))

    def _mount_ext4(self, image: Path, size_bytes: int) -> None:
        if find("mkfs.ext4") is None:
            raise RuntimeError("mkfs.ext4 is not installed")
        with image.open("wb") as file:
            file.truncate(size_bytes)
        run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        run("mount", "-o", "loop", str(image), str(self.root))

    @property
    def used_bytes(self) -> int:
        found = os.statvfs(self.root)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def fill(self) -> None:
        """Takes all that is free, as another program would."""
        size = 1024 * MIB
        end = self._ballast.stat().st_size if self._ballast.exists() else 0
        with self._ballast.open("ab") as file:
            while size >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), end, size)
                    end += size
                except OSError:
                    size //= 2

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def lose(self) -> None:
        """All that the node had."""
        shutil.rmtree(self.data, ignore_errors=True)

    def flip_bit(self, dice: random.Random, *, sealed: bool = False) -> str:
        """Flips a bit in a segment, or in one that nothing is written to any more. Where; empty if
        there is none."""
        files = sorted(self.data.glob("topics/*/*/*.log"))
        if sealed:
            files = [one for one, after in pairwise(files) if one.parent == after.parent]
        while files:
            file = files.pop(dice.randrange(len(files)))
            content = file.read_bytes().rstrip(b"\0")
            if len(content) <= _HEADER_BYTES:
                continue
            at = dice.randrange(len(content))
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([content[at] ^ 1 << dice.randrange(8)]))
            return f"{file.relative_to(self.data)} at {at:,} of {len(content):,}"
        return ""
