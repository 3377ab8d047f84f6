"""Typed topics for the blocking client; see `fanlog.client.typed`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack, cast, overload

from fanlog.client.arguments import StartLike
from fanlog.client.blocking.groups import (
    BlockingConsumeOptions,
    BlockingGroupMember,
    BlockingHandledOptions,
)
from fanlog.client.blocking.loop import BlockingSubscription
from fanlog.client.blocking.queues import BlockingJob, BlockingWorker
from fanlog.client.blocking.threads import check_plain, check_plain_handler
from fanlog.client.groups.running import Handled
from fanlog.client.message import Message
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.running import check_no_handler
from fanlog.client.schedules import Time
from fanlog.client.typed.kind import MessageType
from fanlog.client.typed.messages import MessageDecoding, TypedMessage
from fanlog.client.typed.options import (
    LaterOptions,
    OnUndecodable,
    RequestOptions,
    SendOptions,
    SubscribeOptions,
    TypedPublishOptions,
)
from fanlog.client.values import Encoding
from fanlog.errors import ClosedError, DecodeError
from fanlog.format.messages import GroupOffsets, Position
from fanlog.model import QueueSettings, Receipt, Scheduled, TopicPartition

T = TypeVar("T")
S = TypeVar("S", bound=BlockingSubscription)


class BlockingTopicHost(Protocol):
    """The client, as far as a typed topic needs it."""

    @property
    def encoding(self) -> Encoding: ...
    def publish(self, *given: Any, **options: Any) -> Receipt | Scheduled: ...
    def publish_many(self, *given: Any, **options: Any) -> list[Receipt]: ...
    def send(self, *given: Any, **options: Any) -> None: ...
    def request(self, *given: Any, **options: Any) -> Message: ...
    def subscribe(self, *given: Any, **options: Any) -> BlockingSubscription: ...
    def consume(self, *given: Any, **options: Any) -> Any: ...
    def work(self, *given: Any, **options: Any) -> Any: ...
    def serve(self, *given: Any, **options: Any) -> None: ...


class _BlockingTyped(Generic[T, S]):
    """A subscription whose messages are decoded. Whatever else it does, the plain one does."""

    def __init__(self, subscription: S, reading: MessageDecoding[T]) -> None:
        self._subscription = subscription
        self._reading = reading

    def start(self) -> None:
        self._subscription.start()

    def close(self) -> None:
        self._subscription.close()

    def __enter__(self) -> Self:
        self._subscription.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._subscription.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        self._subscription.check_open()
        while True:
            try:
                yield self.next()
            except ClosedError:
                return

    def next(self, timeout_seconds: float | None = None) -> TypedMessage[T]:
        """The next message. Raises TimeoutError when none comes in time."""
        end_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = None if end_at is None else max(0.0, end_at - time.monotonic())
            message = self._subscription.next(left)
            try:
                return self._reading.typed(message)
            except DecodeError as fault:
                self._reading.pass_over(message, fault)

    @property
    def gaps(self) -> int:
        return self._subscription.gaps

    @property
    def missed(self) -> int:
        return self._subscription.missed

    @property
    def positions(self) -> tuple[Position, ...]:
        return self._subscription.positions

    def commit(self, message: Message | None = None) -> None:
        """Commits up to this message, or all that were taken, also those that were skipped."""
        self._subscription.commit(message)


class BlockingTypedSubscription(_BlockingTyped[T, BlockingSubscription]):
    """Made by `topic.subscribe(...)`; use it with `with`, then iterate."""


class BlockingTypedGroupMember(_BlockingTyped[T, BlockingGroupMember]):
    """Made by `topic.consume(...)`; use it with `with`, then iterate."""

    @property
    def group(self) -> str:
        return self._subscription.group

    @property
    def member(self) -> str:
        return self._subscription.member

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What this member reads now, as topics and partitions."""
        return self._subscription.partitions

    def commit_soon(self, message: Message | None = None) -> None:
        """Commits in the background; see the asyncio client."""
        self._subscription.commit_soon(message)

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets:
        return self._subscription.offsets_for_commit(positions)

    def seek(
        self, start: StartLike, topic: str = "", partition: int | None = None
    ) -> tuple[Position, ...]:
        """Moves in this member's partitions; see the asyncio client."""
        return self._subscription.seek(start, topic, partition)


class BlockingTypedJob(BlockingJob, Generic[T]):
    """A job with its value decoded, as `data`; see the asyncio client."""

    __slots__ = ("_data", "_decoded", "_kind")

    def __init__(self, job: BlockingJob, kind: MessageType[T]) -> None:
        super().__init__(job._loop, job._job)
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


class BlockingTypedWorker(Generic[T]):
    """Made by `topic.work(...)`; use it with `with`, then iterate."""

    def __init__(self, worker: BlockingWorker, kind: MessageType[T]) -> None:
        self._worker = worker
        self._kind = kind

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
        self._worker.start()

    def flush(self) -> None:
        """Waits until all outcomes are with the broker. Raises what `ack_soon` ran into."""
        self._worker.flush()

    def close(self) -> None:
        """Leaves the queue: what was not done goes to others at once."""
        self._worker.close()

    def __enter__(self) -> Self:
        self._worker.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[BlockingTypedJob[T]]:
        for job in self._worker:
            yield BlockingTypedJob(job, self._kind)

    def next(self, timeout_seconds: float | None = None) -> BlockingTypedJob[T]:
        """The next job. Raises TimeoutError when none comes in time."""
        return BlockingTypedJob(self._worker.next(timeout_seconds), self._kind)


class BlockingTopic(Generic[T]):
    """A topic whose messages are all of one type; see the asyncio client.

    >>> orders = client.topic("orders", Order)  # doctest: +SKIP
    >>> orders.publish(Order(tea=2), key="alice")  # doctest: +SKIP
    """

    def __init__(
        self, host: BlockingTopicHost, name: str, type: Any, encoding: Encoding | None = None
    ) -> None:
        self._host = host
        self._kind: MessageType[T] = MessageType(name, type, encoding or host.encoding)

    @property
    def name(self) -> str:
        return self._kind.topic

    @property
    def type(self) -> Any:
        return self._kind.type

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} of {self._kind.name}>"

    @overload
    def publish(
        self,
        value: T,
        *,
        delay_seconds: float,
        schedule_id: str | None = None,
        **options: Unpack[TypedPublishOptions],
    ) -> Scheduled: ...
    @overload
    def publish(
        self,
        value: T,
        *,
        at: Time,
        schedule_id: str | None = None,
        **options: Unpack[TypedPublishOptions],
    ) -> Scheduled: ...
    @overload
    def publish(self, value: T, **options: Unpack[TypedPublishOptions]) -> Receipt: ...
    def publish(self, value: T, **options: Unpack[LaterOptions]) -> Receipt | Scheduled:
        """Publishes one message. A value of another type is refused."""
        stored, options["headers"] = self._kind.encoded(value, options.get("headers"))
        return self._host.publish(self.name, stored, **options)

    def send(self, value: T, **options: Unpack[SendOptions]) -> None:
        """Publishes without waiting; `flush` of the client waits, and raises what went wrong."""
        stored, options["headers"] = self._kind.encoded(value, options.get("headers"))
        self._host.send(self.name, stored, **options)

    def publish_many(
        self, values: Iterable[T], *, key: bytes | str | None = None, priority: int = 0
    ) -> list[Receipt]:
        """Publishes values in order and waits for all of them. If one is of another type, none is
        published."""
        ready, headers = self._kind.all_encoded(values)
        return self._host.publish_many(
            self.name, ready, key=key, headers=headers, priority=priority
        )

    def request(self, value: T, **options: Unpack[RequestOptions]) -> Message:
        """Publishes a request and returns its answer."""
        stored, options["headers"] = self._kind.encoded(value, options.get("headers"))
        return self._host.request(self.name, stored, **options)

    def subscribe(
        self, *, on_undecodable: OnUndecodable = "raise", **options: Unpack[SubscribeOptions]
    ) -> BlockingTypedSubscription[T]:
        """Follows the topic; see the asyncio client, also for `on_undecodable`."""
        check_plain(on_undecodable)
        reading = MessageDecoding(self._kind, on_undecodable)
        return BlockingTypedSubscription(self._host.subscribe(self.name, **options), reading)

    @overload
    def consume(
        self,
        handler: None = None,
        *,
        group: str,
        on_undecodable: OnUndecodable = "raise",
        **options: Unpack[BlockingConsumeOptions],
    ) -> BlockingTypedGroupMember[T]: ...
    @overload
    def consume(
        self,
        handler: Callable[[TypedMessage[T]], object],
        *,
        group: str,
        on_undecodable: OnUndecodable = "raise",
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[BlockingHandledOptions],
    ) -> Handled: ...
    def consume(
        self,
        handler: Callable[[TypedMessage[T]], object] | None = None,
        *,
        group: str,
        on_undecodable: OnUndecodable = "raise",
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[BlockingHandledOptions],
    ) -> BlockingTypedGroupMember[T] | Handled:
        """Joins a consumer group; see the asyncio client."""
        check_plain(on_undecodable)
        reading = MessageDecoding(self._kind, on_undecodable)
        if handler is None:
            check_no_handler(concurrency, until, "consume")
            member = cast(
                BlockingGroupMember, self._host.consume(self.name, group=group, **options)
            )
            return BlockingTypedGroupMember(member, reading)
        check_plain_handler(handler, "a message")
        return self._host.consume(
            self.name,
            partial(_handle, reading, handler),
            group=group,
            concurrency=concurrency,
            until=until,
            **options,
        )

    @overload
    def work(
        self, handler: None = None, *, queue: str, **options: Unpack[WorkOptions]
    ) -> BlockingTypedWorker[T]: ...
    @overload
    def work(
        self,
        handler: Callable[[BlockingTypedJob[T]], object],
        *,
        queue: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> None: ...
    def work(
        self,
        handler: Callable[[BlockingTypedJob[T]], object] | None = None,
        *,
        queue: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> BlockingTypedWorker[T] | None:
        """Joins a queue; see the asyncio client."""
        if handler is None:
            check_no_handler(concurrency, until, "work")
            worker = cast(BlockingWorker, self._host.work(self.name, queue=queue, **options))
            return BlockingTypedWorker(worker, self._kind)
        handle = self._handle(handler)
        self._host.work(
            self.name, handle, queue=queue, concurrency=concurrency, until=until, **options
        )
        return None

    def serve(
        self,
        handler: Callable[[BlockingTypedJob[T]], object],
        *,
        queue: str = "",
        prefetch: int = 16,
    ) -> None:
        """Answers requests until the client is closed; see the asyncio client."""
        self._host.serve(self.name, self._handle(handler), queue=queue, prefetch=prefetch)

    def _handle(
        self, handler: Callable[[BlockingTypedJob[T]], object]
    ) -> Callable[[BlockingJob], object]:
        check_plain_handler(handler)
        return lambda job: handler(BlockingTypedJob(job, self._kind))


def _handle(
    reading: MessageDecoding[T], handler: Callable[[TypedMessage[T]], object], message: Message
) -> None:
    """Gives a message to the handler, decoded."""
    try:
        typed = reading.typed(message)
    except DecodeError as fault:
        reading.pass_over(message, fault)
    else:
        handler(typed)
