"""Jobs of a typed topic. A job is decoded when its `data` is first asked for, within its `async
with` block: one that does not decode fails as any job does, and becomes a dead letter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from fanlog.client.core.leases import LeaseInHand
from fanlog.client.forwarding import Front, passed, shown
from fanlog.client.message import Message
from fanlog.client.queues.jobs import Job, JobHost
from fanlog.client.queues.worker import Worker
from fanlog.client.typed.kind import MessageType
from fanlog.errors import ClosedError

T = TypeVar("T")


class TypedJob(Job, Generic[T]):
    """A job with its value decoded, as `data`. `value` is its bytes, as always."""

    __slots__ = ("_data", "_decoded", "_kind")

    def __init__(
        self, host: JobHost, lease: LeaseInHand, message: Message, kind: MessageType[T]
    ) -> None:
        super().__init__(host, lease, message)
        self._kind = kind
        self._decoded = False
        self._data: T | None = None

    @property
    def data(self) -> T:
        """What the job's value is. Raises `DecodeError` if it is not of the topic's type."""
        if not self._decoded:
            self._data = self._kind.decode(self.message)
            self._decoded = True
        return cast(T, self._data)


def with_typed_jobs(worker: Worker, kind: MessageType[T]) -> Worker:
    """A worker that has not begun yet, and will give typed jobs."""

    def make_job(host: JobHost, lease: LeaseInHand, message: Message) -> Job:
        return TypedJob(host, lease, message, kind)

    worker.make_job = make_job
    return worker


class TypedWorker(Front[Worker], Generic[T]):
    """Made by `topic.work(...)`; use it with `async with`, then iterate.

    >>> async with emails.work(queue="mailers") as worker:  # doctest: +SKIP
    ...     async for job in worker:
    ...         async with job:
    ...             await send(job.data)
    """

    def __init__(self, behind: Worker, kind: MessageType[T]) -> None:
        super().__init__(with_typed_jobs(behind, kind))

    queue = shown(Worker, lambda worker: worker.queue)
    worker = shown(Worker, lambda worker: worker.worker)
    settings = shown(Worker, lambda worker: worker.settings)
    failures = shown(Worker, lambda worker: worker.failures)
    start = passed(Worker.start)
    flush = passed(Worker.flush)
    close = passed(Worker.close)

    async def __aenter__(self) -> Self:
        await self._behind.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._behind.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[TypedJob[T]]:
        self._behind.check_open()
        while True:
            try:
                job = await self.next()
            except ClosedError:
                return
            yield job

    async def next(self, timeout_seconds: float | None = None) -> TypedJob[T]:
        """The next job. Raises TimeoutError when none comes in time."""
        return cast("TypedJob[T]", await self._behind.next(timeout_seconds))
