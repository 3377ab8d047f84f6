"""The state of the jobs in one partition of a queue: leased, done, failed, released, forgotten.
Pure state: time is an argument, and the caller does the rest. It is long because every outcome
changes the same ranges, which have to stay disjoint."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fanlog.broker.queues.key_order import KeyOrder
from fanlog.broker.queues.spans import JobSpan, JobState, Spans
from fanlog.format.offset_ranges import OffsetRange, joined

# Outdated heap entries are removed when there are this many.
_STALE_MAX = 1024


_SETTLING = (JobState.FINISHING, JobState.FAILING)
_IN_HAND = (JobState.LEASED, JobState.FAILING)
_HELD = (JobState.LEASED, *_SETTLING)
# By time: ranges of jobs that may be in a state then.
_Heap = list[tuple[int, int, int]]
# When jobs that have failed may be tried again: asked with how often, and the first offset.
RetryTime = Callable[[int, int], int]


def _never(failures: int, first: int) -> int:
    del failures, first
    return 0


class JobFailure(NamedTuple):
    """Jobs that have failed, how often, and when they may be tried again, by the clock that
    leases are measured by."""

    first: int
    next: int
    failures: int
    due_us: int
    reason: str


class Expired(NamedTuple):
    """Jobs to try again, dead jobs, and the workers that had them."""

    again: list[JobSpan]
    dead: list[JobSpan]
    workers: set[str]


class InHand:
    """The number of jobs of each worker, over all partitions of its queue. Workers with fewer jobs
    than before are in `freed`, until the queue has looked."""

    __slots__ = ("counts", "freed")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.freed: set[str] = set()

    def take(self, worker: str, count: int) -> None:
        self.counts[worker] = self.counts.get(worker, 0) + count

    def give_back(self, worker: str, count: int) -> None:
        left = self.counts[worker] - count
        if left:
            self.counts[worker] = left
        else:
            del self.counts[worker]
        self.freed.add(worker)


class Jobs:
    """`in_hand` counts the jobs of each worker."""

    def __init__(self, start: int, in_hand: InHand | None = None, *, ordered: bool = False) -> None:
        self.spans = Spans(start)
        self.order = KeyOrder() if ordered else None
        self.leased = 0
        self.waiting = 0
        self._in_hand = InHand() if in_hand is None else in_hand
        self._deadlines: _Heap = []
        self._due: _Heap = []
        # The same of jobs with a priority.
        self._urgent: dict[int, _Heap] = {}

    @property
    def floor(self) -> int:
        return self.spans.floor

    @property
    def next(self) -> int:
        return self.spans.next

    # Handing out

    def due(self, now_us: int, priority: int = 0) -> OffsetRange | None:
        """The first waiting jobs that are due, all in the same state. With a priority, only jobs
        with it that were handed out before."""
        heap = self._urgent.get(priority, []) if priority else self._due
        while heap and heap[0][0] <= now_us:
            due_us, first, next = heap[0]
            for span in self.spans.within(first, next):
                if span.state is JobState.WAITING and span.due_us <= now_us:
                    found = max(first, span.first), min(next, span.next)
                    # Entries before it need not be checked again.
                    heapq.heapreplace(heap, (due_us, found[0], next))
                    return found
            heapq.heappop(heap)
        return None

    def oldest(self, now_us: int) -> OffsetRange | None:
        """The due jobs that have waited longest, whatever their priority."""
        found: tuple[int, OffsetRange] | None = None
        for priority in (0, *self._urgent):
            due = self.due(now_us, priority)
            if due is not None:
                heap = self._urgent[priority] if priority else self._due
                since = heap[0][0], due
                found = since if found is None else min(found, since)
        return None if found is None else found[1]

    def next_due_us(self) -> int | None:
        """When the next job is due; None if no job waits."""
        if not self.waiting:
            return None
        due_us = self._due[0][0] if self._due else None
        for heap in self._urgent.values():
            if heap and (due_us is None or heap[0][0] < due_us):
                due_us = heap[0][0]
        return due_us

    def ready(self, first: int, next: int, priority: int, now_us: int) -> OffsetRange | None:
        """The first jobs between the two, which have this priority, that may go out now. From now
        on `due` finds those that have to wait for it."""
        waits: list[OffsetRange] = []
        ready: OffsetRange | None = None
        for span in self.spans.within(first, min(next, self.next)):
            if span.state is JobState.WAITING:
                found = max(first, span.first), min(next, span.next)
                if span.due_us <= now_us:
                    ready = found
                    break
                if span.priority != priority:
                    waits.append(found)
        for found in waits:
            for span in self.spans.cut(*found):
                span.priority = priority
                self._push_due(span)
        if ready is None and next > self.next:
            ready = max(first, self.next), next
        return ready

    def lease(
        self,
        first: int,
        next: int,
        worker: str,
        deadline_us: int,
        *,
        priority: int = 0,
        now_us: int = 0,
    ) -> int:
        """Leases waiting or new jobs. Returns how often they failed before. Skipped jobs wait from
        now on."""
        failures = 0
        if first >= self.next:
            self._reach(first, now_us)
            span = self.spans.append(JobSpan(first, next, JobState.WAITING))
            self.waiting += len(span)
            span.priority = priority
            span.since_us = now_us
            self._set(span, JobState.LEASED, worker, deadline_us)
        else:
            for span in self.spans.cut(first, next):
                failures = span.failures
                span.priority = priority
                span.since_us = now_us
                self._set(span, JobState.LEASED, worker, deadline_us)
        self._push(self._deadlines, deadline_us, first, next)
        return failures

    def park(self, first: int, next: int) -> None:
        """Sets jobs aside that wait behind others of their key."""
        if first >= self.next:
            self.spans.append(JobSpan(first, next, JobState.PARKED))
        else:
            for span in self.spans.cut(first, next):
                self._set(span, JobState.PARKED)

    # Outcomes

    def settle(self, first: int, next: int, worker: str = "") -> None:
        """The outcome of jobs is known, and on its way to the disk: until it takes effect no lease
        runs out, and nobody else gets them. With a worker it is a failure, of those that it has."""
        for span in self.spans.cut(first, next):
            if worker:
                if span.state is JobState.LEASED and span.worker == worker:
                    self._set(span, JobState.FAILING, worker, span.due_us)
            elif span.state in (JobState.LEASED, JobState.FAILING, JobState.WAITING):
                self._set(span, JobState.FINISHING, span.worker, span.due_us)

    def settle_earlier(self, first: int, next: int) -> None:
        """The same for acks of jobs that were handed out before a restart."""
        self._reach(next)
        self.settle(first, next)

    def unsettle(self, first: int, next: int) -> None:
        """Takes that back: the outcome could not be written."""
        for span in self.spans.cut(first, next):
            if span.state not in _SETTLING:
                continue
            if span.worker:
                self._set(span, JobState.LEASED, span.worker, span.due_us)
                self._push(self._deadlines, span.due_us, span.first, span.next)
            else:
                self._wait(span, span.due_us)

    def finish(self, first: int, next: int) -> list[OffsetRange]:
        """Marks jobs done, by any worker. Returns those that were done or dead before, or were
        never handed out."""
        late = self._outside(first, next)
        for span in self.spans.cut(first, next):
            if span.state in (JobState.DONE, JobState.DEAD):
                late.append((span.first, span.next))
            else:
                self._set(span, JobState.DONE)
        self._finished(first, next)
        return late

    def finish_earlier(self, first: int, next: int) -> list[OffsetRange]:
        """The same for jobs that were handed out before a restart, which may be all there are."""
        self._reach(next)
        return self.finish(first, next)

    def settling(self, worker: str, first: int, next: int) -> list[JobSpan]:
        """Jobs between the two that a worker had when it said what became of them."""
        return [s for s in self.spans.within(first, next) if _is_settling(s, worker)]

    def dead(self, first: int, next: int) -> list[OffsetRange]:
        """The dead jobs in a range that are not stored yet."""
        return [
            (span.first, span.next)
            for span in self.spans.within(first, min(next, self.next))
            if span.state is JobState.DEAD
        ]

    def fail(
        self,
        worker: str,
        first: int,
        next: int,
        *,
        due: RetryTime,
        reason: str,
        deliveries_max: int,
    ) -> tuple[list[JobSpan], list[OffsetRange]]:
        """A worker has given up on jobs, and they were marked then (`settle`). Returns those that
        have failed too often, and are dead, and those that the worker did not have. A lease that
        it got since then is another one."""
        dead: list[JobSpan] = []
        late = self._outside(first, next)
        for span in self.spans.cut(first, next):
            if not _is_settling(span, worker):
                late.append((span.first, span.next))
            elif self._failed(span, due, reason, deliveries_max):
                dead.append(span)
        return dead, late

    def reject(
        self, worker: str, first: int, next: int, reason: str
    ) -> tuple[list[JobSpan], list[OffsetRange]]:
        """The same, and all of them are dead."""
        return self.fail(worker, first, next, due=_never, reason=reason, deliveries_max=0)

    def extend(self, worker: str, first: int, next: int, deadline_us: int) -> list[OffsetRange]:
        """Moves the end of a worker's leases. Returns those that it does not have."""
        late = self._outside(first, next)
        for span in self.spans.cut(first, next):
            if _is_held(span, worker):
                span.due_us = deadline_us
            else:
                late.append((span.first, span.next))
        self._push(self._deadlines, deadline_us, first, next)
        return late

    def dead_letter_stored(self, first: int, next: int) -> None:
        """Dead jobs are stored in the dead-letter topic."""
        for span in self.spans.cut(first, next):
            if span.state is JobState.DEAD:
                self._set(span, JobState.DONE)
        self._finished(first, next)

    def mark_dead(self, deliveries_max: int) -> list[JobSpan]:
        """Marks waiting jobs dead that have failed too often. A restart may find such jobs."""
        dead = [
            span
            for span in self.spans
            if span.state is JobState.WAITING and span.failures >= deliveries_max
        ]
        for span in dead:
            self._set(span, JobState.DEAD)
        return dead

    # Time, and workers that go

    def expire(self, now_us: int, due: RetryTime, deliveries_max: int) -> Expired:
        """Takes back leases that ran out."""
        expired = Expired([], [], set())
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, first, next = heapq.heappop(self._deadlines)
            for span in self.spans.within(first, next):
                if span.state is JobState.LEASED and span.due_us <= now_us:
                    reason = f"timed out in the hands of worker {span.worker}"
                    expired.workers.add(span.worker)
                    dead = self._failed(span, due, reason, deliveries_max)
                    (expired.dead if dead else expired.again).append(span)
        return expired

    def release(self, worker: str, kept: Iterable[OffsetRange] = ()) -> int:
        """Releases a worker's jobs, except `kept`; their failures do not rise. Returns their
        number."""
        keep: set[int] = set()
        for first, next in joined(kept):
            keep.update(span.first for span in self.spans.cut(first, next))
        released = 0
        for span in self.spans:
            leased = span.state is JobState.LEASED and span.worker == worker
            if leased and span.first not in keep:
                released += len(span)
                self._wait(span, 0)
        return released

    def release_all(self, *, ordered: bool) -> None:
        """Forgets all leases and all order, for a queue that starts again with the jobs that are
        not done."""
        self.order = KeyOrder() if ordered else None
        for span in self.spans:
            if span.state in (JobState.LEASED, JobState.PARKED, JobState.WAITING):
                self._set(span, JobState.WAITING)
        self._rebuild()

    def lose(self, first: int, next: int) -> int:
        """Jobs that can't be had any more count as done. Returns how many were not."""
        if next > self.next:
            self._reach(first)
            self.park(self.next, next)
        lost = 0
        for span in self.spans.cut(first, next):
            if span.state is not JobState.DONE:
                lost += len(span)
                self._set(span, JobState.DONE)
        self._finished(first, next)
        return lost

    # What survives

    def done_ranges(self) -> list[OffsetRange]:
        return [(s.first, s.next) for s in self.spans if s.state is JobState.DONE]

    def failures(self) -> list[JobFailure]:
        return [
            JobFailure(s.first, s.next, s.failures, _due_us(s), s.reason)
            for s in self.spans
            if s.failures and s.state is not JobState.DONE
        ]

    def restore(self, done: Iterable[OffsetRange], failures: Iterable[JobFailure]) -> None:
        """Restores state from a ledger entry; `restored` ends this."""
        for failure in failures:
            self._reach(failure.next)
            for span in self.spans.cut(failure.first, failure.next):
                if span.state is JobState.WAITING:
                    span.failures, span.reason = failure.failures, failure.reason
                    # With an order to keep, all begin in the order of the log.
                    span.due_us = failure.due_us if self.order is None else 0
        for first, next in done:
            self._reach(next)
            for span in self.spans.cut(first, next):
                if span.state is not JobState.DONE:
                    self._set(span, JobState.DONE)
            self.spans.tidy(first, next)

    def restored(self, end: int) -> None:
        """Forgets jobs past the end of the log, which has changed, and starts the rest."""
        if self.next > end:
            kept = Spans(min(self.floor, end))
            self.waiting = 0
            for span in self.spans:
                if span.first < end:
                    span.next = min(span.next, end)
                    kept.append(span)
                    self.waiting += len(span) if span.state is JobState.WAITING else 0
            self.spans = kept
        self._rebuild()

    # Within

    def _reach(self, next: int, due_us: int = 0) -> None:
        if next > self.next:
            span = self.spans.append(JobSpan(self.next, next, JobState.WAITING, due_us=due_us))
            self.waiting += len(span)
            self._push_due(span)

    def _outside(self, first: int, next: int) -> list[OffsetRange]:
        """The parts of a range that are below the floor, or were never handed out."""
        below = first, min(next, self.floor)
        above = max(first, self.next), next
        return [part for part in (below, above) if part[0] < part[1]]

    def _failed(self, span: JobSpan, due: RetryTime, reason: str, deliveries_max: int) -> bool:
        """True if the span's jobs are dead now."""
        span.failures += 1
        span.reason = reason
        if span.failures >= deliveries_max:
            # Its dead letter names the worker.
            self._set(span, JobState.DEAD, span.worker)
            return True
        self._wait(span, due(span.failures, span.first))
        return False

    def _wait(self, span: JobSpan, due_us: int) -> None:
        self._set(span, JobState.WAITING, due_us=due_us)
        self._push_due(span)

    def _push_due(self, span: JobSpan) -> None:
        heap = self._urgent.setdefault(span.priority, []) if span.priority else self._due
        self._push(heap, span.due_us, span.first, span.next)

    def _finished(self, first: int, next: int) -> None:
        if self.order is not None:
            for offset in list(self._left_behind(first, next)):
                (span,) = self.spans.cut(offset, offset + 1)
                if span.state is JobState.PARKED:
                    self._wait(span, 0)
        self.spans.tidy(first, next)

    def _left_behind(self, first: int, next: int) -> Iterator[int]:
        """Jobs that may go, now that those before them are done."""
        if self.order is None:
            return
        for span in self.spans.within(max(first, self.floor), min(next, self.next)):
            if span.state is JobState.DONE:
                part = max(first, span.first), min(next, span.next)
                for offset in self.order.known_within(*part):
                    freed = self.order.leave(offset)
                    if freed is not None:
                        yield freed

    def _set(self, span: JobSpan, state: JobState, worker: str = "", due_us: int = 0) -> None:
        count = len(span)
        if span.state in _IN_HAND:
            self.leased -= count
            self._in_hand.give_back(span.worker, count)
        elif span.state is JobState.FINISHING:
            self.leased -= count
        elif span.state is JobState.WAITING:
            self.waiting -= count
        span.state, span.worker, span.due_us = state, worker, due_us
        if state in _IN_HAND:
            self.leased += count
            self._in_hand.take(worker, count)
        elif state is JobState.FINISHING:
            self.leased += count
        elif state is JobState.WAITING:
            self.waiting += count

    def _push(self, heap: _Heap, time_us: int, first: int, next: int) -> None:
        heapq.heappush(heap, (time_us, first, next))
        if len(heap) > _STALE_MAX + 2 * len(self.spans):
            self._rebuild()

    def _rebuild(self) -> None:
        """Rebuilds all heaps."""
        self._deadlines = [
            (s.due_us, s.first, s.next) for s in self.spans if s.state is JobState.LEASED
        ]
        self._due, self._urgent = [], {}
        for span in self.spans:
            if span.state is JobState.WAITING:
                heap = self._urgent.setdefault(span.priority, []) if span.priority else self._due
                heap.append((span.due_us, span.first, span.next))
        for heap in (self._deadlines, self._due, *self._urgent.values()):
            heapq.heapify(heap)


def _is_settling(span: JobSpan, worker: str) -> bool:
    return span.state in _SETTLING and span.worker == worker


def _is_held(span: JobSpan, worker: str) -> bool:
    return span.state in _HELD and span.worker == worker


def _due_us(span: JobSpan) -> int:
    return span.due_us if span.state is JobState.WAITING else 0
