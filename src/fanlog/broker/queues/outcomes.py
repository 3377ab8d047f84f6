"""The outcomes of jobs: ack, nack, reject, and extended leases. They are written to the ledger,
many together. When they are durable they take effect, and the worker gets an answer. A job that was
acked is never handed out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.broker.queues.jobs import JobFailure, Jobs, RetryTime
from fanlog.broker.queues.queue import Queue, QueueWorker
from fanlog.broker.queues.queue_partition import QueuePartition
from fanlog.broker.queues.spans import JobSpan
from fanlog.broker.state.ledger import Done, Entry
from fanlog.errors import FanlogError
from fanlog.format.header import OFFSET_MAX
from fanlog.format.messages import JobOutcome, OutcomeKind, Settle, Settled
from fanlog.format.offset_ranges import OffsetRange, range_without
from fanlog.model import Durability

SettleAnswer = Callable[[Settled | FanlogError], None]
_MS_US = 1000
# Longest time that an outcome can ask for: a day.
_DELAY_MS_MAX = 86_400_000
_REASON_CHARACTERS_MAX = 4096
# Outcomes that are written to the ledger.
_WRITTEN = (OutcomeKind.ACK, OutcomeKind.NACK, OutcomeKind.REJECT)
# Outcomes settled before others get their turn.
_OUTCOMES_A_TURN = 8192


class OutcomeHost(Protocol):
    """All queues together, as far as outcomes need it."""

    def monotonic_us(self) -> int: ...
    def soon(self, call: Callable[[], None], /) -> object: ...
    def epoch(self) -> int: ...
    def known_until(self, partition: Partition, epoch: int) -> int:
        """The offset up to which a partition is unchanged since an epoch."""
        ...

    def change_entry(
        self,
        queue: Queue,
        part: QueuePartition,
        done: list[OffsetRange],
        failures: list[JobFailure],
    ) -> Entry: ...
    def write(self, entries: list[Entry], done: Done) -> None:
        """Raises if they are not written. `done` runs when they are durable, or with the fault if
        they can't be."""
        ...

    def move(
        self, queue: Queue, part: QueuePartition, dead: list[JobSpan], done: Callable[[], None]
    ) -> None:
        """Makes dead letters of jobs; `done` is called when they are, or when it has to be tried
        again later."""
        ...


class _Request:
    __slots__ = ("answer", "late", "pending", "settle", "worker")

    def __init__(self, worker: QueueWorker, settle: Settle, answer: SettleAnswer) -> None:
        self.worker = worker
        self.settle = settle
        self.answer = answer
        self.late: list[JobOutcome] = []
        self.pending = 1

    def part_done(self) -> None:
        """Answers when the outcomes are durable, and all dead letters of the request are stored."""
        self.pending -= 1
        if not self.pending:
            self.worker.queue.after_leases(lambda: self.answer(Settled(tuple(self.late))))


class _Change:
    """The changes of a turn in a queue partition, as they are written."""

    __slots__ = ("dead", "done", "failures", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.done: list[OffsetRange] = []
        self.failures: list[JobFailure] = []
        # Jobs that become dead letters in this turn: a later ack is too late.
        self.dead: list[OffsetRange] = []


class Outcomes:
    """One write is under way at a time. Outcomes that arrive meanwhile are written together when it
    has taken effect: so each decision uses the current state, and a slow disk gets larger
    writes."""

    def __init__(self, host: OutcomeHost) -> None:
        self._host = host
        self._requests: list[_Request] = []
        # Those for queues that are being reset.
        self._held: list[_Request] = []
        self._scheduled = False
        self._writing = False

    def settle(self, worker: QueueWorker, settle: Settle, answer: SettleAnswer) -> None:
        """Takes a worker's outcomes. It has room for further jobs at once."""
        request = _Request(worker, settle, answer)
        self._mark(request, _settle)
        self._extend(request)
        worker.doubted = False
        if all(outcome.verb == OutcomeKind.EXTEND for outcome in settle.outcomes):
            answer(Settled(tuple(request.late)))
        else:
            self._requests.append(request)
            # First, so that what is handed out now is not what it says something about.
            self._schedule()
        worker.queue.enlist_freed()
        worker.queue.enlist(worker)

    def resume(self) -> None:
        """A queue has been reset: decides on the outcomes that waited for it."""
        held, self._held = self._held, []
        self._requests = held + self._requests
        self._schedule()

    def _schedule(self) -> None:
        if self._requests and not self._scheduled and not self._writing:
            self._scheduled = True
            self._host.soon(self._turn)

    def _take_some(self) -> list[_Request]:
        """The requests that are written together."""
        if any(request.worker.queue.resetting for request in self._requests):
            self._held += [r for r in self._requests if r.worker.queue.resetting]
            self._requests = [r for r in self._requests if not r.worker.queue.resetting]
        outcomes = 0
        for i, request in enumerate(self._requests):
            outcomes += len(request.settle.outcomes)
            if i and outcomes > _OUTCOMES_A_TURN:
                some, self._requests = self._requests[:i], self._requests[i:]
                return some
        some, self._requests = self._requests, []
        return some

    def _turn(self) -> None:
        self._scheduled = False
        requests = self._take_some()
        now_us = self._host.monotonic_us()
        changes: dict[QueuePartition, _Change] = {}
        for request in requests:
            self._note(request, changes, now_us)
        entries = self._entries(changes)
        if not entries:
            self._take_effect(requests, now_us)
            self._schedule()
            return

        def durable(fault: FanlogError | None) -> None:
            self._writing = False
            if fault is None:
                self._take_effect(requests, now_us)
            else:
                for request in requests:
                    request.answer(fault)
            self._schedule()

        # A broker without a folder runs `durable` before `write` returns.
        self._writing = True
        try:
            self._host.write(entries, durable)
        except FanlogError as fault:
            self._writing = False
            for request in requests:
                self._mark(request, _unsettle)
                request.answer(fault)
            self._schedule()

    def _mark(self, request: _Request, mark: Callable[[Jobs, int, int, str], None]) -> None:
        """Marks the jobs of a request as settled, or not any more."""
        for outcome in request.settle.outcomes:
            part = self._queue_partition(request, outcome)
            if part is None or outcome.verb not in _WRITTEN:
                continue
            worker = "" if outcome.verb == OutcomeKind.ACK else request.worker.id
            next = min(outcome.next, self._limit(request, part), self._end(request, part))
            mark(part.jobs, outcome.first, next, worker)

    def _extend(self, request: _Request) -> None:
        """Extends leases at once: they must not run out because the disk or a replica is slow."""
        worker = request.worker
        now_us = self._host.monotonic_us()
        for outcome in request.settle.outcomes:
            if outcome.verb != OutcomeKind.EXTEND:
                continue
            part = self._queue_partition(request, outcome)
            if part is None:
                request.late.append(outcome)
                continue
            next = min(outcome.next, self._limit(request, part))
            until_us = now_us + _lease_us(worker.queue, outcome)
            late = part.jobs.extend(worker.id, outcome.first, next, until_us)
            _came_late(request, outcome, late, next)
            worker.queue.stir(part)

    def _take_effect(self, requests: list[_Request], now_us: int) -> None:
        queues: dict[Queue, None] = {}
        for request in requests:
            queues[request.worker.queue] = None
            for outcome in request.settle.outcomes:
                if outcome.verb != OutcomeKind.EXTEND:
                    self._apply(request, outcome, now_us)
        for queue in queues:
            queue.enlist_freed()
        for request in requests:
            request.worker.queue.enlist(request.worker)
            request.part_done()

    def _queue_partition(self, request: _Request, outcome: JobOutcome) -> QueuePartition | None:
        """The queue partition that an outcome is about, if it knows the jobs."""
        part = request.worker.queue.partitions.get((outcome.number, outcome.partition))
        if part is None or outcome.first >= min(outcome.next, self._limit(request, part)):
            return None
        return part

    def _limit(self, request: _Request, part: QueuePartition) -> int:
        """A crash may have lost jobs that were handed out before. From this offset on there are
        other jobs, which an old outcome is not about."""
        epoch = request.settle.epoch
        if epoch in (0, self._host.epoch()):
            return OFFSET_MAX
        return self._host.known_until(part.partition, epoch)

    def _note(self, request: _Request, changes: dict[QueuePartition, _Change], now_us: int) -> None:
        """Collects the entries to write: jobs that will be done, and jobs that will have failed."""
        queue = request.worker.queue
        for outcome in request.settle.outcomes:
            part = self._queue_partition(request, outcome)
            if part is None or outcome.verb not in _WRITTEN:
                continue
            change = changes.get(part)
            if change is None:
                change = changes[part] = _Change(queue)
            jobs = part.jobs
            end = self._end(request, part)
            limit = min(end, self._limit(request, part))
            first, next = max(outcome.first, jobs.floor), min(outcome.next, limit)
            if first >= next:
                continue
            if outcome.verb == OutcomeKind.ACK:
                # A late ack must not undo a dead letter that is on its way.
                change.done += range_without(first, next, [*jobs.dead(first, next), *change.dead])
                continue
            held = [
                (max(first, span.first), min(next, span.next), span.failures + 1)
                for span in jobs.settling(request.worker.id, first, next)
            ]
            most = 0 if outcome.verb == OutcomeKind.REJECT else queue.settings.max_deliveries
            change.dead += [(f, n) for f, n, failures in held if failures >= most]
            if outcome.verb == OutcomeKind.REJECT:
                continue
            due = _due(queue, part, outcome, now_us)
            reason = outcome.reason[:_REASON_CHARACTERS_MAX]
            change.failures += [
                JobFailure(f, n, failures, due(failures, f), reason) for f, n, failures in held
            ]

    def _end(self, request: _Request, part: QueuePartition) -> int:
        """The offset up to which jobs can have been handed out. From before a restart it is
        unknown."""
        if 0 < request.settle.epoch < self._host.epoch():
            return max(part.jobs.next, part.partition.visible_end)
        return part.jobs.next

    def _ack(
        self, request: _Request, part: QueuePartition, first: int, next: int
    ) -> list[OffsetRange]:
        end = self._end(request, part)
        if end > part.jobs.next and first < end:
            late = part.jobs.finish_earlier(first, min(next, end))
            return late + ([(end, next)] if next > end else [])
        return part.jobs.finish(first, next)

    def _entries(self, changes: dict[QueuePartition, _Change]) -> list[Entry]:
        """The entries to write; none for memory topics."""
        return [
            self._host.change_entry(change.queue, part, change.done, change.failures)
            for part, change in changes.items()
            if (change.done or change.failures)
            and part.partition.durability is not Durability.MEMORY
        ]

    def _apply(self, request: _Request, outcome: JobOutcome, now_us: int) -> None:
        part = self._queue_partition(request, outcome)
        if part is None:
            request.late.append(outcome)
            return
        worker, jobs = request.worker, part.jobs
        queue, first = worker.queue, outcome.first
        next = min(outcome.next, self._limit(request, part))
        reason = outcome.reason[:_REASON_CHARACTERS_MAX]
        dead: list[JobSpan] = []
        match outcome.verb:
            case OutcomeKind.ACK:
                late = self._ack(request, part, first, next)
            case OutcomeKind.NACK:
                dead, late = jobs.fail(
                    worker.id,
                    first,
                    next,
                    due=_due(queue, part, outcome, now_us),
                    reason=reason,
                    deliveries_max=queue.settings.max_deliveries,
                )
            case OutcomeKind.REJECT:
                dead, late = jobs.reject(worker.id, first, next, reason)
            case _:
                late = [(first, next)]
        _came_late(request, outcome, late, next)
        if dead:
            request.pending += 1
            self._host.move(queue, part, dead, request.part_done)
        queue.stir(part)


def _came_late(request: _Request, outcome: JobOutcome, late: list[OffsetRange], known: int) -> None:
    """Notes the jobs that an outcome came too late for, and those from `known` on."""
    if known < outcome.next:
        late.append((known, outcome.next))
    request.late += [
        JobOutcome(outcome.number, outcome.partition, outcome.verb, *span) for span in late
    ]


def _settle(jobs: Jobs, first: int, next: int, worker: str) -> None:
    if worker:
        jobs.settle(first, next, worker)
    elif first < next:
        jobs.settle_earlier(first, next)


def _unsettle(jobs: Jobs, first: int, next: int, worker: str) -> None:
    del worker
    jobs.unsettle(first, next)


def _due(queue: Queue, part: QueuePartition, outcome: JobOutcome, now_us: int) -> RetryTime:
    """When nacked jobs are tried again: the worker's delay, or the queue's rule."""
    if outcome.delay_ms < 0:
        return queue.due(part, now_us)
    due_us = now_us + min(outcome.delay_ms, _DELAY_MS_MAX) * _MS_US
    return lambda failures, first: due_us


def _lease_us(queue: Queue, outcome: JobOutcome) -> int:
    """How long a lease is extended from now on."""
    if outcome.delay_ms < 0:
        return round(queue.settings.visibility_seconds * 1e6)
    return min(outcome.delay_ms, _DELAY_MS_MAX) * _MS_US
