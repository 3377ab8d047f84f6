"""The blocking client: the asyncio client on a thread of its own, so that it pings, resumes and
re-sends while the program is busy. Messages cross over in whole batches, not one by one."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast, overload

from fanlog.client import aio
from fanlog.client.arguments import ExistOk, StartLike
from fanlog.client.blocking.accounts import BlockingAccounts
from fanlog.client.blocking.dead_letters import BlockingDeadLetters
from fanlog.client.blocking.groups import (
    BlockingConsumeOptions,
    BlockingGroupMember,
    BlockingGroups,
    BlockingHandledOptions,
    MessageHandler,
    async_options,
    message_handler_in_thread,
)
from fanlog.client.blocking.loop import BlockingSubscription, LoopThread
from fanlog.client.blocking.operators import BlockingConnections
from fanlog.client.blocking.outgoing import OutgoingLine
from fanlog.client.blocking.queues import BlockingWorker, Handler, JobHandler, handler_in_thread
from fanlog.client.blocking.stopping import run_until_stopped
from fanlog.client.blocking.streams import BlockingStream
from fanlog.client.blocking.threads import HandlerThreads
from fanlog.client.blocking.transactions import (
    BlockingTransaction,
    Function,
    function_in_thread,
    work_in_thread,
)
from fanlog.client.blocking.typed import BlockingTopic
from fanlog.client.blocking.web import BlockingWeb
from fanlog.client.core import Fetched
from fanlog.client.groups.running import Handled
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, PublishOptions, Value, own_headers
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.running import check_no_handler
from fanlog.client.schedules import Time
from fanlog.client.streams import StreamMode
from fanlog.client.subscription import OnGap
from fanlog.client.values import Encoding, as_published, check_several
from fanlog.config import ClientOptions
from fanlog.errors import FanlogError
from fanlog.format.messages import BrokerStatus, Position, TransactionCommitted
from fanlog.model import (
    MIB,
    DurabilityName,
    MissingPolicy,
    PendingMessage,
    Receipt,
    ResetPolicy,
    Scheduled,
    ScheduleInfo,
    TopicInfo,
    TopicSettings,
)
from fanlog.telemetry.snapshot import Snapshot

_Publish = Callable[..., Coroutine[Any, Any, Receipt | Scheduled]]

T = TypeVar("T")
# Most messages are no more than a value.
_NOTHING_ELSE: dict[str, Any] = {}


class BlockingClient:
    """A connection to a broker for plain code. Methods may be called from any thread."""

    def __init__(self, loop: LoopThread, client: aio.Client) -> None:
        self._loop = loop
        self._client = client
        self.groups = BlockingGroups(loop, client.groups)
        self.connections = BlockingConnections(loop, client.connections)
        self.dead_letters = BlockingDeadLetters(loop, client.dead_letters)
        self.web = BlockingWeb(loop, client.web)
        self.accounts = BlockingAccounts(loop, client.accounts)
        self._outgoing = OutgoingLine(loop, client)
        self._closing = threading.RLock()

    @property
    def connected(self) -> bool:
        """Whether the client is connected to the broker."""
        return self._client.connected

    @property
    def state(self) -> Literal["connected", "reconnecting", "closed"]:
        """`closed` is final: `close()` was called, or the connection is lost and `reconnect` is
        off."""
        return self._client.state

    @property
    def on_lost(self) -> Callable[[FanlogError], None] | None:
        """Called with the reason when the connection is lost, in the client's own thread."""
        return self._client.on_lost

    @on_lost.setter
    def on_lost(self, call: Callable[[FanlogError], None] | None) -> None:
        self._client.on_lost = call

    @property
    def on_back(self) -> Callable[[], None] | None:
        """Called when the connection is there again, in the client's own thread."""
        return self._client.on_back

    @on_back.setter
    def on_back(self, call: Callable[[], None] | None) -> None:
        self._client.on_back = call

    def close(self) -> None:
        """Waits for what was published, then says goodbye. Raises what `send` ran into."""
        with self._closing:
            if not self._loop.running:
                return
            try:
                self._loop.call(self._close())
            finally:
                self._loop.stop()

    async def _close(self) -> None:
        await self._outgoing.hand_over()
        await self._client.close()
        self._outgoing.raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Publishing

    @overload
    def publish(
        self,
        topic: str,
        value: Value,
        *,
        delay_seconds: float,
        schedule_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> Scheduled: ...
    @overload
    def publish(
        self,
        topic: str,
        value: Value,
        *,
        at: Time,
        schedule_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> Scheduled: ...
    @overload
    def publish(self, topic: str, value: Value, **options: Unpack[PublishOptions]) -> Receipt: ...
    def publish(
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
        """Publishes one message and returns once the broker has it; see the asyncio client."""
        publish = cast("_Publish", self._client.publish)

        async def publishing() -> Receipt | Scheduled:
            left = await self._outgoing.hand_over_within(timeout_seconds)
            return await publish(
                topic,
                value,
                key=key,
                headers=headers,
                event_time=event_time,
                partition=partition,
                priority=priority,
                encoding=encoding,
                timeout_seconds=left,
                delay_seconds=delay_seconds,
                at=at,
                schedule_id=schedule_id,
            )

        return self._loop.call(publishing())

    def cancel_scheduled(self, id: str) -> bool:
        """Takes a delayed message back; False if it has gone out, or there is none of this id."""

        async def cancelling() -> bool:
            await self._outgoing.hand_over()
            return await self._client.cancel_scheduled(id)

        return self._loop.call(cancelling())

    def add_schedule(
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
        """Publishes a message again and again; see the asyncio client."""
        return self._loop.call(
            self._client.add_schedule(
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
        )

    def schedules(self) -> list[ScheduleInfo]:
        """All schedules, by name, with their next and last runs."""
        return self._loop.call(self._client.schedules())

    def remove_schedule(self, name: str) -> bool:
        """Removes a schedule; False if there is none of this name."""
        return self._loop.call(self._client.remove_schedule(name))

    def scheduled(self, topic: str = "") -> Iterator[PendingMessage]:
        """The delayed messages that wait, for one topic or for all, the first due in front."""
        self._loop.call(self._outgoing.hand_over())
        return self._loop.each(self._client.scheduled(topic))

    def publish_many(
        self,
        topic: str,
        values: Iterable[Value],
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        priority: int = 0,
        encoding: Encoding | None = None,
    ) -> list[Receipt]:
        """Publishes values in order and waits for all of them."""
        check_several(values)
        several = list(values)

        async def publishing() -> list[Receipt]:
            await self._outgoing.hand_over()
            return await self._client.publish_many(
                topic, several, key=key, headers=headers, priority=priority, encoding=encoding
            )

        return self._loop.call(publishing())

    def send(
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
        """Publishes without waiting; `flush` waits, and raises what went wrong."""
        if type(value) is not bytes or encoding is not None:
            value, headers = as_published(value, headers, encoding, self._client.encoding)
        if headers:
            # Copied: the caller may change its own before they go out.
            headers = own_headers(headers)
        later = not (delay_seconds is at is schedule_id is None)
        if key is headers is event_time is partition is None and not priority and not later:
            self._outgoing.add(topic, value, _NOTHING_ELSE)
            return
        given = {
            "key": key,
            "headers": headers,
            "event_time": event_time,
            "partition": partition,
            "priority": priority,
        }
        if later:
            given |= {"delay_seconds": delay_seconds, "at": at, "schedule_id": schedule_id}
        self._outgoing.add(topic, value, given)

    def flush(self) -> None:
        """Waits until everything sent so far is acknowledged. Raises what `send` ran into."""
        self._loop.call(self._flush())

    async def _flush(self) -> None:
        await self._outgoing.hand_over()
        try:
            await self._client.flush()
        except FanlogError:
            self._outgoing.error = None
            raise
        self._outgoing.raise_error()

    # Topics with a type

    @property
    def encoding(self) -> Encoding:
        """How objects are published, where a message does not say."""
        return self._client.encoding

    @overload
    def topic(
        self, name: str, type: type[T], *, encoding: Encoding | None = None
    ) -> BlockingTopic[T]: ...
    @overload
    def topic(
        self, name: str, type: Any, *, encoding: Encoding | None = None
    ) -> BlockingTopic[Any]: ...
    def topic(
        self, name: str, type: Any, *, encoding: Encoding | None = None
    ) -> BlockingTopic[Any]:
        """A topic whose messages are all of one type; see the asyncio client."""
        return BlockingTopic(self, name, type, encoding)

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
    ) -> BlockingStream[str]: ...
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
    ) -> BlockingStream[T]: ...
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
    ) -> BlockingStream[Any]:
        """A stream that is written once, ends, and can be read from any position; see the asyncio
        client."""
        stream = self._client.stream(
            name,
            type,
            ttl_seconds=ttl_seconds,
            mode=mode,
            durability=durability,
            bytes_max=bytes_max,
            encoding=encoding,
        )
        return BlockingStream(self._loop, stream)

    # Subscribing

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
    ) -> BlockingSubscription:
        """Follows a topic or a pattern; see the asyncio client."""
        subscription = self._client.subscribe(
            topic,
            start=start,
            durable=durable,
            policy=policy,
            partitions=partitions,
            on_gap=on_gap,
            window_bytes=window_bytes,
            missing=missing,
        )
        return BlockingSubscription(self._loop, subscription)

    @overload
    def consume(
        self,
        topic: str,
        handler: None = None,
        *,
        group: str,
        **options: Unpack[BlockingConsumeOptions],
    ) -> BlockingGroupMember: ...
    @overload
    def consume(
        self,
        topic: str,
        handler: MessageHandler,
        *,
        group: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[BlockingHandledOptions],
    ) -> Handled: ...
    def consume(
        self,
        topic: str,
        handler: MessageHandler | None = None,
        *,
        group: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[BlockingHandledOptions],
    ) -> BlockingGroupMember | Handled:
        """Joins a consumer group; see the asyncio client. With a `handler` it gives each message to
        the handler, in threads, until `until` is set, SIGTERM comes or the client is closed."""
        given = async_options(options)
        if handler is None:
            check_no_handler(concurrency, until, "consume")
            return BlockingGroupMember(
                self._loop, self._client.consume(topic, group=group, **given)
            )
        with HandlerThreads(concurrency) as threads:
            handle = message_handler_in_thread(threads, handler)
            return run_until_stopped(
                self._loop,
                until,
                lambda stopped: self._client.consume(
                    topic, handle, group=group, concurrency=concurrency, until=stopped, **given
                ),
            )

    @overload
    def work(
        self, topic: str, handler: None = None, *, queue: str, **options: Unpack[WorkOptions]
    ) -> BlockingWorker: ...
    @overload
    def work(
        self,
        topic: str,
        handler: JobHandler,
        *,
        queue: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> None: ...
    def work(
        self,
        topic: str,
        handler: JobHandler | None = None,
        *,
        queue: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> BlockingWorker | None:
        """Joins a queue; see the asyncio client. With a `handler` it gives each job to the handler,
        in threads, until `until` is set, SIGTERM comes or the client is closed."""
        if handler is None:
            check_no_handler(concurrency, until, "work")
            return BlockingWorker(self._loop, self._client.work(topic, queue=queue, **options))
        with HandlerThreads(options.get("prefetch", concurrency)) as threads:
            handle = handler_in_thread(self._loop, threads, handler)
            run_until_stopped(
                self._loop,
                until,
                lambda stopped: self._client.work(
                    topic, handle, queue=queue, concurrency=concurrency, until=stopped, **options
                ),
            )
        return None

    def request(
        self,
        topic: str,
        value: Value,
        *,
        timeout_seconds: float = 5.0,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        encoding: Encoding | None = None,
    ) -> Message:
        """Publishes a request and returns its answer."""

        async def asking() -> Message:
            left = await self._outgoing.hand_over_within(timeout_seconds)
            return await self._client.request(
                topic,
                value,
                timeout_seconds=timeout_seconds if left is None else left,
                key=key,
                headers=headers,
                encoding=encoding,
            )

        return self._loop.call(asking())

    def serve(self, topic: str, handler: Handler, *, queue: str = "", prefetch: int = 16) -> None:
        """Answers requests until the client is closed: `handler` gets each job, in a thread of its
        own, and what it returns is the answer."""
        with HandlerThreads(prefetch) as threads:
            handle = handler_in_thread(self._loop, threads, handler)
            self._loop.call(self._client.serve(topic, handle, queue=queue, prefetch=prefetch))

    def reply(
        self, request: Message, value: Value, headers: Headers | None = None, error: str = ""
    ) -> None:
        """Answers a request that was read in another way than as a job."""
        self._loop.call(self._client.reply(request, value, headers, error))

    def commit(self, durable: str, positions: tuple[Position, ...]) -> None:
        self._loop.call(self._client.commit(durable, positions))

    def committed(self, durable: str) -> tuple[Position, ...]:
        return self._loop.call(self._client.committed(durable))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        wait_seconds: float = 0.0,
    ) -> Fetched:
        """Pulls batches from an offset on."""
        return self._loop.call(
            self._client.fetch(
                topic, partition, offset, bytes_max=bytes_max, wait_seconds=wait_seconds
            )
        )

    # Transactions

    def transaction(self, id: str = "", *, timeout_seconds: float = 60.0) -> BlockingTransaction:
        """Messages and positions that become visible together; see the asyncio client."""
        transaction = self._client.transaction(id, timeout_seconds=timeout_seconds)
        return BlockingTransaction(self._loop, transaction, self._outgoing)

    def join_transaction(self, ticket: str) -> BlockingTransaction:
        """One that another client has begun, to stage into it as well."""
        return BlockingTransaction(
            self._loop, self._client.join_transaction(ticket), self._outgoing
        )

    def run_transaction(
        self,
        work: Callable[[BlockingTransaction], None],
        *,
        id: str = "",
        attempts: int = 5,
        timeout_seconds: float = 60.0,
    ) -> TransactionCommitted:
        """Does `work`, in a thread, in a transaction, and again if the broker has lost it."""
        called = work_in_thread(self._loop, work, self._outgoing)
        return self._loop.call(
            self._client.run_transaction(
                called, id=id, attempts=attempts, timeout_seconds=timeout_seconds
            )
        )

    def transform(
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
        """Publishes what `function` makes of a group's messages, exactly once; see the asyncio
        client. The function is called in a thread."""
        return self._loop.call(
            self._client.transform(
                source,
                target,
                function_in_thread(function),
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
        )

    # Topics

    def create_topic(
        self,
        name: str,
        settings: TopicSettings | None = None,
        *,
        exist_ok: ExistOk = False,
        **given: Any,
    ) -> TopicInfo:
        """Creates a topic. With `exist_ok=True` it may exist, if the settings that are given here
        agree, and with `exist_ok="any"` whatever its settings are."""
        return self._loop.call(
            self._client.create_topic(name, settings, exist_ok=exist_ok, **given)
        )

    def topics(self, pattern: str = ">", *, internal: bool = False) -> list[TopicInfo]:
        return self._loop.call(self._client.topics(pattern, internal=internal))

    def describe_topic(self, name: str) -> TopicInfo:
        return self._loop.call(self._client.describe_topic(name))

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Gives a topic more partitions while it is in use; see the asyncio client."""
        return self._loop.call(self._client.grow_topic(name, partitions))

    def alter_topic(
        self, name: str, settings: TopicSettings | None = None, **given: Any
    ) -> TopicInfo:
        """Changes settings of a topic while it is in use; see the asyncio client."""
        return self._loop.call(self._client.alter_topic(name, settings, **given))

    def delete_topic(self, name: str) -> None:
        self._loop.call(self._client.delete_topic(name))

    def find_offsets(self, topic: str, start: StartLike) -> dict[int, int]:
        return self._loop.call(self._client.find_offsets(topic, start))

    def delete_records(self, topic: str, before: dict[int, int] | StartLike) -> dict[int, int]:
        """Deletes what is before an offset in each partition; see the asyncio client."""
        return self._loop.call(self._client.delete_records(topic, before))

    def compact_topic(self, name: str) -> TopicInfo:
        return self._loop.call(self._client.compact_topic(name))

    def status(self) -> BrokerStatus:
        return self._loop.call(self._client.status())

    def metrics(self) -> Snapshot:
        return self._loop.call(self._client.metrics())


def connect(
    url: str = "fanlog://127.0.0.1", options: ClientOptions | None = None, **given: Any
) -> BlockingClient:
    """Connects to a broker, for plain code.

    >>> with fanlog.sync.connect("fanlog://127.0.0.1:7420") as client:  # doctest: +SKIP
    ...     client.publish("greetings", "hello")
    """
    loop = LoopThread()

    async def opening() -> aio.Client:
        return await aio.connect(url, options, **given)

    try:
        return BlockingClient(loop, loop.call(opening()))
    except BaseException:
        loop.stop()
        raise
