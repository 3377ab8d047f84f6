"""The names of a log's files, written once. Every number has 20 digits, so that names sort.

| file                               | name                                     |
| ---------------------------------- | ---------------------------------------- |
| batches, as they were written      | `<base offset>.log`                      |
| batches, as compaction leaves them | `<base offset>-<end>.<generation>.log`   |
| where batches are in a sealed file | the same name with `.idx`                |
| who has written before a file      | `<base offset>.producers`                |
| half made, removed at a start      | any name with `.tmp`                     |
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".idx"
PRODUCERS_SUFFIX = ".producers"
TEMPORARY_SUFFIX = ".tmp"
_DIGITS = 20
_NAME = re.compile(
    rf"(?P<stem>(?P<base>\d{{{_DIGITS}}})(?:-(?P<end>\d{{{_DIGITS}}})\.(?P<generation>\d+))?)"
    rf"(?P<suffix>{'|'.join(map(re.escape, (LOG_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX)))})"
)


class SegmentName(NamedTuple):
    """What a name says. `end` and `generation` are 0 for a file as it was written."""

    base: int
    generation: int
    end: int
    stem: str
    suffix: str


def maybe_segment_name(name: str) -> SegmentName | None:
    """What the name of a file says; None if it is not one of a log's.

    >>> maybe_segment_name("00000000000000000007.idx").base
    7
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    end, generation = int(found["end"] or 0), int(found["generation"] or 0)
    return SegmentName(int(found["base"]), generation, end, found["stem"], found["suffix"])


def plain_stem(base: int) -> str:
    """The name, without a suffix, of a segment that begins at an offset.

    >>> plain_stem(7)
    '00000000000000000007'
    """
    return f"{base:0{_DIGITS}d}"


def compacted_stem(base: int, end: int, generation: int) -> str:
    """The same for a segment that compaction wrote."""
    return f"{plain_stem(base)}-{plain_stem(end)}.{generation}"
