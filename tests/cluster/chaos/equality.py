"""Whether all nodes have the same, batch by batch, from their files. The nodes are stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fanlog.format.batch import split_batches
from fanlog.log.catalog import load_topic, number_of
from fanlog.log.read_only import read_all, segment_files
from fanlog.log.scan import Damage, Owner

_CHUNK_BYTES = 4 << 20
_LEDGERS = "_fanlog"

# A topic partition: its batches by their offsets.
Batches = dict[int, bytes]


class Differences(NamedTuple):
    """`sentences` say what differs; `damaged` if that is only where bytes of a file are damaged."""

    sentences: list[str]
    damaged: bool = False


def compare_folders(folders: Mapping[str, Path]) -> Differences:
    contents = {name: _read(folder) for name, folder in folders.items()}
    damaged = {place for content in contents.values() for place in content.faults}
    found = [
        f"{name}: {fault}"
        for name, content in contents.items()
        for faults in content.faults.values()
        for fault in faults
    ]
    only_there = True
    (first, mine), *others = contents.items()
    for name, theirs in others:
        for place in sorted(mine.partitions.keys() | theirs.partitions.keys()):
            if place not in theirs.partitions or place not in mine.partitions:
                one, other = (first, name) if place in mine.partitions else (name, first)
                why = f"{one} has {place}, {other} has not"
            elif why := _difference(place, mine.partitions[place], theirs.partitions[place]):
                why = f"{place} of {first} and {name}: {why}"
            if why:
                found.append(why)
                only_there = only_there and place in damaged
    return Differences(found, bool(damaged) and only_there)


class _Content:
    def __init__(self) -> None:
        self.partitions: dict[str, Batches] = {}
        self.faults: dict[str, list[str]] = {}


def _read(data: Path) -> _Content:
    content = _Content()
    for folder in sorted((data / "topics").iterdir()):
        number = number_of(folder.name)
        if number is None:
            continue
        topic = load_topic(str(folder))
        for partition in sorted(path for path in folder.iterdir() if path.name.isdigit()):
            place = f"{topic.name}/{partition.name}"
            batches = content.partitions[place] = {}
            owner = Owner(number, int(partition.name))
            for file in segment_files(str(partition)):
                for run in read_all(str(partition), file, owner, chunk_bytes=_CHUNK_BYTES):
                    if isinstance(run, Damage):
                        if not _is_reserved(partition / f"{file.stem}.log", run):
                            fault = f"{place} is damaged: {run}"
                            content.faults.setdefault(place, []).append(fault)
                        continue
                    whole = run.data[: run.size]
                    for at, header in split_batches(whole):
                        batches[header.base_offset] = whole[at : at + header.length]
    return content


def _is_reserved(file: Path, end: Damage) -> bool:
    """Whether this is the room at the end of a file that nothing has been written to yet."""
    return end.next is None and not file.read_bytes()[end.at :].rstrip(b"\0")


def _difference(place: str, mine: Batches, theirs: Batches) -> str:
    if place.startswith(_LEDGERS):
        # Each node compacts its ledgers when it is the primary, which also writes on when the
        # others have stopped.
        both = mine.keys() & theirs.keys()
        different = [offset for offset in both if mine[offset] != theirs[offset]]
    elif mine.keys() != theirs.keys():
        return f"batches only one of them has: {sorted(mine.keys() ^ theirs.keys())[:10]}"
    else:
        different = [offset for offset in mine if mine[offset] != theirs[offset]]
    return f"other bytes at {sorted(different)[:10]}" if different else ""
