"""Reading a partition's files beside the broker that has them. Nothing is written, locked or
removed here, and every batch is checked.

The broker may seal, compact or delete files at any time, and its newest bytes may not be in them
yet: reading ends where it can't go on, and the rest is the broker's to give.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from fanlog.errors import FolderUnusableError, FormatError
from fanlog.log.catalog import load_topic, number_of
from fanlog.log.files import read_file
from fanlog.log.index import decode_index
from fanlog.log.scan import NO_STOP, Damage, Owner, Run, walk_file
from fanlog.log.segment import INDEX_SUFFIX, LOG_SUFFIX

# As `segment.py` names them: as written, and as compaction leaves them.
_NAME = re.compile(r"((\d{20})(?:-(\d{20})\.(\d+))?)\.log")


class SegmentFile(NamedTuple):
    """A segment's file. `next_offset` is where the one behind it begins."""

    stem: str
    base: int
    next_offset: int


def find_partition(data: str, owner: Owner, topic: str) -> str | None:
    """The folder of a partition, if this machine has it. Another broker's folder has topics under
    the same numbers: the name must be the same, too."""
    topics = f"{data}/topics"
    try:
        names = os.listdir(topics)
    except OSError:
        return None
    for name in names:
        folder = f"{topics}/{name}/{owner.partition}"
        if number_of(name) == owner.topic and os.path.isdir(folder):
            return folder if _is_of(f"{topics}/{name}", owner, topic) else None
    return None


def _is_of(folder: str, owner: Owner, topic: str) -> bool:
    try:
        found = load_topic(folder)
    except (OSError, FormatError, FolderUnusableError):
        return False
    return (found.number, found.name) == (owner.topic, topic)


def read_runs(
    folder: str, owner: Owner, first: int, end: int, *, chunk_bytes: int
) -> Iterator[Run]:
    """Whole batches from the one with offset `first` on, below `end`, as far as files have them."""
    expected = first
    for file in segment_files(folder):
        if expected >= end or file.base > expected:
            return
        if file.next_offset <= expected:
            continue
        try:
            for run in _file_runs(folder, file, owner, (expected, end), chunk_bytes):
                yield run
                expected = run.next_offset
        except FileNotFoundError:
            return
        if expected < min(file.next_offset, end):
            return


def read_all(
    folder: str, file: SegmentFile, owner: Owner, *, chunk_bytes: int
) -> Iterator[Run | Damage]:
    """All that a file has: whole batches, and where it is damaged. Nothing if it is gone."""
    try:
        fd = os.open(f"{folder}/{file.stem}{LOG_SUFFIX}", os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        yield from walk_file(
            fd,
            owner,
            at=0,
            expected=file.base,
            stop=file.next_offset,
            limit=os.fstat(fd).st_size,
            chunk_bytes=chunk_bytes,
        )
    finally:
        os.close(fd)


def segment_files(folder: str) -> list[SegmentFile]:
    """The files in order, without those that compaction has replaced and not removed yet."""
    found: list[tuple[int, int, int, str]] = []
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match is not None:
            stem, base, end, generation = match.groups()
            found.append((int(base), -int(generation or 0), int(end or 0), stem))
    kept: list[tuple[int, int, int, str]] = []
    for file in sorted(found):
        if not kept or file[0] >= kept[-1][2] or file[1] <= kept[-1][1]:
            kept.append(file)
    ends = [*(file[0] for file in kept), NO_STOP][1:]
    return [SegmentFile(file[3], file[0], end) for file, end in zip(kept, ends, strict=True)]


def _file_runs(
    folder: str, file: SegmentFile, owner: Owner, wanted: tuple[int, int], chunk_bytes: int
) -> Iterator[Run]:
    first, end = wanted
    base, at = _position(folder, file, first)
    fd = os.open(f"{folder}/{file.stem}{LOG_SUFFIX}", os.O_RDONLY)
    try:
        for part in walk_file(
            fd,
            owner,
            at=at,
            expected=base,
            stop=min(end, file.next_offset),
            limit=os.fstat(fd).st_size,
            chunk_bytes=chunk_bytes,
        ):
            if isinstance(part, Damage):
                return
            if part.next_offset > first:
                yield part
    finally:
        os.close(fd)


def _position(folder: str, file: SegmentFile, offset: int) -> tuple[int, int]:
    """A batch at or before the offset, and where it is; the file's first where no index tells."""
    try:
        sealed = decode_index(read_file(f"{folder}/{file.stem}{INDEX_SUFFIX}"))
    except (OSError, FormatError):
        return file.base, 0
    if sealed.base_offset != file.base:
        return file.base, 0
    return sealed.entries.before(offset) or (file.base, 0)
