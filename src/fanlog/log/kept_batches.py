"""Keeps the journal's batches of a topic that can't be opened, until it can.

A start empties the journal. The batches of a topic whose `topic.json` and its copy are both lost
go to `<data>/journal/kept-<number>.journal` before that: one group, as in the journal itself. Once
the topic can be opened again, they come back to its logs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from fanlog.log.files import read_file, remove_if_there, replace_file
from fanlog.log.journal_file import JournalGroup, group_header, groups

_NAME = re.compile(r"kept-(\d+)\.journal")


def save_kept(folder: str, number: int, batches: Iterable[memoryview]) -> str:
    """Writes a topic's batches down, durably; where."""
    path = _path(folder, number)
    body = b"".join(batches)
    replace_file(path, group_header(0, body) + body, durable=True)
    return path


def load_kept(folder: str) -> dict[int, list[memoryview]]:
    """Batches by the number of the topic that they belong to."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found: dict[int, list[memoryview]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            data = read_file(f"{folder}/{name}")
            found[int(match[1])] = [g.body for g in groups(data) if isinstance(g, JournalGroup)]
    return found


def remove_kept(folder: str, number: int) -> None:
    """The topic's logs have them, and are synced."""
    remove_if_there(_path(folder, number))


def _path(folder: str, number: int) -> str:
    return f"{folder}/kept-{number}.journal"
