"""Delayed messages as they are listed: a page at a time, the first due in front. Two orders are
gone through at once, those due by the wall clock and those that wait for a while."""

from __future__ import annotations

from collections.abc import Callable
from heapq import merge
from itertools import islice

import msgspec

from fanlog.broker.messages.topics import Partition
from fanlog.broker.ports import Runtime
from fanlog.broker.schedule.due_order import Due
from fanlog.broker.schedule.pending import Pending, split_key
from fanlog.broker.schedule.records import DelayedRecord, DelayedRecordsFound, ScheduleRecords
from fanlog.errors import FanlogError, InvalidArgumentError
from fanlog.format.messages import ListScheduled, ScheduledPage
from fanlog.format.schedules import RUN_PREFIX, decode_delayed, due_us_of
from fanlog.model import MIB, PendingMessage

ListingDone = Callable[[ScheduledPage | FanlogError], None]

_BEGIN = Due(-1, -1)
# Bytes read for one page, unless a single message is larger.
_PAGE_BYTES = 8 * MIB


class _ListingPosition:
    """How far a listing is in both orders."""

    def __init__(self, epoch: int, after: str) -> None:
        self._epoch = epoch
        self.calendar = self.delays = _BEGIN
        if after:
            try:
                known, *numbers = map(int, after.split("."))
                self.calendar, self.delays = Due(*numbers[:2]), Due(*numbers[2:])
            except (TypeError, ValueError):
                raise InvalidArgumentError(f"{after!r} does not name a page.") from None
            if known != epoch:
                raise InvalidArgumentError("The broker was restarted: list from the first page.")

    def passed(self, due: Due, *, by_wall: bool) -> None:
        if by_wall:
            self.calendar = due
        else:
            self.delays = due

    def __str__(self) -> str:
        return ".".join(map(str, (self._epoch, *self.calendar, *self.delays)))


class PendingListing:
    """Lists pending messages. `epoch` is this start's: a position has no meaning in another."""

    def __init__(
        self, pending: Pending, records: ScheduleRecords, runtime: Runtime, epoch: int
    ) -> None:
        self._pending = pending
        self._records = records
        self._runtime = runtime
        self._epoch = epoch

    def page(self, partition: Partition, wanted: ListScheduled, listed: ListingDone) -> None:
        """Hands a page of the messages for a topic, or for all, to `listed`. It may have fewer
        than were asked for: those for other topics are left out."""
        count, topic = wanted.count, wanted.topic
        position = _ListingPosition(self._epoch, wanted.after)
        chosen = self._choose(position, count)

        def read(got: DelayedRecordsFound | FanlogError) -> None:
            if isinstance(got, FanlogError):
                listed(got)
                return
            # Only up to the first that was too much: the next page begins there.
            unread = frozenset(got.unread)
            numbers = (i for i, (due, _) in enumerate(chosen) if due.offset in unread)
            cut = next(numbers, len(chosen))
            if chosen and not cut:
                fewer = msgspec.structs.replace(wanted, count=max(1, count // 8))
                self.page(partition, fewer, listed)
                return
            for due, by_wall in chosen[:cut]:
                position.passed(due, by_wall=by_wall)
            passed = frozenset(due.offset for due, _ in chosen[:cut])
            shown = [_shown(record) for record in got.records if record.offset in passed]
            page = tuple(m for m in shown if m is not None and topic in ("", m.topic))
            last = len(chosen) < count and cut == len(chosen)
            listed(ScheduledPage(page, "" if last else str(position), len(self._pending)))

        offsets = [due.offset for due, _ in chosen]
        self._records.read(partition, offsets, _PAGE_BYTES, read)

    def _choose(self, position: _ListingPosition, count: int) -> list[tuple[Due, bool]]:
        """The next in both orders, and whether each is due by the wall clock."""
        shift_us = self._runtime.now_us() - self._runtime.work_us()
        calendar = islice(self._pending.calendar.after(position.calendar), count)
        delays = islice(self._pending.delays.after(position.delays), count)
        both = merge(
            ((due.moment_us, due, True) for due in calendar),
            ((due.moment_us + shift_us, due, False) for due in delays),
        )
        return [(due, by_wall) for _, due, by_wall in islice(both, count)]


def _shown(record: DelayedRecord) -> PendingMessage | None:
    _, raw = split_key(record.key)
    id = raw.decode(errors="replace")
    try:
        delayed = decode_delayed(record.value)
    except FanlogError:
        return None
    return PendingMessage(
        delayed.topic,
        id,
        due_us_of(record.time_us, record.append_time_us),
        delayed.key,
        len(delayed.value or b""),
        id.removeprefix(RUN_PREFIX) if delayed.repeat is not None else "",
    )
