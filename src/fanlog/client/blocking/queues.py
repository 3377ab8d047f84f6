"""Workers and jobs for the blocking client. Handlers run in threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from fanlog.client.blocking.front import LoopFront, blocking, like, posted
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.blocking.threads import HandlerThreads, check_plain_handler
from fanlog.client.forwarding import passed, shown
from fanlog.client.publishing import Value
from fanlog.client.queues.job_batch import JobBatch
from fanlog.client.queues.jobs import Job
from fanlog.client.queues.worker import Worker
from fanlog.errors import ClosedError

BlockingRequestHandler = Callable[["BlockingJob"], Value | None]
BlockingJobHandler = Callable[["BlockingJob"], object]
T = TypeVar("T")


def handler_in_thread(
    loop: LoopThread, threads: HandlerThreads, handler: Callable[[BlockingJob], T]
) -> Callable[[Job], Awaitable[T]]:
    """Runs the handler in its own thread, where it may use the client as usual."""
    check_plain_handler(handler)

    async def handle(job: Job) -> T:
        return await threads.call(handler, BlockingJob(loop, job))

    return handle


class BlockingJob(LoopFront[Job]):
    """One job; see the asyncio client.

    >>> for job in worker:  # doctest: +SKIP
    ...     with job:  # acks at the end; an exception is logged, and the job tried again
    ...         send_email(job.json())
    """

    __slots__ = ()

    message = shown(Job, lambda job: job.message)
    value = shown(Job, lambda job: job.value)
    key = shown(Job, lambda job: job.key)
    headers = shown(Job, lambda job: job.headers)
    topic = shown(Job, lambda job: job.topic)
    partition = shown(Job, lambda job: job.partition)
    offset = shown(Job, lambda job: job.offset)
    priority = shown(Job, lambda job: job.priority)
    deliveries = shown(Job, lambda job: job.deliveries)
    settled = shown(Job, lambda job: job.settled)
    text = shown(Job, lambda job: job.text)
    json = passed(Job.json)
    ack = blocking(Job.ack)
    ack_soon = posted(Job.ack_soon)
    nack = blocking(Job.nack)
    reject = blocking(Job.reject)
    extend = blocking(Job.extend)
    reply = blocking(Job.reply)
    fail = blocking(Job.fail)

    @overload
    def decode(self, type: type[T], /) -> T: ...
    @overload
    def decode(self, type: Any = Any, /) -> Any: ...
    def decode(self, type: Any = Any, /) -> Any:
        """The job's value as an object of a type; see `Message.decode`."""
        return self._behind.decode(type)

    def __enter__(self) -> Self:
        self._behind.begin_span()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        # In the thread that began it.
        self._behind.end_span(error)
        return self._loop.call(self._behind.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._behind)


class BlockingJobBatch(LoopFront[JobBatch]):
    """Jobs that came together; see the asyncio client."""

    __slots__ = ()

    topic = shown(JobBatch, lambda batch: batch.topic)
    partition = shown(JobBatch, lambda batch: batch.partition)
    first = shown(JobBatch, lambda batch: batch.first)
    next = shown(JobBatch, lambda batch: batch.next)
    deliveries = shown(JobBatch, lambda batch: batch.deliveries)
    messages = shown(JobBatch, lambda batch: batch.messages)
    values = shown(JobBatch, lambda batch: batch.values)
    ack = blocking(JobBatch.ack)
    ack_soon = posted(JobBatch.ack_soon)
    nack = blocking(JobBatch.nack)
    reject = blocking(JobBatch.reject)
    extend = blocking(JobBatch.extend)

    @property
    def jobs(self) -> list[BlockingJob]:
        """The jobs, one by one."""
        return [BlockingJob(self._loop, job) for job in self._behind.jobs]

    def __len__(self) -> int:
        return len(self._behind)

    def __iter__(self) -> Iterator[BlockingJob]:
        return iter(self.jobs)

    def __repr__(self) -> str:
        return repr(self._behind)


class BlockingWorker(LoopFront[Worker]):
    """Made by `client.work(...)`; use it with `with`, then iterate."""

    def __init__(self, loop: LoopThread, behind: Worker) -> None:
        super().__init__(loop, behind)
        self._begun: Iterator[BlockingJob] = iter(())

    queue = shown(Worker, lambda worker: worker.queue)
    worker = shown(Worker, lambda worker: worker.worker)
    settings = shown(Worker, lambda worker: worker.settings)
    failures = shown(Worker, lambda worker: worker.failures)
    start = blocking(Worker.start)
    flush = blocking(Worker.flush)

    @like(Worker.close)
    def close(self) -> None:
        self._begun = iter(())
        self._loop.call(self._behind.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._begun = iter(())
        self._loop.call(self._behind.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[BlockingJob]:
        self._behind.check_open()
        while True:
            try:
                job = self.next()
            except ClosedError:
                return
            yield job

    def batches(self) -> Iterator[BlockingJobBatch]:
        """Jobs that came together, for speed."""
        self._behind.check_open()
        while True:
            try:
                batch = self.next_batch()
            except ClosedError:
                return
            yield batch

    def next(self, timeout_seconds: float | None = None) -> BlockingJob:
        """The next job. Raises TimeoutError when none comes in time."""
        while True:
            for job in self._begun:
                return job
            self._begun = iter(self.next_batch(timeout_seconds).jobs)

    def next_batch(self, timeout_seconds: float | None = None) -> BlockingJobBatch:
        """The next jobs that came together. Raises TimeoutError when none come in time."""
        batch = self._loop.call(self._behind.next_batch(timeout_seconds))
        return BlockingJobBatch(self._loop, batch)
