"""Jobs of a typed topic. A job is decoded when its `data` is first asked for, within its `async
with` block: one that does not decode fails as any job does, and becomes a dead letter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from fanlog.client.message import Message
from fanlog.client.queues.jobs import Job, LeaseInHand
from fanlog.client.queues.worker import Worker
from fanlog.client.typed.kind import MessageType
from fanlog.errors import ClosedError
from fanlog.model import QueueSettings

T = TypeVar("T")


class TypedJob(Job, Generic[T]):
    """A job with its value decoded, as `data`. `value` is its bytes, as always."""

    __slots__ = ("_data", "_decoded", "_kind")

    def __init__(self, lease: LeaseInHand, message: Message, kind: MessageType[T]) -> None:
        super().__init__(lease, message)
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

    def make_job(lease: LeaseInHand, message: Message) -> Job:
        return TypedJob(lease, message, kind)

    worker.make_job = make_job
    return worker


class TypedWorker(Generic[T]):
    """Made by `topic.work(...)`; use it with `async with`, then iterate.

    >>> async with emails.work(queue="mailers") as worker:  # doctest: +SKIP
    ...     async for job in worker:
    ...         async with job:
    ...             await send(job.data)
    """

    def __init__(self, worker: Worker, kind: MessageType[T]) -> None:
        self._worker = with_typed_jobs(worker, kind)

    @property
    def queue(self) -> str:
        return self._worker.queue

    @property
    def worker(self) -> str:
        """The worker's name in its queue."""
        return self._worker.worker

    @property
    def settings(self) -> QueueSettings:
        return self._worker.settings

    @property
    def failures(self) -> int:
        """Jobs that raised in their `async with` block."""
        return self._worker.failures

    async def start(self) -> None:
        await self._worker.start()

    async def flush(self) -> None:
        """Waits until all outcomes are with the broker. Raises what `ack_soon` ran into."""
        await self._worker.flush()

    async def close(self) -> None:
        """Leaves the queue: what was not done goes to others at once."""
        await self._worker.close()

    async def __aenter__(self) -> Self:
        await self._worker.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._worker.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[TypedJob[T]]:
        self._worker.check_open()
        while True:
            try:
                job = await self.next()
            except ClosedError:
                return
            yield job

    async def next(self, timeout_seconds: float | None = None) -> TypedJob[T]:
        """The next job. Raises TimeoutError when none comes in time."""
        return cast("TypedJob[T]", await self._worker.next(timeout_seconds))
