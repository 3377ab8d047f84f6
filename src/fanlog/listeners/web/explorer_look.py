"""One look at the messages of some topic partitions, in the order of time: backwards from the
newest, or forwards. It runs in a thread, over pieces of log that the loop has fetched.

A look ends when there are enough rows, when it has cost enough, or when a partition that comes next
has nothing fetched. Where each partition stands then is exact, also in the middle of a batch.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.insight.stretches import OffsetGap
from fanlog.broker.messages.unpacking import decoding_bytes
from fanlog.errors import FormatError
from fanlog.format.batch import Batch, split_batches
from fanlog.format.header import BatchHeader
from fanlog.listeners.web.explorer_records import BatchRecords

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import Partition
    from fanlog.format.codecs import UnpackLimits
    from fanlog.listeners.web.explorer_filters import MessageCondition

# The clock is read after this number of records.
_RECORDS_PER_CLOCK = 64
# Up to this size a batch is looked through as it is stored, before anything of it is decoded.
_BYTES_LOOKED_THROUGH = 256 * 1024
# What a record costs beside its bytes: as much as this many of them.
_RECORD_BYTES = 16


class _HeldBatch(NamedTuple):
    """A batch that is not searched yet, or a gap."""

    header: BatchHeader | None
    data: memoryview
    gap: OffsetGap | None = None


class Reach:
    """A topic partition: what is wanted of it is from `low` up to, not including, `high`, and one
    of the two moves. `time_us` is the time that nothing left is later (or, forwards, earlier)
    than."""

    __slots__ = (
        "begin",
        "end",
        "held",
        "high",
        "low",
        "opened",
        "partition",
        "pieces",
        "span",
        "time_us",
    )

    def __init__(self, partition: Partition, low: int, high: int, time_us: int) -> None:
        self.partition = partition
        self.begin = self.low = low
        self.end = self.high = max(low, high)
        self.time_us = time_us
        # Fetched, in the order of offsets; and the same in batches, the next one at the end.
        self.pieces: list[memoryview | OffsetGap] = []
        self.held: list[_HeldBatch] = []
        # The next batch, if a look ended in the middle of it; and whether it may have what is
        # wanted.
        self.opened: tuple[BatchRecords, bool] | None = None
        # Offsets to fetch at a time, backwards.
        self.span = 1

    @property
    def left(self) -> int:
        """Offsets that were not searched."""
        return self.high - self.low

    @property
    def is_dry(self) -> bool:
        """Whether more has to be fetched before the search can continue."""
        return self.low < self.high and not self.held and not self.pieces


@dataclass(slots=True)
class LookPlan:
    """The conditions of a search, and its budget."""

    backward: bool
    conditions: Sequence[MessageCondition]
    limits: UnpackLimits
    rows_max: int
    row_bytes_max: int
    preview_bytes: int
    bytes_max: int


@dataclass(slots=True)
class LookResult:
    """What looks have found so far: rows as JSON, and what that cost."""

    rows: list[bytes] = field(default_factory=list[bytes])
    row_bytes: int = 0
    messages: int = 0
    bytes: int = 0
    gaps: list[tuple[Reach, OffsetGap]] = field(default_factory=list[tuple[Reach, OffsetGap]])


class Look:
    """One look, for at most `seconds`, at about `bytes_max` unpacked bytes."""

    def __init__(
        self,
        plan: LookPlan,
        reaches: Sequence[Reach],
        found: LookResult,
        seconds: float,
        bytes_max: int,
    ) -> None:
        self._plan = plan
        self._reaches = reaches
        self._found = found
        self._until = time.monotonic() + seconds
        self._bytes_end = found.bytes + bytes_max
        self._out_of_time = False

    @property
    def is_full(self) -> bool:
        found, plan = self._found, self._plan
        return len(found.rows) >= plan.rows_max or found.row_bytes >= plan.row_bytes_max

    @property
    def _is_over(self) -> bool:
        self._out_of_time = self._out_of_time or time.monotonic() >= self._until
        return self.is_full or self._out_of_time or self._found.bytes >= self._bytes_end

    def run(self) -> None:
        for reach in self._reaches:
            if reach.pieces:
                self._split(reach)
        waiting = [
            (self._rank(reach), i, reach)
            for i, reach in enumerate(self._reaches)
            if reach.low < reach.high
        ]
        heapq.heapify(waiting)
        while waiting:
            _, i, reach = waiting[0]
            if not reach.held:
                return
            self._take(reach)
            if self._is_over:
                return
            if reach.low < reach.high:
                heapq.heapreplace(waiting, (self._rank(reach), i, reach))
            else:
                heapq.heappop(waiting)

    def _rank(self, reach: Reach) -> tuple[int, bool]:
        return rank_of(reach, backward=self._plan.backward)

    def _split(self, reach: Reach) -> None:
        held: list[_HeldBatch] = []
        for piece in reach.pieces:
            if isinstance(piece, OffsetGap):
                held.append(_HeldBatch(None, memoryview(b""), piece))
                continue
            held += [
                _HeldBatch(header, piece[at : at + header.length])
                for at, header in split_batches(piece)
                if header.base_offset < reach.high and header.next_offset > reach.low
            ]
        if not self._plan.backward:
            held.reverse()
        reach.pieces, reach.held = [], held + reach.held if self._plan.backward else held
        self._set_time(reach)

    def _set_time(self, reach: Reach) -> None:
        """The time of what comes next. A gap has none of its own: it comes at once."""
        for held in reversed(reach.held):
            if held.header is not None:
                reach.time_us = held.header.append_time_us
                return

    def _take(self, reach: Reach) -> None:
        """Looks at the next batch of a partition."""
        held = reach.held[-1]
        if held.gap is not None:
            self._pass_gap(reach, held.gap)
        elif held.header is not None:
            mark, row_bytes = len(self._found.rows), self._found.row_bytes
            try:
                if not self._look_at(reach, held.header, held.data):
                    return
            except FormatError:
                header = held.header
                del self._found.rows[mark:]
                self._found.row_bytes = row_bytes
                self._pass_gap(
                    reach, OffsetGap(header.base_offset, header.next_offset, "unreadable")
                )
        reach.held.pop()
        reach.opened = None
        self._set_time(reach)

    def _open(self, reach: Reach, header: BatchHeader, data: memoryview) -> BatchRecords | None:
        """The records of a batch; None if none of them can be what is wanted."""
        if reach.opened is None:
            plan = self._plan
            self._found.bytes += decoding_bytes(data, 0, header, plan.limits)
            self._found.bytes += 0 if header.codec else header.length
            if plan.conditions and not header.codec and header.length <= _BYTES_LOOKED_THROUGH:
                stored = bytes(data)
                if not all(one.may_be_in(stored) for one in plan.conditions):
                    return None
            records = BatchRecords(Batch(data, header, reach.partition.topic.name, plan.limits))
            reach.opened = records, all(one.possible(records) for one in plan.conditions)
        records, possible = reach.opened
        return records if possible else None

    def _pass_gap(self, reach: Reach, gap: OffsetGap) -> None:
        first, behind = max(gap.first, reach.low), min(gap.next, reach.high)
        if first < behind:
            self._found.gaps.append((reach, OffsetGap(first, behind, gap.reason)))
        self._move(reach, gap.first, gap.next)

    def _move(self, reach: Reach, first: int, behind: int) -> None:
        """The records between these two offsets were searched."""
        if self._plan.backward:
            reach.high = min(reach.high, max(reach.low, first))
        else:
            reach.low = max(reach.low, min(reach.high, behind))

    def _look_at(self, reach: Reach, header: BatchHeader, data: memoryview) -> bool:
        """Takes the records that fit; whether it came to the end of the batch."""
        plan, found = self._plan, self._found
        topic = reach.partition.topic.name
        records = self._open(reach, header, data)
        if records is None:
            found.messages += min(header.record_count, reach.left)
            self._move(reach, header.base_offset, header.next_offset)
            return True
        indexes, offsets = records.indexes(reach.low, reach.high), records.batch.offsets
        conditions = plan.conditions
        for count, i in enumerate(reversed(indexes) if plan.backward else indexes, 1):
            found.messages += 1
            if all(condition.fits(records, i) for condition in conditions):
                row = records.row(topic, i, offsets[i], plan.preview_bytes)
                found.rows.append(row)
                found.row_bytes += len(row)
                full = self.is_full
            else:
                full = False
            found.bytes += _RECORD_BYTES
            if full or (count % _RECORDS_PER_CLOCK == 0 and self._is_over):
                self._move(reach, offsets[i], offsets[i] + 1)
                # The last of a batch is its end, too.
                return reach.low >= reach.high or count == len(indexes)
        self._move(reach, header.base_offset, header.next_offset)
        return True


def rank_of(reach: Reach, *, backward: bool) -> tuple[int, bool]:
    """The lowest comes next. Of the same time, who has nothing fetched comes first."""
    return (-reach.time_us if backward else reach.time_us, bool(reach.held))


def next_reach(reaches: Sequence[Reach], *, backward: bool) -> Reach | None:
    """The partition whose messages come next, fetched or not; None if the search has ended."""
    open_ones = (reach for reach in reaches if reach.low < reach.high)
    return min(open_ones, key=lambda reach: rank_of(reach, backward=backward), default=None)
