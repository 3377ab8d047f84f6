"""The small files of a data folder: its lock, its catalog, and each topic's description.

| file                                | holds                                                      |
| ----------------------------------- | ---------------------------------------------------------- |
| `lock`                              | the process id of the broker that has the folder (`flock`) |
| `catalog.json`                      | `format`, `next_topic` (never used yet), `epoch` (starts)  |
| `topics/<number>-<name>/topic.json` | `format`, `name`, `number`, `settings`                     |
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from fanlog.errors import FolderInUseError, FolderUnusableError, FormatError
from fanlog.log.files import read_file, remove_if_there, replace_file, sync_folder, write_all
from fanlog.model import TopicSettings

FORMAT = 1
DELETED_PREFIX = ".deleted-"
_NAME_PART_MAX = 48
_FOLDER_NAME = re.compile(r"(\d+)-.*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class Catalog(NamedTuple):
    """What must survive for numbers never to be used twice."""

    next_topic: int = 1
    epoch: int = 0


def load_catalog(path: str, *, has_topics: bool) -> Catalog:
    try:
        found: dict[str, Any] = json.loads(read_file(path))
        if found["format"] > FORMAT:
            raise FolderUnusableError(
                f"{path} was written by a newer release (format {found['format']}; this one "
                f"reads {FORMAT}): start that release, or give another --data."
            )
        return Catalog(int(found["next_topic"]), int(found["epoch"]))
    except FileNotFoundError:
        if not has_topics:
            return Catalog()
        raise FolderUnusableError(
            f"{path} is missing although there are topics: put it back from a backup."
        ) from None
    except (ValueError, KeyError, TypeError) as fault:
        raise FolderUnusableError(
            f"{path} can't be read ({fault}): put it back from a backup."
        ) from fault


def save_catalog(path: str, catalog: Catalog) -> None:
    text = json.dumps({"format": FORMAT, **catalog._asdict()})
    replace_file(path, text.encode(), durable=True)


class TopicFile(NamedTuple):
    """A `topic.json`."""

    name: str
    number: int
    settings: TopicSettings


def topic_folder_name(number: int, name: str) -> str:
    """A folder name that people recognise; the number alone makes it unique."""
    return f"{number}-{_UNSAFE.sub('_', name)[:_NAME_PART_MAX]}"


def number_of(folder_name: str) -> int | None:
    match = _FOLDER_NAME.fullmatch(folder_name)
    return int(match[1]) if match else None


def create_topic_folder(folder: str, topic: TopicFile) -> None:
    """Makes a topic's folder. After a crash it is whole, or left aside by the next start."""
    os.mkdir(folder)
    path = _topic_path(folder)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, _encode_topic(topic), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    if topic.settings.durability == "fsync":
        # The names too: for the others a creation should not cost three syncs.
        sync_folder(folder)
        sync_folder(os.path.dirname(folder))


def remove_half_made(folder: str) -> None:
    """Removes the folder of a topic that could not be made. It needs no descriptor: the lack of one
    may be why."""
    with suppress(OSError):
        remove_if_there(_topic_path(folder))
        os.rmdir(folder)


def save_topic(folder: str, topic: TopicFile) -> None:
    """Replaces a topic's description."""
    replace_file(_topic_path(folder), _encode_topic(topic), durable=True)


def _topic_path(folder: str) -> str:
    return folder + "/topic.json"


def _encode_topic(topic: TopicFile) -> bytes:
    # ASCII with escapes: a name may hold lone surrogates, which no encoding takes.
    text = json.dumps(
        {
            "format": FORMAT,
            "name": topic.name,
            "number": topic.number,
            "settings": msgspec.structs.asdict(topic.settings),
        },
        indent=1,
    )
    return text.encode()


def load_topic(folder: str) -> TopicFile:
    try:
        found: dict[str, Any] = json.loads(read_file(_topic_path(folder)))
        if found["format"] > FORMAT:
            raise FolderUnusableError(
                f"{folder} was written by a newer release: start that release, or give another "
                f"--data."
            )
        settings = msgspec.convert(found["settings"], TopicSettings)
        return TopicFile(str(found["name"]), int(found["number"]), settings)
    except FileNotFoundError:
        raise FormatError("topic.json is missing") from None
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as fault:
        raise FormatError(f"topic.json can't be read: {fault}") from fault


class FolderLock:
    """Keeps a second broker out of a data folder, for as long as this one lives."""

    __slots__ = ("_fd",)

    def __init__(self, folder: str) -> None:
        self._fd = os.open(folder + "/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise FolderInUseError(
                f"The data folder {folder} is in use by process {other}; "
                f"stop it or give another --data."
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
