"""The asyncio client: one connection that comes back by itself, with publishing, subscriptions and
requests on it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections import OrderedDict
from collections.abc import Generator
from types import TracebackType
from typing import Any

import msgspec

from fanlog.client import core
from fanlog.client.core import POLICIES, Event
from fanlog.client.link import Dial, parse_url, tcp_dial
from fanlog.client.message import MessageBatch
from fanlog.client.publishing import Headers, Publisher, TopicOutbox, Value
from fanlog.client.session import Session, SessionHooks
from fanlog.client.starts import StartLike, as_start, topic_name, topic_settings
from fanlog.client.subscription import OnGap, Subscription
from fanlog.config import ClientOptions
from fanlog.errors import (
    ConnectionLostError,
    FanlogError,
    InvalidArgumentError,
    LinkError,
    PartitionNotFoundError,
    RequestTimeoutError,
)
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.patterns import is_pattern
from fanlog.model import Receipt, TopicInfo, TopicSettings

logger = logging.getLogger("fanlog.client")

_SHARED_BYTES_MAX = 4 * 1024 * 1024


class Client:
    """A connection to a broker. Made by `fanlog.connect`; close it, or use `async with`."""

    def __init__(self, dial: Dial, options: ClientOptions, *, verify: bool = True) -> None:
        self._options = options
        self._verify = verify
        hooks = SessionHooks(
            resume=self._resume,
            resumed=self._resumed,
            heard=self._heard,
            tick=self._tick,
            gave_up=self._gave_up,
        )
        self._session = Session(hooks, dial, options, verify=verify)
        self._subscriptions: dict[int, Subscription] = {}
        self._subscription_number = 0
        self._numbers: dict[str, int] = {}
        self._shared: OrderedDict[tuple[int, int, int], MessageBatch] = OrderedDict()
        self._shared_bytes = 0
        self._publisher = Publisher(self._session, options, self._open_topic)

    # The connection

    async def open(self) -> None:
        """Connects for the first time; a failure is raised, not retried."""
        await self._session.open()

    async def close(self, *, flush: bool = True) -> None:
        """Waits for what was published, then says goodbye."""
        try:
            if flush and self._session.ready:
                async with asyncio.timeout(self._options.request_timeout_seconds):
                    await self._publisher.flush()
        except TimeoutError:
            raise RequestTimeoutError("Not everything was acknowledged before the close.") from None
        finally:
            await self._session.shut()
        if flush:
            self._publisher.raise_unwatched()

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
        return self._session.ready

    @property
    def reconnects(self) -> int:
        """How often a lost connection was brought back."""
        return self._session.reconnects

    @property
    def welcome(self) -> messages.Welcome | None:
        """What the broker said of itself when it greeted."""
        return self._session.welcome

    # What the session brings

    async def _resume(self, welcome: messages.Welcome) -> None:
        self._numbers.clear()
        self._publisher.limit(welcome.frame_bytes_max)
        await self._publisher.resume(self._reopen_topic)
        for subscription in list(self._subscriptions.values()):
            if subscription.attached:
                await self._resubscribe(subscription)

    async def _resubscribe(self, subscription: Subscription) -> None:
        try:
            await self.attach(subscription, subscription.resume_request())
        except FanlogError as error:
            if isinstance(error, LinkError):
                raise
            self._subscriptions.pop(subscription.key, None)
            subscription.end(error)

    def _resumed(self) -> None:
        self._publisher.resumed()

    def _tick(self) -> None:
        self._publisher.check_overdue()

    def _gave_up(self, error: FanlogError) -> None:
        self._publisher.give_up(error)
        for subscription in list(self._subscriptions.values()):
            subscription.end(error)

    def _heard(self, event: Event) -> None:
        match event:
            case core.Delivered(key, batch):
                subscription = self._subscriptions.get(key)
                if subscription is not None:
                    subscription.delivered(batch)
            case core.Acked(acks):
                self._publisher.acked(acks)
            case core.Refused(refused):
                self._publisher.refused(refused)
            case core.Missed(key, gap) if key in self._subscriptions:
                self._subscriptions[key].missed_some(gap)
            case core.TopicJoined(key, joined) if key in self._subscriptions:
                self._subscriptions[key].joined(joined)
            case core.TopicLeft(key, left) if key in self._subscriptions:
                self._subscriptions[key].left(left)
            case core.Failed(_, error, key) if key in self._subscriptions:
                self._subscriptions.pop(key).end(error)
            case _:
                pass

    def write(self, data: bytes) -> None:
        self._session.write(data)

    # Publishing

    async def _open_topic(self, name: str) -> messages.TopicOpened:
        return await self._session.ask(
            FrameKind.OPEN_TOPIC, messages.OpenTopic(topic_name(name)), messages.TopicOpened
        )

    async def _reopen_topic(self, name: str) -> messages.TopicOpened:
        """The same while a new connection is being made ready."""
        payload = await self._session.request_now(
            FrameKind.OPEN_TOPIC, messages.OpenTopic(topic_name(name))
        )
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
            if self._session.closed is not None:
                raise self._session.closed
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
            target=topic_name(topic),
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

        ask = self._session.request if wanted.resume is None else self._session.request_now
        self._subscriptions[subscription.key] = subscription
        try:
            await ask(FrameKind.SUBSCRIBE, wanted, aux=subscription.key, on_answer=joined)
        except BaseException:
            if wanted.resume is None:
                self._subscriptions.pop(subscription.key, None)
            raise

    async def detach(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.key, None) is not None and self._session.ready:
            with contextlib.suppress(LinkError):
                await self._session.request_now(
                    FrameKind.UNSUBSCRIBE, messages.Goodbye(), aux=subscription.key
                )

    def decoded(self, batch: Batch) -> MessageBatch:
        """The batch, decoded once for all subscriptions of this client that get it."""
        header = batch.header
        place = (header.topic, header.partition, header.base_offset)
        shared = self._shared.get(place)
        if shared is None or shared.batch.header.header_crc != header.header_crc:
            if shared is not None:
                self._shared_bytes -= shared.batch.header.length
            shared = self._shared[place] = MessageBatch(batch)
            self._shared_bytes += header.length
            while self._shared_bytes > _SHARED_BYTES_MAX and len(self._shared) > 1:
                _, oldest = self._shared.popitem(last=False)
                self._shared_bytes -= oldest.batch.header.length
        return shared

    async def commit(self, durable: str, positions: tuple[messages.Position, ...]) -> None:
        """Moves a durable name to these positions."""
        await self._session.request(FrameKind.COMMIT, messages.Commit(durable, positions))

    async def committed(self, durable: str) -> tuple[messages.Position, ...]:
        """Where a durable name would go on."""
        wanted = messages.Committed(durable)
        return (await self._session.ask(FrameKind.COMMITTED, wanted, messages.Positions)).positions

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
            await self._session.connection()
            known = self._numbers.get(topic)
            try:
                number = await self._number_of(topic) if known is None else known
                wanted = messages.Fetch(number, partition, offset, bytes_max, wait_ms)
                payload = await self._session.request_now(FrameKind.FETCH, wanted)
            except ConnectionLostError:
                if not self._session.comes_back:
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
        wanted = messages.OpenTopic(topic_name(topic), create=False)
        payload = await self._session.request_now(FrameKind.OPEN_TOPIC, wanted)
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
        wanted = messages.CreateTopic(topic_name(name), topic_settings(settings, given), exist_ok)
        payload = await self._session.request(FrameKind.CREATE_TOPIC, wanted, repeat=exist_ok)
        return decode(TopicInfo, payload)

    async def topics(self, pattern: str = ">", *, internal: bool = False) -> list[TopicInfo]:
        wanted = messages.ListTopics(pattern, internal)
        return await self._session.ask(FrameKind.LIST_TOPICS, wanted, list[TopicInfo])

    async def describe_topic(self, name: str) -> TopicInfo:
        return await self._session.ask(
            FrameKind.DESCRIBE_TOPIC, messages.NamedTopic(topic_name(name)), TopicInfo
        )

    async def delete_topic(self, name: str) -> None:
        await self._session.request(
            FrameKind.DELETE_TOPIC, messages.NamedTopic(topic_name(name)), repeat=False
        )

    async def find_offsets(self, topic: str, start: StartLike) -> dict[int, int]:
        """The offset of each partition where `start` lies."""
        wanted = messages.FindOffsets(topic_name(topic), as_start(start))
        found = await self._session.ask(FrameKind.FIND_OFFSETS, wanted, messages.Positions)
        return {position.partition: position.offset for position in found.positions}

    async def status(self) -> messages.BrokerStatus:
        return await self._session.ask(FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus)


class Connecting:
    """What `connect` returns: await it, or enter it with `async with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"No {name!r} yet: this is a client that still has to connect. Write `async with "
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
