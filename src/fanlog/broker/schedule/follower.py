"""The reader that knows which delayed messages there are: a cursor over their topic, from its first
record to what was published a moment ago. A start reads the topic in the same way, in slices."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from fanlog.broker.messages.reading import Reading
from fanlog.broker.messages.topics import Partition
from fanlog.broker.ports import Runtime
from fanlog.errors import DamagedError, FanlogError, OffsetOutOfRangeError
from fanlog.format.batch import Batch, split_batches
from fanlog.format.columns import EVENT_TIMES, KEYS
from fanlog.log.partition import PartitionLog
from fanlog.model import Durability

if TYPE_CHECKING:
    from fanlog.broker.slices import Slices

logger = logging.getLogger("fanlog.broker")

_READ_BYTES = 1024 * 1024
# After a read that failed.
_RETRY_US = 1_000_000


class Taker(Protocol):
    def take(self, batch: Batch, first: int, /) -> Iterator[None]:
        """Takes in a batch's records from an offset on, some at a step."""
        ...


class Waker(Protocol):
    """The broker, as far as a follower needs it."""

    @property
    def draining(self) -> bool: ...
    @property
    def reading(self) -> Reading: ...


class ScheduleFollower:
    """`next` is the offset after everything that was taken in."""

    def __init__(
        self, waker: Waker, partition: Partition, runtime: Runtime, slices: Slices, taker: Taker
    ) -> None:
        self._waker = waker
        self._partition = partition
        self._runtime = runtime
        self._slices = slices
        self._taker = taker
        self._busy = False
        self._waits = False
        self._not_before_us = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.next = partition.log.start_offset
        # For a log in memory: its batches that are not taken in yet, and where they end.
        self._in_memory = partition.durability is Durability.MEMORY
        self._held: deque[tuple[list[memoryview], int]] = deque()
        self._held_until = self.next

    @property
    def behind(self) -> bool:
        return self._busy or self.next < self._partition.visible_end

    def when_caught_up(self, call: Callable[[], None]) -> None:
        """Calls back when everything that is visible now is taken in."""
        if self.behind:
            self._waiting.append((self._partition.visible_end, call))
        else:
            call()

    def wake(self) -> None:
        """There is more. Others have their turn first."""
        self._waits = False
        if self._in_memory:
            self._hold()
        self._runtime.soon(self.resume)

    def _hold(self) -> None:
        """Holds on to what a log in memory has got: by the time that it can be taken in, the log
        may have dropped it for what came after it."""
        partition, tail = self._partition, self._partition.log.tail
        at, end = max(self._held_until, tail.start_offset), partition.visible_end
        while at < end:
            views, at = tail.read(at, end, _READ_BYTES)
            self._held.append((views, at))
        self._held_until = at
        self._waits = True
        self._waker.reading.when_more(partition, self.wake)

    def resume(self) -> None:
        """Takes in visible records, a slice at a time."""
        if self._busy or self._waker.draining or self._runtime.work_us() < self._not_before_us:
            return
        partition = self._partition
        log, end = partition.log, partition.visible_end
        if self._held:
            self._begin_with(*self._held.popleft())
            self._tell()
            return
        self.next = max(self.next, log.start_offset)
        if self.next >= end:
            if not self._waits:
                self._waits = True
                self._waker.reading.when_more(partition, self.wake)
        elif self.next >= log.tail.start_offset:
            self._begin_with(*log.tail.read(self.next, end, _READ_BYTES))
        else:
            self._busy = True
            first = self.next
            self._runtime.in_thread(lambda: _read(log, first, end), self._have_read)
        self._tell()

    def _begin_with(self, views: list[memoryview], after: int) -> None:
        self._begin([batch for view in views for batch in _batches(view)], after)

    def _begin(self, batches: list[Batch], after: int) -> None:
        self._busy = True

        def ended() -> None:
            self._busy = False
            self.next = after
            self.resume()

        self._slices.in_slices(self._steps(batches), ended)

    def _have_read(self, got: tuple[list[Batch], int] | Exception) -> None:
        self._busy = False
        if isinstance(got, Exception):
            # It is tried again in a while. Nothing is lost.
            logger.error("delayed messages can't be read now: %s", got)
            self._not_before_us = self._runtime.work_us() + _RETRY_US
        else:
            self._begin(*got)

    def _steps(self, batches: list[Batch]) -> Iterator[None]:
        for batch in batches:
            try:
                yield from self._taker.take(batch, self.next)
            except FanlogError as fault:
                logger.error("delayed messages can't be read: %s", fault)
            yield

    def _tell(self) -> None:
        ready = [call for end, call in self._waiting if end <= self.next]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > self.next]
        for call in ready:
            call()


def _read(log: PartitionLog, offset: int, end: int) -> tuple[list[Batch], int]:
    """Batches from disk, and the offset behind them. It skips damage, which the status of the
    broker reports."""
    try:
        block = log.read(offset, end, _READ_BYTES)
    except DamagedError as fault:
        logger.error("delayed messages are lost: %s", fault)
        return [], min(end, max(fault.next, offset + 1))
    except OffsetOutOfRangeError:
        return [], min(end, max(log.start_offset, offset + 1))
    return list(_batches(block.data)), block.next_offset


def _batches(data: memoryview) -> Iterator[Batch]:
    for at, header in split_batches(data):
        if header.flags & KEYS and header.flags & EVENT_TIMES:
            yield Batch(data[at : at + header.length], header)
