"""The read-only log: reads the files of a partition while the broker runs. It writes, locks and
removes nothing, and checks every batch.

The broker may seal, compact or delete files at any time, and its newest bytes may not be in them
yet. Reading stops there, and the reader fetches the rest from the broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from fanlog.errors import FolderUnusableError, FormatError
from fanlog.log.catalog import load_topic, number_of
from fanlog.log.files import read_file
from fanlog.log.index import decode_index
from fanlog.log.scan import NO_STOP, BatchRun, Damage, Owner, walk_file
from fanlog.log.segment_names import INDEX_SUFFIX, LOG_SUFFIX, SegmentName, maybe_segment_name


class SegmentFile(NamedTuple):
    """A segment's file. `next_offset` is the first offset of the next file."""

    stem: str
    base: int
    next_offset: int


def find_partition(data: str, owner: Owner, topic: str) -> str | None:
    """The folder of a partition, if it is on this machine. Another broker's folder has topics with
    the same numbers: the name must match, too."""
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
) -> Iterator[BatchRun]:
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
) -> Iterator[BatchRun | Damage]:
    """The whole batches of a file, and its damaged ranges. Nothing if the file is gone."""
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
    """The files in order, without those that compaction has replaced but not removed yet."""
    names = [name for file in os.listdir(folder) if (name := maybe_segment_name(file)) is not None]
    logs = [name for name in names if name.suffix == LOG_SUFFIX]
    kept: list[SegmentName] = []
    for name in sorted(logs, key=lambda name: (name.base, -name.generation)):
        before = kept[-1] if kept else None
        if before is None or name.base >= before.end or name.generation >= before.generation:
            kept.append(name)
    ends = [*(name.base for name in kept), NO_STOP][1:]
    return [SegmentFile(name.stem, name.base, end) for name, end in zip(kept, ends, strict=True)]


def _file_runs(
    folder: str, file: SegmentFile, owner: Owner, wanted: tuple[int, int], chunk_bytes: int
) -> Iterator[BatchRun]:
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
    """A batch at or before the offset, and its position; the first batch without an index."""
    try:
        sealed = decode_index(read_file(f"{folder}/{file.stem}{INDEX_SUFFIX}"))
    except (OSError, FormatError):
        return file.base, 0
    if sealed.base_offset != file.base:
        return file.base, 0
    return sealed.entries.before(offset) or (file.base, 0)
