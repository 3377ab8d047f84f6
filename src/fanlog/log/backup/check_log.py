"""Checks of one partition's log: every batch, every index, and who its producers were.

Law: nothing is written, renamed or removed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from fanlog.errors import FanlogError, FormatError
from fanlog.log import small_files
from fanlog.log.backup.check_files import check_small_file, list_names
from fanlog.log.backup.findings import CheckReport, Meaning
from fanlog.log.files import read_file
from fanlog.log.index import decode_index
from fanlog.log.producers import read_producers
from fanlog.log.read_only import SegmentFile, segment_files
from fanlog.log.scan import NO_STOP, BatchRun, Damage, Owner, is_zero, walk_file
from fanlog.log.segment_names import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, maybe_segment_name

Visit = Callable[[BatchRun], None]


class Walked(NamedTuple):
    """A segment whose batches were all read: where they end, as an offset and as a position."""

    end_offset: int
    end_at: int
    size: int


class LogCheck:
    """Checks the folder of a partition. `known_end` is an offset that the log had reached."""

    def __init__(
        self, folder: str, owner: Owner, report: CheckReport, known_end: int, visit: Visit | None
    ) -> None:
        self._folder = folder
        self._owner = owner
        self._report = report
        self._known_end = known_end
        self._visit = visit
        self._deleted_before = 0

    def run(self) -> None:
        folder, report = self._folder, self._report
        check_small_file(f"{folder}/compacted.json", report, Meaning.REBUILT)
        check_small_file(f"{folder}/damaged.json", report, Meaning.REBUILT)
        if check_small_file(f"{folder}/start.json", report, Meaning.LOST):
            start = small_files.load(f"{folder}/start.json").fields.get("start_offset")
            self._deleted_before = start if isinstance(start, int) else 0
        files = segment_files(folder)
        end = self._deleted_before
        for file in files:
            walked = self.check_segment(file, is_newest=file is files[-1])
            if file is not files[-1]:
                self._check_index(file, walked)
            end = max(end, walked.end_offset)
        self._check_producers(files)
        if end < self._known_end:
            path = f"{folder}/{files[-1].stem}{LOG_SUFFIX}" if files else folder
            sentence = f"offsets {end} to {self._known_end - 1} are missing at the log's end"
            report.add(path, 0, Meaning.LOST, sentence)

    def check_segment(
        self, file: SegmentFile, *, is_newest: bool, limit: int | None = None
    ) -> Walked:
        """Reads a segment up to its end, or up to the position `limit`."""
        path = f"{self._folder}/{file.stem}{LOG_SUFFIX}"
        end_offset, end_at = file.base, 0
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size if limit is None else limit
            stop = NO_STOP if is_newest else file.next_offset
            for part in walk_file(fd, self._owner, at=0, expected=file.base, stop=stop, limit=size):
                if isinstance(part, Damage):
                    self._note(path, part, stop)
                    continue
                end_offset, end_at = part.next_offset, part.at + part.size
                self._report.read(part.size)
                if self._visit is not None:
                    self._visit(part)
            # Room that was allocated ahead is zeros.
            if (is_newest or end_offset == stop) and not is_zero(fd, end_at, size):
                sentence = (
                    f"{size - end_at} bytes behind the last complete batch are not reserved space"
                )
                self._report.add(path, end_at, Meaning.TORN, sentence)
        finally:
            os.close(fd)
        self._report.checked(size - end_at)
        return Walked(end_offset, end_at, size)

    def _note(self, path: str, damage: Damage, stop: int) -> None:
        """Bytes behind the last whole batch of the newest segment are checked separately."""
        after = stop if damage.next is None else damage.next
        if after == NO_STOP:
            return
        if after <= self._deleted_before:
            self._report.notes.append(
                f"{self._report.name(path)} is damaged at byte {damage.at}, but only in "
                "messages that were deleted."
            )
            return
        sentence = f"offsets {damage.first} to {after - 1} are damaged: {damage.reason}"
        self._report.add(path, damage.at, Meaning.LOST, sentence)

    def _check_index(self, file: SegmentFile, walked: Walked) -> None:
        path = f"{self._folder}/{file.stem}{INDEX_SUFFIX}"
        try:
            data = read_file(path)
        except FileNotFoundError:
            return
        self._report.checked(len(data))
        try:
            sealed = decode_index(data)
            if sealed.base_offset != file.base or sealed.log_bytes != walked.size:
                raise FormatError("it belongs to another file")
        except FanlogError as fault:
            self._report.add(path, 0, Meaning.REBUILT, str(fault).rstrip("."))

    def _check_producers(self, files: list[SegmentFile]) -> None:
        """The file of the newest segment counts. Without it the earlier segments are read, if they
        are all there."""
        bases = {file.base for file in files}
        whole = bool(files) and files[0].base == 0
        for file in list_names(self._folder):
            name = maybe_segment_name(file)
            if name is None or name.suffix != PRODUCERS_SUFFIX or name.base not in bases:
                continue
            path = f"{self._folder}/{file}"
            self._report.checked(os.path.getsize(path))
            try:
                read_producers(path, name.base)
            except FanlogError as fault:
                meaning = Meaning.REBUILT if whole else Meaning.LOST
                self._report.add(path, 0, meaning, str(fault).rstrip("."))
            else:
                whole = True
