"""Opens the topics of a data folder, in a few threads.

A topic without its description is skipped: its files stay unchanged, and the other topics are
opened.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor

from fanlog.errors import FormatError
from fanlog.log.catalog import TopicFile, load_topic, number_of, restore_topic
from fanlog.log.clean_stop import Cleaned
from fanlog.log.disk import LogResources
from fanlog.log.files import sync_folder
from fanlog.log.kept_batches import save_kept
from fanlog.log.partition import PartitionLog
from fanlog.log.previous_run import PreviousRun
from fanlog.log.scan import Owner
from fanlog.model import Durability, TopicSettings

logger = logging.getLogger("fanlog.log")

# Threads that open topics: they wait for the disk at the same time. How many topics each gets.
_THREADS = 4
_TOPICS_A_TASK = 32


class StoredTopic:
    """A topic and its logs, one for each partition."""

    __slots__ = ("folder", "logs", "name", "number", "settings")

    def __init__(self, name: str, number: int, settings: TopicSettings, folder: str = "") -> None:
        self.name = name
        self.number = number
        self.settings = settings
        self.logs: list[PartitionLog] = []
        self.folder = folder


class Opening:
    """Facts that a start has before it reads the topics' folders, and the folders that it could not
    open."""

    def __init__(
        self, previous: PreviousRun, cleaned: Cleaned, shared: LogResources, journal_folder: str
    ) -> None:
        self._previous = previous
        self._cleaned = cleaned
        self._shared = shared
        self._journal_folder = journal_folder
        # Numbers of topics with unusable folders.
        self.left_aside: set[int] = set()

    def open_topics(self, folders: list[str]) -> dict[int, StoredTopic]:
        """The topics by their numbers, in the order of their folders."""
        if folders and not self._cleaned.found:
            sync_folder(os.path.dirname(folders[0]))
        parts = [folders[i : i + _TOPICS_A_TASK] for i in range(0, len(folders), _TOPICS_A_TASK)]
        topics: dict[int, StoredTopic] = {}
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="fanlog-open") as threads:
            for opened in threads.map(self._open_some, parts):
                topics.update((topic.number, topic) for topic in opened)
        return topics

    def _open_some(self, folders: list[str]) -> list[StoredTopic]:
        shared = self._shared.for_opening()
        opened = (self._open_topic(folder, shared) for folder in folders)
        return [topic for topic in opened if topic is not None]

    def _open_topic(self, folder: str, shared: LogResources) -> StoredTopic | None:
        try:
            found = self._load_topic(folder)
        except FormatError as fault:
            self._leave_aside(folder, fault)
            return None
        settings = found.settings
        topic = StoredTopic(found.name, found.number, settings, folder)
        synced = settings.level is Durability.FSYNC
        if synced and not self._cleaned.found:
            # A killed broker may have made or changed the topic, and not have synced the names.
            # What is stored from now on must not depend on names that a power cut can take.
            sync_folder(folder)
        for partition in range(settings.partitions):
            owner = Owner(topic.number, partition)
            known = self._previous.known(owner) if synced else None
            clean = self._cleaned.get(owner, synced=synced)
            path = f"{folder}/{partition}"
            log = PartitionLog.open(path, settings, owner, shared, known, clean=clean)
            if log.needs_sync:
                log.sync()
            log.join(self._shared)
            topic.logs.append(log)
        return topic

    def _load_topic(self, folder: str) -> TopicFile:
        try:
            return load_topic(folder)
        except FormatError as fault:
            found = restore_topic(folder)
            self._shared.report(
                f"{folder}: {fault}. It was made again from its copy. Nothing is lost."
            )
            return found

    def _leave_aside(self, folder: str, fault: FormatError) -> None:
        number = number_of(os.path.basename(folder))
        if number is not None:
            self.left_aside.add(number)
        batches = [] if number is None else self._previous.batches_of(number)
        with os.scandir(folder) as entries:
            has_logs = any(entry.is_dir() for entry in entries)
        if number is None or not (batches or has_logs):
            # As a rule a crash came while it was made: there is nothing in it.
            logger.warning("%s is skipped, because it is not a complete topic: %s.", folder, fault)
            return
        where = ""
        if batches:
            # They must not go with the journal.
            where = f" (and in {save_kept(self._journal_folder, number, batches)})"
        self._shared.report(
            f"{folder} is skipped, so its topic is missing: {fault}. Its messages are still "
            f"there{where}: put topic.json back from a backup, and restart the broker."
        )
