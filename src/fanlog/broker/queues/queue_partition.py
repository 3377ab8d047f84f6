"""A queue's state for one partition: its jobs, and the batches that have them. It finds the next
jobs to hand out; the queue chooses the worker. It is long because it searches for jobs in memory,
on disk and by priority, and all of it must agree on what is handed out."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.broker.queues.jobs import Jobs
from fanlog.broker.queues.urgent_jobs import UrgentJobs
from fanlog.config import BrokerOptions
from fanlog.errors import DamagedError, OffsetOutOfRangeError, UnreadableError
from fanlog.format.batch import Batch, split_batches
from fanlog.format.columns import SPARSE, BinaryColumn
from fanlog.format.header import PRIORITY_MAX, BatchHeader
from fanlog.format.keys import short_key
from fanlog.format.offset_ranges import OffsetRange
from fanlog.log.partition import Block
from fanlog.model import Gap, GapReason

logger = logging.getLogger("fanlog.broker")

# Bytes read from the tail at once, and the number of such ranges that are kept: one for new jobs,
# one for retries.
_STRETCH_BYTES = 256 * 1024
_STRETCHES = 2
# Headers that are read at once in search of priorities: about a millisecond.
_HEADERS_A_TURN = 2048
# The pause of a partition that could not be read.
_FAULT_PAUSE_US = 5_000_000
_WHY = {
    GapReason.RETENTION: "retention has deleted them",
    GapReason.DAMAGED: "they are damaged on disk",
}


class QueuePartitionHost(Protocol):
    """The queue, as far as its partitions need it."""

    @property
    def unpacker(self) -> Unpacker: ...
    def load_block(
        self, partition: Partition, offset: int, done: Callable[[Block | Exception], None]
    ) -> None: ...
    def stir(self, part: QueuePartition) -> None:
        """The queue partition may have something to hand out now."""
        ...

    def soon(self, call: Callable[[], None], /) -> object: ...
    def has(self, part: QueuePartition) -> bool: ...

    def missed(self, part: QueuePartition, gap: Gap, records: int) -> None:
        """Jobs in a gap that no worker will get."""
        ...


class _LargeKeys:
    """The keys of a large batch. Each is cut out of its memory on its first use."""

    __slots__ = ("_column",)

    def __init__(self, column: BinaryColumn) -> None:
        self._column = column

    def __getitem__(self, i: int) -> bytes | None:
        key = self._column[i]
        return None if key is None else short_key(key)


Keys = Sequence[bytes | None] | _LargeKeys


def read_keys(batch: Batch, *, small: bool) -> Keys:
    """A batch's keys, as they are compared: none if it has none. Raises `UnreadableError`."""
    batch.check()
    column = batch.columns.key_column
    if column is None:
        return ()
    if not small:
        return _LargeKeys(column)
    keys = [None if key is None else short_key(key) for key in column.to_list()]
    batch.forget_columns()
    return keys


class BatchAtHand:
    """A batch in memory. Its keys are read once, and only if order matters."""

    __slots__ = ("_batch", "_offsets", "header", "keys", "view")

    def __init__(self, view: memoryview, header: BatchHeader) -> None:
        self.view = view
        self.header = header
        self._batch: Batch | None = None
        self._offsets: list[int] | None = None
        self.keys: Keys | None = None

    @property
    def batch(self) -> Batch:
        if self._batch is None:
            self._batch = Batch(self.view, self.header)
        return self._batch

    def key(self, offset: int) -> bytes | None:
        """The key of the job at an offset, once the keys were read."""
        keys = self.keys
        if not keys:
            return None
        if not self.header.flags & SPARSE:
            return keys[offset - self.header.base_offset]
        i = bisect_left(self._record_offsets(), offset)
        return keys[i] if self._record_offsets()[i] == offset else None

    def dense(self, first: int, next: int) -> tuple[int, int]:
        """The first stretch between the two that has a record at every offset."""
        next = min(next, self.header.next_offset)
        if not self.header.flags & SPARSE:
            return first, next
        offsets = self._record_offsets()
        i = bisect_left(offsets, first)
        if i == len(offsets) or offsets[i] >= next:
            return next, next
        begin = end = offsets[i]
        while i < len(offsets) and offsets[i] == end < next:
            end += 1
            i += 1
        return begin, end

    def _record_offsets(self) -> list[int]:
        if self._offsets is None:
            self._offsets = list(self.batch.offsets)
        return self._offsets


class JobRun(NamedTuple):
    """Jobs that can go out as one lease, and the batch that they are in."""

    found: BatchAtHand
    first: int
    next: int


class QueuePartition:
    """`jobs` changes only through the queue, which also writes the changes. After a fault nothing
    is handed out before `paused_until_us`; the queue sets it back to 0."""

    def __init__(
        self, host: QueuePartitionHost, partition: Partition, jobs: Jobs, options: BrokerOptions
    ) -> None:
        self._host = host
        self._options = options
        self.partition = partition
        self.jobs = jobs
        self.sequence = 0
        self.watching = False
        self._stretches: list[tuple[list[int], list[BatchAtHand]]] = []
        self._loading: int | None = None
        # Batches whose keys are being read in a thread, and large ones with keys in memory.
        self._reading: list[BatchAtHand] = []
        self._large: list[BatchAtHand] = []
        self.paused_until_us = 0
        # Where urgent jobs are, if there are any priorities; and whether a search for them is
        # running.
        self.ahead: UrgentJobs | None = None
        self._looking = False

    def available(self, now_us: int) -> int:
        """About how many jobs could go out now; 0 if none can."""
        jobs = self.jobs
        if self.paused_until_us > now_us:
            return 0
        due_us = jobs.next_due_us()
        waiting = jobs.waiting if due_us is not None and due_us <= now_us else 0
        if len(jobs.spans) >= self._options.queue_ranges_max or self._crowded():
            return waiting
        return waiting + max(0, self.partition.visible_end - jobs.next)

    def _crowded(self) -> bool:
        order = self.jobs.order
        return order is not None and order.parked >= self._options.queue_parked_max

    def run(self, now_us: int, share: int, *, oldest: bool = False) -> JobRun | None:
        """The next jobs to hand out, `share` of them at most; None if there are none, or if they
        have to be read from disk first. The `oldest` ones, or the most urgent."""
        while self.available(now_us):
            self.drop_lost()
            wanted = self._wanted(now_us, oldest=oldest)
            if wanted is None:
                return None
            first, next = wanted
            found = self.find(first, now_us)
            if found is None:
                return None
            begin, end = found.dense(first, next)
            if begin > first:
                # Compaction has left nothing there.
                self.jobs.lose(first, begin)
            if begin < end:
                if not self._knows_keys(found):
                    return None
                run = self._in_order(found, begin, end, share)
                if run is not None:
                    return run
        return None

    def _knows_keys(self, found: BatchAtHand) -> bool:
        """Whether the batch's keys are in memory, or don't matter. Keys of a large batch are read
        in a thread, and then the queue is stirred."""
        if self.jobs.order is None or found.keys is not None:
            return True
        unpacker = self._host.unpacker
        batch = Batch(found.view, found.header, self.partition.topic.name, unpacker.limits)
        work = unpacker.decoding_bytes(found.view)
        if unpacker.is_small(work):
            try:
                self._take_keys(found, read_keys(batch, small=True))
            except UnreadableError as fault:
                self._take_keys(found, fault)
            return True
        if found not in self._reading:
            self._reading.append(found)
            unpacker.in_thread(
                work, lambda: read_keys(batch, small=False), lambda got: self._read(found, got)
            )
        return False

    def _read(self, found: BatchAtHand, got: Keys | Exception) -> None:
        self._reading.remove(found)
        self._take_keys(found, got)
        self._large = [*self._large, found][-_STRETCHES:]
        for other in [f for _, batches in self._stretches for f in batches]:
            if isinstance(other.keys, _LargeKeys) and other not in self._large:
                other.keys = None
        if not self.partition.topic.deleted:
            self._host.stir(self)

    def _take_keys(self, found: BatchAtHand, got: Keys | Exception) -> None:
        """Jobs with unreadable keys have no order: the worker gets the error."""
        if isinstance(got, Exception):
            logger.warning("jobs of %s have no order: %s", self.partition.name, got)
            got = ()
        found.keys = got

    def _wanted(self, now_us: int, *, oldest: bool) -> OffsetRange | None:
        """Jobs that were handed out before come first."""
        urgent = None if self.ahead is None or oldest else self._most_urgent(now_us)
        if urgent is not None:
            return urgent[1]
        due = self.jobs.oldest(now_us) if oldest else self.jobs.due(now_us)
        if due is not None:
            return due
        first, next = self.jobs.next, self.partition.visible_end
        full = len(self.jobs.spans) >= self._options.queue_ranges_max or self._crowded()
        if first < next and not full:
            return first, next
        # With nothing else left, the urgent jobs are the oldest.
        urgent = self._most_urgent(now_us) if oldest else None
        return None if urgent is None else urgent[1]

    # Priorities

    @property
    def is_ranked(self) -> bool:
        """Whether jobs may have priorities that count. Where order counts, they do not."""
        return self.partition.ranked_from is not None and self.jobs.order is None

    def top(self, now_us: int) -> int:
        """The highest known priority of an available job."""
        self.look_ahead(now_us)
        urgent = self._most_urgent(now_us)
        return 0 if urgent is None else urgent[0]

    def _most_urgent(self, now_us: int) -> tuple[int, OffsetRange] | None:
        """The most urgent available jobs and their priority: first those that were handed out
        before, then new ones."""
        ahead, jobs = self.ahead, self.jobs
        if ahead is None:
            return None
        full = len(jobs.spans) >= self._options.queue_ranges_max
        for priority in range(PRIORITY_MAX, 0, -1):
            due = jobs.due(now_us, priority)
            if due is not None:
                return priority, due
            run = ahead.first(priority)
            while run is not None and not full:
                ready = jobs.ready(*run, priority, now_us)
                ahead.drop(priority, run[1] if ready is None else ready[0])
                if ready is not None:
                    return priority, ready
                run = ahead.first(priority)
        return None

    def look_ahead(self, now_us: int) -> None:
        """Looks for priorities in new batches: some at once, the rest soon."""
        partition = self.partition
        if self.ahead is None:
            start = max(partition.ranked_from or 0, self.jobs.floor)
            self.ahead = UrgentJobs(start, self._options.queue_priority_runs_max)
        if not self._looking and self._look(now_us):
            self._looking = True
            self._host.soon(lambda: self._look_on(now_us))

    def _look_on(self, now_us: int) -> None:
        self._looking = False
        if self._host.has(self) and not self.partition.topic.deleted and self._look(now_us):
            self._looking = True
            self._host.soon(lambda: self._look_on(now_us))

    def _look(self, now_us: int) -> bool:
        """Reads some headers; whether it can continue at once."""
        ahead = self.ahead
        if ahead is None:
            return False
        ahead.skip_to(self.partition.log.start_offset)
        left = _HEADERS_A_TURN
        while left > 0:
            if ahead.is_full or not (ahead.has_more or self._give_more(ahead, now_us)):
                return False
            read, found = ahead.read(left)
            left -= read
            if found:
                self._host.stir(self)
        return True

    def _give_more(self, ahead: UrgentJobs, now_us: int) -> bool:
        """Whether more can be read at once. Batches that are only on disk are loaded."""
        partition, tail = self.partition, self.partition.log.tail
        if ahead.until >= partition.visible_end:
            return False
        if ahead.until < tail.start_offset:
            self._looking = True
            self._host.load_block(partition, ahead.until, lambda got: self._looked(got, now_us))
            return False
        pieces, _ = tail.read(ahead.until, partition.visible_end, _STRETCH_BYTES)
        ahead.give(pieces)
        return True

    def _looked(self, got: Block | Exception, now_us: int) -> None:
        self._looking = False
        ahead = self.ahead
        if ahead is None or self.partition.topic.deleted or not self._host.has(self):
            return
        if isinstance(got, Block):
            ahead.give([memoryview(got.data)])
        elif isinstance(got, DamagedError):
            ahead.skip_to(max(got.next, ahead.until + 1))
        elif not isinstance(got, OffsetOutOfRangeError):
            # Jobs are read from the same offset, and that read reports the error.
            return
        self._look_on(now_us)

    def _in_order(self, found: BatchAtHand, first: int, next: int, share: int) -> JobRun | None:
        """The part of a range whose keys allow it to go out. Earlier jobs that may not are set
        aside; None if none may."""
        order = self.jobs.order
        if order is None:
            return JobRun(found, first, min(next, first + share))
        begin = first
        while begin < next and not order.may_go(begin, found.key(begin)):
            order.enter(begin, found.key(begin))
            begin += 1
            if self._crowded():
                next = begin
        if begin > first:
            self.jobs.park(first, begin)
        end = begin
        while end < min(next, begin + share) and order.may_go(end, found.key(end)):
            order.enter(end, found.key(end))
            end += 1
        return JobRun(found, begin, end) if end > begin else None

    def drop_lost(self) -> None:
        """Jobs that retention has deleted count as done, and are counted."""
        start = self.partition.log.start_offset
        if start > self.jobs.floor:
            self._lose(self.jobs.floor, start, GapReason.RETENTION)

    def _lose(self, first: int, next: int, reason: GapReason) -> None:
        lost = self.jobs.lose(first, next)
        if lost:
            self.partition.topic.count().lost_records += lost
            topic, partition = self.partition.topic.name, self.partition.index
            self._host.missed(self, Gap(topic, partition, first, next, reason), lost)
            logger.warning("%d jobs of %s are lost: %s", lost, self.partition.name, _WHY[reason])

    # Batches

    def find(self, offset: int, now_us: int) -> BatchAtHand | None:
        """The batch that holds `offset`; None while it is read, and then the queue is stirred."""
        found = self._at_hand(offset)
        if found is not None:
            return found
        partition = self.partition
        tail = partition.log.tail
        if offset >= tail.start_offset:
            pieces, _ = tail.read(offset, partition.visible_end, _STRETCH_BYTES)
            self._keep(pieces)
            return self._at_hand(offset)
        if self._loading is None:
            self._loading = offset
            self._host.load_block(partition, offset, lambda got: self._loaded(offset, got, now_us))
        return self._at_hand(offset)

    def _loaded(self, offset: int, got: Block | Exception, now_us: int) -> None:
        self._loading = None
        if self.partition.topic.deleted:
            return
        if isinstance(got, Block):
            self._keep([memoryview(got.data)])
        elif isinstance(got, DamagedError):
            self._lose(offset, max(got.next, offset + 1), GapReason.DAMAGED)
        elif not isinstance(got, OffsetOutOfRangeError):
            logger.error("reading %s for its jobs failed: %r", self.partition.name, got)
            self.paused_until_us = now_us + _FAULT_PAUSE_US
        self._host.stir(self)

    def _keep(self, pieces: Iterable[memoryview]) -> None:
        batches = [
            BatchAtHand(piece[at : at + header.length], header)
            for piece in pieces
            for at, header in split_batches(piece)
        ]
        self._stretches.insert(0, ([found.header.base_offset for found in batches], batches))
        del self._stretches[_STRETCHES:]

    def _at_hand(self, offset: int) -> BatchAtHand | None:
        for bases, batches in self._stretches:
            i = bisect_right(bases, offset) - 1
            if i >= 0 and offset < batches[i].header.next_offset:
                return batches[i]
        return None
