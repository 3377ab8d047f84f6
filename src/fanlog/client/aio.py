"""The asyncio client: publishing, subscriptions, groups, queues and transactions on one connection
that reconnects by itself. The module is long because one class is the whole public API: most of it
is signatures, overloads and docstrings. The parts of the client do the work."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack, overload

import msgspec

from fanlog.client.accounts import Accounts
from fanlog.client.address import parse_urls
from fanlog.client.arguments import (
    StartLike,
    as_start,
    checked,
    checked_priority,
    event_time_us,
    topic_name,
)
from fanlog.client.core.once_core import OnceReceipt, OnceRecord
from fanlog.client.core.receiving import OnGap
from fanlog.client.core.subscription_core import SubscriptionCore
from fanlog.client.credentials import check_credentials, split_login
from fanlog.client.dead_letters import DeadLetters
from fanlog.client.groups.joining import Joining
from fanlog.client.groups.member import GroupMember
from fanlog.client.groups.operators import Groups
from fanlog.client.groups.options import ConsumeOptions, HandledOptions
from fanlog.client.groups.running import Handled, MessageHandler
from fanlog.client.link import Dial, dial_any
from fanlog.client.message import Message
from fanlog.client.notices import missing_policy
from fanlog.client.operators import Connections
from fanlog.client.publishing import Headers, PublishOptions, TopicOutbox, Value
from fanlog.client.queues.options import WorkOptions, working
from fanlog.client.queues.requests import RequestHandler, Requests, serve
from fanlog.client.queues.running import JobHandler, check_no_handler, run_worker
from fanlog.client.queues.worker import Worker
from fanlog.client.schedules import DelayedMessages, Time
from fanlog.client.streams import Stream, StreamMode, StreamSettings, stream_topic
from fanlog.client.subscription import Subscription
from fanlog.client.topics import TopicCalls
from fanlog.client.transactions.stager import TransactionStager
from fanlog.client.transactions.transaction import Transaction, run_transaction
from fanlog.client.transactions.transform import Function, Transform, TransformOptions
from fanlog.client.typed.kind import MessageType
from fanlog.client.typed.topic import Topic
from fanlog.client.values import Encoding, check_several, encode_as
from fanlog.client.web import Web
from fanlog.config import ClientOptions
from fanlog.errors import InvalidArgumentError, RequestTimeoutError, wrong_value
from fanlog.format import messages
from fanlog.format.patterns import is_pattern
from fanlog.model import (
    MIB,
    DurabilityName,
    MissingPolicy,
    PendingMessage,
    Receipt,
    ResetPolicy,
    Scheduled,
    ScheduleInfo,
    SlowPolicy,
)

T = TypeVar("T")
_POLICIES = {policy.value: policy for policy in SlowPolicy}


class Client(TopicCalls):
    """A connection to a broker. Made by `fanlog.connect`; close it, or use `async with`."""

    def __init__(self, dial: Dial, options: ClientOptions, *, verify: bool = True) -> None:
        super().__init__(dial, options, verify=verify)
        self._requests = Requests(self)
        self.groups = Groups(self)
        self.connections = Connections(self)
        self.accounts = Accounts(self)
        self.dead_letters = DeadLetters(self)
        self.web = Web(self)
        self._delayed = DelayedMessages(self._session, self._publisher, self._ready_outbox)

    async def _take_leave(self) -> None:
        await super()._take_leave()
        await self._requests.close()

    # Publishing

    @property
    def encoding(self) -> Encoding:
        """The encoding of objects whose message does not name one."""
        return self._publisher.encoding

    @overload
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        delay_seconds: float,
        schedule_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> Scheduled: ...
    @overload
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        at: Time,
        schedule_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> Scheduled: ...
    @overload
    async def publish(
        self, topic: str, value: Value, **options: Unpack[PublishOptions]
    ) -> Receipt: ...
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        partition: int | None = None,
        priority: int = 0,
        encoding: Encoding | None = None,
        timeout_seconds: float | None = None,
        delay_seconds: float | None = None,
        at: Time | None = None,
        schedule_id: str | None = None,
    ) -> Receipt | Scheduled:
        """Publishes one message. Returns when the broker has it, with the safety of the topic's
        durability. Messages published at the same time share a batch.

        Bytes and str are published as they are. None is a tombstone, which deletes its key from a
        compacted topic. Any other object becomes JSON, or msgpack with `encoding="msgpack"`, and
        the header `content-type` says so: dicts, lists, dataclasses, msgspec Structs, attrs
        classes, pydantic models. Readers call `message.decode(Order)`.

        `priority` is 0 to 9, and 9 the most urgent: queues hand out urgent messages first. Other
        readers get all of them in the order of the log.

        After `timeout_seconds` without an answer it raises `RequestTimeoutError`. The message may
        still be stored: the client keeps trying for `delivery_timeout_seconds`.

        >>> receipt = await client.publish("orders", b"one tea", key="alice")  # doctest: +SKIP
        >>> receipt.offset, receipt.durability  # doctest: +SKIP
        (0, 'os')

        With `delay_seconds` or `at` (a datetime, or seconds since 1970), the broker stores the
        message and publishes it once at that time, exact to 100 ms. The call returns as soon as the
        broker has it. With your own `schedule_id`, the message replaces the one that waits under
        this id.

        >>> waiting = await client.publish("mails", mail, delay_seconds=3600)  # doctest: +SKIP
        >>> await client.cancel_scheduled(waiting.id)  # doctest: +SKIP
        True
        """
        if encoding is not None:
            value, headers = encode_as(value, headers, encoding)
        if delay_seconds is not None or at is not None or schedule_id is not None:
            publishing = self._delayed.publish(
                topic,
                value,
                key=key,
                headers=headers,
                event_time=event_time,
                partition=partition,
                priority=priority,
                delay_seconds=delay_seconds,
                at=at,
                schedule_id=schedule_id,
            )
            if timeout_seconds is None:
                return await publishing
            return await self._publish_within(timeout_seconds, publishing)
        if timeout_seconds is not None:
            return await self._publish_within(
                timeout_seconds,
                self.publish(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    event_time=event_time,
                    partition=partition,
                    priority=priority,
                ),
            )

        def put(outbox: TopicOutbox) -> asyncio.Future[Receipt]:
            return self._publisher.publish(
                outbox,
                value,
                key,
                headers,
                event_time_us(event_time),
                partition=partition,
                priority=checked_priority(priority) if priority else 0,
            )

        return await (await self._put_in_turn(topic, partition, put))

    async def _publish_within(
        self, timeout_seconds: float, publishing: Coroutine[Any, Any, T]
    ) -> T:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await publishing
        except TimeoutError:
            raise RequestTimeoutError(
                f"The message was not acknowledged within {timeout_seconds} s; the client is "
                f"{self.state}. The outcome is unknown: the client keeps trying."
            ) from None

    async def send(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        partition: int | None = None,
        priority: int = 0,
        encoding: Encoding | None = None,
        delay_seconds: float | None = None,
        at: Time | None = None,
        schedule_id: str | None = None,
    ) -> None:
        """Publishes without waiting for the acknowledgement: fire and forget, with bounded
        memory. It waits only while `buffer_bytes_max` is full. The next `flush` or `close` raises
        errors. For `delay_seconds`, `at` and `schedule_id` see `publish`.

        >>> for number in range(100_000):
        ...     await client.send("numbers", str(number))
        >>> await client.flush()
        """
        if not (delay_seconds is at is schedule_id is None):
            if encoding is not None:
                value, headers = encode_as(value, headers, encoding)
            await self._delayed.send(
                topic,
                value,
                key=key,
                headers=headers,
                event_time=event_time,
                partition=partition,
                priority=priority,
                delay_seconds=delay_seconds,
                at=at,
                schedule_id=schedule_id,
            )
            return
        publisher = self._publisher
        outbox = publisher.topics.get(topic)
        if (
            outbox is None
            or publisher.buffered_bytes >= publisher.buffer_bytes_max
            or (partition is not None and partition >= len(outbox.partitions))
        ):
            put = partial(
                self._put_sent,
                value=value,
                key=key,
                headers=headers,
                event_time=event_time,
                partition=partition,
                priority=priority,
                encoding=encoding,
            )
            await self._put_in_turn(topic, partition, put)
            return
        if (
            type(value) is bytes
            and key is headers is event_time is partition is encoding is None
            and not priority
        ):
            publisher.put_plain(outbox, value)
            return
        self._put_sent(
            outbox,
            value=value,
            key=key,
            headers=headers,
            event_time=event_time,
            partition=partition,
            priority=priority,
            encoding=encoding,
        )

    def _put_sent(
        self,
        outbox: TopicOutbox,
        *,
        value: Value,
        key: bytes | str | None,
        headers: Headers | None,
        event_time: dt.datetime | int | None,
        partition: int | None,
        priority: int,
        encoding: Encoding | None,
    ) -> None:
        if encoding is not None:
            value, headers = encode_as(value, headers, encoding)
        if event_time is not None:
            event_time = event_time_us(event_time)
        if priority:
            checked_priority(priority)
        self._publisher.put(
            outbox, value, key, headers, event_time, partition=partition, priority=priority
        )

    async def publish_many(
        self,
        topic: str,
        values: Iterable[Value],
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        priority: int = 0,
        encoding: Encoding | None = None,
    ) -> list[Receipt]:
        """Publishes values in order and waits for all of them. They have the same key and headers.

        >>> receipts = await client.publish_many("orders", [b"one tea", b"two tea"])
        """
        check_several(values)
        if priority:
            checked_priority(priority)
        outbox = await self._ready_outbox(topic)
        waiting: list[asyncio.Future[Receipt]] = []
        for value in values:
            if self._publisher.buffered_bytes >= self._publisher.buffer_bytes_max:
                outbox = await self._ready_outbox(topic)
            stored, own = (
                (value, headers) if encoding is None else encode_as(value, headers, encoding)
            )
            waiting.append(self._publisher.publish(outbox, stored, key, own, priority=priority))
        return await asyncio.gather(*waiting)

    async def _put_in_turn(
        self, topic: str, partition: int | None, put: Callable[[TopicOutbox], T]
    ) -> T:
        """Puts something into a topic. If the topic must be opened first, the order of the calls
        stays."""
        publisher = self._publisher
        if topic not in publisher.topics and self._session.closed is publisher.fenced is None:
            done = await publisher.put_when_opened(topic, partition, put)
            if done is not None:
                return done[0]
        return put(await self._ready_outbox(topic, partition))

    async def publish_each(self, topic: str, records: Iterable[OnceRecord]) -> list[OnceReceipt]:
        """Publishes messages that each have their own key and headers, in order, and waits for all
        of them. If one of them can't be published, none is. Listeners use this."""
        publisher, wanted = self._publisher, list(records)

        def put(outbox: TopicOutbox) -> tuple[TopicOutbox, list[asyncio.Future[Receipt]]]:
            for record in wanted:
                publisher.check(outbox, *record)
            return outbox, [
                publisher.publish(outbox, r.value, r.key, r.headers, partition=r.partition)
                for r in wanted
            ]

        last = max((r.partition for r in wanted if r.partition is not None), default=None)
        outbox, waiting = await self._put_in_turn(topic, last, put)
        receipts = await asyncio.gather(*waiting)
        epoch = 0 if self.welcome is None else self.welcome.epoch
        return [OnceReceipt(receipt, outbox.number, epoch) for receipt in receipts]

    async def _ready_outbox(self, topic: str, partition: int | None = None) -> TopicOutbox:
        while True:
            if self._session.closed is not None:
                raise self._session.closed
            outbox = await self._publisher.topic(topic)
            if partition is not None and partition >= len(outbox.partitions):
                await self._publisher.look_again(outbox)
            if self._publisher.buffered_bytes < self._publisher.buffer_bytes_max:
                return outbox
            await self._publisher.room()

    async def cancel_scheduled(self, id: str) -> bool:
        """Cancels a delayed message. False if it was already published, or the id does not exist.

        >>> await client.cancel_scheduled("reminder-42")  # doctest: +SKIP
        True
        """
        return (await self._delayed.cancel([id]))[0]

    def scheduled(self, topic: str = "") -> AsyncIterator[PendingMessage]:
        """The delayed messages that wait, for one topic or for all, in the order of their due
        times.

        >>> [message.id async for message in client.scheduled("mails")]  # doctest: +SKIP
        ['reminder-42']
        """
        return self._delayed.pending(topic)

    async def add_schedule(
        self,
        name: str,
        topic: str,
        value: Value,
        *,
        cron: str = "",
        timezone: str = "UTC",
        every_seconds: float | None = None,
        missed: Literal["once", "skip"] = "once",
        key: bytes | str | None = None,
        headers: Headers | None = None,
    ) -> ScheduleInfo:
        """Publishes a message again and again: by a cron expression of five fields (minute, hour,
        day, month, weekday) in a time zone, or every so many seconds. It replaces a schedule of the
        same name. Each run happens once. After runs that were due while the broker was down, it
        runs once ("once") or not at all ("skip").

        >>> await client.add_schedule(  # doctest: +SKIP
        ...     "report", "jobs", "daily", cron="0 8 * * 1-5", timezone="Europe/Berlin"
        ... )
        """
        return await self._delayed.add_schedule(
            name,
            topic,
            value,
            cron=cron,
            timezone=timezone,
            every_seconds=every_seconds,
            missed=missed,
            key=key,
            headers=headers,
        )

    async def schedules(self) -> list[ScheduleInfo]:
        """All schedules, by name, with their next and last runs."""
        return await self._delayed.schedules()

    async def remove_schedule(self, name: str) -> bool:
        """Removes a schedule. False if no schedule has this name."""
        return await self._delayed.remove_schedule(name)

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged. Raises the errors of `send`.

        >>> await client.send("orders", "one tea")
        >>> await client.flush()
        """
        await self._publisher.flush()

    # Topics with a type

    @overload
    def topic(self, name: str, type: type[T], *, encoding: Encoding | None = None) -> Topic[T]: ...
    @overload
    def topic(self, name: str, type: Any, *, encoding: Encoding | None = None) -> Topic[Any]: ...
    def topic(self, name: str, type: Any, *, encoding: Encoding | None = None) -> Topic[Any]:
        """A topic whose messages are all of one type: a dataclass, a msgspec Struct, an attrs
        class, a pydantic model, or a type that these are made of. It does not call the broker.

        >>> orders = client.topic("orders", Order)  # doctest: +SKIP
        >>> await orders.publish(Order(tea=2), key="alice")  # doctest: +SKIP
        """
        return Topic(self, name, type, encoding)

    # Resumable streams

    @overload
    def stream(
        self,
        name: str,
        type: None = None,
        *,
        ttl_seconds: int = 3600,
        mode: StreamMode = "new",
        durability: DurabilityName = "memory",
        bytes_max: int = 4 * MIB,
        encoding: Encoding | None = None,
    ) -> Stream[str]: ...
    @overload
    def stream(
        self,
        name: str,
        type: type[T],
        *,
        ttl_seconds: int = 3600,
        mode: StreamMode = "new",
        durability: DurabilityName = "memory",
        bytes_max: int = 4 * MIB,
        encoding: Encoding | None = None,
    ) -> Stream[T]: ...
    def stream(
        self,
        name: str,
        type: Any = None,
        *,
        ttl_seconds: int = 3600,
        mode: StreamMode = "new",
        durability: DurabilityName = "memory",
        bytes_max: int = 4 * MIB,
        encoding: Encoding | None = None,
    ) -> Stream[Any]:
        """A stream that is written once and ends. Any number of readers, in any process, can read
        it from any position, while it is written and for `ttl_seconds` after. The first write or
        read is the first call to the broker.

        >>> async with client.stream("answer-42") as answer:  # doctest: +SKIP
        ...     async for token in model(question):
        ...         await answer.send(token)
        >>> async for text in client.stream("answer-42").read():  # doctest: +SKIP
        ...     print(text)

        `mode` decides what a writer does if the name is in use. "new" raises an error; "continue"
        appends to the stream, or begins it; "existing" appends, and never begins one. The broker
        keeps the newest `bytes_max` bytes of a stream in memory; to keep it over a restart of the
        broker, give `durability="os"`. Pieces are text, or of a `type`; see `topic`.
        """
        settings = StreamSettings(ttl_seconds, durability, bytes_max)
        kind = MessageType[Any](
            stream_topic(name), str if type is None else type, encoding or self.encoding
        )
        return Stream(self, kind, mode, settings)

    def forget_topic(self, name: str) -> None:
        """Closes a topic after publishing to it. The next publish opens it again."""
        self._publisher.forget(name)

    # Reading

    def subscribe(
        self,
        topic: str,
        *,
        start: StartLike = None,
        durable: str = "",
        policy: str = "catch-up",
        partitions: tuple[int, ...] | None = None,
        on_gap: OnGap | None = None,
        window_bytes: int | None = None,
        missing: MissingPolicy = "wait",
    ) -> Subscription:
        """Follows a topic, or all topics that match a pattern (`*` one token, `>` the rest).

        `start` is "latest" (the default), "earliest", an offset, a time (a datetime, or a text such
        as "2025-01-31T12:00"; without a zone it is local time), or an age ("10m", a timedelta). A
        `durable` name resumes at its last offset commit, and begins at `start` the first time.
        `policy` decides what happens when this reader is too slow: "catch-up", "skip" or
        "disconnect".

        Subscribing creates no topic. If the topic does not exist, the reader logs this once, waits
        for it, and gets everything from its first message on. With `missing="fail"` it raises
        `TopicNotFoundError` instead.

        >>> async with client.subscribe("orders", start="earliest") as orders:
        ...     async for message in orders:
        ...         print(message.offset, message.text)
        """
        if policy not in _POLICIES:
            raise InvalidArgumentError(
                f"There is no policy {policy!r}: use one of {', '.join(_POLICIES)}."
            )
        wanted = messages.Subscribe(
            target=topic_name(topic),
            wildcard=is_pattern(topic),
            start=as_start(start),
            durable=durable,
            policy=_POLICIES[policy],
            window_bytes=window_bytes or self._options.window_bytes,
            partitions=partitions,
            missing=missing_policy(missing),
        )
        core = SubscriptionCore(self, self.take_number(), checked(wanted), on_gap)
        return Subscription(self, core)

    @overload
    def consume(
        self, topic: str, handler: None = None, *, group: str, **options: Unpack[ConsumeOptions]
    ) -> GroupMember: ...
    @overload
    def consume(
        self,
        topic: str,
        handler: MessageHandler,
        *,
        group: str,
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[HandledOptions],
    ) -> Coroutine[Any, Any, Handled]: ...
    def consume(
        self,
        topic: str,
        handler: MessageHandler | None = None,
        *,
        group: str,
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[HandledOptions],
    ) -> GroupMember | Coroutine[Any, Any, Handled]:
        """Joins a consumer group, whose members share the partitions of a topic or a pattern. The
        group resumes at its last offset commit, and begins at `reset` the first time.

        With a `handler`, await the call. It gives each message to the handler, plain or async:
        messages of one partition in order, different partitions side by side, up to `concurrency`
        at a time. It runs until `until` is set or SIGTERM comes. Then it finishes the messages it
        has begun, commits their offsets and leaves. If the handler raises, the error is logged and
        the message is tried again; its partition waits. See `HandlerOptions`.

        >>> await client.consume("orders", bill, group="billing", concurrency=10)  # doctest: +SKIP

        Without a handler, it returns a member to iterate over. For the options see
        `ConsumeOptions`.
        """
        joining = Joining(self, topic, group, self._options)
        if handler is None:
            check_no_handler(concurrency, until, "consume")
            return joining.member(options)
        return joining.run(handler, concurrency, until, options)

    @overload
    def work(
        self, topic: str, handler: None = None, *, queue: str, **options: Unpack[WorkOptions]
    ) -> Worker: ...
    @overload
    def work(
        self,
        topic: str,
        handler: JobHandler,
        *,
        queue: str,
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> Coroutine[Any, Any, None]: ...
    def work(
        self,
        topic: str,
        handler: JobHandler | None = None,
        *,
        queue: str,
        concurrency: int = 1,
        until: asyncio.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> Worker | Coroutine[Any, Any, None]:
        """Joins a queue, which hands each message of a topic or a pattern to one free worker.

        With a `handler`, await the call. It gives each job to the handler, plain or async, up to
        `concurrency` at a time. It runs until `until` is set or SIGTERM comes, and then finishes
        the jobs it has begun. If the handler raises, the error is logged and the job is tried
        again.

        >>> await client.work("emails", send, queue="mailers", concurrency=10)  # doctest: +SKIP

        Without a handler, it returns a worker to iterate over. For the options see `WorkOptions`.
        """
        if handler is not None:
            options = {"prefetch": concurrency, **options}
        else:
            check_no_handler(concurrency, until, "work")
        worker = Worker(
            self,
            self.take_number(),
            working(topic, queue=queue, client=self._options.name, options=options),
            keep_alive=options.get("keep_alive", True),
            raise_errors=options.get("raise_errors", False),
        )
        return worker if handler is None else run_worker(worker, handler, until)

    # Requests

    async def request(
        self,
        topic: str,
        value: Value,
        *,
        timeout_seconds: float = 5.0,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        encoding: Encoding | None = None,
    ) -> Message:
        """Publishes a request and returns its answer, which a worker gives with `job.reply`.

        >>> reply = await client.request("svc.resize", picture)  # doctest: +SKIP
        """
        if encoding is not None:
            value, headers = encode_as(value, headers, encoding)
        return await self._requests.request(topic, value, timeout_seconds, key, headers)

    async def serve(
        self, topic: str, handler: RequestHandler, *, queue: str = "", prefetch: int = 16
    ) -> None:
        """Answers requests until it is cancelled. The `handler`, plain or async, gets each job and
        returns the answer. If it raises, the answer is an error.

        >>> async def double(job):
        ...     return str(2 * int(job.text))
        >>> await client.serve("svc.double", double)
        """
        await serve(self.work(topic, queue=queue or topic, prefetch=prefetch), handler)

    async def reply(
        self, request: Message, value: Value, headers: Headers | None = None, error: str = ""
    ) -> None:
        """Answers a request that was read as a message, not as a job. Does nothing for a message
        that is not a request.

        >>> await client.reply(message, "42")
        """
        await self._requests.reply(request, value, headers, error)

    # Transactions

    def transaction(self, id: str = "", *, timeout_seconds: float = 60.0) -> Transaction:
        """Messages for several topics, and a group's positions, that become visible together or
        not at all; see `Transaction`. With an `id` it happens once, however often it is tried. The
        broker aborts it when nothing is staged for `timeout_seconds`.

        >>> async with client.transaction(id="order-4711") as tx:
        ...     await tx.publish("orders", "one tea")
        ...     await tx.publish("stock", "-1", key="tea")
        """
        return self._transaction(checked(messages.BeginTransaction(id, timeout_seconds)))

    def join_transaction(self, ticket: str) -> Transaction:
        """Joins a transaction that another client has begun, to stage into it too. Leaving the
        block only waits until all messages are staged. Any of the clients may commit it.

        >>> async with client.join_transaction(ticket) as part:
        ...     await part.publish("results", "a row")
        """
        return self._transaction(checked(messages.BeginTransaction(ticket=ticket)))

    def _transaction(self, wanted: messages.BeginTransaction) -> Transaction:
        stager = TransactionStager(
            self._session, self._options, self.open_topic, self._topics, self._publisher
        )
        timeout_seconds = self._options.delivery_timeout_seconds
        return Transaction(self._session, stager, wanted, timeout_seconds)

    async def run_transaction(
        self,
        work: Callable[[Transaction], Awaitable[None]],
        *,
        id: str = "",
        attempts: int = 5,
        timeout_seconds: float = 60.0,
    ) -> messages.TransactionCommitted:
        """Does `work` in a transaction and commits it. If the broker restarts meanwhile, the work
        is done again, and still takes effect once.

        >>> async def move(tx):
        ...     await tx.publish("accounts", "-10", key="alice")
        ...     await tx.publish("accounts", "+10", key="bob")
        >>> await client.run_transaction(move, id="transfer-4711")
        """

        def begin(id: str) -> Transaction:
            return self.transaction(id, timeout_seconds=timeout_seconds)

        return await run_transaction(begin, work, id, attempts)

    async def transform(
        self,
        source: str,
        target: str,
        function: Function,
        *,
        group: str,
        member: str = "",
        reset: ResetPolicy = "earliest",
        session_seconds: float = 10.0,
        batch_records: int = 1000,
        batch_seconds: float = 0.1,
        until: Callable[[], bool] | None = None,
        idle_seconds: float | None = None,
        on_gap: OnGap | None = None,
    ) -> int:
        """Reads `source` as a member of a group, calls `function` for each message, and publishes
        the results to `target`, exactly once: results and offsets are committed together, after so
        many records or seconds.

        The function, plain or async, returns a value, which keeps the message's key and headers,
        an `Outgoing`, a list of them, or None. It may be called again for messages whose
        transaction failed. The call ends when `until` is set, or when nothing comes for
        `idle_seconds`. It returns the number of messages done.

        >>> await client.transform("words", "loud", louder, group="g")  # doctest: +SKIP
        """
        options = TransformOptions(
            group=group,
            member=member,
            reset=reset,
            session_seconds=session_seconds,
            batch_records=batch_records,
            batch_seconds=batch_seconds,
            until=until,
            idle_seconds=idle_seconds,
            on_gap=on_gap,
        )
        return await Transform(self, source, target, function, options).run()


class Connecting:
    """The result of `connect`: await it, or enter it with `async with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} is not available: this client is not connected yet. Write `async with "
            "fanlog.connect(...) as client`, or `client = await fanlog.connect(...)`."
        )

    async def _open(self) -> Client:
        await self._client.open()
        return self._client

    async def __aenter__(self) -> Client:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, trace)


def check_client_options(given: Iterable[str]) -> None:
    """Refuses unknown options."""
    known = ClientOptions.__struct_fields__
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"There is no client option {unknown[0]!r}. There are: {', '.join(sorted(known))}."
        )


def connect(
    url: str = "fanlog://127.0.0.1", options: ClientOptions | None = None, **given: Any
) -> Connecting:
    """Connects to a broker.

    >>> async with fanlog.connect("fanlog://127.0.0.1:7420") as client:  # doctest: +SKIP
    ...     await client.publish("greetings", "hello")

    Options are those of `ClientOptions`, as an object or by name, such as `linger_ms=5`. With
    `producer="billing"` the client publishes under that name: if another client connects under that
    name later, it takes the name over, and this client's publishes then fail with `FencedError`.

    For a cluster, name several of its nodes: `fanlog://a:7420,b:7420,c:7420`. Any of them will do;
    the client moves to another node when its node fails.

    If the broker asks for a login, give a `key` (or `key_file`), a `user` with a `password`, or a
    `token`, which may be a function that returns a fresh one. The address may contain them too:
    `fanlog://user:password@host`, `fanlog://:KEY@host`.

    >>> async with fanlog.connect(url, key_file="/run/secrets/fanlog") as client:  # doctest: +SKIP
    ...     await client.publish("greetings", "hello")
    """
    located = split_login(url)
    try:
        chosen = msgspec.convert(
            msgspec.structs.asdict(options or ClientOptions()) | located.secrets | given,
            ClientOptions,
        )
        check_client_options(given)
    except msgspec.ValidationError as fault:
        raise InvalidArgumentError(
            f"A client option is wrong: {wrong_value(str(fault))}."
        ) from fault
    check_credentials(chosen)
    addresses = parse_urls(located.url)
    return Connecting(Client(dial_any(addresses, chosen), chosen))
