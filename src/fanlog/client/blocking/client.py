"""The blocking client: the asyncio client on a thread of its own, so that it pings, resumes and
re-sends while the program is busy. Messages cross over in whole batches, not one by one. Methods
that only pass a call on are one line each (`front.py`); the rest is long because of its
overloads."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from fanlog.client import aio
from fanlog.client.blocking.attributes import (
    BlockingAccounts,
    BlockingConnections,
    BlockingDeadLetters,
    BlockingGroups,
    BlockingWeb,
)
from fanlog.client.blocking.front import LoopFront, blocking, fronted, like
from fanlog.client.blocking.groups import (
    BlockingConsumeOptions,
    BlockingGroupMember,
    BlockingHandledOptions,
    BlockingMessageHandler,
    async_options,
    message_handler_in_thread,
)
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.blocking.outgoing import OutgoingLine, in_order
from fanlog.client.blocking.queues import (
    BlockingJobHandler,
    BlockingRequestHandler,
    BlockingWorker,
    handler_in_thread,
)
from fanlog.client.blocking.stopping import run_until_stopped
from fanlog.client.blocking.streams import BlockingStream
from fanlog.client.blocking.subscription import BlockingSubscription
from fanlog.client.blocking.threads import HandlerThreads
from fanlog.client.blocking.transactions import (
    BlockingFunction,
    BlockingTransaction,
    function_in_thread,
    work_in_thread,
)
from fanlog.client.blocking.typed import BlockingTopic
from fanlog.client.forwarding import shown
from fanlog.client.groups.running import Handled
from fanlog.client.publishing import Headers, Value
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.running import check_no_handler
from fanlog.client.schedules import Time
from fanlog.client.streams import StreamMode
from fanlog.client.values import Encoding, as_published, check_several, own_headers
from fanlog.config import ClientOptions
from fanlog.errors import FanlogError
from fanlog.format.messages import TransactionCommitted
from fanlog.model import MIB, DurabilityName, PendingMessage, Receipt

T = TypeVar("T")
# Most messages have only a value.
_NOTHING_ELSE: dict[str, Any] = {}


class BlockingClient(LoopFront[aio.Client]):
    """A connection to a broker for plain code. Methods may be called from any thread."""

    def __init__(
        self,
        loop: LoopThread,
        client: aio.Client,
        end: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        super().__init__(loop, client)
        # What `close` does with the client.
        self._end = end or client.close
        self.groups = BlockingGroups(loop, client.groups)
        self.connections = BlockingConnections(loop, client.connections)
        self.dead_letters = BlockingDeadLetters(loop, client.dead_letters)
        self.web = BlockingWeb(loop, client.web)
        self.accounts = BlockingAccounts(loop, client.accounts)
        self._outgoing = OutgoingLine(loop, client)
        self._closing = threading.RLock()

    connected = shown(aio.Client, lambda client: client.connected)

    @property
    def state(self) -> Literal["connected", "reconnecting", "closed"]:
        """`closed` is final: `close()` was called, or the connection is lost and `reconnect` is
        off."""
        return self._behind.state

    @property
    def on_lost(self) -> Callable[[FanlogError], None] | None:
        """Called with the reason when the connection is lost, in the client's own thread."""
        return self._behind.on_lost

    @on_lost.setter
    def on_lost(self, call: Callable[[FanlogError], None] | None) -> None:
        self._behind.on_lost = call

    @property
    def on_back(self) -> Callable[[], None] | None:
        """Called when the connection is restored, in the client's own thread."""
        return self._behind.on_back

    @on_back.setter
    def on_back(self, call: Callable[[], None] | None) -> None:
        self._behind.on_back = call

    def close(self) -> None:
        """Waits for the published messages, then disconnects. Raises the errors of `send`."""
        with self._closing:
            if not self._loop.running:
                return
            try:
                self._loop.call(self._close())
            finally:
                self._loop.stop()

    async def _close(self) -> None:
        try:
            await self._outgoing.hand_over()
        finally:
            await self._end()
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

    publish = in_order(aio.Client.publish)
    cancel_scheduled = in_order(aio.Client.cancel_scheduled)
    add_schedule = blocking(aio.Client.add_schedule)
    schedules = blocking(aio.Client.schedules)
    remove_schedule = blocking(aio.Client.remove_schedule)

    def scheduled(self, topic: str = "") -> Iterator[PendingMessage]:
        """The delayed messages that wait, for one topic or for all, in the order of their due
        times; see the asyncio client."""
        self._loop.call(self._outgoing.hand_over())
        return self._loop.each(self._behind.scheduled(topic))

    @like(aio.Client.publish_many)
    def publish_many(self, topic: str, values: Iterable[Value], **options: Any) -> list[Receipt]:
        check_several(values)
        return self._publish_several(topic, list(values), **options)

    _publish_several = in_order(aio.Client.publish_many)

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
        """Publishes without waiting. `flush` waits, and raises the errors."""
        if type(value) is not bytes or encoding is not None:
            value, headers = as_published(value, headers, encoding, self._behind.encoding)
        if headers:
            # Copied: the caller may change its values before they go out.
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

    @like(aio.Client.flush)
    def flush(self) -> None:
        self._loop.call(self._flush())

    async def _flush(self) -> None:
        await self._outgoing.hand_over()
        try:
            await self._behind.flush()
        except FanlogError:
            self._outgoing.error = None
            raise
        self._outgoing.raise_error()

    # Topics with a type

    @property
    def encoding(self) -> Encoding:
        """The encoding of objects whose message does not name one."""
        return self._behind.encoding

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
        stream = self._behind.stream(
            name,
            type,
            ttl_seconds=ttl_seconds,
            mode=mode,
            durability=durability,
            bytes_max=bytes_max,
            encoding=encoding,
        )
        return BlockingStream(self._loop, stream)

    # Reading

    subscribe = fronted(aio.Client.subscribe, BlockingSubscription)
    commit = blocking(aio.Client.commit)
    committed = blocking(aio.Client.committed)
    fetch = blocking(aio.Client.fetch)

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
        handler: BlockingMessageHandler,
        *,
        group: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[BlockingHandledOptions],
    ) -> Handled: ...
    def consume(
        self,
        topic: str,
        handler: BlockingMessageHandler | None = None,
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
                self._loop, self._behind.consume(topic, group=group, **given)
            )
        with HandlerThreads(concurrency) as threads:
            handle = message_handler_in_thread(threads, handler)
            return run_until_stopped(
                self._loop,
                until,
                lambda stopped: self._behind.consume(
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
        handler: BlockingJobHandler,
        *,
        queue: str,
        concurrency: int = 1,
        until: threading.Event | None = None,
        **options: Unpack[WorkOptions],
    ) -> None: ...
    def work(
        self,
        topic: str,
        handler: BlockingJobHandler | None = None,
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
            return BlockingWorker(self._loop, self._behind.work(topic, queue=queue, **options))
        with HandlerThreads(options.get("prefetch", concurrency)) as threads:
            handle = handler_in_thread(self._loop, threads, handler)
            run_until_stopped(
                self._loop,
                until,
                lambda stopped: self._behind.work(
                    topic, handle, queue=queue, concurrency=concurrency, until=stopped, **options
                ),
            )
        return None

    # Requests

    request = in_order(aio.Client.request)
    reply = blocking(aio.Client.reply)

    def serve(
        self, topic: str, handler: BlockingRequestHandler, *, queue: str = "", prefetch: int = 16
    ) -> None:
        """Answers requests until the client is closed. `handler` gets each job, in its own thread,
        and returns the answer."""
        with HandlerThreads(prefetch) as threads:
            handle = handler_in_thread(self._loop, threads, handler)
            self._loop.call(self._behind.serve(topic, handle, queue=queue, prefetch=prefetch))

    # Transactions

    def transaction(self, id: str = "", *, timeout_seconds: float = 60.0) -> BlockingTransaction:
        """Messages and positions that become visible together; see the asyncio client."""
        transaction = self._behind.transaction(id, timeout_seconds=timeout_seconds)
        return BlockingTransaction(self._loop, transaction, self._outgoing)

    def join_transaction(self, ticket: str) -> BlockingTransaction:
        """Joins a transaction that another client has begun, to stage into it too."""
        return BlockingTransaction(
            self._loop, self._behind.join_transaction(ticket), self._outgoing
        )

    def run_transaction(
        self,
        work: Callable[[BlockingTransaction], None],
        *,
        id: str = "",
        attempts: int = 5,
        timeout_seconds: float = 60.0,
    ) -> TransactionCommitted:
        """Does `work`, in a thread, in a transaction. Repeats it if the broker has lost the
        transaction."""
        called = work_in_thread(self._loop, work, self._outgoing)
        return self._loop.call(
            self._behind.run_transaction(
                called, id=id, attempts=attempts, timeout_seconds=timeout_seconds
            )
        )

    @like(aio.Client.transform)
    def transform(
        self, source: str, target: str, function: BlockingFunction, **options: Any
    ) -> int:
        called = function_in_thread(function)
        return self._loop.call(self._behind.transform(source, target, called, **options))

    # Topics and the broker

    create_topic = blocking(aio.Client.create_topic)
    topics = blocking(aio.Client.topics)
    describe_topic = blocking(aio.Client.describe_topic)
    grow_topic = blocking(aio.Client.grow_topic)
    alter_topic = blocking(aio.Client.alter_topic)
    delete_topic = blocking(aio.Client.delete_topic)
    find_offsets = blocking(aio.Client.find_offsets)
    delete_records = blocking(aio.Client.delete_records)
    compact_topic = blocking(aio.Client.compact_topic)
    status = blocking(aio.Client.status)
    metrics = blocking(aio.Client.metrics)


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
