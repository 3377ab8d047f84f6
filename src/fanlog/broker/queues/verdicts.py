"""What workers say of their jobs. What comes in one turn is written down together, unless it is
very much. Then it counts, and it is answered when it is durable: what was acked is never handed out
again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.broker.queues.jobs import Due, JobFailure
from fanlog.broker.queues.lanes import Lane
from fanlog.broker.queues.queue import Queue, QueueWorker
from fanlog.broker.queues.spans import JobSpan, Range
from fanlog.broker.state.ledger import Entry
from fanlog.errors import FanlogError
from fanlog.format.header import OFFSET_MAX
from fanlog.format.messages import JobOutcome, OutcomeKind, Settle, Settled
from fanlog.model import Durability

Answer = Callable[[Settled | FanlogError], None]
_MS_US = 1000
# Longest time that a verdict can ask for: a day.
_DELAY_MS_MAX = 86_400_000
_REASON_CHARACTERS_MAX = 4096
# What is settled before others get their turn.
_VERDICTS_A_TURN = 8192


class VerdictHost(Protocol):
    """All queues together, as far as verdicts need it."""

    def monotonic_us(self) -> int: ...
    def soon(self, call: Callable[[], None], /) -> object: ...
    def epoch(self) -> int: ...
    def known_until(self, partition: Partition, epoch: int) -> int:
        """Up to which offset a partition is what it was in an epoch."""
        ...

    def change_entry(
        self, queue: Queue, lane: Lane, done: list[Range], failures: list[JobFailure]
    ) -> Entry: ...
    def write(self, entries: list[Entry]) -> None:
        """Raises if they are not written."""
        ...

    def when_durable(self, done: Callable[[FanlogError | None], None]) -> None:
        """Calls `done` when what was written is durable, or with the fault if it can't be."""
        ...

    def bury(
        self, queue: Queue, lane: Lane, doomed: list[JobSpan], done: Callable[[], None]
    ) -> None:
        """Makes dead letters of jobs; `done` is called when they are, or when it has to be tried
        again later."""
        ...


class _Request:
    __slots__ = ("answer", "late", "settle", "unburied", "worker")

    def __init__(self, worker: QueueWorker, settle: Settle, answer: Answer) -> None:
        self.worker = worker
        self.settle = settle
        self.answer = answer
        self.late: list[JobOutcome] = []
        self.unburied = 1

    def buried(self) -> None:
        """Answers once what it says is durable, and none of its jobs is on the way to the dead
        letters."""
        self.unburied -= 1
        if not self.unburied:
            self.answer(Settled(tuple(self.late)))

    def durable(self, fault: FanlogError | None) -> None:
        if fault is None:
            self.buried()
        else:
            self.unburied = 0
            self.answer(fault)


class _Change:
    """What a turn changes in a lane, as it is written down."""

    __slots__ = ("done", "doomed", "failures", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.done: list[Range] = []
        self.failures: list[JobFailure] = []
        # What becomes a dead letter in this turn: an ack that comes behind it is late.
        self.doomed: list[Range] = []


class Verdicts:
    def __init__(self, host: VerdictHost) -> None:
        self._host = host
        self._requests: list[_Request] = []

    def settle(self, worker: QueueWorker, settle: Settle, answer: Answer) -> None:
        """Takes a worker's verdicts into this turn."""
        if not self._requests:
            self._host.soon(self._turn)
        self._requests.append(_Request(worker, settle, answer))

    def _take_some(self) -> list[_Request]:
        """What this turn settles; the rest has the next one."""
        verdicts = 0
        for i, request in enumerate(self._requests):
            verdicts += len(request.settle.verdicts)
            if i and verdicts > _VERDICTS_A_TURN:
                some, self._requests = self._requests[:i], self._requests[i:]
                self._host.soon(self._turn)
                return some
        some, self._requests = self._requests, []
        return some

    def _turn(self) -> None:
        requests = self._take_some()
        now_us = self._host.monotonic_us()
        changes: dict[Lane, _Change] = {}
        for request in requests:
            self._note(request, changes, now_us)
        try:
            wrote = self._write(changes)
        except FanlogError as fault:
            for request in requests:
                request.answer(fault)
            return
        queues: dict[Queue, None] = {}
        for request in requests:
            request.worker.doubted = False
            queues[request.worker.queue] = None
            for verdict in request.settle.verdicts:
                self._apply(request, verdict, now_us)
        for queue in queues:
            queue.enlist_freed()
        for request in requests:
            request.worker.queue.enlist(request.worker)
        if wrote:
            self._host.when_durable(lambda fault: _answer_all(requests, fault))
        else:
            _answer_all(requests, None)

    def _lane(self, request: _Request, verdict: JobOutcome) -> Lane | None:
        """The lane that a verdict is about, if it knows the jobs."""
        lane = request.worker.queue.lanes.get((verdict.number, verdict.partition))
        if lane is None or verdict.first >= min(verdict.next, self._limit(request, lane)):
            return None
        return lane

    def _limit(self, request: _Request, lane: Lane) -> int:
        """A crash may have taken jobs that were handed out before. From this offset on there are
        others, of which a verdict from then says nothing."""
        epoch = request.settle.epoch
        if epoch in (0, self._host.epoch()):
            return OFFSET_MAX
        return self._host.known_until(lane.partition, epoch)

    def _note(self, request: _Request, changes: dict[Lane, _Change], now_us: int) -> None:
        """Collects what is to be written: what will be done, and what will have failed."""
        queue = request.worker.queue
        for verdict in request.settle.verdicts:
            lane = self._lane(request, verdict)
            if lane is None or verdict.verb not in (
                OutcomeKind.ACK,
                OutcomeKind.NACK,
                OutcomeKind.REJECT,
            ):
                continue
            change = changes.get(lane)
            if change is None:
                change = changes[lane] = _Change(queue)
            jobs = lane.jobs
            end = self._end(request, lane)
            limit = min(end, self._limit(request, lane))
            first, next = max(verdict.first, jobs.floor), min(verdict.next, limit)
            if first >= next:
                continue
            if verdict.verb == OutcomeKind.ACK:
                # Whoever is late must not undo a dead letter that is still on its way.
                change.done += _without(first, next, [*jobs.doomed(first, next), *change.doomed])
                continue
            held = [
                (max(first, span.first), min(next, span.next), span.failures + 1)
                for span in jobs.held(request.worker.id, first, next)
            ]
            most = 0 if verdict.verb == OutcomeKind.REJECT else queue.settings.max_deliveries
            change.doomed += [(f, n) for f, n, failures in held if failures >= most]
            if verdict.verb == OutcomeKind.REJECT:
                continue
            due = _due(queue, lane, verdict, now_us)
            reason = verdict.reason[:_REASON_CHARACTERS_MAX]
            change.failures += [
                JobFailure(f, n, failures, due(failures, f), reason) for f, n, failures in held
            ]

    def _end(self, request: _Request, lane: Lane) -> int:
        """Up to where jobs can have been handed out. Of before a restart nobody knows."""
        if 0 < request.settle.epoch < self._host.epoch():
            return max(lane.jobs.next, lane.partition.visible_end)
        return lane.jobs.next

    def _ack(self, request: _Request, lane: Lane, first: int, next: int) -> list[Range]:
        end = self._end(request, lane)
        if end > lane.jobs.next and first < end:
            late = lane.jobs.finish_earlier(first, min(next, end))
            return late + ([(end, next)] if next > end else [])
        return lane.jobs.finish(first, next)

    def _write(self, changes: dict[Lane, _Change]) -> bool:
        """Whether there was anything to write."""
        entries: list[Entry] = [
            self._host.change_entry(change.queue, lane, change.done, change.failures)
            for lane, change in changes.items()
            if (change.done or change.failures)
            and lane.partition.durability is not Durability.MEMORY
        ]
        if entries:
            self._host.write(entries)
        return bool(entries)

    def _apply(self, request: _Request, verdict: JobOutcome, now_us: int) -> None:
        lane = self._lane(request, verdict)
        if lane is None:
            request.late.append(verdict)
            return
        worker, jobs = request.worker, lane.jobs
        queue, first = worker.queue, verdict.first
        next = min(verdict.next, self._limit(request, lane))
        reason = verdict.reason[:_REASON_CHARACTERS_MAX]
        doomed: list[JobSpan] = []
        match verdict.verb:
            case OutcomeKind.ACK:
                late = self._ack(request, lane, first, next)
            case OutcomeKind.NACK:
                doomed, late = jobs.fail(
                    worker.id,
                    first,
                    next,
                    due=_due(queue, lane, verdict, now_us),
                    reason=reason,
                    deliveries_max=queue.settings.max_deliveries,
                )
            case OutcomeKind.EXTEND:
                late = jobs.extend(worker.id, first, next, now_us + _lease_us(queue, verdict))
            case OutcomeKind.REJECT:
                doomed, late = jobs.reject(worker.id, first, next, reason)
            case _:
                late = [(first, next)]
        if next < verdict.next:
            late.append((next, verdict.next))
        request.late += [
            JobOutcome(verdict.number, verdict.partition, verdict.verb, *part) for part in late
        ]
        if doomed:
            request.unburied += 1
            self._host.bury(queue, lane, doomed, request.buried)
        queue.stir(lane)


def _without(first: int, next: int, others: list[Range]) -> list[Range]:
    """What is left of a range without others."""
    left: list[Range] = []
    for other_first, other_next in sorted(others):
        if first < min(other_first, next):
            left.append((first, min(other_first, next)))
        first = max(first, other_next)
    return [*left, (first, next)] if first < next else left


def _answer_all(requests: list[_Request], fault: FanlogError | None) -> None:
    for request in requests:
        request.durable(fault)


def _due(queue: Queue, lane: Lane, verdict: JobOutcome, now_us: int) -> Due:
    """When the jobs of a nack may be tried again: as the worker says, or by the queue's rule."""
    if verdict.delay_ms < 0:
        return queue.due(lane, now_us)
    due_us = now_us + min(verdict.delay_ms, _DELAY_MS_MAX) * _MS_US
    return lambda failures, first: due_us


def _lease_us(queue: Queue, verdict: JobOutcome) -> int:
    """How long a lease is extended from now on."""
    if verdict.delay_ms < 0:
        return round(queue.settings.visibility_seconds * 1e6)
    return min(verdict.delay_ms, _DELAY_MS_MAX) * _MS_US
