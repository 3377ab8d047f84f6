"""The small files of a data folder: its lock, its catalog, and each topic's description.

| file                                | holds                                                      |
| ----------------------------------- | ---------------------------------------------------------- |
| `lock`                              | the process id of the broker that has the folder (`flock`) |
| `catalog.json`                      | `next_topic` (never used yet), `epoch` (starts), `history` |
| `topics/<number>-<name>/topic.json` | `name`, `number`, `settings`                               |

Both JSON files have a copy beside them; `small_files.py` says what is in every such file.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from fanlog.errors import FolderInUseError, FormatError
from fanlog.log import posix, small_files
from fanlog.log.faults import ANOTHER_FOLDER
from fanlog.log.files import remove_if_there, sync_folder, write_all
from fanlog.log.small_files import ReportDamage
from fanlog.model import TopicSettings

DELETED_PREFIX = ".deleted-"
# In a folder that a restore has not finished.
UNFINISHED_RESTORE = "restore-unfinished"
_NAME_PART_MAX = 48
_FOLDER_NAME = re.compile(r"(\d+)-.*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class CatalogFile(NamedTuple):
    """The state that keeps numbers from being used twice."""

    next_topic: int = 1
    epoch: int = 0
    # The id of this folder's history, for backups: a restored folder has a new one, and the one
    # that it was restored from.
    history: str = ""
    restored_from: str = ""


def load_catalog(path: str, *, has_topics: bool, report: ReportDamage) -> CatalogFile | None:
    """None if it is lost: then it has to be rebuilt. The copy alone won't do, it may be older."""
    try:
        return _catalog(path)
    except FileNotFoundError:
        if not has_topics and not os.path.exists(path + small_files.COPY_SUFFIX):
            return CatalogFile()
        fault = "catalog.json is missing"
        aside = ""
    except FormatError as error:
        fault = str(error)
        aside = f" The file is now {small_files.set_aside(path)}; remove it."
    report(
        f"{fault}. It was made again from its copy, the topics' folders and the journal. Nothing "
        f"is lost.{aside}"
    )
    return None


def load_catalog_copy(path: str) -> CatalogFile:
    """The copy of a catalog that is lost; an empty catalog if that is lost, too."""
    try:
        return _catalog(path + small_files.COPY_SUFFIX)
    except (FileNotFoundError, FormatError):
        return CatalogFile()


def stored_epoch(folder: str) -> int:
    """The epoch of a folder that nobody has open: 0 if it has no catalog, or a lost one."""
    path = f"{folder}/catalog.json"
    try:
        return _catalog(path).epoch
    except (FileNotFoundError, FormatError):
        return load_catalog_copy(path).epoch


def _catalog(path: str) -> CatalogFile:
    fields = small_files.load(path).fields
    try:
        history = str(fields.get("history", "")), str(fields.get("restored_from", ""))
        return CatalogFile(int(fields["next_topic"]), int(fields["epoch"]), *history)
    except (ValueError, KeyError, TypeError) as fault:
        raise FormatError(f"catalog.json can't be read: {fault!r}") from fault


def save_catalog(path: str, catalog: CatalogFile) -> None:
    small_files.save(path, catalog._asdict(), durable=True, copy=True)


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


def create_topic_folder(folder: str, topic: TopicFile, *, durable: bool = True) -> None:
    """Creates a topic's folder. After a crash it is complete, or the next start sets it aside. If
    it is not `durable`, the caller syncs it later, with many others."""
    os.mkdir(folder)
    data = small_files.encode(_topic_fields(topic))
    _create(_topic_path(folder), data, durable=durable)
    _create(_topic_path(folder) + small_files.COPY_SUFFIX, data, durable=False)
    if durable and topic.settings.durability == "fsync":
        # The names too: for the others a creation should not cost three syncs.
        sync_folder(folder)
        sync_folder(os.path.dirname(folder))


def remove_half_made(folder: str) -> None:
    """Removes the folder of a topic that could not be made. It needs no descriptor: the lack of one
    may be why."""
    with suppress(OSError):
        remove_if_there(_topic_path(folder))
        remove_if_there(_topic_path(folder) + small_files.COPY_SUFFIX)
        os.rmdir(folder)


def _create(path: str, data: bytes, *, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(fd, data, 0)
        if durable:
            posix.sync_file(fd)
    finally:
        os.close(fd)


def save_topic(folder: str, topic: TopicFile) -> None:
    """Replaces a topic's description."""
    small_files.save(_topic_path(folder), _topic_fields(topic), durable=True, copy=True)


def _topic_path(folder: str) -> str:
    return folder + "/topic.json"


def _topic_fields(topic: TopicFile) -> dict[str, Any]:
    return {
        "name": topic.name,
        "number": topic.number,
        "settings": msgspec.structs.asdict(topic.settings),
    }


def load_topic(folder: str) -> TopicFile:
    """Raises `FormatError` if the description is missing, damaged or another folder's."""
    return _load_topic(folder, _topic_path(folder))


def restore_topic(folder: str) -> TopicFile:
    """Restores a topic's lost description from its copy; both are written again.

    The copy may be older: a partition with a folder exists, whatever the copy says.
    """
    path = _topic_path(folder)
    found = _load_topic(folder, path + small_files.COPY_SUFFIX)
    known = [int(name) + 1 for name in os.listdir(folder) if name.isascii() and name.isdigit()]
    partitions = max([found.settings.partitions, *known])
    settings = msgspec.structs.replace(found.settings, partitions=partitions)
    topic = found._replace(settings=settings)
    small_files.set_aside(path)
    save_topic(folder, topic)
    return topic


def _load_topic(folder: str, path: str) -> TopicFile:
    try:
        fields = small_files.load(path).fields
        settings = msgspec.convert(fields["settings"], TopicSettings)
        topic = TopicFile(str(fields["name"]), int(fields["number"]), settings)
    except FileNotFoundError:
        raise FormatError("topic.json is missing") from None
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as fault:
        raise FormatError(f"topic.json can't be read: {fault}") from fault
    if topic.number != number_of(os.path.basename(folder)):
        raise FormatError(f"topic.json has the number {topic.number}")
    return topic


class FolderLock:
    """Keeps a second broker out of a data folder, for as long as this one lives."""

    __slots__ = ("_fd",)

    def __init__(self, folder: str) -> None:
        self._fd = os.open(folder + "/lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            posix.lock_file(self._fd)
        except BlockingIOError:
            other = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise FolderInUseError(
                f"The data folder {folder} is in use by process {other}: stop that one, or "
                f"{ANOTHER_FOLDER}."
            ) from None
        os.ftruncate(self._fd, 0)
        # It is only for people; a full disk must not keep a broker from starting.
        with suppress(OSError):
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
