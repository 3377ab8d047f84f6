"""How far a pipeline is, from what it leaves in its state folder: Spark's checkpoints, and the
`progress.json` of those that are no streams. Nothing here needs Spark, or the pipeline to run.

A checkpoint has a file for each batch in `offsets/` (what it reads up to) and in `commits/` (that
it is done). The first two lines of the former are Spark's; then each source has a line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from fanlog.model import TopicPartition

PROGRESS = "progress.json"
_HEAD_LINES = 2

Ends = Mapping[TopicPartition, int]


class Written(msgspec.Struct, frozen=True):
    """`progress.json`: chunks and records, all and done."""

    chunks: int
    chunks_done: int
    records: int
    records_done: int


class StreamProgress(NamedTuple):
    """One stream of a pipeline. `offsets` are where it resumes. `rows` counts from the start of the
    log: differences of it are the records read."""

    name: str
    batch: int
    rows: int
    offsets: dict[TopicPartition, int]
    left: int | None = None

    def lag(self, ends: Ends) -> int | None:
        """Records not done yet; None if unknown."""
        if self.left is not None:
            return self.left
        known = [max(0, ends[tp] - at) for tp, at in self.offsets.items() if tp in ends]
        return sum(known) if known else None

    @property
    def topics(self) -> set[str]:
        return {topic for topic, _ in self.offsets}


class _StreamOffsets(msgspec.Struct, frozen=True):
    log: str
    offsets: dict[int, int]


def look(state: Path) -> list[StreamProgress]:
    """All streams of a state folder with progress. Spark creates and deletes folders in it
    meanwhile: a vanished one does not count."""
    found = [some for folder in _checkpoints(state) if (some := _stream(state, folder))]
    with contextlib.suppress(FileNotFoundError):
        some = msgspec.json.decode((state / PROGRESS).read_bytes(), type=Written)
        left = some.records - some.records_done
        found.append(StreamProgress(state.name, some.chunks_done, some.records_done, {}, left))
    return found


def _checkpoints(state: Path) -> list[Path]:
    # Unlike a glob, a walk survives a vanished folder.
    walked = ((Path(folder), names) for folder, names, _ in os.walk(state))
    return sorted(folder for folder, names in walked if {"commits", "offsets"} <= set(names))


def _stream(state: Path, folder: Path) -> StreamProgress | None:
    try:
        names = [path.name for path in (folder / "commits").iterdir()]
    except FileNotFoundError:
        return None
    batches = [int(name) for name in names if name.isdigit()]
    if not batches:
        return None
    batch = max(batches)
    offsets = _offsets(folder / "offsets" / str(batch))
    # The parts that are the same for every pipeline say nothing.
    parts = [part for part in folder.relative_to(state).parts if part not in _DULL_PARTS]
    # A table's flow has the table's name, and each checkpoint a number.
    named = dict.fromkeys(part for part in parts if not part.isdigit())
    name = "/".join(named) or state.name
    return StreamProgress(name, batch, sum(offsets.values()), offsets)


_DULL_PARTS = frozenset({"checkpoint", "checkpoints", "_checkpoints", "spark_catalog", "default"})


def _offsets(path: Path) -> dict[TopicPartition, int]:
    """The end offsets of a batch's Fanlog sources. A file source's line has another form."""
    found: dict[TopicPartition, int] = {}
    try:
        lines = path.read_bytes().splitlines()[_HEAD_LINES:]
    except FileNotFoundError:  # a batch that Spark has tidied away meanwhile
        return found
    for line in lines:
        try:
            topics = msgspec.json.decode(line, type=dict[str, _StreamOffsets])
        except msgspec.DecodeError:
            continue
        for topic, some in topics.items():
            found |= {
                TopicPartition(topic, number): offset for number, offset in some.offsets.items()
            }
    return found
