"""Checks a chain of audit records. It takes one record after the other, and keeps two, so that an
audit log of any size can be checked.

Each record has the hash of the one before. If they differ, one of the two was changed: the later
one if its own hash does not fit either.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fanlog.errors import FormatError
from fanlog.security.audit import GENESIS, LOST, RESTART, AuditRecord, Head, decode_record, digest

# Faults that are reported. Further ones are counted.
FAULTS_MAX = 20


class Fault(msgspec.Struct, frozen=True):
    """A fault, and its record."""

    seq: int
    sentence: str


class AuditCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. `first` is the oldest kept record, and `head` the newest. The first of
    the `faults` names the first wrong record."""

    records: int
    first: int
    head: Head
    faults: tuple[Fault, ...]
    faults_count: int
    remarks: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.faults_count


class ChainCheck:
    """Checks records as they come: `take` each of them, then ask for the `result`."""

    def __init__(self, anchors: Sequence[Head] = (), *, resumed: bool = False) -> None:
        """`anchors` are heads that were kept elsewhere. `resumed`: records before the first one
        were checked already."""
        self._resumed = resumed
        self._anchors = {anchor.seq: anchor.hash for anchor in anchors}
        self._records = 0
        self._first = -1
        self._head = Head()
        self._faults: list[Fault] = []
        self._faults_count = 0
        self._remarks: list[str] = []
        # The record whose hash does not match the newest one, until it is clear which of both is
        # wrong.
        self._suspect = -1

    def _fault(self, seq: int, sentence: str) -> None:
        self._faults_count += 1
        if len(self._faults) < FAULTS_MAX:
            self._faults.append(Fault(seq, sentence))

    def missing(self, first: int, next: int, why: str) -> None:
        """Records that can't be read: damaged on disk, or not there."""
        self._settle(next - 1, fits=True)
        self._fault(first, f"Records {first} to {next - 1} {why}.")
        self._head = Head(next - 1, "")
        if self._first < 0:
            self._first = next

    def take(self, seq: int, value: bytes) -> None:
        """The record at offset `seq`."""
        self._records += 1
        expected = self._head.seq + 1
        if self._first < 0:
            self._first = expected = seq
        if seq != expected:
            self.missing(expected, seq, "are not there")
        found = digest(value)
        try:
            record = decode_record(value)
        except FormatError as fault:
            self._settle(seq, fits=True)
            self._fault(seq, f"Record {seq} was changed: {fault}.")
            self._head = Head(seq, "")
            return
        self._check_link(seq, record)
        self._check_anchor(seq, found)
        self._head = Head(seq, found)

    def _check_link(self, seq: int, record: AuditRecord) -> None:
        if record.seq != seq:
            self._settle(seq, fits=True)
            self._fault(seq, f"Record {seq} was inserted: its own number is {record.seq}.")
            return
        before = self._head.hash
        if seq == self._first:
            if seq == 0 and record.prev != GENESIS:
                self._fault(0, "Record 0 was changed: it claims to have a record before it.")
            elif seq > 0 and not self._resumed:
                self._remarks.append(
                    f"Records before {seq} were deleted by retention, so the check begins at "
                    f"record {seq}."
                )
        elif record.action == RESTART and record.prev == GENESIS:
            self._settle(seq, fits=True)
            self._fault(seq, f"The chain begins again at record {seq}: {record.detail}")
        elif before and record.prev != before:
            self._settle(seq, fits=False)
            self._suspect = seq - 1
        else:
            self._settle(seq, fits=True)
        if record.action == LOST:
            self._remarks.append(
                f"Record {seq}: {record.count} events could not be recorded. {record.detail}"
            )

    def _settle(self, seq: int, *, fits: bool) -> None:
        """Record `seq` has the hash of the one before it: that shows which of the pair before was
        changed."""
        suspect, self._suspect = self._suspect, -1
        if suspect < 0:
            return
        bad = suspect if fits else suspect + 1
        if self._faults and self._faults[-1].seq == bad:
            return
        self._fault(bad, f"Record {bad} was changed: its hash is not the one in the chain.")

    def _check_anchor(self, seq: int, found: str) -> None:
        kept = self._anchors.pop(seq, None)
        if kept is not None and kept != found:
            self._fault(
                seq,
                f"Record {seq} does not have the hash that you kept: it, or a record before it, "
                "was changed.",
            )

    def result(self) -> AuditCheckResult:
        """All records have been taken."""
        if self._suspect >= 0:
            first, self._suspect = self._suspect, -1
            self._fault(first, f"Record {first} or {first + 1} was changed: they do not fit.")
        for seq in sorted(self._anchors):
            if seq > self._head.seq:
                first = self._head.seq + 1
                self._fault(first, f"Records {first} to {seq} are missing at the end.")
            elif seq < self._first:
                self._remarks.append(
                    f"The head that you kept, of record {seq}, is older than the oldest record "
                    "here: it can't be compared."
                )
        return AuditCheckResult(
            records=self._records,
            first=self._first,
            head=self._head,
            faults=tuple(sorted(self._faults, key=lambda fault: fault.seq)),
            faults_count=self._faults_count,
            remarks=tuple(self._remarks),
        )
