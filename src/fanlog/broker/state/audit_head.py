"""Where the chain of the audit log continues after a start, and its head in a file of its own. The
file says how far the log went: a log that ends before it has lost records, or somebody has cut them
off."""

from __future__ import annotations

import logging
from typing import NamedTuple

from fanlog.broker.ports import Runtime
from fanlog.errors import FanlogError, FormatError
from fanlog.format.batch import Batch, split_batches
from fanlog.log import small_files
from fanlog.log.partition import PartitionLog
from fanlog.security.audit import Head, digest

logger = logging.getLogger("fanlog.broker")

_WRITE_US = 1_000_000


class AuditHeadFound(NamedTuple):
    """Where the chain continues, and what is wrong with it. A head without a hash: the last record
    can't be read."""

    head: Head
    faults: list[str]


def find_head(log: PartitionLog | None, kept: Head | None) -> AuditHeadFound:
    """By the log itself, and by the head that was kept in its file. Blocks, and never raises."""
    end = 0 if log is None else log.end_offset
    faults: list[str] = []
    last = Head() if log is None or not end else Head(end - 1, _maybe_hash(log, end - 1))
    if kept is not None and kept.seq >= end:
        faults.append(
            f"The audit log has lost its records {end} to {kept.seq}: they are not in the data "
            "folder any more."
        )
    elif kept is not None and log is not None and kept.seq >= log.start_offset:
        found = _maybe_hash(log, kept.seq)
        if found and found != kept.hash:
            faults.append(
                f"The audit log was changed: record {kept.seq}, or one before it, is not what was "
                "written. See what is wrong with: fanlog audit verify"
            )
    if last.seq >= 0 and not last.hash:
        if kept is not None and kept.seq == last.seq:
            # Retention has removed it, or it is damaged: its hash is known all the same.
            return AuditHeadFound(kept, faults)
        faults.append(f"The newest record of the audit log, {last.seq}, can't be read.")
    return AuditHeadFound(last, faults)


def _maybe_hash(log: PartitionLog, seq: int) -> str:
    """The hash of a record; empty if it can't be read."""
    if seq < log.start_offset:
        return ""
    try:
        block = log.read(seq, seq + 1)
        for at, header in split_batches(block.data):
            if header.base_offset <= seq < header.next_offset:
                batch = Batch(block.data[at : at + header.length], header)
                return digest(bytes(batch.values[seq - header.base_offset] or b""))
    except FanlogError as fault:
        logger.error("record %d of the audit log can't be read: %s", seq, fault)
    return ""


class HeadFile:
    """The head of what is durable, in a file that is replaced once a second at most. `path` is
    empty where nothing is kept on disk."""

    def __init__(self, path: str, runtime: Runtime) -> None:
        self._path = path
        self._runtime = runtime
        self._head: Head | None = None
        self._saved: Head | None = None
        self._busy = False
        self._next_us = 0
        self._failing = False
        # What is wrong with the file that was there at the start.
        self.fault = ""

    def load(self) -> Head | None:
        """What the file says; None if it says nothing. Blocks, and never raises."""
        if not self._path:
            return None
        try:
            fields = small_files.load(self._path).fields
            return Head(int(fields["seq"]), str(fields["hash"]))
        except FileNotFoundError:
            return None
        except (OSError, FanlogError, KeyError, TypeError, ValueError) as fault:
            aside = small_files.set_aside(self._path) if isinstance(fault, FormatError) else ""
            self.fault = (
                f"{aside or self._path} is of no use ({fault}): it can't tell whether the end of "
                "the audit log was cut off."
            )
            logger.error("%s", self.fault)
            return None

    def keep(self, head: Head) -> None:
        self._head = head

    def tick(self, now_us: int) -> None:
        """Has the file written, if there is something new and the last time is a second ago."""
        head = self._head
        if not self._path or head is None or head == self._saved or self._busy:
            return
        if now_us < self._next_us:
            return
        self._busy = True
        self._next_us = now_us + _WRITE_US
        self._runtime.in_background(lambda: self._save(head), self._done)

    def _save(self, head: Head) -> Head:
        small_files.save(self._path, {"seq": head.seq, "hash": head.hash}, durable=True)
        return head

    def _done(self, result: Head | Exception) -> None:
        self._busy = False
        if isinstance(result, Head):
            self._saved = result
            self._failing = False
        elif not self._failing:
            self._failing = True
            logger.error("%s can't be written; it is tried again: %s", self._path, result)

    def close(self) -> None:
        """Writes it now. Blocks."""
        if self._path and self._head is not None and self._head != self._saved:
            try:
                self._save(self._head)
            except OSError as fault:
                logger.error("%s can't be written: %s", self._path, fault)
