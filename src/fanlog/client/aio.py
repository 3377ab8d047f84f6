"""The asyncio client: one connection that comes back by itself, with publishing, subscriptions and
requests on it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from fanlog.client import core
from fanlog.client.core import POLICIES, ClientCore, Event
from fanlog.client.link import Dial, Link, lost_error, parse_url, tcp_dial
from fanlog.client.message import MessageBatch
from fanlog.client.publishing import Headers, Publisher, TopicOutbox, Value
from fanlog.client.starts import StartLike, as_start, is_pattern, topic_settings
from fanlog.client.subscription import OnGap, Subscription
from fanlog.config import ClientOptions
from fanlog.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    FanlogError,
    InvalidArgumentError,
    LinkError,
    PartitionNotFoundError,
    RequestTimeoutError,
)
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind, frame, message_frame
from fanlog.format.messages import decode
from fanlog.model import Receipt, TopicInfo, TopicSettings

logger = logging.getLogger("fanlog.client")

T = TypeVar("T")
OnAnswer = Callable[[bytes], None]
_SHARED_BATCHES = 64


class Client:
    """A connection to a broker. Made by `fanlog.connect`; close it, or use `async with`."""

    def __init__(self, dial: Dial, options: ClientOptions, *, verify: bool = True) -> None:
        self._dial = dial
        self._options = options
        self._verify = verify
        self._link: Link | None = None
        self._ready = False
        self._requests: dict[int, tuple[asyncio.Future[bytes], OnAnswer | None]] = {}
        self._request_number = 0
        self._subscriptions: dict[int, Subscription] = {}
        self._subscription_number = 0
        self._numbers: dict[str, int] = {}
        self._shared: OrderedDict[tuple[int, int, int], MessageBatch] = OrderedDict()
        self._welcomed: asyncio.Future[messages.Welcome] | None = None
        self._link_up = asyncio.Event()
        self._link_lost = asyncio.Event()
        self._lost_because: Exception | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._pinger: asyncio.Task[None] | None = None
        self._closed: FanlogError | None = None
        self._publisher = Publisher(_Wire(self), options, self._open_topic)
        self.welcome: messages.Welcome | None = None
        self.reconnects = 0

    # The connection

    async def open(self) -> None:
        """Connects for the first time; a failure is raised, not retried."""
        await self._establish()
        self._keeper = asyncio.create_task(self._keep())
        self._pinger = asyncio.create_task(self._ping())

    async def close(self, *, flush: bool = True) -> None:
        """Waits for what was published, then says goodbye."""
        try:
            if flush and self._ready:
                timeout = self._options.request_timeout_seconds
                async with asyncio.timeout(timeout):
                    await self._publisher.flush()
        except TimeoutError:
            raise RequestTimeoutError("Not everything was acknowledged before the close.") from None
        finally:
            await self._shut()
        if flush:
            self._publisher.raise_unwatched()

    async def _shut(self) -> None:
        self._give_up(ClosedError("The client was closed."))
        for task in (self._keeper, self._pinger):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._ready = False
        link, self._link = self._link, None
        if link is not None:
            link.write(frame(FrameKind.GOODBYE))
            link.close()

    def _give_up(self, error: FanlogError) -> None:
        """Ends everything that still hopes."""
        if self._closed is not None:
            return
        self._closed = error
        self._ready = False
        self._publisher.give_up(error)
        for subscription in list(self._subscriptions.values()):
            subscription.end(error)
        self._fail_requests(error)
        self._link_up.set()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    @property
    def connected(self) -> bool:
        return self._ready

    async def _establish(self) -> None:
        """One new connection, up to where everything goes on as before."""
        loop = asyncio.get_running_loop()
        self._link_lost.clear()
        self._numbers.clear()
        self._lost_because = None
        link = Link(self._handle, self._lost_link, ClientCore(verify=self._verify))
        self._welcomed = loop.create_future()
        self._link = link
        link.transport = await self._dial(link)
        link.write(core.hello(self._options.name))
        try:
            async with asyncio.timeout(self._options.connect_timeout_seconds):
                self.welcome = await self._welcomed
        except TimeoutError:
            link.close()
            raise ConnectError("The broker did not greet in time. Is it Fanlog's port?") from None
        self._publisher.limit(self.welcome.frame_bytes_max)
        await self._publisher.resume(self._reopen_topic)
        for subscription in list(self._subscriptions.values()):
            if subscription.attached:
                await self._resubscribe(subscription)
        self._ready = True
        self._link_up.set()
        self._publisher.resumed()

    async def _resubscribe(self, subscription: Subscription) -> None:
        try:
            await self.attach(subscription, subscription.resume_request())
        except FanlogError as error:
            if isinstance(error, LinkError):
                raise
            self._subscriptions.pop(subscription.key, None)
            subscription.end(error)

    async def _keep(self) -> None:
        """Waits for the connection to be lost, and brings it back, as long as that is wanted."""
        # Asked each time, because a wait that ends as it is cancelled (3.11) goes on here.
        while self._closed is None:
            await self._link_lost.wait()
            if not self._options.reconnect:
                self._give_up(lost_error(self._lost_because))
                return
            backoff = self._options.backoff_first_seconds
            while self._closed is None:
                try:
                    await self._establish()
                except (FanlogError, OSError) as fault:
                    logger.info("no connection yet: %s", fault)
                    if self._link is not None:
                        self._link.close()
                else:
                    break
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(backoff * 2, self._options.backoff_max_seconds)
            self.reconnects += 1

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        tick = min(self._options.ping_seconds, 1.0)
        heard = last = loop.time()
        while True:
            await asyncio.sleep(tick)
            self._publisher.check_overdue()
            link, now = self._link, loop.time()
            if link is None or not self._ready:
                heard = now
                continue
            heard = max(heard, link.heard_at)
            if now - last >= self._options.ping_seconds:
                last = now
                link.write(frame(FrameKind.PING))
            if now - heard > 3 * self._options.ping_seconds:
                link.close()
                link.connection_lost(RequestTimeoutError("the broker went silent"))

    def _lost_link(self, link: Link, exc: Exception | None) -> None:
        """A link is gone; if it is not the present one, nobody minds any more."""
        if link is self._link:
            self._lost(exc)

    def _lost(self, exc: Exception | None) -> None:
        self._ready = False
        self._lost_because = self._lost_because or exc
        error = lost_error(self._lost_because)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(ConnectError(str(error)))
        self._fail_requests(error)
        if self._closed is None:
            self._link_up.clear()
            self._link_lost.set()

    def _fail_requests(self, error: FanlogError) -> None:
        requests, self._requests = self._requests, {}
        for waiting, _ in requests.values():
            if not waiting.done():
                waiting.set_exception(error)

    # Events from the broker

    def _handle(self, event: Event) -> None:
        if self._link is not None:
            self._link.heard_at = asyncio.get_running_loop().time()
        match event:
            case core.Delivered(key, batch):
                subscription = self._subscriptions.get(key)
                if subscription is not None:
                    subscription.delivered(batch)
            case core.Acked(acks):
                self._publisher.acked(acks)
            case core.Answered(request, payload):
                self._answered(request, payload)
            case core.Failed(request, error, key):
                self._failed(request, error, key)
            case core.Refused(refused):
                self._publisher.refused(refused)
            case core.Missed(key, gap) if key in self._subscriptions:
                self._subscriptions[key].missed_some(gap)
            case core.TopicJoined(key, joined) if key in self._subscriptions:
                self._subscriptions[key].joined(joined)
            case core.TopicLeft(key, left) if key in self._subscriptions:
                self._subscriptions[key].left(left)
            case core.Welcomed(welcome):
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(welcome)
            case core.Draining(reason):
                logger.info("%s", reason)
                self._ready = False
                self._link_up.clear()
            case _:
                pass

    def _answered(self, request: int, payload: bytes) -> None:
        waiting, on_answer = self._requests.pop(request, (None, None))
        if waiting is not None and not waiting.done():
            if on_answer is not None:
                on_answer(payload)
            waiting.set_result(payload)

    def _failed(self, request: int, error: FanlogError, key: int) -> None:
        if request:
            waiting, _ = self._requests.pop(request, (None, None))
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
            return
        self._lost_because = error
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        blamed = self._subscriptions.pop(key, None)
        if blamed is not None:
            blamed.end(error)

    # Requests

    def write(self, data: bytes) -> None:
        if self._link is not None:
            self._link.write(data)

    async def _request(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        repeat: bool = True,
        on_answer: OnAnswer | None = None,
    ) -> bytes:
        """Asks once there is a connection, and again if it is lost before the answer; `repeat`
        is off for what must not be asked twice."""
        while True:
            await self._connection()
            try:
                return await self._ask_now(kind, message, aux=aux, on_answer=on_answer)
            except ConnectionLostError:
                if not repeat or not self._options.reconnect or self._closed is not None:
                    raise

    async def _connection(self) -> None:
        """Waits for a connection on which everything is resumed."""
        timeout = self._options.request_timeout_seconds
        if not self._ready:
            try:
                async with asyncio.timeout(timeout):
                    await self._link_up.wait()
            except TimeoutError:
                raise ConnectionLostError(f"There was no connection within {timeout} s.") from None
        if self._closed is not None:
            raise self._closed

    async def _ask_now(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        on_answer: OnAnswer | None = None,
    ) -> bytes:
        """Asks on the connection that is there. `on_answer` sees the answer before anything
        that comes behind it."""
        timeout = self._options.request_timeout_seconds
        self._request_number = self._request_number % 0xFFFFFFFF + 1
        number = self._request_number
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._requests[number] = (answer, on_answer)
        self.write(message_frame(kind, message, request=number, aux=aux))
        try:
            # Not `wait_for`: in Python 3.11 it forgets a cancellation that meets the answer.
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"The broker did not answer within {timeout} s. The outcome is unknown."
            ) from None
        finally:
            self._requests.pop(number, None)

    async def _ask(self, kind: FrameKind, message: msgspec.Struct, answer: type[T]) -> T:
        return decode(answer, await self._request(kind, message))

    # Publishing

    async def _open_topic(self, name: str) -> messages.TopicOpened:
        return await self._ask(FrameKind.OPEN_TOPIC, messages.OpenTopic(name), messages.TopicOpened)

    async def _reopen_topic(self, name: str) -> messages.TopicOpened:
        """The same while a new connection is being made ready."""
        payload = await self._ask_now(FrameKind.OPEN_TOPIC, messages.OpenTopic(name))
        return decode(messages.TopicOpened, payload)

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Publishes one message and returns once the broker has it, as safely as the topic's
        durability says. Messages published at the same time share a batch.

        >>> receipt = await client.publish("orders", b"one tea", key="alice")  # doctest: +SKIP
        >>> receipt.offset, receipt.durability  # doctest: +SKIP
        (0, 'os')
        """
        outbox = await self._ready_outbox(topic)
        return await self._publisher.publish(
            outbox, value, key, headers, _event_time_us(event_time), partition=partition
        )

    async def send(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        partition: int | None = None,
    ) -> None:
        """Publishes without waiting for the acknowledgement: fire and forget, with bounded
        memory. It waits only while `buffer_bytes_max` is full. What goes wrong is raised by the
        next `flush` or `close`."""
        publisher = self._publisher
        outbox = publisher.topics.get(topic)
        if outbox is None or publisher.buffered_bytes >= publisher.buffer_bytes_max:
            outbox = await self._ready_outbox(topic)
        if type(value) is bytes and key is headers is event_time is partition is None:
            publisher.put_plain(outbox, value)
            return
        if event_time is not None:
            event_time = _event_time_us(event_time)
        publisher.put(outbox, value, key, headers, event_time, partition=partition)

    async def publish_many(
        self, topic: str, values: list[bytes], *, key: bytes | str | None = None
    ) -> list[Receipt]:
        """Publishes values in order and waits for all of them."""
        outbox = await self._ready_outbox(topic)
        waiting: list[asyncio.Future[Receipt]] = []
        for value in values:
            if self._publisher.buffered_bytes >= self._publisher.buffer_bytes_max:
                outbox = await self._ready_outbox(topic)
            waiting.append(self._publisher.publish(outbox, value, key))
        return await asyncio.gather(*waiting)

    async def _ready_outbox(self, topic: str) -> TopicOutbox:
        while True:
            if self._closed is not None:
                raise self._closed
            outbox = await self._publisher.topic(topic)
            if self._publisher.buffered_bytes < self._publisher.buffer_bytes_max:
                return outbox
            await self._publisher.room()

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged. Raises what `send` ran into."""
        await self._publisher.flush()

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
    ) -> Subscription:
        """Follows a topic, or all topics that fit a pattern (`*` one token, `>` the rest).

        `start` is "latest" (the default), "earliest", an offset, or a time (datetime); a
        `durable` name begins where it last committed, and at `start` the first time. `policy`
        says what happens when this reader is too slow: "catch-up", "skip" or "disconnect".
        """
        if policy not in POLICIES:
            raise InvalidArgumentError(
                f"There is no policy {policy!r}: use one of {', '.join(POLICIES)}."
            )
        wanted = messages.Subscribe(
            target=topic,
            wildcard=is_pattern(topic),
            start=as_start(start),
            durable=durable,
            policy=POLICIES[policy],
            window_bytes=window_bytes or self._options.window_bytes,
            partitions=partitions,
        )
        self._subscription_number += 1
        return Subscription(self, self._subscription_number, wanted, on_gap)

    async def attach(self, subscription: Subscription, wanted: messages.Subscribe) -> None:
        """Sends a subscription's request."""

        def joined(payload: bytes) -> None:
            subscription.attached = True
            for topic in decode(messages.Subscribed, payload).joined:
                subscription.joined(topic)

        ask = self._request if wanted.resume is None else self._ask_now
        self._subscriptions[subscription.key] = subscription
        try:
            await ask(FrameKind.SUBSCRIBE, wanted, aux=subscription.key, on_answer=joined)
        except BaseException:
            if wanted.resume is None:
                self._subscriptions.pop(subscription.key, None)
            raise

    async def detach(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.key, None) is not None and self._ready:
            with contextlib.suppress(LinkError):
                await self._ask_now(FrameKind.UNSUBSCRIBE, messages.Goodbye(), aux=subscription.key)

    def decoded(self, batch: Batch) -> MessageBatch:
        """The batch, decoded once for all subscriptions of this client that get it."""
        header = batch.header
        place = (header.topic, header.partition, header.base_offset)
        shared = self._shared.get(place)
        if shared is None or shared.batch.header.header_crc != header.header_crc:
            shared = self._shared[place] = MessageBatch(batch)
            if len(self._shared) > _SHARED_BATCHES:
                self._shared.popitem(last=False)
        return shared

    async def commit(self, durable: str, positions: tuple[messages.Position, ...]) -> None:
        """Moves a durable name to these positions."""
        await self._request(FrameKind.COMMIT, messages.Commit(durable, positions))

    async def committed(self, durable: str) -> tuple[messages.Position, ...]:
        """Where a durable name would go on."""
        wanted = messages.Committed(durable)
        return (await self._ask(FrameKind.COMMITTED, wanted, messages.Positions)).positions

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        wait_seconds: float = 0.0,
    ) -> core.Fetched:
        """Pulls batches from an offset on; with `wait_seconds`, waits for some to come."""
        wait_ms = int(wait_seconds * 1000)
        while True:
            await self._connection()
            known = self._numbers.get(topic)
            try:
                number = await self._number_of(topic) if known is None else known
                wanted = messages.Fetch(number, partition, offset, bytes_max, wait_ms)
                payload = await self._ask_now(FrameKind.FETCH, wanted)
            except ConnectionLostError:
                if not self._options.reconnect or self._closed is not None:
                    raise
            except PartitionNotFoundError:
                # A number that was known may be that of a topic that was deleted since.
                if known is None:
                    raise
                self._numbers.pop(topic, None)
            else:
                return core.read_fetched(payload, topic, verify=self._verify)

    async def _number_of(self, topic: str) -> int:
        """The number of a topic that is there; a number is good for one connection."""
        wanted = messages.OpenTopic(topic, create=False)
        payload = await self._ask_now(FrameKind.OPEN_TOPIC, wanted)
        number = decode(messages.TopicOpened, payload).number
        self._numbers[topic] = number
        return number

    # Topics

    async def create_topic(
        self,
        name: str,
        settings: TopicSettings | None = None,
        *,
        exist_ok: bool = False,
        **given: Any,
    ) -> TopicInfo:
        """Creates a topic. Settings are given as `TopicSettings` or by name:

        >>> await client.create_topic("orders", partitions=4, durability="fsync")  # doctest: +SKIP
        """
        wanted = messages.CreateTopic(name, topic_settings(settings, given), exist_ok)
        payload = await self._request(FrameKind.CREATE_TOPIC, wanted, repeat=exist_ok)
        return decode(TopicInfo, payload)

    async def topics(self, pattern: str = ">", *, internal: bool = False) -> list[TopicInfo]:
        wanted = messages.ListTopics(pattern, internal)
        return await self._ask(FrameKind.LIST_TOPICS, wanted, list[TopicInfo])

    async def describe_topic(self, name: str) -> TopicInfo:
        return await self._ask(FrameKind.DESCRIBE_TOPIC, messages.NamedTopic(name), TopicInfo)

    async def delete_topic(self, name: str) -> None:
        await self._request(FrameKind.DELETE_TOPIC, messages.NamedTopic(name), repeat=False)

    async def find_offsets(self, topic: str, start: StartLike) -> dict[int, int]:
        """The offset of each partition where `start` lies."""
        wanted = messages.FindOffsets(topic, as_start(start))
        found = await self._ask(FrameKind.FIND_OFFSETS, wanted, messages.Positions)
        return {position.partition: position.offset for position in found.positions}

    async def status(self) -> messages.BrokerStatus:
        return await self._ask(FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus)


class _Wire:
    """The client's connection as its publisher sees it."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, data: bytes) -> None:
        self._client.write(data)

    def ready(self) -> bool:
        return self._client.connected


class Connecting:
    """What `connect` returns: await it, or enter it with `async with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

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


def connect(
    url: str = "fanlog://127.0.0.1", options: ClientOptions | None = None, **given: Any
) -> Connecting:
    """Connects to a broker.

    >>> async with fanlog.connect("fanlog://127.0.0.1:7420") as client:  # doctest: +SKIP
    ...     await client.publish("greetings", "hello")

    Options are those of `ClientOptions`, as an object or by name, such as `linger_ms=5`.
    """
    try:
        chosen = msgspec.convert(
            msgspec.structs.asdict(options or ClientOptions()) | given, ClientOptions
        )
        unknown = set(given) - set(ClientOptions.__struct_fields__)
        if unknown:
            raise InvalidArgumentError(f"There is no client option {min(unknown)!r}.")
    except msgspec.ValidationError as fault:
        raise InvalidArgumentError(f"A client option is wrong: {fault}.") from fault
    address = parse_url(url)
    return Connecting(Client(tcp_dial(address, chosen.connect_timeout_seconds), chosen))


def _event_time_us(given: dt.datetime | int | None) -> int | None:
    if isinstance(given, dt.datetime):
        given = round(given.timestamp() * 1_000_000)
    if given is not None and (
        not isinstance(given, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        or not -(1 << 63) <= given < 1 << 63
    ):
        raise InvalidArgumentError(
            f"{given!r} is no event time: give a datetime, or microseconds since 1970."
        )
    return given
