"""A segment: one file of a partition's batches. `segment_names.py` has the file names.

A `Segment` describes a file and keeps nothing open. Only the newest segment of a log changes; the
others are sealed, and facts about them are only added. Compaction writes one or several segments
into a new file. Within its offsets the new file replaces all files of a lower generation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from fanlog.errors import FormatError
from fanlog.log.files import read_file, remove_if_there, replace_file
from fanlog.log.index import Index, SealedIndex, decode_index, encode_index
from fanlog.log.scan import NO_STOP, BatchRun, Damage, Owner, walk_file
from fanlog.log.segment_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCERS_SUFFIX,
    TEMPORARY_SUFFIX,
    maybe_segment_name,
    plain_stem,
)


class Segment:
    """One file of a log. Only the active segment has an `index`, and it has no end. `name` is the
    file name that compaction chose, and empty for a file as it was written. `has_producers` is set
    if a start found the file with the producers before this segment."""

    __slots__ = ("base", "bytes", "has_producers", "index", "last_time_us", "name", "next_offset")

    def __init__(
        self,
        base: int,
        *,
        next_offset: int = NO_STOP,
        bytes: int = 0,
        last_time_us: int | None = None,
        index: Index | None = None,
        name: str = "",
    ) -> None:
        self.base = base
        self.name = name
        self.next_offset = next_offset
        self.bytes = bytes
        self.last_time_us = last_time_us
        self.index = index
        self.has_producers = False

    def reaching(self, next_offset: int) -> Segment:
        """The same file with another end offset. Readers keep the old object."""
        other = Segment(
            self.base,
            next_offset=next_offset,
            bytes=self.bytes,
            last_time_us=self.last_time_us,
            index=self.index,
            name=self.name,
        )
        other.has_producers = self.has_producers
        return other


def base_of(segment: Segment) -> int:
    return segment.base


def base_name(segment: Segment) -> str:
    return segment.name or plain_stem(segment.base)


def plain_path(folder: str, base: int) -> str:
    """The file of a segment as it was written."""
    return f"{folder}/{plain_stem(base)}{LOG_SUFFIX}"


def log_path(folder: str, segment: Segment) -> str:
    return f"{folder}/{base_name(segment)}{LOG_SUFFIX}"


def index_path(folder: str, segment: Segment) -> str:
    return f"{folder}/{base_name(segment)}{INDEX_SUFFIX}"


def generation_of(segment: Segment) -> int:
    """How often the segment was compacted; after a merge, the count of its oldest source."""
    return int(segment.name.rpartition(".")[2]) if segment.name else 0


def producers_path(folder: str, base: int) -> str:
    return f"{folder}/{plain_stem(base)}{PRODUCERS_SUFFIX}"


class SegmentNote(NamedTuple):
    """A segment as shown to users. For the active segment `next` is None and `active` is True.
    `last_time_us` is None if it was not read since the start."""

    file: str
    base: int
    next: int | None
    bytes: int
    last_time_us: int | None
    generation: int
    active: bool


def note_of(segment: Segment) -> SegmentNote:
    """Describes a sealed segment without reading its file."""
    return SegmentNote(
        base_name(segment) + LOG_SUFFIX,
        segment.base,
        segment.next_offset,
        segment.bytes,
        segment.last_time_us,
        generation_of(segment),
        active=False,
    )


class _ListedFile(NamedTuple):
    """A segment file described by its name and size. `end` is 0 in a plain name."""

    base: int
    generation: int
    end: int
    stem: str
    bytes: int


class SegmentListing(NamedTuple):
    """A log's folder: its segments in order, and the names of all other files."""

    segments: list[Segment]
    others: set[str]


def list_folder(folder: str) -> SegmentListing:
    """Lists a log's folder. Files that a crash left half written or half deleted are removed."""
    others: set[str] = set()
    files: list[_ListedFile] = []
    indexes: set[str] = set()
    producers: set[int] = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = maybe_segment_name(entry.name)
                if name is None:
                    if entry.name.endswith(TEMPORARY_SUFFIX):
                        remove_if_there(entry.path)
                    else:
                        others.add(entry.name)
                    continue
                if name.suffix == LOG_SUFFIX:
                    size = entry.stat().st_size
                    files.append(_ListedFile(name.base, name.generation, name.end, name.stem, size))
                elif name.suffix == INDEX_SUFFIX:
                    indexes.add(name.stem)
                else:
                    producers.add(name.base)
    except FileNotFoundError:
        return SegmentListing([], others)
    files = _newest(folder, files)
    for stem in indexes - {file.stem for file in files}:
        remove_if_there(f"{folder}/{stem}{INDEX_SUFFIX}")
    for base in producers - {file.base for file in files}:
        remove_if_there(producers_path(folder, base))
    return SegmentListing(_as_segments(files, producers), others)


def _newest(folder: str, files: list[_ListedFile]) -> list[_ListedFile]:
    """The files in order. Files that compaction has replaced are removed."""
    kept: list[_ListedFile] = []
    for file in sorted(files, key=lambda file: (file.base, -file.generation)):
        before = kept[-1] if kept else None
        if before is not None and file.base < before.end and file.generation < before.generation:
            remove_if_there(f"{folder}/{file.stem}{LOG_SUFFIX}")
        else:
            kept.append(file)
    return kept


def _as_segments(files: list[_ListedFile], producers: set[int]) -> list[Segment]:
    ends = [*(file.base for file in files), NO_STOP][1:]
    segments: list[Segment] = []
    for file, end in zip(files, ends, strict=True):
        name = file.stem if file.generation else ""
        segment = Segment(file.base, next_offset=end, bytes=file.bytes, name=name)
        segment.has_producers = file.base in producers
        segments.append(segment)
    return segments


def remove_index(folder: str, segment: Segment) -> None:
    remove_if_there(index_path(folder, segment))


def write_index(folder: str, segment: Segment, sealed: SealedIndex) -> None:
    replace_file(index_path(folder, segment), encode_index(sealed), durable=False)


def load_index(
    folder: str, segment: Segment, owner: Owner, index_interval_bytes: int
) -> SealedIndex:
    """A sealed segment's index from its file; rebuilt when that is missing, stale or damaged."""
    try:
        sealed = decode_index(read_file(index_path(folder, segment)))
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
        write_index(folder, segment, sealed)
    return sealed


class Scanned(NamedTuple):
    """The result of reading a whole segment."""

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
    visit: Callable[[BatchRun], None] | None = None,
) -> Scanned:
    """Walks all batches of a segment, and indexes them; `visit` sees each run of them."""
    index = Index()
    damages: list[Damage] = []
    index_at = end_at = last_time_us = 0
    end_offset = segment.base
    fd = os.open(log_path(folder, segment), os.O_RDONLY)
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


def index_run(index: Index, run: BatchRun, next_at: int, interval_bytes: int) -> int:
    """Adds a run's entries, one for each interval; where the next one is due."""
    at = run.at
    for batch in run.batches:
        if at >= next_at:
            index.add(batch.base_offset, at, batch.append_time_us)
            next_at = at + interval_bytes
        at += batch.length
    return next_at
