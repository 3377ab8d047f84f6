"""Small notes in a partition's folder: where its log begins, and how far it is compacted.

| file             | holds                                                                        |
| ---------------- | ---------------------------------------------------------------------------- |
| `start.json`     | `format`, `start_offset`: the records before it were deleted. Durable        |
| `compacted.json` | `format`, and a `Compacted`. Without it, compaction looks at all of the log  |
"""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

from fanlog.log.files import read_file, remove_if_there, replace_file

logger = logging.getLogger("fanlog.log")

_FORMAT = 1


class Compacted(NamedTuple):
    """Before offset `until` no key is there twice. `tombstone_us` is the append time of the
    oldest tombstone there, 0 for none; `ran_us` is when that was found out."""

    until: int = 0
    tombstone_us: int = 0
    ran_us: int = 0


def load_start(folder: str) -> int:
    """The offset that the log begins with by a deletion; 0 if there was none."""
    try:
        return int(_load(f"{folder}/start.json")["start_offset"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError) as fault:
        # It is replaced whole, so that this is damage: what it hid can be seen again.
        logger.error("Where the log in %s begins can't be read: %s", folder, fault)
        return 0


def save_start(folder: str, offset: int) -> None:
    _save(f"{folder}/start.json", {"start_offset": offset}, durable=True)


def load_compacted(folder: str, active_base: int) -> Compacted:
    """How far a log is compacted, as far as the note can be true: a crash may have taken what it
    is about, and then other records come to those offsets."""
    path = f"{folder}/compacted.json"
    try:
        found = _load(path)
        until, tombstone_us, ran_us = (int(found[field]) for field in Compacted._fields)
    except FileNotFoundError:
        return Compacted()
    except (ValueError, KeyError, TypeError) as fault:
        logger.warning("How far %s is compacted can't be read: %s", folder, fault)
        return Compacted()
    if until <= active_base:
        return Compacted(until, tombstone_us, ran_us)
    remove_if_there(path)
    return Compacted()


def save_compacted(folder: str, compacted: Compacted) -> None:
    _save(f"{folder}/compacted.json", compacted._asdict(), durable=False)


def _load(path: str) -> dict[str, Any]:
    return json.loads(read_file(path))


def _save(path: str, fields: dict[str, int], *, durable: bool) -> None:
    text = json.dumps({"format": _FORMAT, **fields})
    replace_file(path, text.encode(), durable=durable)
