"""A segment: one file `<base offset, 20 digits>.log` of a partition's batches.

A `Segment` is a note about a file and holds nothing open. Only the newest of a log changes; the
others are sealed, and what is known of them is only ever added to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from fanlog.errors import FormatError
from fanlog.log.files import read_file, remove_if_there, replace_file
from fanlog.log.index import Index, SealedIndex, decode_index, encode_index
from fanlog.log.scan import NO_STOP, Damage, Owner, Run, walk_file

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".idx"
TEMPORARY_SUFFIX = ".tmp"
_NAME_DIGITS = 20


class Segment:
    """One file of a log. `index` is held by the active segment alone, which also has no end."""

    __slots__ = ("base", "bytes", "index", "last_time_us", "next_offset")

    def __init__(
        self,
        base: int,
        *,
        next_offset: int = NO_STOP,
        bytes: int = 0,
        last_time_us: int | None = None,
        index: Index | None = None,
    ) -> None:
        self.base = base
        self.next_offset = next_offset
        self.bytes = bytes
        self.last_time_us = last_time_us
        self.index = index


def base_of(segment: Segment) -> int:
    return segment.base


def log_path(folder: str, base: int) -> str:
    return f"{folder}/{base:0{_NAME_DIGITS}d}{LOG_SUFFIX}"


def index_path(folder: str, base: int) -> str:
    return f"{folder}/{base:0{_NAME_DIGITS}d}{INDEX_SUFFIX}"


def _base_from(name: str) -> int | None:
    stem = name[:_NAME_DIGITS]
    return int(stem) if len(stem) == _NAME_DIGITS and stem.isdecimal() else None


def list_segments(folder: str) -> list[Segment]:
    """The segments of a folder in order. What a crash left half made or half deleted is removed."""
    sizes: dict[int, int] = {}
    indexes: set[int] = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                base = _base_from(entry.name)
                suffix = entry.name[_NAME_DIGITS:]
                if base is not None and suffix == LOG_SUFFIX:
                    sizes[base] = entry.stat().st_size
                elif base is not None and suffix == INDEX_SUFFIX:
                    indexes.add(base)
                elif entry.name.endswith(TEMPORARY_SUFFIX):
                    remove_if_there(entry.path)
    except FileNotFoundError:
        return []
    for base in indexes - sizes.keys():
        remove_if_there(index_path(folder, base))
    bases = sorted(sizes)
    ends = [*bases, NO_STOP][1:]
    return [
        Segment(base, next_offset=end, bytes=sizes[base])
        for base, end in zip(bases, ends, strict=True)
    ]


def remove_index(folder: str, base: int) -> None:
    remove_if_there(index_path(folder, base))


def write_index(folder: str, sealed: SealedIndex) -> None:
    replace_file(index_path(folder, sealed.base_offset), encode_index(sealed), durable=False)


def load_index(
    folder: str, segment: Segment, owner: Owner, index_interval_bytes: int
) -> SealedIndex:
    """A sealed segment's index from its file; rebuilt when that is missing, stale or damaged."""
    try:
        sealed = decode_index(read_file(index_path(folder, segment.base)))
        if sealed.base_offset == segment.base and sealed.log_bytes == segment.bytes:
            return sealed
    except (FileNotFoundError, FormatError):
        pass
    scanned = scan_segment(folder, segment, owner, index_interval_bytes)
    sealed = SealedIndex(
        scanned.entries, segment.base, scanned.end_offset, scanned.last_time_us, scanned.size
    )
    # It is only a shortcut: without it the next start scans again.
    with suppress(OSError):
        write_index(folder, sealed)
    return sealed


class Scanned(NamedTuple):
    """What a walk over a whole segment found."""

    entries: Index
    end_offset: int
    end_at: int
    last_time_us: int
    damages: list[Damage]
    size: int


def scan_segment(
    folder: str,
    segment: Segment,
    owner: Owner,
    index_interval_bytes: int,
    visit: Callable[[Run], None] | None = None,
) -> Scanned:
    """Walks all batches of a segment, and indexes them; `visit` sees each run of them."""
    index = Index()
    damages: list[Damage] = []
    index_at = end_at = last_time_us = 0
    end_offset = segment.base
    fd = os.open(log_path(folder, segment.base), os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        for part in walk_file(
            fd, owner, at=0, expected=segment.base, stop=segment.next_offset, limit=size
        ):
            if isinstance(part, Damage):
                damages.append(part)
                continue
            index_at = index_run(index, part, index_at, index_interval_bytes)
            last_time_us = part.batches[-1].append_time_us
            end_offset = part.next_offset
            end_at = part.at + part.size
            if visit is not None:
                visit(part)
    finally:
        os.close(fd)
    return Scanned(index, end_offset, end_at, last_time_us, damages, size)


def index_run(index: Index, run: Run, next_at: int, interval_bytes: int) -> int:
    """Adds a run's entries, one for each interval; where the next one is due."""
    at = run.at
    for batch in run.batches:
        if at >= next_at:
            index.add(batch.base_offset, at, batch.append_time_us)
            next_at = at + interval_bytes
        at += batch.length
    return next_at
