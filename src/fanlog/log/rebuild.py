"""Rebuilds a lost catalog from the contents of the data folder. Law: a used number or epoch must
never be used again. The folder may have lost some of them, so the new catalog begins far past those
it still shows.
"""

from __future__ import annotations

import os
from contextlib import suppress

from fanlog.errors import FormatError
from fanlog.format.header import BATCH_BYTES_MIN, check_header
from fanlog.log.catalog import CatalogFile, number_of
from fanlog.log.segment_names import LOG_SUFFIX

# More starts, and more topics, than can have come after the newest trace of them.
_AHEAD = 1 << 16


def rebuild_catalog(
    copy: CatalogFile, topics: str, names: list[str], generation: int
) -> CatalogFile:
    """A catalog past everything that is known. `generation` is the journal's newest."""
    numbers = [number for name in names if (number := number_of(name)) is not None]
    epochs = [_newest_epoch(f"{topics}/{name}") for name in names]
    next_topic = max([copy.next_topic, *(number + 1 for number in numbers)])
    epoch = max([copy.epoch, generation >> 32, *epochs])
    return CatalogFile(next_topic + _AHEAD, epoch + _AHEAD)


def _newest_epoch(folder: str) -> int:
    """The epoch of a topic's newest segments, as their first batches have it."""
    return max((_first_epoch(path) for path in _newest_segments(folder)), default=0)


def _newest_segments(folder: str) -> list[str]:
    found: list[str] = []
    for partition in os.listdir(folder):
        with suppress(NotADirectoryError, FileNotFoundError):
            names = os.listdir(f"{folder}/{partition}")
            newest = max((name for name in names if name.endswith(LOG_SUFFIX)), default=None)
            if newest is not None:
                found.append(f"{folder}/{partition}/{newest}")
    return found


def _first_epoch(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return check_header(file.read(BATCH_BYTES_MIN)).leader_epoch
    except (OSError, FormatError):
        return 0
