"""Typed topics for the blocking client; see `fanlog.client.typed`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from fanlog.client.blocking.front import as_blocking, like
from fanlog.client.blocking.groups import (
    BlockingConsumeOptions,
    BlockingGroupMember,
    BlockingHandledOptions,
)
from fanlog.client.blocking.queues import BlockingJob, BlockingWorker
from fanlog.client.blocking.subscription import BlockingSubscription
from fanlog.client.blocking.threads import check_plain, check_plain_handler
from fanlog.client.forwarding import Front, passed, shown
from fanlog.client.groups.running import Handled
from fanlog.client.message import Message
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.running import check_no_handler
from fanlog.client.typed.kind import MessageType
from fanlog.client.typed.messages import MessageDecoding, TypedMessage
from fanlog.client.typed.options import OnUndecodable, SubscribeOptions
from fanlog.client.typed.topic import Topic
from fanlog.client.values import Encoding
from fanlog.errors import ClosedError, DecodeError
from fanlog.model import Receipt, Scheduled

T = TypeVar("T")
B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")
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


class _BlockingTyped(Front[S], Generic[T, S]):
    """A subscription whose messages are decoded. The rest is as in the plain one."""

    def __init__(self, behind: S, reading: MessageDecoding[T]) -> None:
        super().__init__(behind)
        self._reading = reading

    target = shown(BlockingSubscription, lambda subscription: subscription.target)
    gaps = shown(BlockingSubscription, lambda subscription: subscription.gaps)
    missed = shown(BlockingSubscription, lambda subscription: subscription.missed)
    positions = shown(BlockingSubscription, lambda subscription: subscription.positions)
    start = passed(BlockingSubscription.start)
    close = passed(BlockingSubscription.close)

    def __enter__(self) -> Self:
        self._behind.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._behind.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        self._behind.check_open()
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
            message = self._behind.next(left)
            try:
                return self._reading.typed(message)
            except DecodeError as fault:
                self._reading.pass_over(message, fault)

    def commit(self, message: Message | None = None) -> None:
        """Commits offsets up to this message, or of all messages taken, skipped ones included."""
        self._behind.commit(message)


class BlockingTypedSubscription(_BlockingTyped[T, BlockingSubscription]):
    """Made by `topic.subscribe(...)`; use it with `with`, then iterate."""


class BlockingTypedGroupMember(_BlockingTyped[T, BlockingGroupMember]):
    """Made by `topic.consume(...)`; use it with `with`, then iterate."""

    group = shown(BlockingGroupMember, lambda member: member.group)
    member = shown(BlockingGroupMember, lambda member: member.member)
    partitions = shown(BlockingGroupMember, lambda member: member.partitions)
    commit_soon = passed(BlockingGroupMember.commit_soon)
    offsets_for_commit = passed(BlockingGroupMember.offsets_for_commit)
    seek = passed(BlockingGroupMember.seek)


class BlockingTypedJob(BlockingJob, Generic[T]):
    """A job with its value decoded, as `data`; see the asyncio client."""

    __slots__ = ("_data", "_decoded", "_kind")

    def __init__(self, job: BlockingJob, kind: MessageType[T]) -> None:
        super().__init__(job._loop, job._behind)
        self._kind = kind
        self._decoded = False
        self._data: T | None = None

    @property
    def data(self) -> T:
        """The job's decoded value. Raises `DecodeError` if it is not of the topic's type."""
        if not self._decoded:
            self._data = self._kind.decode(self.message)
            self._decoded = True
        return cast(T, self._data)


class BlockingTypedWorker(Front[BlockingWorker], Generic[T]):
    """Made by `topic.work(...)`; use it with `with`, then iterate."""

    def __init__(self, behind: BlockingWorker, kind: MessageType[T]) -> None:
        super().__init__(behind)
        self._kind = kind

    queue = shown(BlockingWorker, lambda worker: worker.queue)
    worker = shown(BlockingWorker, lambda worker: worker.worker)
    settings = shown(BlockingWorker, lambda worker: worker.settings)
    failures = shown(BlockingWorker, lambda worker: worker.failures)
    start = passed(BlockingWorker.start)
    flush = passed(BlockingWorker.flush)
    close = passed(BlockingWorker.close)

    def __enter__(self) -> Self:
        self._behind.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._behind.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[BlockingTypedJob[T]]:
        for job in self._behind:
            yield BlockingTypedJob(job, self._kind)

    def next(self, timeout_seconds: float | None = None) -> BlockingTypedJob[T]:
        """The next job. Raises TimeoutError when none comes in time."""
        return BlockingTypedJob(self._behind.next(timeout_seconds), self._kind)


def _encoded(
    method: Callable[Concatenate[B, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The client's method of this name, with a value of the topic's type."""
    name = method.__name__

    def called(topic: Any, value: Any, **options: Any) -> Any:
        stored, options["headers"] = topic._kind.encoded(value, options.get("headers"))
        return getattr(topic._host, name)(topic.name, stored, **options)

    return as_blocking(method, cast("Callable[Concatenate[Any, P], R]", called))


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

    publish = _encoded(Topic[T].publish)
    send = _encoded(Topic[T].send)
    request = _encoded(Topic[T].request)

    @like(Topic[T].publish_many)
    def publish_many(self, values: Iterable[T], **options: Any) -> list[Receipt]:
        ready, headers = self._kind.all_encoded(values)
        return self._host.publish_many(self.name, ready, headers=headers, **options)

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
