"""A worker of a queue: an async iterator of jobs. `core/worker_core.py` decides; this waits, asks
the broker, and extends leases from time to time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Protocol

from fanlog.client.core.follower import ClientFollower
from fanlog.client.core.leases import LeaseInHand
from fanlog.client.core.worker_core import WorkerCore, WorkerPort
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.client.queues.job_batch import JobBatch
from fanlog.client.queues.jobs import Job, JobHost, said_by
from fanlog.client.queues.settling import JobSettling, SettlingHost
from fanlog.client.subscription import Leaving
from fanlog.client.waiting import begin, wait_for
from fanlog.errors import ClosedError
from fanlog.format.messages import Work
from fanlog.model import QueueSettings

logger = logging.getLogger("fanlog.client")


class WorkerHost(WorkerPort, SettlingHost, Protocol):
    """The client, as far as a worker needs it."""

    async def attach(self, follower: ClientFollower, *, leaving: Leaving | None = None) -> None: ...
    async def detach(self, follower: ClientFollower, *, keep: bool = False) -> None: ...
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
        self._core = WorkerCore(host, key, wanted)
        self._arrivals = self._core.arrivals
        self._arrivals.on_close = self._stop_keeping
        self.settling = JobSettling(host, self._core)
        self._keeping: asyncio.Task[None] | None = None
        self._begun: Iterator[Job] = iter(())
        self.notices = self._core.notices
        self.failures = 0
        # A typed topic's worker makes typed ones.
        self.make_job: Callable[[JobHost, LeaseInHand, Message], Job] = Job

    # The life of it

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._wanted.queue

    @property
    def worker(self) -> str:
        """The worker's name in its queue."""
        return self._wanted.worker

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings."""
        return self._core.settings

    async def start(self) -> None:
        """Begins to take jobs; `async with` and iterating do it by themselves.

        >>> worker = client.work("emails", queue="mailers")
        >>> await worker.start()
        """
        if self._arrivals.started:
            return
        began = await begin(self._arrivals, lambda: self._host.attach(self._core, leaving=self))
        # It may be over before it began: what ends it can come right behind the answer.
        if began and self._keep_alive and self._arrivals.closed is None:
            self._keeping = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        """Extends the leases of all jobs in hand, long before they expire."""
        while True:
            await asyncio.sleep(self.settings.visibility_seconds / 2)
            self._core.extend_all()

    def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    async def flush(self) -> None:
        """Waits until all outcomes are with the broker. Raises what `ack_soon` ran into.

        >>> job.ack_soon()
        >>> await worker.flush()
        """
        await self.settling.drain()
        self.settling.raise_error()

    async def close(self) -> None:
        """Leaves the queue. Unfinished jobs go to other workers at once. Raises errors of
        `ack_soon`.

        >>> await worker.close()
        """
        await self._leave()
        self.settling.raise_error()

    async def _leave(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
        closed = self._arrivals.close(ClosedError("The worker was closed: call work() again."))
        if closed and self._arrivals.started:
            await self.settling.drain()
            await self._host.detach(self._core)
        self._arrivals.items.clear()
        self._begun = iter(())

    async def leave_with_jobs(self, wait_seconds: float) -> list[LeaseInHand]:
        """Waits for jobs, leaves the queue, and keeps its jobs: until their leases expire, any
        client that knows this worker's name can settle them."""
        await self.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await wait_for(self._arrivals)
        await self._host.detach(self._core, keep=True)
        self._core.end(ClosedError("The worker was closed: call work() again."))
        leases = self._core.waiting()
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
                lease = self._core.maybe_take()
                if lease is not None:
                    return JobBatch(self, lease)

    async def reply(
        self, job: Message, value: Value, headers: Headers | None, error: str = ""
    ) -> None:
        """Answers the request that a job is. `job.reply` does it."""
        await self._host.reply(job, value, headers, error)
