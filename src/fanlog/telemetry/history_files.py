"""The history on disk: `<data>/metrics/`, with two files for each tier. Rows are appended to the
newer one; when it has as many rows as the tier keeps, a new one begins and the older one goes.

Law: nothing here may ever stop a broker. A file that is damaged is set aside, and what could be
read of it is written again. A disk that is full or read-only stops the writing, and nothing else.
It blocks, so it runs in a thread of its own.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress

from fanlog.telemetry.history import HistoryRings, NewRow, Tier
from fanlog.telemetry.history_format import (
    Contents,
    decode,
    encode_header,
    encode_names,
    encode_row,
)

logger = logging.getLogger("fanlog.telemetry")

_FILE_NAME = re.compile(r"(\d{1,6})s-(\d{1,12})\.metrics")
# Two files of the longest tier with the most series have half of it.
_FILE_BYTES_MAX = 64 * 1024 * 1024
_COLUMNS_MAX = 100_000


class _TierFile:
    """The newer file of a tier and its contents."""

    def __init__(self, folder: str, tier: Tier) -> None:
        self._folder = folder
        self.tier = tier
        self.number = 0
        self.rows = 0
        self.good_bytes = 0
        self.names: tuple[str, ...] = ()
        self._fd = -1

    def path(self, number: int) -> str:
        return f"{self._folder}/{self.tier.step_seconds}s-{number:06d}.metrics"

    def append(self, new: Sequence[NewRow]) -> None:
        """Writes rows. After a fault the next call begins where the last whole record ended. The
        file is open only meanwhile: descriptors are for connections and segments."""
        try:
            for one in new:
                if self._fd < 0 or self.rows >= self.tier.rows_max:
                    self._open()
                self._write(encode_names(self.names, one.names) + encode_row(one.row))
                self.names, self.rows = one.names, self.rows + 1
        finally:
            self._close()

    def _open(self) -> None:
        self._close()
        if self.rows >= self.tier.rows_max or not self.number:
            self.begin()
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(self.path(self.number), flags, 0o600)
        os.ftruncate(self._fd, self.good_bytes)
        if not self.good_bytes:
            self._write(encode_header(self.tier.step_seconds))

    def begin(self) -> None:
        """The next append makes a new file; the one before the last goes."""
        self.number += 1
        self.rows = self.good_bytes = 0
        self.names = ()
        with suppress(FileNotFoundError):
            os.unlink(self.path(self.number - 2))

    def _write(self, data: bytes) -> None:
        view, at = memoryview(data), self.good_bytes
        while view:
            written = os.pwrite(self._fd, view, at)
            at, view = at + written, view[written:]
        # After a fault half a record may be there: the next open cuts it off.
        self.good_bytes = at

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class HistoryFiles:
    """The files of all tiers. Only one thread uses it at a time."""

    def __init__(self, folder: str, tiers: Sequence[Tier]) -> None:
        self._folder = folder
        self._files = [_TierFile(folder, tier) for tier in tiers]
        self._silent = False

    def load(self, history: HistoryRings) -> None:
        """Restores the stored history. It never fails: unreadable parts are left out."""
        try:
            found = [self._read_tier(file) for file in self._files]
        except OSError as fault:
            logger.warning("the history in %s can't be read: %s", self._folder, fault.strerror)
            return
        again: list[NewRow] = []
        # Where there are more series than are kept now, the newest stay.
        history.make_room(name for parts in found for part in parts[-1:] for name in part.names)
        for at, parts in enumerate(found):
            for row, names in (one for part in parts for one in part.rows):
                history.restore(at, row, names)
                # The event loop of a broker that starts is not to wait for this.
                time.sleep(0)
            if any(part.damaged for part in parts):
                self._files[at].begin()
                again += [NewRow(at, row, history.names) for row in history.rings[at].rows]
        self.append(again + history.restored())

    def _read_tier(self, file: _TierFile) -> list[Contents]:
        """The two newest files of a tier. Damaged ones are moved away."""
        numbers = self._numbers(file.tier)
        for number in numbers[:-2]:
            os.unlink(file.path(number))
        found: list[Contents] = []
        for number in numbers[-2:]:
            contents = self._read(file.path(number), file.tier)
            found.append(contents)
            file.number, file.rows = number, len(contents.rows)
            file.good_bytes, file.names = contents.good_bytes, contents.names
            if contents.damaged:
                self._set_aside(file.path(number), file.tier)
        return found

    def _numbers(self, tier: Tier) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        found = [match for name in names if (match := _FILE_NAME.fullmatch(name))]
        return sorted(int(match[2]) for match in found if int(match[1]) == tier.step_seconds)

    def _read(self, path: str, tier: Tier) -> Contents:
        try:
            with open(path, "rb") as file:
                data = file.read(_FILE_BYTES_MAX)
            return decode(data, tier.step_seconds, _COLUMNS_MAX)
        except OSError as fault:
            logger.warning("%s can't be read: %s", path, fault.strerror)
            return Contents([], (), 0, damaged=True)

    def _set_aside(self, path: str, tier: Tier) -> None:
        """One damaged file per tier is kept, for inspection."""
        aside = f"{self._folder}/{tier.step_seconds}s.damaged"
        try:
            os.replace(path, aside)
            logger.warning(
                "%s is damaged. It is now %s; the history keeps what could be read of it.",
                path,
                aside,
            )
        except OSError as fault:
            logger.warning("%s is damaged, and can't be moved: %s", path, fault.strerror)

    def append(self, new: Sequence[NewRow]) -> None:
        """Writes rows down. Where the disk does not take them they are in memory only."""
        try:
            if new and not os.path.isdir(self._folder):
                os.mkdir(self._folder, 0o700)
            for at, file in enumerate(self._files):
                file.append([one for one in new if one.tier == at])
        except OSError as fault:
            if not self._silent:
                logger.warning(
                    "the history of metrics is not written to %s: %s. The broker tries again; "
                    "until then it is in memory only.",
                    self._folder,
                    fault.strerror,
                )
            self._silent = True
        else:
            if new:
                self._silent = False
