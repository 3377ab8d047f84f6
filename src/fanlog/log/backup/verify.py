"""`fanlog verify`: reads every file of a data folder that no broker has, and checks everything
that has a checksum.

Law: nothing is written, renamed or removed. Everything that a start would repair is a finding here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import google_crc32c

from fanlog.errors import FanlogError, FolderInUseError, FolderUnusableError, FormatError
from fanlog.format.batch import Batch, split_batches
from fanlog.log import posix
from fanlog.log.backup.check_files import (
    check_clean,
    check_ends,
    check_journal_file,
    check_small_file,
    list_names,
)
from fanlog.log.backup.check_log import LogCheck, Visit
from fanlog.log.backup.findings import Advance, CheckReport, Meaning
from fanlog.log.catalog import DELETED_PREFIX, load_topic, number_of
from fanlog.log.files import read_at
from fanlog.log.scan import SCAN_BYTES, BatchRun, Owner
from fanlog.log.small_files import COPY_SUFFIX


class StagedFile(NamedTuple):
    """The file of a large transaction, as the entry that committed it describes it."""

    ticket: str
    bytes: int
    crc: int


# What an entry of the ledger of transactions says of files. The broker knows its format.
StagedOf = Callable[[bytes], Iterable[StagedFile]]


def no_staged(value: bytes) -> Iterable[StagedFile]:
    return ()


def is_data_folder(folder: str) -> bool:
    names = ("catalog.json", "catalog.json.copy", "topics")
    return any(os.path.exists(f"{folder}/{name}") for name in names)


def size_of(folder: str) -> int:
    """All bytes in a folder and those below it, for a progress bar."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(f"{path}/{name}").st_size
    return total


def verify_data(
    folder: str,
    advance: Advance | None = None,
    *,
    ledger: str = "",
    staged_of: StagedOf = no_staged,
) -> CheckReport:
    """Checks a data folder. `ledger` is the topic with the entries that `staged_of` reads."""
    if not is_data_folder(folder):
        raise FolderUnusableError(
            f"{folder} is not a Fanlog data folder: name the broker's data folder (fanlog serve "
            "--data)."
        )
    with _FolderHold(folder):
        return _Verify(folder, advance, ledger, staged_of).run()


class _FolderHold:
    """Keeps brokers out of the folder while it is read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> None:
        try:
            self._fd = os.open(f"{self._folder}/lock", os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            posix.lock_file(self._fd, shared=True)
        except BlockingIOError:
            self.__exit__()
            raise FolderInUseError(
                f"A broker runs in {self._folder}, and its files change: stop it first, or take a "
                "backup and verify that (fanlog backup DIR, fanlog verify DIR)."
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Verify:
    def __init__(
        self, folder: str, advance: Advance | None, ledger: str, staged_of: StagedOf
    ) -> None:
        self._folder = folder
        self._report = CheckReport(folder, advance)
        self._ledger = ledger
        self._staged_of = staged_of
        self._staged: dict[str, StagedFile] = {}
        self._known_ends: dict[Owner, int] = {}

    def run(self) -> CheckReport:
        folder, report = self._folder, self._report
        for name in ("catalog.json", "catalog.json.copy", "ledgers.json", "audit.json"):
            check_small_file(f"{folder}/{name}", report, Meaning.REBUILT)
        if not os.path.exists(f"{folder}/catalog.json"):
            report.add(f"{folder}/catalog.json", 0, Meaning.REBUILT, "it is missing")
        for name in list_names(f"{folder}/damaged"):
            check_small_file(f"{folder}/damaged/{name}/lost.json", report, Meaning.LOST)
        self._check_journal()
        clean = check_clean(f"{folder}/clean", report)
        for log in () if clean is None else clean.logs:
            self._know(Owner(log.topic, log.partition), log.end_offset)
        for name in list_names(f"{folder}/topics"):
            if not name.startswith(DELETED_PREFIX):
                self._check_topic(f"{folder}/topics/{name}")
        self._check_staged()
        return report

    def _know(self, owner: Owner, end_offset: int) -> None:
        self._known_ends[owner] = max(end_offset, self._known_ends.get(owner, 0))

    def _check_journal(self) -> None:
        folder = f"{self._folder}/journal"
        ends = check_ends(folder, self._report)
        for owner, end_offset in () if ends is None else ends.items():
            self._know(owner, end_offset)
        for name in list_names(folder):
            if name.endswith(".journal"):
                generation = None if ends is None or name.startswith("kept-") else ends.generation
                check_journal_file(f"{folder}/{name}", self._report, generation)

    def _check_topic(self, folder: str) -> None:
        number = number_of(os.path.basename(folder))
        if number is None:
            self._report.notes.append(f"{self._report.name(folder)} is not a topic's folder.")
            return
        visit = self._visit if self._check_description(folder) == self._ledger else None
        for name in list_names(folder):
            if name.isascii() and name.isdigit() and os.path.isdir(f"{folder}/{name}"):
                owner = Owner(number, int(name))
                known_end = self._known_ends.get(owner, 0)
                self._check_log(f"{folder}/{name}", owner, known_end, visit)

    def _check_log(self, folder: str, owner: Owner, known_end: int, visit: Visit | None) -> None:
        LogCheck(folder, owner, self._report, known_end, visit).run()

    def _check_description(self, folder: str) -> str | None:
        """Checks a topic's description and its copy; the topic's name, if it is known."""
        path = f"{folder}/topic.json"
        copied = check_small_file(path + COPY_SUFFIX, self._report, Meaning.REBUILT)
        meaning = Meaning.REBUILT if copied else Meaning.LOST
        if not check_small_file(path, self._report, meaning):
            if not os.path.exists(path):
                self._report.add(path, 0, meaning, "it is missing")
            return None
        try:
            return load_topic(folder).name
        except FormatError as fault:
            self._report.add(path, 0, meaning, str(fault))
            return None

    def _visit(self, run: BatchRun) -> None:
        """Remembers which files transactions were committed with."""
        for at, header in split_batches(run.data[: run.size]):
            with suppress(FanlogError):
                batch = Batch(memoryview(run.data)[at : at + header.length], header)
                for value in batch.values:
                    if value is not None:
                        self._staged |= {file.ticket: file for file in self._staged_of(value)}

    def _check_staged(self) -> None:
        folder = f"{self._folder}/transactions"
        for name in list_names(folder):
            wanted = self._staged.get(name)
            path = f"{folder}/{name}"
            if not os.path.isfile(path):
                self._report.notes.append(f"{self._report.name(path)} is not a Fanlog file.")
                continue
            size = os.path.getsize(path)
            self._report.checked(size)
            if wanted is None:
                continue  # It is not committed: a start removes it.
            if (size, _crc_of(path, wanted.bytes)) != (wanted.bytes, wanted.crc):
                sentence = "a committed transaction differs from what was staged"
                self._report.add(path, 0, Meaning.LOST, sentence)


def _crc_of(path: str, size: int) -> int:
    crc = at = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while data := read_at(fd, at, min(SCAN_BYTES, size - at)):
            crc = google_crc32c.extend(crc, data)
            at += len(data)
    finally:
        os.close(fd)
    return crc
