"""The bytes of a journal file: a row of groups, each 8-byte aligned, little-endian.

| at | bytes  | field      | meaning                                                             |
| -- | ------ | ---------- | ------------------------------------------------------------------- |
|  0 | 8      | magic      | `FANLJRN1`: the body is batches; `FANLJRM1`: it is marks            |
|  8 | 8      | generation | the broker's epoch << 32, and a count of files used since its start |
| 16 | 4      | length     | of the body; 0 in a file that holds nothing                         |
| 20 | 4      | crc        | CRC-32C of the body                                                 |
| 24 | 4      | synced     | so many bytes of this file were synced when the group was written   |
| 28 | 4      | header crc | CRC-32C of bytes 0 to 28                                            |
| 32 | length | body       | batches as they are: topic and partition are in their headers.      |
|    |        |            | Or marks, each topic (4), partition (4), end offset (8): so far a   |
|    |        |            | log was synced itself, with records that the journal has not got    |

Law: groups of an earlier use of the file have a lower generation and are never replayed. A group
that is damaged does not hide those behind it. It was promised to be there if a later one says that
its bytes were synced, or if the other file is newer; otherwise it is a write that a crash tore.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from fanlog.format.checksum import crc32c
from fanlog.log import posix
from fanlog.log.files import read_file, write_all
from fanlog.log.scan import Owner

NAMES = ("0.journal", "1.journal")

_GROUP = Struct("<8sQIIII")
HEADER_BYTES = _GROUP.size
_BATCHES = b"FANLJRN1"
_MARKS = b"FANLJRM1"
_MAGIC_START = b"FANLJR"
_ALIGNMENT = 8
_CRC_AT = 28
_MARK = Struct("<IIQ")
_SYNCED_MAX = 0xFFFFFFFF


class SyncMark(NamedTuple):
    """A log was synced itself up to an offset."""

    owner: Owner
    end_offset: int


class JournalGroup(NamedTuple):
    """A whole group."""

    at: int
    generation: int
    synced: int
    is_marks: bool
    body: memoryview


class JournalFound(NamedTuple):
    """The contents of a journal. `spare` are batches behind a torn write, which were never
    acknowledged.

    `complete` is False if a group is lost: then it is not known which logs were promised more.
    """

    batches: list[memoryview]
    spare: list[memoryview]
    marks: list[SyncMark]
    complete: bool
    faults: list[str]


def group_header(generation: int, body: bytes, *, synced: int = 0, is_marks: bool = False) -> bytes:
    magic = _MARKS if is_marks else _BATCHES
    fields = magic, generation, len(body), crc32c(body), min(synced, _SYNCED_MAX), 0
    header = _GROUP.pack(*fields)[:_CRC_AT]
    return header + crc32c(header).to_bytes(4, "little")


def encode_marks(marks: Iterable[SyncMark]) -> bytes:
    return b"".join(_MARK.pack(*mark.owner, mark.end_offset) for mark in marks)


def groups(data: bytes, generation_min: int | None = None) -> Iterator[JournalGroup | int]:
    """The whole groups of a file's generation, and the positions of damaged ones before them.

    The generation is that of the first group. Where that is damaged, it is the first one found
    that is `generation_min` or higher; without it nobody can tell, and nothing is found.
    """
    view = memoryview(data)
    at = 0
    wanted: int | None = None
    bad: int | None = None
    while (header := _header_at(data, at)) is not None or bad is None:
        if header is None:
            if wanted is None and generation_min is None:
                return
            bad, at = at, _next_header(data, at)
            continue
        magic, generation, length, crc, synced, _ = header
        if wanted is None:
            if generation_min is not None and generation < generation_min:
                return
            wanted = generation
        if generation != wanted:
            return
        body = view[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if bad is not None:
            yield bad
            bad = None
        if len(body) == length and crc32c(body) == crc:
            yield JournalGroup(at, generation, synced, magic == _MARKS, body)
        else:
            yield at
        at += HEADER_BYTES + length


def _header_at(data: bytes, at: int) -> tuple[bytes, int, int, int, int, int] | None:
    if at + HEADER_BYTES > len(data):
        return None
    header = _GROUP.unpack_from(data, at)
    if header[0] not in (_BATCHES, _MARKS) or crc32c(data[at : at + _CRC_AT]) != header[5]:
        return None
    return header


def _next_header(data: bytes, at: int) -> int:
    """Where the next whole header is; the end of the file if there is none."""
    at = data.find(_MAGIC_START, at + 1)
    while at >= 0:
        if at % _ALIGNMENT == 0 and _header_at(data, at) is not None:
            return at
        at = data.find(_MAGIC_START, at + 1)
    return len(data)


def read_journal(folder: str, generation_min: int | None = None) -> JournalFound:
    """What both files hold from a generation on, oldest first. Nothing when there is no journal."""
    files: list[tuple[int, str, list[JournalGroup | int]]] = []
    found = JournalFound([], [], [], complete=True, faults=[])
    for name in NAMES:
        try:
            data = _read(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        items = list(groups(data, generation_min))
        newest = max(
            (item.generation for item in items if isinstance(item, JournalGroup)), default=-1
        )
        files.append((newest, name, items))
        if not items and generation_min is None and any(data[:HEADER_BYTES]):
            found = found._replace(complete=False)
    files.sort(key=lambda file: file[0])
    for i, (_, name, items) in enumerate(files):
        # A file is synced before the other one is used.
        all_synced = i + 1 < len(files) and bool(files[-1][2])
        found = _take(found, f"{folder}/{name}", items, all_synced=all_synced)
    return found


def _read(path: str) -> bytes:
    """A journal file; of a retired one only what shows that nothing of its generation follows."""
    with open(path, "rb") as file:
        head = file.read(2 * HEADER_BYTES)
        return head if _is_retired(head) else head + file.read()


def _is_retired(head: bytes) -> bool:
    first, second = _header_at(head, 0), _header_at(head, HEADER_BYTES)
    if first is None or first[2]:
        return False
    return second is None or second[1] != first[1]


def _take(
    found: JournalFound, path: str, items: list[JournalGroup | int], *, all_synced: bool
) -> JournalFound:
    synced = max((item.synced for item in items if isinstance(item, JournalGroup)), default=0)
    target = found.batches
    complete = found.complete
    for item in items:
        if isinstance(item, JournalGroup):
            if not item.is_marks and item.body:
                target.append(item.body)
            elif item.is_marks and target is found.batches:
                found.marks.extend(
                    SyncMark(Owner(*m[:2]), m[2]) for m in _MARK.iter_unpack(item.body)
                )
        elif all_synced or item < synced:
            complete = False
            found.faults.append(f"{path} is damaged at byte {item}")
        else:
            target = found.spare
    return found._replace(complete=complete)


def newest_generation(folder: str) -> int:
    """The highest generation in a journal; 0 when there is none."""
    newest = 0
    for name in NAMES:
        try:
            for item in groups(read_file(f"{folder}/{name}"), 0):
                if isinstance(item, JournalGroup):
                    newest = max(newest, item.generation)
        except FileNotFoundError:
            continue
    return newest


def retire_journal(folder: str, generation: int) -> None:
    """Empties the journal: its batches are safe in the logs."""
    for name in NAMES:
        try:
            fd = os.open(f"{folder}/{name}", os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            write_all(fd, group_header(generation, b""), 0)
            posix.sync_data(fd)
        finally:
            os.close(fd)
