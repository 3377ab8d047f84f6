"""A topic whose messages are all of one type. It is a name, a type, and the client's own calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, Unpack, cast, overload

from fanlog.client.groups.member import GroupMember
from fanlog.client.groups.options import ConsumeOptions, HandledOptions
from fanlog.client.groups.running import Handled
from fanlog.client.message import Message
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.requests import serve
from fanlog.client.queues.running import JobHandler, check_handler, check_no_handler, run_worker
from fanlog.client.queues.worker import Worker
from fanlog.client.schedules import Time
from fanlog.client.subscription import Subscription
from fanlog.client.typed.jobs import TypedJob, TypedWorker, with_typed_jobs
from fanlog.client.typed.kind import MessageType
from fanlog.client.typed.messages import (
    MessageDecoding,
    TypedGroupMember,
    TypedMessage,
    TypedSubscription,
)
from fanlog.client.typed.options import (
    LaterOptions,
    OnUndecodable,
    RequestOptions,
    SendOptions,
    SubscribeOptions,
    TypedPublishOptions,
)
from fanlog.client.values import Encoding
from fanlog.errors import DecodeError
from fanlog.model import Receipt, Scheduled

T = TypeVar("T")


class TopicHost(Protocol):
    """The client, as far as a typed topic needs it."""

    @property
    def encoding(self) -> Encoding: ...
    def publish(self, *given: Any, **options: Any) -> Coroutine[Any, Any, Receipt | Scheduled]: ...
    def publish_many(self, *given: Any, **options: Any) -> Coroutine[Any, Any, list[Receipt]]: ...
    def send(self, *given: Any, **options: Any) -> Coroutine[Any, Any, None]: ...
    def request(self, *given: Any, **options: Any) -> Coroutine[Any, Any, Message]: ...
    def subscribe(self, *given: Any, **options: Any) -> Subscription: ...
    def consume(self, *given: Any, **options: Any) -> Any: ...
    def work(self, *given: Any, **options: Any) -> Any: ...


class Topic(Generic[T]):
    """Made by `client.topic(name, type)`.

    >>> orders = client.topic("orders", Order)  # doctest: +SKIP
    >>> await orders.publish(Order(tea=2), key="alice")  # doctest: +SKIP
    >>> async with orders.subscribe(start="earliest") as messages:  # doctest: +SKIP
    ...     async for message in messages:
    ...         print(message.data.tea)
    """

    def __init__(
        self, host: TopicHost, name: str, type: Any, encoding: Encoding | None = None
    ) -> None:
        self._host = host
        self._kind: MessageType[T] = MessageType(name, type, encoding or host.encoding)

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._kind.topic

    @property
    def type(self) -> Any:
        """Type of its messages."""
        return self._kind.type

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} of {self._kind.name}>"

    # Publishing

    @overload
    async def publish(
        self,
        value: T,
        *,
        delay_seconds: float,
        schedule_id: str | None = None,
        **options: Unpack[TypedPublishOptions],
    ) -> Scheduled: ...
    @overload
    async def publish(
        self,
        value: T,
        *,
        at: Time,
        schedule_id: str | None = None,
        **options: Unpack[TypedPublishOptions],
    ) -> Scheduled: ...
    @overload
    async def publish(self, value: T, **options: Unpack[TypedPublishOptions]) -> Receipt: ...
    async def publish(self, value: T, **options: Unpack[LaterOptions]) -> Receipt | Scheduled:
        """Publishes one message; see `Client.publish`. A value of another type is refused.

        >>> await orders.publish(Order(2, "alice"), key="alice")
        """
        stored, options["headers"] = self._kind.encoded(value, options.get("headers"))
        return await self._host.publish(self.name, stored, **options)

    async def send(self, value: T, **options: Unpack[SendOptions]) -> None:
        """Publishes without waiting for the acknowledgement; see `Client.send`.

        >>> await orders.send(Order(2, "alice"))
        >>> await client.flush()
        """
        stored, options["headers"] = self._kind.encoded(value, options.get("headers"))
        await self._host.send(self.name, stored, **options)

    async def publish_many(
        self, values: Iterable[T], *, key: bytes | str | None = None, priority: int = 0
    ) -> list[Receipt]:
        """Publishes values in order and waits for all of them. If one is of another type, none is
        published.

        >>> await orders.publish_many([Order(2, "alice"), Order(1, "bob")])
        """
        ready, headers = self._kind.all_encoded(values)
        return await self._host.publish_many(
            self.name, ready, key=key, headers=headers, priority=priority
        )

    async def request(self, value: T, **options: Unpack[RequestOptions]) -> Message:
        """Publishes a request and returns its answer; see `Client.request`.

        >>> answer = await orders.request(Order(2, "alice"))
        """
        stored, options["headers"] = self._kind.encoded(value, options.get("headers"))
        return await self._host.request(self.name, stored, **options)

    # Reading

    def subscribe(
        self, *, on_undecodable: OnUndecodable = "raise", **options: Unpack[SubscribeOptions]
    ) -> TypedSubscription[T]:
        """Follows the topic; see `Client.subscribe`.

        `on_undecodable` is for messages that are not of the topic's type: "raise" raises
        `DecodeError`, and iterating again continues after the message; "skip" logs a warning and
        leaves it out; a function, plain or async, gets the message and the error.

        >>> async with orders.subscribe(start="earliest") as messages:
        ...     async for message in messages:
        ...         print(message.data)
        """
        reading = MessageDecoding(self._kind, on_undecodable)
        return TypedSubscription(self._host.subscribe(self.name, **options), reading)

    @overload
    def consume(
        self,
        handler: None = None,
        *,
        group: str,
        on_undecodable: OnUndecodable = "raise",
        **options: Unpack[ConsumeOptions],
    ) -> TypedGroupMember[T]: ...
    @overload
    def consume(
        self,
        handler: Callable[[TypedMessage[T]], Awaitable[object] | object],
        *,
        group: str,
        on_undecodable: OnUndecodable = "raise",
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[HandledOptions],
    ) -> Coroutine[Any, Any, Handled]: ...
    def consume(
        self,
        handler: Callable[[TypedMessage[T]], Awaitable[object] | object] | None = None,
        *,
        group: str,
        on_undecodable: OnUndecodable = "raise",
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[HandledOptions],
    ) -> TypedGroupMember[T] | Coroutine[Any, Any, Handled]:
        """Joins a consumer group; see `Client.consume`, and `subscribe` for `on_undecodable`. With
        a handler, "raise" means that the message fails as if the handler had raised.

        >>> await orders.consume(bill, group="billing")
        """
        reading = MessageDecoding(self._kind, on_undecodable)
        if handler is None:
            check_no_handler(concurrency, until, "consume")
            member = cast(GroupMember, self._host.consume(self.name, group=group, **options))
            return TypedGroupMember(member, reading)
        check_handler(handler, "a message")
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
    ) -> TypedWorker[T]: ...
    @overload
    def work(
        self,
        handler: Callable[[TypedJob[T]], Awaitable[object] | object],
        *,
        queue: str,
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> Coroutine[Any, Any, None]: ...
    def work(
        self,
        handler: Callable[[TypedJob[T]], Awaitable[object] | object] | None = None,
        *,
        queue: str,
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> TypedWorker[T] | Coroutine[Any, Any, None]:
        """Joins a queue; see `Client.work`. A job that does not decode fails when its `data` is
        asked for, and becomes a dead letter after `max_deliveries`, as any failing job.

        >>> await orders.work(ship, queue="shipping")
        """
        if handler is not None:
            options = {"prefetch": concurrency, **options}
        else:
            check_no_handler(concurrency, until, "work")
        worker = cast(Worker, self._host.work(self.name, queue=queue, **options))
        if handler is None:
            return TypedWorker(worker, self._kind)
        return run_worker(with_typed_jobs(worker, self._kind), cast(JobHandler, handler), until)

    async def serve(
        self,
        handler: Callable[[TypedJob[T]], Awaitable[object] | object],
        *,
        queue: str = "",
        prefetch: int = 16,
    ) -> None:
        """Answers requests until it is cancelled; see `Client.serve`.

        >>> await orders.serve(price)
        """
        worker = self._host.work(self.name, queue=queue or self.name, prefetch=prefetch)
        await serve(with_typed_jobs(worker, self._kind), cast(Any, handler))


async def _handle(
    reading: MessageDecoding[T],
    handler: Callable[[TypedMessage[T]], Awaitable[object] | object],
    message: Message,
) -> None:
    """Gives a message to the handler, decoded."""
    try:
        typed = reading.typed(message)
    except DecodeError as fault:
        done = reading.pass_over(message, fault)
    else:
        done = handler(typed)
    if inspect.isawaitable(done):
        await done
