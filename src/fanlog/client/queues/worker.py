"""A worker of a queue: an async iterator of jobs. It extends its leases, and comes back to its jobs
after a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Protocol

import msgspec

from fanlog.client.core.arrivals import Arrivals
from fanlog.client.core.follower import ClientFollower
from fanlog.client.message import Message, MessageBatch
from fanlog.client.notices import Notices
from fanlog.client.publishing import Headers, Value
from fanlog.client.queues.holding import HeldLeases
from fanlog.client.queues.job_batch import JobBatch
from fanlog.client.queues.jobs import Job, LeaseInHand, said_by
from fanlog.client.queues.settling import JobSettling
from fanlog.client.subscription import Leaving
from fanlog.client.waiting import begin, wait_for
from fanlog.errors import ClosedError, FanlogError, UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.batch_cache import BatchCache
from fanlog.format.frames import FrameKind, Lease
from fanlog.format.messages import (
    GapNotice,
    HeldJobs,
    Joined,
    Left,
    Notice,
    OutcomeKind,
    Revoke,
    Settle,
    Settled,
    Welcome,
    Work,
    Working,
    decode,
)
from fanlog.model import QueueSettings

logger = logging.getLogger("fanlog.client")


class WorkerHost(Protocol):
    """The client, as far as a worker needs it."""

    @property
    def welcome(self) -> Welcome | None: ...
    async def attach(self, follower: ClientFollower, *, leaving: Leaving | None = None) -> None: ...
    async def detach(self, follower: ClientFollower, *, keep: bool = False) -> None: ...
    async def ask(self, kind: FrameKind, message: msgspec.Struct, *, aux: int = 0) -> bytes: ...
    def decoded(self, batch: Batch) -> MessageBatch: ...
    async def reply(
        self, request: Message, value: Value, headers: Headers | None, error: str = ""
    ) -> None: ...


class Worker:
    """Made by `client.work(...)`; use it with `async with`, then iterate.

    >>> async with client.work("emails", queue="mailers") as worker:  # doctest: +SKIP
    ...     async for job in worker:
    ...         async with job:
    ...             await send(job.json())

    `failures` counts the jobs that raised in their `async with` block. Their errors are logged,
    and raised only with `raise_errors`.
    """

    def __init__(
        self,
        host: WorkerHost,
        key: int,
        wanted: Work,
        *,
        keep_alive: bool,
        raise_errors: bool = False,
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._keep_alive = keep_alive
        self._raise_errors = raise_errors
        self._arrivals: Arrivals[LeaseInHand] = Arrivals()
        self._begun: Iterator[Job] = iter(())
        self._names: dict[int, str] = {}
        self._batch_cache: BatchCache[MessageBatch] = BatchCache()
        self._coming: Lease | None = None
        self._epoch = 0
        self.settling = JobSettling(self._send, self._acked_again)
        self._held = HeldLeases(wanted.queue, wanted.prefetch, self.settling, self._arrivals)
        self.notices = Notices(wanted.target)
        self.failures = 0
        self.settings = QueueSettings()
        # A typed topic's worker makes typed ones.
        self.make_job: Callable[[LeaseInHand, Message], Job] = Job
        self.attached = False
        self.key = key

    # The life of it

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._wanted.queue

    @property
    def worker(self) -> str:
        """The worker's name in its queue."""
        return self._wanted.worker

    async def start(self) -> None:
        """Begins to take jobs; `async with` and iterating do it by themselves.

        >>> worker = client.work("emails", queue="mailers")
        >>> await worker.start()
        """
        if self._arrivals.started:
            return
        began = await begin(self._arrivals, lambda: self._host.attach(self, leaving=self))
        if began and self._keep_alive:
            self._held.keep(lambda: self.settings.visibility_seconds)

    async def flush(self) -> None:
        """Waits until all outcomes are with the broker. Raises what `ack_soon` ran into.

        >>> job.ack_soon()
        >>> await worker.flush()
        """
        await self.settling.drain()
        self.settling.raise_error()

    async def close(self) -> None:
        """Leaves the queue: what was not done goes to others at once. Raises what `ack_soon` ran
        into.

        >>> await worker.close()
        """
        await self._leave()
        self.settling.raise_error()

    async def _leave(self) -> None:
        await self._held.stopped()
        closed = self._arrivals.close(ClosedError("The worker was closed: call work() again."))
        if closed and self._arrivals.started:
            await self.settling.drain()
            await self._host.detach(self)
        self._arrivals.items.clear()
        self._begun = iter(())

    async def leave_with_jobs(self, wait_seconds: float) -> list[LeaseInHand]:
        """Waits for jobs, leaves the queue, and keeps its jobs: until their leases expire, any
        client that knows this worker's name can settle them."""
        await self.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await wait_for(self._arrivals)
        await self._host.detach(self, keep=True)
        self.end(ClosedError("The worker was closed: call work() again."))
        leases = self._waiting()
        self._arrivals.items.clear()
        return leases

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()
        if error is None:
            self.settling.raise_error()

    def swallow(self, job: Job, error: Exception) -> bool:
        self.failures += 1
        if self._raise_errors:
            return False
        logger.error(
            "Job %s/%d@%d of queue %s failed at delivery %d: %s",
            job.topic,
            job.partition,
            job.offset,
            self.queue,
            job.deliveries,
            said_by(error),
            exc_info=error,
        )
        return True

    # Taking jobs

    async def __aiter__(self) -> AsyncIterator[Job]:
        self.check_open()
        while True:
            try:
                job = await self.next()
            except ClosedError:
                return
            yield job

    async def batches(self) -> AsyncIterator[JobBatch]:
        """Jobs that came together, for speed; give the worker a `prefetch` to match.

        >>> async for batch in worker.batches():
        ...     batch.ack_soon()
        """
        self.check_open()
        while True:
            try:
                batch = await self.next_batch()
            except ClosedError:
                return
            yield batch

    def check_open(self) -> None:
        """A loop ends when its worker is closed. One that begins after that is a mistake."""
        self._arrivals.check_open()

    async def next(self, timeout_seconds: float | None = None) -> Job:
        """The next job. Raises TimeoutError when none comes in time.

        >>> job = await worker.next(timeout_seconds=5)
        """
        while True:
            for job in self._begun:
                return job
            self._begun = iter((await self.next_batch(timeout_seconds)).jobs)

    async def next_batch(self, timeout_seconds: float | None = None) -> JobBatch:
        """The next jobs that came together. Raises TimeoutError when none come in time.

        >>> batch = await worker.next_batch(timeout_seconds=5)
        """
        async with asyncio.timeout(timeout_seconds):
            await self.start()
            while True:
                await wait_for(self._arrivals)
                lease = self._arrivals.take()
                if self._is_readable(lease):
                    return JobBatch(lease)

    def _is_readable(self, lease: LeaseInHand) -> bool:
        """Whether the jobs can be read. Jobs that can't become dead letters with the reason: no
        other worker could read them either."""
        try:
            lease.batch.batch.check()
        except UnreadableError as fault:
            logger.warning("queue %s: jobs are rejected: %s", self.queue, fault)
            lease.reject_soon(str(fault))
            return False
        return True

    # Outcomes

    async def _send(self, settle: Settle) -> tuple[Settled, bool]:
        before = self._host.welcome
        payload = await self._host.ask(FrameKind.SETTLE, settle, aux=self.key)
        return decode(Settled, payload), self._host.welcome is not before

    def _acked_again(self, settle: Settle) -> None:
        """Acks were sent a second time. A restarted broker that did not get the first may have
        handed out the jobs again in between: they are dropped here."""
        for outcome in settle.outcomes:
            if outcome.verb != OutcomeKind.ACK:
                continue
            place = (outcome.number, outcome.partition)
            for lease in self._waiting():
                apart = outcome.next <= lease.first or lease.next <= outcome.first
                if lease.stretch[:2] != place or apart:
                    continue
                items = self._arrivals.items
                at = items.index(lease)
                del items[at]
                self.let_go(lease)
                for part in reversed(lease.without(outcome.first, outcome.next)):
                    items.insert(at, part)
                    self.hold(part)

    def _waiting(self) -> list[LeaseInHand]:
        """Received jobs that were not taken yet."""
        return [lease for lease in self._arrivals.items if isinstance(lease, LeaseInHand)]

    def hold(self, lease: LeaseInHand) -> None:
        self._held.add(lease)

    def let_go(self, lease: LeaseInHand) -> None:
        self._held.discard(lease)

    async def reply(
        self, job: Message, value: Value, headers: Headers | None, error: str = ""
    ) -> None:
        """Answers the request that a job is. `job.reply` does it."""
        await self._host.reply(job, value, headers, error)

    # From the link

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        self._note_epoch()
        return FrameKind.WORK, self._wanted

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        """Comes back with its jobs. A restarted broker has forgotten the leases, and hands out
        again the jobs that the application has not got yet."""
        self._batch_cache = BatchCache()
        self._coming = None
        if self._note_epoch():
            for lease in self._waiting():
                self.let_go(lease)
            self._arrivals.items.clear()
        holds = tuple(
            HeldJobs(number, partition, first, next)
            for (number, partition, epoch), first, next in (
                *self._held.ranges(),
                *self.settling.unanswered(),
            )
            if epoch == self._epoch
        )
        wanted = msgspec.structs.replace(self._wanted, holds=holds, settings={}, missing="wait")
        return FrameKind.WORK, wanted

    def _note_epoch(self) -> bool:
        """Whether the broker is another than before."""
        welcome = self._host.welcome
        before, self._epoch = self._epoch, 0 if welcome is None else welcome.epoch
        return before != self._epoch

    def opened(self, payload: bytes) -> None:
        # The request may have been sent again to a broker that was restarted meanwhile.
        self._note_epoch()
        self.settings = decode(Working, payload).settings

    def end(self, error: FanlogError) -> None:
        """No more jobs will come."""
        if self._arrivals.close(error):
            self._held.stop()

    def leased(self, lease: Lease) -> None:
        if lease.fresh:
            self._coming = lease
            return
        batch = self._batch_cache.get((lease.number, lease.partition, lease.base_offset))
        if batch is not None:
            self._take(lease, batch)

    def delivered(self, batch: Batch) -> None:
        lease, self._coming = self._coming, None
        if lease is None:
            return
        batch.topic_name = self._names.get(lease.number, "")
        decoded = self._host.decoded(batch)
        place = (lease.number, lease.partition, lease.base_offset)
        self._batch_cache.put(place, decoded, batch.header.length)
        self._take(lease, decoded)

    def _take(self, lease: Lease, batch: MessageBatch) -> None:
        # Jobs of a topic that is gone can't be settled any more.
        if lease.number in self._names and self._arrivals.closed is None:
            taken = LeaseInHand(self, lease, batch, self._epoch)
            if taken.is_empty():
                # Compaction has left nothing there to do.
                taken.ack_soon(lease.first, lease.next)
                return
            self.hold(taken)
            self._arrivals.put(taken)

    def joined(self, joined: Joined) -> None:
        self._names[joined.number] = joined.name

    def left(self, left: Left) -> None:
        self.notices.left(left.name)
        self._names.pop(left.number, None)
        for lease in [lease for lease in self._waiting() if lease.stretch[0] == left.number]:
            self._arrivals.items.remove(lease)
            self.let_go(lease)

    def noticed(self, notice: Notice) -> None:
        self.notices.take(notice, was_there=bool(self._names))

    def missed_some(self, notice: GapNotice) -> None:
        """Only for a subscription."""

    def revoked(self, revoke: Revoke) -> None:
        """Only for a group's member."""
