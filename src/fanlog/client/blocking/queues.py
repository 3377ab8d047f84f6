"""Queues for the blocking client: what `client.queues` does, each call on the client's own
loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from fanlog.client.blocking.loop import LoopThread
from fanlog.client.blocking.threads import HandlerThreads, check_plain_handler
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.client.queues import jobs, worker
from fanlog.errors import ClosedError
from fanlog.model import QueueSettings

Handler = Callable[["BlockingJob"], Value | None]
JobHandler = Callable[["BlockingJob"], object]
T = TypeVar("T")


def handler_in_thread(
    loop: LoopThread, threads: HandlerThreads, handler: Callable[[BlockingJob], T]
) -> Callable[[jobs.Job], Awaitable[T]]:
    """The handler in a thread of its own, where it may use the client as anywhere else."""
    check_plain_handler(handler)

    async def handle(job: jobs.Job) -> T:
        return await threads.call(handler, BlockingJob(loop, job))

    return handle


class BlockingJob:
    """One job; see the asyncio client.

    >>> for job in worker:  # doctest: +SKIP
    ...     with job:  # acks at the end; an exception is logged, and the job tried again
    ...         send_email(job.json())
    """

    __slots__ = ("_job", "_loop")

    def __init__(self, loop: LoopThread, job: jobs.Job) -> None:
        self._loop = loop
        self._job = job

    @property
    def message(self) -> Message:
        return self._job.message

    @property
    def value(self) -> bytes:
        return self._job.value

    @property
    def key(self) -> bytes | None:
        return self._job.key

    @property
    def headers(self) -> dict[str, bytes]:
        return self._job.headers

    @property
    def topic(self) -> str:
        return self._job.topic

    @property
    def partition(self) -> int:
        return self._job.partition

    @property
    def offset(self) -> int:
        return self._job.offset

    @property
    def priority(self) -> int:
        return self._job.priority

    @property
    def deliveries(self) -> int:
        return self._job.deliveries

    @property
    def settled(self) -> bool:
        return self._job.settled

    @property
    def text(self) -> str:
        return self._job.text

    def json(self) -> Any:
        return self._job.json()

    @overload
    def decode(self, type: type[T], /) -> T: ...
    @overload
    def decode(self, type: Any = Any, /) -> Any: ...
    def decode(self, type: Any = Any, /) -> Any:
        """The job's value as an object of a type; see `Message.decode`."""
        return self._job.decode(type)

    def ack(self) -> None:
        """The job is done."""
        self._loop.call(self._job.ack())

    def ack_soon(self) -> None:
        """The same in the background."""
        self._loop.post(self._job.ack_soon)

    def nack(self, delay_seconds: float | None = None, reason: str = "") -> None:
        """The job failed, and is tried again."""
        self._loop.call(self._job.nack(delay_seconds, reason))

    def reject(self, reason: str = "") -> None:
        """The job becomes a dead letter at once."""
        self._loop.call(self._job.reject(reason))

    def extend(self, seconds: float | None = None) -> None:
        """More time for the job."""
        self._loop.call(self._job.extend(seconds))

    def reply(self, value: Value, headers: Headers | None = None) -> None:
        """Answers the request that this job is, and acks it."""
        self._loop.call(self._job.reply(value, headers))

    def fail(self, reason: str) -> None:
        """Answers the request with an error, and acks it."""
        self._loop.call(self._job.fail(reason))

    def __enter__(self) -> Self:
        self._job.begin_span()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        # In the thread that began it.
        self._job.end_span(error)
        return self._loop.call(self._job.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._job)


class BlockingJobBatch:
    """Jobs that came together; see the asyncio client."""

    __slots__ = ("_batch", "_loop")

    def __init__(self, loop: LoopThread, batch: jobs.JobBatch) -> None:
        self._loop = loop
        self._batch = batch

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def partition(self) -> int:
        return self._batch.partition

    @property
    def first(self) -> int:
        return self._batch.first

    @property
    def next(self) -> int:
        return self._batch.next

    @property
    def deliveries(self) -> int:
        return self._batch.deliveries

    @property
    def messages(self) -> list[Message]:
        return self._batch.messages

    @property
    def values(self) -> list[bytes]:
        return self._batch.values

    @property
    def jobs(self) -> list[BlockingJob]:
        return [BlockingJob(self._loop, job) for job in self._batch.jobs]

    def ack(self) -> None:
        """All of them are done."""
        self._loop.call(self._batch.ack())

    def ack_soon(self) -> None:
        """The same in the background."""
        self._loop.post(self._batch.ack_soon)

    def nack(self, delay_seconds: float | None = None, reason: str = "") -> None:
        """All of them failed, and are tried again."""
        self._loop.call(self._batch.nack(delay_seconds, reason))

    def reject(self, reason: str = "") -> None:
        """All of them become dead letters at once."""
        self._loop.call(self._batch.reject(reason))

    def extend(self, seconds: float | None = None) -> None:
        """More time for all of them."""
        self._loop.call(self._batch.extend(seconds))

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[BlockingJob]:
        return iter(self.jobs)

    def __repr__(self) -> str:
        return repr(self._batch)


class BlockingWorker:
    """Made by `client.work(...)`; use it with `with`, then iterate."""

    def __init__(self, loop: LoopThread, worker: worker.Worker) -> None:
        self._loop = loop
        self._worker = worker
        self._begun: Iterator[BlockingJob] = iter(())

    @property
    def queue(self) -> str:
        return self._worker.queue

    @property
    def worker(self) -> str:
        return self._worker.worker

    @property
    def settings(self) -> QueueSettings:
        return self._worker.settings

    @property
    def failures(self) -> int:
        """Jobs that raised in their `with` block."""
        return self._worker.failures

    def start(self) -> None:
        self._loop.call(self._worker.start())

    def flush(self) -> None:
        """Waits until all verdicts are with the broker. Raises what `ack_soon` ran into."""
        self._loop.call(self._worker.flush())

    def close(self) -> None:
        """Leaves the queue: what was not done goes to others at once."""
        self._begun = iter(())
        self._loop.call(self._worker.close())

    def __enter__(self) -> BlockingWorker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._begun = iter(())
        self._loop.call(self._worker.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[BlockingJob]:
        self._worker.check_open()
        while True:
            try:
                job = self.next()
            except ClosedError:
                return
            yield job

    def batches(self) -> Iterator[BlockingJobBatch]:
        """Jobs that came together, for speed."""
        self._worker.check_open()
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
        return BlockingJobBatch(
            self._loop, self._loop.call(self._worker.next_batch(timeout_seconds))
        )
