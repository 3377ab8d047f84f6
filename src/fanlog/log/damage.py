"""Damage that was found in a log: remembered in `damaged.json`, and never deleted.

A small file: `{"damaged": [{"first": 5, "next": 9, "file": "…", "reason": "…"}]}`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock

import msgspec

from fanlog.errors import DamagedError, FanlogError, FormatError
from fanlog.log import small_files
from fanlog.log.files import remove_if_there
from fanlog.log.scan import Owner
from fanlog.model import DamagedRange

logger = logging.getLogger("fanlog.log")

# Reasons of damage that no other node can repair.
LOST_EVERYWHERE = "and the primary that it was copied from has lost them, too"
ACCEPTED = "and an operator has chosen this copy, so that no node has them"
LOST = (LOST_EVERYWHERE, ACCEPTED)


class Quarantine:
    """The damaged stretches of one log, in order, without overlaps. Safe from any thread."""

    __slots__ = ("_owner", "_path", "_saves_later", "_troubled", "ranges")

    def __init__(self, folder: str, owner: Owner, troubled: set[Owner]) -> None:
        self._path = folder + "/damaged.json"
        self._owner = owner
        # Where it is noted that this log has damage.
        self._troubled = troubled
        # Replaced as a whole, so that readers need no lock.
        self.ranges: list[DamagedRange] = []
        self._saves_later = False

    def load(self, report: Callable[[str], None]) -> None:
        try:
            found = small_files.load(self._path).fields
            self.ranges = msgspec.convert(found.get("damaged"), list[DamagedRange])
            self._troubled.add(self._owner)
        except FileNotFoundError:
            return
        except (FormatError, msgspec.ValidationError) as fault:
            aside = small_files.set_aside(self._path)
            report(
                f"The list of damaged records {self._path} can't be read: {fault}. Nothing is "
                f"lost: reading finds the same damage again. The file is now {aside}; remove it."
            )

    def add(self, damaged: DamagedRange) -> None:
        """Takes in a stretch that was just found; says so unless it is known."""
        with _lock:
            if any(r.first <= damaged.first and damaged.next <= r.next for r in self.ranges):
                return
            self.ranges = _merged([*self.ranges, damaged])
            self._troubled.add(self._owner)
            self._save()
        logger.error(
            "Records %d to %d are damaged in %s: %s. The file is left as it is, and readers "
            "get a gap; restore the file from a backup to get the records back.",
            damaged.first,
            damaged.next - 1,
            damaged.file,
            damaged.reason,
        )

    @contextmanager
    def saved_at_the_end(self) -> Generator[None]:
        """Within, the list is not saved: a power cut may leave hundreds of stretches, and each save
        is synced."""
        before, self._saves_later = self.ranges, True
        try:
            yield
        finally:
            with _lock:
                self._saves_later = False
                if self.ranges is not before:
                    self._save()

    def known(self, damaged: DamagedRange) -> DamagedRange:
        """The same stretch, with what is known of it: that no other node has it."""
        for r in self.ranges:
            if r.reason in LOST and r.first <= damaged.first and damaged.next <= r.next:
                return msgspec.structs.replace(damaged, reason=r.reason)
        return damaged

    def accept(self) -> None:
        """Nobody else has these records: they are lost, and need no repair."""
        with _lock:
            accepted = [
                r if r.reason in LOST else msgspec.structs.replace(r, reason=ACCEPTED)
                for r in self.ranges
            ]
            if accepted != self.ranges:
                self.ranges = accepted
                self._save()

    def forget(self, first: int, end: int) -> None:
        """Removes ranges that can be read again, or were never promised."""
        if not any(r.first < end and first < r.next for r in self.ranges):
            return
        with _lock:
            self.ranges = [
                DamagedRange(*part, r.file, r.reason)
                for r in self.ranges
                for part in ((r.first, min(r.next, first)), (max(r.first, end), r.next))
                if part[0] < part[1]
            ]
            self._save()

    def drop_before(self, offset: int) -> None:
        """Forgets what was deleted."""
        self.forget(0, offset)

    def _save(self) -> None:
        if self._saves_later:
            return
        try:
            if self.ranges:
                records = [msgspec.structs.asdict(r) for r in self.ranges]
                small_files.save(self._path, {"damaged": records}, durable=True)
            else:
                remove_if_there(self._path)
        except OSError as fault:
            logger.warning("The list of damaged records %s can't be written: %s", self._path, fault)


def damaged_error(damaged: DamagedRange) -> FanlogError:
    """The error of who reads damage."""
    return DamagedError(
        f"Records {damaged.first} to {damaged.next - 1} can't be read: {damaged.file} is "
        f"damaged {damaged.reason}. Continue at {damaged.next}, or restore the file from a "
        "backup.",
        damaged.first,
        damaged.next,
    )


# One for all logs: damage is rare, and a lock for each of 100,000 logs is not free.
_lock = Lock()


def _merged(ranges: list[DamagedRange]) -> list[DamagedRange]:
    """Joins what is adjacent. What another node may repair is never counted as lost."""
    out: list[DamagedRange] = []
    for r in sorted(ranges, key=lambda r: r.first):
        last = out[-1] if out else None
        if last is None or r.first > last.next:
            out.append(r)
        elif r.file == last.file and (r.reason in LOST) == (last.reason in LOST):
            next_offset = max(last.next, r.next)
            out[-1] = DamagedRange(last.first, next_offset, last.file, last.reason)
        elif r.next > last.next:
            out.append(msgspec.structs.replace(r, first=max(r.first, last.next)))
    return out
