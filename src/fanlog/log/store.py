"""All logs of a broker: the data folder, its topics, and the journal that they share.

`<data>/lock`, `<data>/catalog.json`, `<data>/reserve`, `<data>/journal/`, and for each topic
`<data>/topics/<number>-<name>/topic.json` with a folder for each partition that was written to.
Topics in memory have no files at all. Everything here belongs to the broker's loop thread; files
are removed in others.

It is long because a topic is created, changed and deleted in steps that a start has to
recognize.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from fanlog.config import LogOptions
from fanlog.errors import (
    FanlogError,
    FolderUnusableError,
    InvalidArgumentError,
    TopicDeletedError,
)
from fanlog.log.background import BackgroundWork, InlineWork
from fanlog.log.backup.pinning import PINS, unpin
from fanlog.log.backup.point import BackupPoint, TopicMoment, topics_now
from fanlog.log.catalog import (
    DELETED_PREFIX,
    UNFINISHED_RESTORE,
    CatalogFile,
    FolderLock,
    TopicFile,
    create_topic_folder,
    load_catalog,
    load_catalog_copy,
    number_of,
    remove_half_made,
    save_catalog,
    save_topic,
    topic_folder_name,
)
from fanlog.log.clean_stop import CleanLog, save_clean, take_clean
from fanlog.log.cutting import finish_cut
from fanlog.log.disk import DiskLog, LogResources
from fanlog.log.faults import ANOTHER_FOLDER, folder_error, is_full, topic_error, write_error
from fanlog.log.files import SyncError, make_folders, sync_folder
from fanlog.log.journal import Journal
from fanlog.log.journal_file import newest_generation, retire_journal
from fanlog.log.kept_batches import remove_kept
from fanlog.log.opening import Opening, StoredTopic
from fanlog.log.partition import PartitionLog
from fanlog.log.previous_run import PreviousRun, read_previous_run
from fanlog.log.rebuild import rebuild_catalog
from fanlog.log.reserve import Reserve
from fanlog.log.retrying import retry_briefly
from fanlog.log.scan import Owner
from fanlog.log.synced_ends import SyncedEnds
from fanlog.model import DamagedRange, Durability, TopicSettings

logger = logging.getLogger("fanlog.log")


class TopicChanged(Protocol):
    """Hears that a topic was created or changed, or deleted."""

    def __call__(self, topic: StoredTopic, *, deleted: bool) -> None: ...


# Numbers of memory topics. They are separate because they start again with every start.
MEMORY_NUMBERS_FROM = 0x80000000
_MEMORY_NUMBERS_MAX = 0xFFFFFFFF
# Logs that are made in one step.
_LOGS_A_STEP = 64
# Numbers taken from the catalog at once, so that not every new topic has to sync it.
_NUMBERS_PER_SAVE = 64
# Files and folders that a start creates first. A crash may have left only some of them.
_OUR_NAMES = frozenset(
    {"lock", "topics", "journal", "transactions", "catalog.json.tmp", "reserve", "reserve.tmp"}
    | {"cluster.json", "cluster.json.copy", "cluster.json.tmp", "cluster.json.copy.tmp"}
)


def raise_fault(fault: FanlogError | None) -> None:
    """For callers that wait: raises the error."""
    if fault is not None:
        raise fault


class LogStore:
    """Opens, creates, changes and deletes topics' logs. It has many fields, because everything that
    logs share is owned here: folder, epochs, journal, numbers and removals."""

    def __init__(
        self,
        folder: Path | None,
        options: LogOptions,
        epoch: int | None = None,
    ) -> None:
        """`epoch` is for a folder of a cluster, whose epochs are those of its primaries. `open`
        takes it, or the highest that the folder has, instead of a new one."""
        self.folder = None if folder is None else os.fspath(folder.absolute())
        self.options = options
        self._epoch_chosen = epoch
        self.epoch = 0
        self._shared = LogResources(options)
        if self.folder is not None:
            self._shared.reserve = Reserve(f"{self.folder}/reserve", options.reserve_bytes)
        self.journal: Journal | None = None
        self._lock: FolderLock | None = None
        self._topics: dict[int, StoredTopic] = {}
        # Numbers of topics with unusable folders.
        self.left_aside: set[int] = set()
        # Deleted topics whose folders are not renamed yet.
        self._deleting: dict[int, StoredTopic] = {}
        # Deleted topics whose folders could not be renamed: they come back with the next start.
        self._undeleted: list[StoredTopic] = []
        self._ends = SyncedEnds(0, 0, {})
        self._ends_saved = False
        # The upper half of the journal's generations. It rises with each start, as the epoch does
        # unless it is a cluster's.
        self._generation_epoch = 0
        # The id of this folder's history, and of the history that it was restored from.
        self._history = ("", "")
        self._next_number = 1
        self._numbers_saved = 1
        self._next_memory_number = MEMORY_NUMBERS_FROM
        self._memory_numbers: set[int] = set()
        # Passes changes on to replicas; and a check that comes before a change.
        self._topic_changed: TopicChanged = _unheard
        self._check_change: Callable[[], None] = _nothing

    def follow_changes(
        self,
        topic_changed: TopicChanged,
        start_moved: Callable[[Owner, int], None],
        check: Callable[[], None],
    ) -> None:
        """From now on these are called when a topic has changed, when a log has lost its oldest
        records, and before a topic is created or changed: `check` may raise."""
        self._topic_changed = topic_changed
        self._shared.start_moved = start_moved
        self._check_change = check

    def employ(self, background: BackgroundWork) -> None:
        """From now on `background` runs slow work. Before this, everything runs at once."""
        self._shared.background = self._shared.removals.background = background

    @contextmanager
    def at_once(self) -> Generator[None]:
        """Within, slow work ends before the call that wants it."""
        background = self._shared.background
        self.employ(InlineWork())
        try:
            yield
        finally:
            self.employ(background)

    @property
    def troubled(self) -> set[Owner]:
        """The logs that may have failed, or may have damage; all others are well."""
        return self._shared.troubled

    def read_damage_as(self, error: Callable[[DamagedRange], FanlogError]) -> None:
        """What readers of damage get from now on, instead of DamagedError."""
        self._shared.damaged_error = error

    def open(self) -> list[StoredTopic]:
        """Takes the data folder and brings its topics back."""
        folder = self.folder
        if folder is None:
            # An epoch that no earlier start is likely to have had: readers must notice that the log
            # is new.
            self.epoch = 1 + secrets.randbelow(0xFFFFFFFF)
            return []
        try:
            _check_ours(folder)
            make_folders(folder)
            self._lock = FolderLock(folder)
            try:
                # The start may have to write more than a full disk has left.
                self.reserve.release()
                self._open_folder(folder)
            except BaseException:
                self.reserve.refill()
                self._lock.release()
                raise
            if not self.reserve.refill():
                self.reserve.note_full()
        except OSError as fault:
            raise folder_error(fault, fault.filename or folder) from fault
        return self.topics

    @property
    def history(self) -> tuple[str, str]:
        """The id of this folder's history, and of the history that it was restored from."""
        return self._history

    @property
    def next_number(self) -> int:
        """Every topic on disk that was ever here has a lower number."""
        return self._next_number

    @property
    def topics(self) -> list[StoredTopic]:
        """The topics that are kept on disk."""
        return list(self._topics.values())

    @property
    def reserve(self) -> Reserve:
        """The disk space that is kept for freeing space."""
        return self._shared.reserve

    @property
    def problems(self) -> list[str]:
        """Problems with the data folder that the start found, and whether its disk is full."""
        full = self.reserve.problem()
        return [*self._shared.problems, full] if full else self._shared.problems

    def _open_folder(self, folder: str) -> None:
        topics = folder + "/topics"
        finish_cut(folder)
        os.makedirs(topics, exist_ok=True)
        names = self._sweep(sorted(entry.name for entry in os.scandir(topics) if entry.is_dir()))
        catalog = self._load_catalog(folder, names)
        cleaned = take_clean(folder)
        # Of backups that a crash came in between.
        unpin(f"{folder}/{PINS}")
        chosen = self._epoch_chosen
        self.epoch = catalog.epoch + 1 if chosen is None else max(catalog.epoch, chosen)
        self._history = catalog.history or secrets.token_hex(16), catalog.restored_from
        numbers = [number for name in names if (number := number_of(name)) is not None]
        self._next_number = max([catalog.next_topic, *(n + 1 for n in numbers)])
        # It syncs the folder: the names of the new files, and the removal of the mark.
        self._save_catalog(self._next_number)
        previous = read_previous_run(self._journal_folder, self._shared.report)
        opening = Opening(previous, cleaned, self._shared, self._journal_folder)
        self._topics = opening.open_topics([f"{topics}/{name}" for name in names])
        self.left_aside = opening.left_aside
        self._part_namesakes()
        self._pass_all_epochs()
        self._forget_journal(previous)

    def _part_namesakes(self) -> None:
        """Of two topics with one name the newer counts: the deletion of the older one had begun,
        and a crash came before its folder's new name was durable."""
        newest = {topic.name: number for number, topic in sorted(self._topics.items())}
        for number, topic in list(self._topics.items()):
            if newest[topic.name] != number:
                del self._topics[number]
                for log in topic.logs:
                    log.close()
                self.left_aside.add(number)
                self._shared.report(
                    f"{topic.folder} is skipped: there is a newer topic {topic.name!r}. A crash "
                    "interrupted the deletion of the older one. Remove the folder to complete "
                    "it."
                )

    def _forget_journal(self, previous: PreviousRun) -> None:
        """Everything in the journal is in the logs now, and synced."""
        folder = self._journal_folder
        self._generation_epoch = max(self.epoch, previous.generation_epoch + 1)
        self._ends.generation = self._generation_epoch << 32
        self._ends.next_topic = self._next_number
        for topic in self._topics.values():
            for log in topic.logs:
                if log.durability is Durability.FSYNC:
                    self._ends.note(log.owner, log.end_offset)
        for owner, end_offset in previous.ends_of(self.left_aside):
            self._ends.note(owner, end_offset)
        if os.path.isdir(folder) or self._ends.items():
            self._save_ends()
        if previous.has_groups:
            retire_journal(folder, self._generation_epoch << 32)
        for number in previous.kept & self._topics.keys():
            remove_kept(folder, number)

    def _save_ends(self) -> None:
        if not os.path.isdir(self._journal_folder):
            make_folders(self._journal_folder)
        self._ends.save(self._journal_folder)
        self._ends_saved = True

    def _load_catalog(self, folder: str, names: list[str]) -> CatalogFile:
        path = folder + "/catalog.json"
        catalog = load_catalog(path, has_topics=bool(names), report=self._shared.report)
        if catalog is not None:
            return catalog
        generation = newest_generation(self._journal_folder)
        return rebuild_catalog(load_catalog_copy(path), folder + "/topics", names, generation)

    def _pass_all_epochs(self) -> None:
        """No log may get two ranges with the same epoch, whatever happened to the catalog."""
        logs = (log for topic in self._topics.values() for log in topic.logs if log.epochs)
        newest = max((log.epochs[-1].epoch for log in logs), default=0)
        if self._epoch_chosen is not None:
            if newest > self.epoch:
                self.raise_epoch(newest)
        elif newest >= self.epoch:
            logger.warning(
                "The catalog has epoch %d, but a log has %d already.", self.epoch, newest
            )
            self.epoch = newest + 1
            self._save_catalog(self._next_number)

    def raise_epoch(self, epoch: int) -> None:
        """The folder holds records of this epoch now. It never goes down."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._save_catalog(self._numbers_saved)

    def adopt_history(self, history: str, restored_from: str) -> None:
        """From now on the folder is a copy of a folder with this history."""
        if (history, restored_from) != self._history:
            self._history = history, restored_from
            self._save_catalog(self._numbers_saved)

    @property
    def _journal_folder(self) -> str:
        return f"{self.folder}/journal"

    def get_journal(self) -> Journal:
        """The journal of topics with durability fsync, made when it is first asked for."""
        if self.folder is None:
            raise InvalidArgumentError(
                "This broker has no data folder, so it can't sync: use durability memory, or start "
                "the broker with a data folder (serve without --memory, or fanlog.Broker(DIR))."
            )
        if self.journal is None:
            try:
                if not self._ends_saved:
                    self.reserve.spend(self._save_ends)
                self.journal = self.reserve.spend(
                    lambda: Journal(
                        self._journal_folder,
                        self.options.journal_bytes,
                        self._generation_epoch,
                        self._ends,
                    )
                )
            except OSError as fault:
                raise topic_error(fault, fault.filename or self._journal_folder) from fault
        return self.journal

    def _sweep(self, names: list[str]) -> list[str]:
        """Finishes deletions that a crash came in between."""
        for name in names:
            if name.startswith(DELETED_PREFIX):
                shutil.rmtree(f"{self.folder}/topics/{name}", ignore_errors=True)
        return [name for name in names if not name.startswith(DELETED_PREFIX)]

    def prepare(self, name: str, settings: TopicSettings) -> Generator[None, None, StoredTopic]:
        """Makes the logs of a topic in steps, for `create`: there may be thousands. Nothing is
        written, and no number is taken."""
        if settings.durability == "memory":
            topic = StoredTopic(name, self._free_memory_number(), settings)
        else:
            number = self._next_number
            topic = StoredTopic(name, number, settings, self._folder_of(number, name))
        yield from self._adding_logs(topic)
        return topic

    def new_logs(
        self, topic: StoredTopic, settings: TopicSettings
    ) -> Generator[None, None, list[PartitionLog]]:
        """Makes the logs that a topic will have more with these settings, in steps, for
        `update`."""
        grown = StoredTopic(topic.name, topic.number, settings, topic.folder)
        yield from self._adding_logs(grown, len(topic.logs))
        return grown.logs

    def create(
        self,
        name: str,
        settings: TopicSettings,
        number: int | None = None,
        prepared: StoredTopic | None = None,
    ) -> StoredTopic:
        """A new topic with empty logs. Names are the broker's to keep apart. A copy of another
        broker's topic has its `number`, which is free here. A topic that was `prepared` is used if
        it has the next number."""
        if settings.durability == "memory":
            return self._made(StoredTopic(name, self._take_memory_number(), settings), prepared)
        if self.folder is None:
            raise InvalidArgumentError(
                f"This broker has no data folder, so it can't keep a topic with durability "
                f"{settings.durability}: use durability memory, or start the broker with a data "
                "folder (serve without --memory, or fanlog.Broker(DIR))."
            )
        self._check_change()
        self.reserve.check(self.folder)
        topic_folder = ""
        copied = number is not None
        try:
            self._finish_deletion_of(name)
            if settings.level is Durability.FSYNC and not self._ends_saved:
                self._save_ends()
            number = self._take_number() if number is None else self._claim_number(number)
            topic_folder = self._folder_of(number, name)
            create_topic_folder(topic_folder, TopicFile(name, number, settings))
        except OSError as fault:
            if is_full(fault):
                self.reserve.note_full()
            if topic_folder:
                remove_half_made(topic_folder)
            raise topic_error(fault, fault.filename or self.folder) from fault
        topic = self._made(StoredTopic(name, number, settings, topic_folder), prepared)
        self._topics[number] = topic
        if copied and settings.level is Durability.FSYNC:
            # A number that is not new here says nothing about its logs.
            self._note_new_logs(topic, 0)
        self._topic_changed(topic, deleted=False)
        return topic

    def _made(self, topic: StoredTopic, prepared: StoredTopic | None) -> StoredTopic:
        """The topic with its logs: `prepared`, if that is the same one."""
        if prepared is not None and (prepared.name, prepared.number, prepared.settings) == (
            topic.name,
            topic.number,
            topic.settings,
        ):
            return prepared
        self._add_logs(topic)
        return topic

    def _folder_of(self, number: int, name: str) -> str:
        return f"{self.folder}/topics/{topic_folder_name(number, name)}"

    def _claim_number(self, number: int) -> int:
        """Takes a given number. All lower ones count as used from now on."""
        if number in self._topics or number in self._deleting:
            raise InvalidArgumentError(f"There is a topic with the number {number} already.")
        if number >= self._numbers_saved:
            self._save_catalog(number + _NUMBERS_PER_SAVE)
        self._next_number = max(self._next_number, number + 1)
        # A lower number can have been used here by a topic that is gone.
        self._ends.forget(number)
        return number

    def remove_left_aside(self, number: int) -> None:
        """Removes the folders with this number that the start could not open. For a copy, whose
        files can be had again."""
        parent = f"{self.folder}/topics"
        for name in os.listdir(parent):
            if number_of(name) == number and number not in self._topics:
                os.rename(f"{parent}/{name}", f"{parent}/{DELETED_PREFIX}{name}")
                sync_folder(parent)
                shutil.rmtree(f"{parent}/{DELETED_PREFIX}{name}", ignore_errors=True)
        remove_kept(self._journal_folder, number)
        self.left_aside.discard(number)

    def _finish_deletion_of(self, name: str) -> None:
        """A name is used again only when the last topic that had it is durably gone: a start must
        not find two."""
        for topic in [*self._deleting.values(), *self._undeleted]:
            if topic.name == name:
                _abandon_all(topic)
                self.reserve.spend(lambda topic=topic: _rename_folder(topic))

    def update(
        self, topic: StoredTopic, settings: TopicSettings, logs: Sequence[PartitionLog] = ()
    ) -> None:
        """Changes a topic's settings: not its durability, and never to fewer partitions. `logs`
        are those of the new partitions, if `new_logs` has made them."""
        if settings.durability != topic.settings.durability:
            raise InvalidArgumentError(
                f"A topic's durability can't change: it is {topic.settings.durability}. "
                f"Create another topic with durability {settings.durability}."
            )
        if settings.partitions < topic.settings.partitions:
            raise InvalidArgumentError(
                f"A topic's partitions can only grow: there are {topic.settings.partitions}. "
                f"Create another topic with {settings.partitions}."
            )
        if topic.folder:
            self._check_change()
            described = TopicFile(topic.name, topic.number, settings)
            try:
                self.reserve.spend(lambda: save_topic(topic.folder, described))
            except OSError as fault:
                raise topic_error(fault, fault.filename or topic.folder) from fault
        topic.settings = settings
        self._topic_changed(topic, deleted=False)
        known = len(topic.logs)
        if logs and logs[0].owner.partition == known and logs[0].durability is settings.level:
            topic.logs += logs
        for log in topic.logs:
            log.settings = settings
        self._add_logs(topic)
        if settings.level is Durability.FSYNC and len(topic.logs) > known:
            self._note_new_logs(topic, known)

    def _note_new_logs(self, topic: StoredTopic, first: int) -> None:
        """The logs from partition `first` on are new: a start must not think that they had been
        synced further."""
        for log in topic.logs[first:]:
            self._ends.note(log.owner, log.end_offset)
        try:
            self._save_ends()
        except OSError as fault:
            raise topic_error(fault, fault.filename or topic.folder) from fault

    def track_unsynced(self, topic: StoredTopic) -> None:
        """From now on it is known which files of a topic are not synced."""
        for log in topic.logs:
            log.track_unsynced()

    def save_raised(self, topic: StoredTopic, settings: TopicSettings) -> None:
        """Syncs a topic's logs, and gives it a description with durability fsync. A start knows how
        far they were synced. Blocks, and may run in any thread; `raised` follows."""
        for log in topic.logs:
            # Read before the sync: data that arrives meanwhile may miss it.
            end_offset = log.end_offset
            try:
                log.sync()
            except OSError as fault:
                error = write_error(fault, topic.folder, "Syncing")
                if isinstance(fault, SyncError):
                    log.fail(error)
                raise error from fault
            self._ends.note(log.owner, end_offset)
        described = TopicFile(topic.name, topic.number, settings)

        def save() -> None:
            self._save_ends()
            save_topic(topic.folder, described)
            sync_folder(os.path.dirname(topic.folder))

        try:
            self.reserve.spend(save)
        except OSError as fault:
            raise topic_error(fault, fault.filename or topic.folder) from fault

    def raised(self, topic: StoredTopic, settings: TopicSettings) -> None:
        """The topic has this description, with durability fsync, from now on."""
        topic.settings = settings
        self._topic_changed(topic, deleted=False)
        for log in topic.logs:
            log.settings = settings
            log.durability = settings.level

    def make_durable(self, topic: StoredTopic) -> None:
        """Raises a topic's durability from os to fsync: for topics of the broker's own that an
        older release has made. Blocks."""
        settings = msgspec.structs.replace(topic.settings, durability="fsync")
        try:
            for log in topic.logs:
                log.track_unsynced()
                log.sync()
            save_topic(topic.folder, TopicFile(topic.name, topic.number, settings))
            sync_folder(os.path.dirname(topic.folder))
        except OSError as fault:
            raise folder_error(fault, fault.filename or topic.folder) from fault
        topic.settings = settings
        self._topic_changed(topic, deleted=False)
        for log in topic.logs:
            log.settings = settings
            log.durability = settings.level

    def begin_point(self, taken_us: int, release: str) -> tuple[BackupPoint, list[TopicMoment]]:
        """How far all logs are now. No file goes before `end_point`: the caller pins them."""
        history, restored_from = self._history
        point = BackupPoint(
            history, self.epoch, self._next_number, taken_us, release, restored_from
        )
        point.left_aside = len(self.left_aside)
        topics = topics_now(self._topics.values())
        # Last, so that no fault leaves the hold in place.
        self._shared.removals.hold()
        return point, topics

    def end_point(self) -> None:
        """The files of a point are pinned. Any thread; `resume_removals` follows on the loop."""
        self._shared.removals.release()

    def resume_removals(self) -> None:
        self._shared.removals.resume()

    def delete(
        self, topic: StoredTopic, done: Callable[[FanlogError | None], None] = raise_fault
    ) -> None:
        """Deletes a topic. It is invisible on return. `done` is called when the deletion is
        durable: when its folder is renamed. The files are deleted later."""
        self._topics.pop(topic.number, None)
        deleted = TopicDeletedError("The topic was deleted.")
        for log in topic.logs:
            log.refuse_all(deleted)
        if not topic.folder:
            self._memory_numbers.discard(topic.number)
            done(None)
            return
        self._deleting[topic.number] = topic
        self._topic_changed(topic, deleted=True)

        def renamed(fault: Exception | None) -> None:
            if self._deleting.pop(topic.number, None) is None:
                return
            if fault is not None:
                self._undeleted.append(topic)
            if fault is None:
                self._shared.removals.add(lambda: _remove_folder(topic))
                done(None)
            elif isinstance(fault, OSError):
                done(topic_error(fault, fault.filename or topic.folder))
            else:
                done(FanlogError(f"{topic.folder} could not be deleted: {fault!r}. Report this."))

        def abandon() -> Iterator[None]:
            """There may be thousands, with an open file each."""
            for log in topic.logs:
                log.abandon()
                yield
            # Otherwise the store was closed, and has done it.
            if topic.number in self._deleting:
                self._shared.background.in_background(
                    lambda: self.reserve.spend(lambda: _rename_patiently(topic)), renamed
                )

        self._shared.background.in_slices(abandon())

    def close(self, *, clean: bool = False) -> None:
        """Closes all files and releases the folder. Syncs and threads have ended before.

        `clean` means that the producers are complete: then the next start need not scan the logs.
        """
        self.employ(InlineWork())
        self._finish_deletions()
        clean = self._close_journal() and clean
        logs = [log for topic in self._topics.values() for log in topic.logs]
        described = [found for log in logs if clean and (found := log.describe()) is not None]
        for log in logs:
            log.close()
        self._topics.clear()
        if self._lock is not None:
            self._save_at_close(described)
            self._lock.release()
            self._lock = None

    def _close_journal(self) -> bool:
        """Whether nothing is left in it for the next start."""
        journal, self.journal = self.journal, None
        if journal is None:
            return True
        try:
            journal.close()
        except Exception:
            # It was not emptied, so the next start replays it.
            logger.exception("The journal could not be closed.")
            return False
        return not journal.failed

    def _finish_deletions(self) -> None:
        """Does the work that no thread has started."""
        for topic in self._deleting.values():
            _abandon_all(topic)
            try:
                _rename_folder(topic)
            except OSError as fault:
                logger.error("%s could not be deleted: %s", topic.folder, fault)
            else:
                self._shared.removals.add(lambda topic=topic: _remove_folder(topic))
        self._deleting.clear()
        self._shared.removals.finish()

    def _add_logs(self, topic: StoredTopic) -> None:
        """Creates the logs for the topic's settings. They have no files yet."""
        for _ in self._adding_logs(topic, len(topic.logs)):
            pass

    def _adding_logs(self, topic: StoredTopic, first: int = 0) -> Iterator[None]:
        """The same in steps, from partition `first` on."""
        settings = topic.settings
        for partition in range(first, settings.partitions):
            if not partition % _LOGS_A_STEP:
                yield
            owner = Owner(topic.number, partition)
            folder = f"{topic.folder}/{partition}"
            if topic.folder:
                log = PartitionLog(settings, owner, DiskLog(folder, owner, settings, self._shared))
            else:
                log = PartitionLog(settings, owner)
            topic.logs.append(log)

    def _take_memory_number(self) -> int:
        number = self._free_memory_number()
        self._next_memory_number = _after(number)
        self._memory_numbers.add(number)
        return number

    def _free_memory_number(self) -> int:
        """The next free number. Inboxes come and go, so that one day all numbers were used."""
        number = self._next_memory_number
        while number in self._memory_numbers:
            number = _after(number)
        return number

    def _take_number(self) -> int:
        if self._next_number >= self._numbers_saved:
            self._save_catalog(self._next_number + _NUMBERS_PER_SAVE)
        number = self._next_number
        self._next_number += 1
        return number

    def _save_catalog(self, next_number: int) -> None:
        catalog = CatalogFile(next_number, self.epoch, *self._history)
        save_catalog(f"{self.folder}/catalog.json", catalog)
        self._numbers_saved = next_number

    def _save_at_close(self, described: list[CleanLog]) -> None:
        try:
            self._save_catalog(self._next_number)
            if described:
                save_clean(f"{self.folder}", described)
        except OSError as fault:
            # Nothing is wrong: some numbers are never used, and the next start scans the logs.
            logger.warning("The catalog, or the mark of a clean stop, was not saved: %s", fault)


def _after(memory_number: int) -> int:
    return MEMORY_NUMBERS_FROM if memory_number == _MEMORY_NUMBERS_MAX else memory_number + 1


def _abandon_all(topic: StoredTopic) -> None:
    """Also those that were abandoned before."""
    for log in topic.logs:
        log.abandon()


def _unheard(topic: StoredTopic, *, deleted: bool) -> None:
    del topic, deleted


def _nothing() -> None:
    pass


def _folder_to_delete(topic: StoredTopic) -> str:
    parent, name = os.path.split(topic.folder)
    return f"{parent}/{DELETED_PREFIX}{name}"


def _rename_folder(topic: StoredTopic) -> None:
    """Gives a deleted topic's folder a name that no start looks for, durably. Any thread."""
    to_delete = _folder_to_delete(topic)
    try:
        os.rename(topic.folder, to_delete)
    except FileNotFoundError:
        # A stop may come after a thread has renamed the folder, but before the next step.
        if not os.path.isdir(to_delete):
            raise
    sync_folder(os.path.dirname(to_delete))


def _rename_patiently(topic: StoredTopic) -> None:
    """The same in a thread of the broker, with retries: a lack of descriptors may pass."""
    retry_briefly(lambda: _rename_folder(topic), "A deletion")


def _remove_folder(topic: StoredTopic) -> None:
    shutil.rmtree(_folder_to_delete(topic), ignore_errors=True)
    for log in topic.logs:
        log.forget_indexes()


def _check_ours(folder: str) -> None:
    """Refuses a folder with other programs' files: nothing is mixed."""
    if not os.path.isdir(folder):
        return
    names = set(os.listdir(folder))
    # A file system's own folder, such as lost+found, does not count: the volume is new.
    names.discard("lost+found")
    if UNFINISHED_RESTORE in names and "catalog.json" not in names:
        raise FolderUnusableError(
            f"{folder} is incomplete: a restore into it was interrupted. Remove the folder, and "
            "restore again (fanlog restore)."
        )
    if not names <= _OUR_NAMES and not names & {"catalog.json", "lock"}:
        raise FolderUnusableError(
            f"{folder} is not empty, and it is not a Fanlog data folder: empty it, or "
            f"{ANOTHER_FOLDER}."
        )
