"""Reads the names of a lake's files: which batches each holds, which files count, and which may be
merged. The names are in the table of `lake.py`; all here is decided from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"(batch|merged)-(\d{10})-(\d{10})?.*\.parquet")


class LakeFile(NamedTuple):
    """A file, and the batches that it holds."""

    first: int
    last: int
    merged: bool
    path: Path

    def within(self, other: LakeFile) -> bool:
        """Whether everything in here is in the other one, too."""
        if not other.merged or self.path == other.path:
            return False
        inside = other.first <= self.first and self.last <= other.last
        return inside and (not self.merged or (self.first, self.last) != (other.first, other.last))


def all_files(folder: Path) -> list[LakeFile]:
    """The files of a folder in the order of their batches."""
    found: list[LakeFile] = []
    for path in folder.glob("*.parquet"):
        match = _NAME.fullmatch(path.name)
        if match:
            first = int(match[2])
            merged = match[1] == "merged"
            found.append(LakeFile(first, int(match[3]) if merged else first, merged, path))
    return sorted(found)


def counting_files(folder: Path) -> list[LakeFile]:
    """The files of a folder without those that a merged one has replaced."""
    held = all_files(folder)
    return [some for some in held if not any(some.within(other) for other in held)]


def small_runs(held: list[LakeFile], bytes_max: int) -> Iterator[list[LakeFile]]:
    """Neighbours that are small enough to be one file. Files of one batch stay together, since a
    merged file's name stands for whole batches."""
    run: list[LakeFile] = []
    size = 0
    for batch in _by_batch(held):
        bytes = sum(some.path.stat().st_size for some in batch)
        if run and size + bytes > bytes_max:
            yield run
            run, size = [], 0
        run = run + batch
        size += bytes
    yield run


def _by_batch(held: list[LakeFile]) -> Iterator[list[LakeFile]]:
    """Files whose batches overlap, together."""
    together: list[LakeFile] = []
    for some in held:
        if together and some.first > max(other.last for other in together):
            yield together
            together = []
        together.append(some)
    if together:
        yield together
