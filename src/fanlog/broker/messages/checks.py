"""Batches for compacted topics are decoded before they are taken: compaction must be able to read
them. Nothing else between socket and log looks at records.

A turn of the loop decodes at most `unpack_loop_bytes_max`. A thread decodes the rest; only the
connection of that batch waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fanlog.broker.messages.delayed_checks import RECORD_WORK_BYTES, scheduled_fault
from fanlog.broker.messages.restrictions import Checked, Guard, Patient, Restrictions
from fanlog.broker.messages.unpacking import Unpacker, decoding_bytes
from fanlog.broker.ports import Runtime
from fanlog.errors import FanlogError, FormatError, UnreadableError
from fanlog.format.codecs import UnpackLimits
from fanlog.format.columns import ColumnReader, time_range
from fanlog.format.frames import PREFIX, PREFIX_BYTES
from fanlog.format.header import HEADER_BYTES, KIND_BATCH, BatchHeader, read_header
from fanlog.format.schedules import SCHEDULED_TOPIC

# Bytes decoded in a thread for one connection before others get their turn.
_JOB_BYTES = 4 << 20

# The error against a delayed message with this key: it may replace another one.
ReplacementFault = Callable[[bytes, Guard], FanlogError | None]


class Unchecked(NamedTuple):
    """A batch that is yet to be decoded."""

    data: bytes
    at: int
    header: BatchHeader
    topic: str


class NotYetError(Exception):
    """The batch is being decoded in a thread; its publisher will offer it again."""


class Checks:
    def __init__(self, runtime: Runtime, unpacker: Unpacker) -> None:
        self._runtime = runtime
        self._unpacker = unpacker
        self._spent_bytes = 0
        self.replacement_fault: ReplacementFault = _no_replacement

    def fault(self, origin: Restrictions, batch: Unchecked) -> FanlogError | None:
        """The error of a batch, or None. Raises `NotYetError` if the check takes a while."""
        patient = origin.patient
        if patient is not None and patient.checked:
            known = patient.checked.pop(0)
            if _is_of(known, batch):
                return self._guarded(origin, known)
            # Its topic may be deleted since: then these bytes are another batch.
            patient.checked.clear()
        if self._may_spend(self._work(batch)) or patient is None:
            return self._guarded(origin, _look(batch, self._unpacker.limits))
        self._begin(patient, list(self._following(batch)))
        raise NotYetError

    def faults(self, origin: Restrictions, batches: list[Unchecked]) -> list[FanlogError | None]:
        """The same for batches that are taken together. Decoded ones are kept until all are."""
        patient = origin.patient
        if patient is None or (
            not patient.checked and self._may_spend(sum(map(self._work, batches)))
        ):
            limits = self._unpacker.limits
            return [self._guarded(origin, _look(batch, limits)) for batch in batches]
        known = patient.checked
        if not all(map(_is_of, known, batches)):
            known.clear()
        if len(known) < len(batches):
            self._begin(patient, batches[len(known) :])
            raise NotYetError
        patient.checked = []
        return [self._guarded(origin, checked) for checked in known]

    def _guarded(self, origin: Restrictions, checked: Checked) -> FanlogError | None:
        """The error of a batch or of its sender, or None."""
        guard, by_id = origin.guard, origin.schedule_guard
        if checked.fault is not None or guard is None:
            return checked.fault
        refusals = filter(None, map(guard, sorted(checked.targets)))
        refusal = next(refusals, None)
        if refusal is not None or by_id is None:
            return refusal
        faults = (self.replacement_fault(key, by_id) for key in checked.keys)
        return next(filter(None, faults), None)

    def _work(self, batch: Unchecked) -> int:
        work = decoding_bytes(batch.data, batch.at, batch.header, self._unpacker.limits)
        if batch.topic == SCHEDULED_TOPIC:
            work += RECORD_WORK_BYTES * batch.header.record_count
        return work

    def _may_spend(self, work_bytes: int) -> bool:
        if not self._unpacker.is_small(self._spent_bytes + work_bytes):
            return False
        if not self._spent_bytes:
            self._runtime.soon(self._end_turn)
        self._spent_bytes += max(1, work_bytes)
        return True

    def _end_turn(self) -> None:
        self._spent_bytes = 0

    def _following(self, batch: Unchecked) -> Iterator[Unchecked]:
        """The batch and the following ones for the same partition."""
        data, at, header, topic = batch
        while True:
            yield Unchecked(data, at, header, topic)
            at += header.length
            if len(data) - at < PREFIX_BYTES:
                return
            length, kind = PREFIX.unpack_from(data, at)
            if kind != KIND_BATCH or at + length > len(data):
                return
            try:
                following = read_header(data, at)
            except FormatError:
                return
            same = (header.topic, header.partition)
            if (following.topic, following.partition) != same:
                return
            header = following

    def _begin(self, patient: Patient, batches: list[Unchecked]) -> None:
        work = count = 0
        for batch in batches:
            work += self._work(batch)
            if count and work > _JOB_BYTES:
                break
            count += 1
        limits = self._unpacker.limits
        some = batches[:count]

        def check() -> list[Checked]:
            return [_look(batch, limits) for batch in some]

        def checked(result: list[Checked] | Exception) -> None:
            patient.checking = False
            if isinstance(result, Exception):
                fault = FanlogError(f"The broker failed to decode a batch: {result!r}.")
                result = [Checked(b.header.body_crc, b.header.length, fault) for b in some]
            patient.checked += result
            patient.resume()

        patient.checking = True
        self._unpacker.in_thread(work, check, checked)


def _is_of(checked: Checked, batch: Unchecked) -> bool:
    header = batch.header
    return (checked.body_crc, checked.length) == (header.body_crc, header.length)


def _no_replacement(key: bytes, guard: Guard) -> FanlogError | None:
    return None


def _look(batch: Unchecked, limits: UnpackLimits) -> Checked:
    """Decodes a batch's columns."""
    data, at, header, topic = batch
    body = memoryview(data)[at + HEADER_BYTES : at + header.length]
    fault: FanlogError | None = None
    targets: set[str] = set()
    keys: set[bytes] = set()
    try:
        columns = ColumnReader(body, header.flags, header.codec, header.record_count, limits)
        columns.check()
        if topic == SCHEDULED_TOPIC:
            times = time_range(body, header.flags, header.record_count)
            fault = scheduled_fault(columns, times, targets, keys)
    except FormatError as wrong:
        fault = UnreadableError(
            f"Topic {topic!r} is compacted, so the broker must read its batches. This one does not "
            f"decode: {wrong}. Its producer made it wrong: check the client that sent it."
        )
    return Checked(header.body_crc, header.length, fault, frozenset(targets), frozenset(keys))
