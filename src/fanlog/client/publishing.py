"""Publishing: records become batches by linger and size, batches are sent, acknowledgements arrive.
`buffer_bytes_max` limits the bytes that are kept until the broker has them."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypedDict, TypeVar

import msgspec

from fanlog.client.outbox import (
    RECORD_OVERHEAD_BYTES,
    OutgoingRecords,
    PartitionOutbox,
    ProducerIdentity,
    PublishSpan,
    Waiter,
    record_extra_bytes,
)
from fanlog.client.topic_outbox import TopicOutbox
from fanlog.client.tracing import maybe_tracer
from fanlog.client.values import Encoding, Headers, Value, as_bytes, is_plain, with_content_type
from fanlog.config import ClientOptions
from fanlog.errors import (
    FanlogError,
    FencedError,
    FormatError,
    InvalidArgumentError,
    LinkError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from fanlog.format.codecs import codec_named
from fanlog.format.frames import Ack
from fanlog.format.messages import (
    ProducerRegistered,
    Refused,
    RegisterProducer,
    TopicOpened,
    Welcome,
)
from fanlog.format.trace_context import TRACEPARENT, TRACESTATE, context_of
from fanlog.model import Durability, DurabilityName, Receipt

logger = logging.getLogger("fanlog.client")

T = TypeVar("T")
TopicOpener = Callable[[str], Awaitable[TopicOpened]]
Register = Callable[[RegisterProducer], Awaitable[ProducerRegistered]]


class PublishOptions(TypedDict, total=False):
    """The arguments of `publish` besides the value."""

    key: bytes | str | None
    headers: Headers | None
    event_time: dt.datetime | int | None
    partition: int | None
    priority: int
    encoding: Encoding | None
    timeout_seconds: float | None


# The size of a batch with one large message, without the message.
_FRAME_SPARE_BYTES = 4 * 1024


class _Publish:
    """Waits for one record's acknowledgement."""

    __slots__ = ("future", "topic")

    def __init__(self, future: asyncio.Future[Receipt], topic: str) -> None:
        self.future = future
        self.topic = topic

    def stored(self, offset: int, ack: Ack) -> None:
        if not self.future.done():
            self.future.set_result(
                Receipt(
                    self.topic,
                    ack.partition,
                    offset,
                    _DURABILITY[ack.durability],
                    ack.append_time_us,
                    bool(ack.duplicate),
                )
            )

    def failed(self, error: FanlogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


_DURABILITY: dict[int, DurabilityName] = {
    Durability.MEMORY: "memory",
    Durability.OS: "os",
    Durability.FSYNC: "fsync",
}


class Wire(Protocol):
    """The connection, as far as publishing needs it."""

    @property
    def ready(self) -> bool: ...
    def write(self, data: bytes) -> None: ...


class Publisher:
    def __init__(
        self,
        wire: Wire,
        options: ClientOptions,
        open_topic: TopicOpener,
        find_topic: TopicOpener | None = None,
    ) -> None:
        self._wire = wire
        self._options = options
        self.encoding: Encoding = options.encoding
        self._open_topic = open_topic
        # For a deleted topic: publishing must not create it again.
        self._find_topic = find_topic or open_topic
        self._moving: dict[TopicOutbox, asyncio.Task[None]] = {}
        try:
            self._codec = codec_named(options.compression)
        except FormatError as fault:
            raise InvalidArgumentError(str(fault)) from fault
        self.topics: dict[str, TopicOutbox] = {}
        self._by_number: dict[int, TopicOutbox] = {}
        self._opening: dict[str, asyncio.Future[TopicOutbox]] = {}
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._answers: asyncio.Event = asyncio.Event()
        self._message_bytes_max = 1 << 31
        self._batch_bytes = options.batch_bytes
        self._batch_records = options.batch_records
        self.buffer_bytes_max = options.buffer_bytes_max
        self._unwatched: FanlogError | None = None
        self._unwatched_count = 0
        self._dropped: dict[str, TopicOutbox] = {}
        if options.producer and not options.idempotent:
            raise InvalidArgumentError(
                "A producer with a name is always idempotent: leave out either `producer` or "
                "`idempotent=False`."
            )
        # A named producer gets its id from the broker before anything is sent. 0: not numbered.
        unnamed = options.idempotent and not options.producer
        self.identity = ProducerIdentity(secrets.randbits(63) | 1 if unnamed else 0)
        self.fenced: FencedError | None = None
        self.buffered_bytes = 0
        # None, unless the program has set up OpenTelemetry.
        self._tracer = maybe_tracer()
        # Sampled records that the broker accepts in the rest of this second.
        self._marks_max = self._marks_left = 0
        self._marks_second = 0

    def greeted(self, welcome: Welcome) -> None:
        """The broker's limits."""
        self._tracer = maybe_tracer()
        self._marks_max = welcome.traced_per_second_max
        self.limit(welcome.frame_bytes_max)

    def limit(self, frame_bytes_max: int) -> None:
        """The broker's largest frame; a batch and a message must fit into it."""
        self._message_bytes_max = frame_bytes_max - _FRAME_SPARE_BYTES
        self._batch_bytes = min(self._options.batch_bytes, self._message_bytes_max // 2)

    # In

    async def topic(self, name: str) -> TopicOutbox:
        if self.fenced is not None:
            raise FencedError(str(self.fenced))
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        return await asyncio.shield(self._begin_to_open(name))

    def _begin_to_open(self, name: str) -> asyncio.Future[TopicOutbox]:
        def opened(opening: asyncio.Future[TopicOutbox]) -> None:
            self._opening.pop(name, None)
            if not opening.cancelled() and opening.exception() is None:
                self.topics[name] = opening.result()

        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = asyncio.ensure_future(self._open(name))
            opening.add_done_callback(opened)
        return opening

    async def put_when_opened(
        self, name: str, partition: int | None, put: Callable[[TopicOutbox], T]
    ) -> tuple[T] | None:
        """Opens a topic and puts a record, in the order of the calls. None if it can't be put yet:
        there is no room, or no such partition yet."""
        turn: asyncio.Future[tuple[T] | None] = asyncio.get_running_loop().create_future()

        def opened(opening: asyncio.Future[TopicOutbox]) -> None:
            if turn.done():
                return
            if opening.cancelled():
                turn.cancel()
                return
            try:
                topic = opening.result()
                there = partition is None or partition < len(topic.partitions)
                room = self.buffered_bytes < self.buffer_bytes_max
                turn.set_result((put(topic),) if there and room else None)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                turn.set_exception(error)

        # These are called one right after the other, in the order in which they were added.
        self._begin_to_open(name).add_done_callback(opened)
        return await turn

    async def _open(self, name: str) -> TopicOutbox:
        opened = await self._open_topic(name)
        policy = opened.settings.compression
        codec = self._codec if policy == "producer" else codec_named(policy)
        topic = TopicOutbox(opened, codec)
        topic.message_bytes_max = min(topic.message_bytes_max, self._message_bytes_max)
        topic.plain_bytes_max = min(topic.message_bytes_max, self._batch_bytes - 1)
        former = self._dropped.pop(name, None)
        if former is not None and former.log == topic.log:
            topic.go_on_after(former)
        self._by_number[topic.number] = topic
        return topic

    def grew(self, number: int, partitions: int) -> None:
        """A topic has more partitions than it had."""
        topic = self._by_number.get(number)
        if topic is not None:
            topic.grow(partitions)
            self._send_all(topic)

    async def look_again(self, topic: TopicOutbox) -> None:
        """Asks how many partitions there are: more than were heard of, perhaps."""
        opened = await self._open_topic(topic.name)
        self.grew(opened.number, opened.settings.partitions)

    async def room(self) -> None:
        """Waits until the buffer has room again."""
        while self.buffered_bytes >= self.buffer_bytes_max:
            self._room.clear()
            await self._room.wait()

    def put_plain(self, topic: TopicOutbox, value: bytes) -> None:
        """`put` of a value alone, kept short: most messages have nothing else. A record that starts
        or widens a batch, or is large, takes the long path."""
        outbox = topic.only
        records = None if outbox is None else outbox.open
        size = len(value) + RECORD_OVERHEAD_BYTES
        if (
            outbox is None
            or records is None
            or records.wide
            or size > topic.plain_bytes_max
            or self._tracer is not None
        ):
            self.put(topic, value)
            return
        values = records.values
        values.append(value)
        records.bytes += size
        self.buffered_bytes += size
        if records.bytes >= self._batch_bytes or len(values) >= self._batch_records:
            outbox.seal()
            self._send(topic, outbox)

    def put(  # noqa: PLR0912 - each message comes by here, and calls are what it costs
        self,
        topic: TopicOutbox,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time_us: int | None = None,
        *,
        partition: int | None = None,
        priority: int = 0,
        waiter: Waiter | None = None,
    ) -> None:
        """Adds a record to a batch, which is sent by itself; `waiter` gets the outcome. All records
        of a batch have the same priority."""
        if type(value) is not bytes and value is not None:
            if type(value) is str:
                value = as_bytes(value, "value")
            else:
                value, headers = self._as_stored(value, headers)
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        own = own_headers(headers) if headers else None
        size = RECORD_OVERHEAD_BYTES + (len(value) if value else 0)
        wide = key is not None or own is not None or event_time_us is not None
        if wide:
            size += record_extra_bytes(key, own)
        if size > topic.message_bytes_max:
            topic.check_size(size)
        if partition is not None:
            outbox = topic.partition(partition)
        elif topic.only is not None:
            outbox = topic.only
        else:
            outbox = topic.pick(key)
        span = None
        if self._tracer is not None:
            span, own = self._tracer.publishing(topic.name, own, value)
            wide, size = True, self._traced_size(topic, value, key, own)
        if size >= self._batch_bytes:
            # In its own batch: together with others it might not fit into a frame.
            outbox.seal()
        records = outbox.open
        if records is None or records.priority != priority:
            records = outbox.begin(priority)
        values = records.values
        values.append(value)
        if waiter is not None:
            # Before anything is sent: in one process the answer may come at once.
            records.waiters.append((len(values) - 1, waiter))
        if wide or records.wide:
            records.add_columns(key, own, event_time_us, time.time_ns() // 1000)
            if span is not None or (own is not None and TRACEPARENT in own):
                self._trace(records, own, span)
        records.bytes += size
        self.buffered_bytes += size
        if records.bytes >= self._batch_bytes or len(values) >= self._batch_records:
            outbox.seal()
            self._send(topic, outbox)
        elif not outbox.scheduled:
            outbox.scheduled = True
            self._schedule(topic, outbox)

    def _traced_size(
        self,
        topic: TopicOutbox,
        value: bytes | None,
        key: bytes | None,
        headers: dict[str, bytes],
    ) -> int:
        """The size of a record with its trace context. One that only fits without goes without."""
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + record_extra_bytes(key, headers)
        if size > topic.message_bytes_max:
            headers.pop(TRACEPARENT, None)
            headers.pop(TRACESTATE, None)
            size = RECORD_OVERHEAD_BYTES + len(value or b"") + record_extra_bytes(key, headers)
        return size

    def _trace(
        self, records: OutgoingRecords, headers: dict[str, bytes] | None, span: PublishSpan | None
    ) -> None:
        """The last record belongs to a trace: the broker gets its context if it is sampled."""
        context = context_of(headers)
        if context is not None and context.sampled and self._may_mark():
            records.mark(context)
        if span is not None:
            records.add_span(span)

    def _may_mark(self) -> bool:
        """Whether the broker accepts one more sampled record. A fast publisher that samples much
        would keep it busy with nothing else."""
        second = int(time.monotonic())
        if second != self._marks_second:
            self._marks_second, self._marks_left = second, self._marks_max
        self._marks_left -= 1
        return self._marks_left >= 0

    def check(
        self,
        topic: TopicOutbox,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
    ) -> None:
        """Raises the errors of `put`, and puts nothing: for messages that are published
        together."""
        own = own_headers(headers) if headers else None
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + record_extra_bytes(key, own)
        if size > topic.message_bytes_max:
            topic.check_size(size)
        if partition is not None:
            topic.partition(partition)

    def _as_stored(self, value: Value, headers: Headers | None) -> tuple[bytes, Headers | None]:
        if is_plain(value):
            return as_bytes(value, "value"), headers
        return with_content_type(value, headers, self.encoding)

    def publish(
        self,
        topic: TopicOutbox,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time_us: int | None = None,
        *,
        partition: int | None = None,
        priority: int = 0,
    ) -> asyncio.Future[Receipt]:
        """Adds a record whose outcome the future will be."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        waiter = _Publish(future, topic.name)
        self.put(
            topic,
            value,
            key,
            headers,
            event_time_us,
            partition=partition,
            priority=priority,
            waiter=waiter,
        )
        return future

    # Out

    def _schedule(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        loop = asyncio.get_running_loop()
        if self._options.linger_ms > 0:
            loop.call_later(self._options.linger_ms / 1000, self._due, topic, outbox)
        else:
            loop.call_soon(self._due, topic, outbox)

    def _due(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        outbox.scheduled = False
        self._send(topic, outbox)

    def _send(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        """Sends the batches that may go. While enough is in flight, records are collected."""
        if not self._wire.ready or topic.gone:
            return
        while len(outbox.in_flight) < self._options.batches_in_flight:
            if topic.before and topic.holds_back(outbox):
                return
            if not outbox.sealed and not outbox.scheduled and not outbox.again:
                outbox.seal()
            data = outbox.next_to_send(topic.number, self.identity, topic.codec)
            if data is None:
                return
            self._wire.write(data)

    def _send_all(self, topic: TopicOutbox) -> None:
        for outbox in topic.partitions:
            self._send(topic, outbox)

    def flush_soon(self) -> None:
        """Sends everything that lingers."""
        for topic in list(self.topics.values()):
            for outbox in topic.partitions:
                if outbox.open is not None:
                    outbox.scheduled = False
                    self._send(topic, outbox)

    async def flush(self) -> None:
        """Waits until the broker has answered everything. Raises the errors of fire-and-forget
        records since the last call."""
        self.flush_soon()
        while self.buffered_bytes > 0:
            self._idle.clear()
            await self._idle.wait()
        self.raise_unwatched()

    async def settle(self, names: Iterable[str]) -> None:
        """Waits until the broker has answered everything put for these topics so far: later
        requests come after that."""
        now = time.monotonic()
        topics = [self.topics[name] for name in names if name in self.topics]
        for topic in topics:
            for outbox in topic.partitions:
                outbox.seal()
                self._send(topic, outbox)
        timeout = self._options.delivery_timeout_seconds
        try:
            async with asyncio.timeout(timeout):
                while any(topic.waits_since(now) for topic in topics):
                    self._answers.clear()
                    await self._answers.wait()
        except TimeoutError:
            raise RequestTimeoutError(
                f"What was sent before was not acknowledged within {timeout} s, and nothing else "
                "was done. The client goes on trying: try again when the broker runs."
            ) from None

    def raise_unwatched(self) -> None:
        """Raises the errors of fire-and-forget messages since the last call."""
        error, count = self._unwatched, self._unwatched_count
        self._unwatched, self._unwatched_count = None, 0
        if error is not None:
            raise type(error)(f"{count} messages were not stored: {error}")

    def forget(self, name: str) -> None:
        """Closes a topic that is no longer published to. It is kept while answers are pending."""
        topic = self.topics.get(name)
        if topic is None or any(p.open is not None or p.unanswered() for p in topic.partitions):
            return
        del self.topics[name]
        self._by_number.pop(topic.number, None)

    # Answers

    def acked(self, acks: list[Ack]) -> None:
        touched: dict[PartitionOutbox, TopicOutbox] = {}
        for ack in acks:
            topic = self._by_number.get(ack.topic)
            if topic is None or ack.partition >= len(topic.partitions):
                continue
            outbox = topic.partitions[ack.partition]
            records = outbox.acked(ack)
            if records is not None:
                self.buffered_bytes -= records.bytes
                touched[outbox] = topic
                if topic.before and topic.answered((records,)):
                    touched.update(dict.fromkeys(topic.partitions, topic))
        for outbox, topic in touched.items():
            self._send(topic, outbox)
            if topic.gone:
                self._look_for_another(topic)
        self._tell()

    def refused(self, refused: Refused) -> None:
        topic = self._by_number.get(refused.number)
        if topic is None or refused.partition >= len(topic.partitions):
            return
        outbox = topic.partitions[refused.partition]
        if refused.code == FencedError.code:
            fenced = self._fence(refused.message)
            refused = msgspec.structs.replace(refused, message=str(fenced))
        if refused.code == TopicNotFoundError.code:
            topic.gone = True
            outbox.take_back(refused)
        else:
            records = outbox.refused(refused)
            if records is not None:
                self._gone([records])
                if topic.answered((records,)):
                    self._send_all(topic)
        self._look_for_another(topic)
        self._send(topic, outbox)
        self._tell()

    def _look_for_another(self, topic: TopicOutbox) -> None:
        """When the broker has answered everything for a deleted topic, another topic may have its
        name."""
        waits = topic in self._moving or any(outbox.in_flight for outbox in topic.partitions)
        if topic.gone and not waits:
            moving = self._moving[topic] = asyncio.ensure_future(self._move(topic))
            moving.add_done_callback(lambda _: self._moving.pop(topic, None))

    async def _move(self, topic: TopicOutbox) -> None:
        """Sends the unstored records of a deleted topic to the new one of its name. Without one,
        they have failed."""
        try:
            opened = await self._find_topic(topic.name)
        except FanlogError as error:
            # A new connection opens all topics again.
            if topic.gone and not isinstance(error, LinkError):
                self._drop(topic, error)
                self._dropped.pop(topic.name, None)
            return
        if topic.gone and self.topics.get(topic.name) is topic:
            self._by_number.pop(topic.number, None)
            self._by_number[opened.number] = topic
            topic.move_to(opened)
            self._send_all(topic)

    def _gone(self, lost: list[OutgoingRecords]) -> None:
        for records in lost:
            self.buffered_bytes -= records.bytes
            if records.unwatched and records.error is not None:
                self._unwatched = records.error
                self._unwatched_count += records.unwatched
                logger.error("%d messages were not stored: %s", records.unwatched, records.error)

    def _tell(self) -> None:
        self._answers.set()
        if self.buffered_bytes < self.buffer_bytes_max:
            self._room.set()
        if self.buffered_bytes <= 0:
            self._idle.set()

    # The connection came back, or never will

    async def register(self, ask: Register) -> None:
        """Registers the producer's name, if it has one: with a new epoch the first time, and with
        the same one after that."""
        name = self._options.producer
        # Before: a fence takes topics out of one list, and a resume that failed out of the other.
        topics = self._all_topics()
        if name and self.fenced is None:
            try:
                given = await ask(RegisterProducer(name, *self.identity))
            except FencedError as error:
                self._fence(error.message)
            else:
                self.identity = ProducerIdentity(given.id, given.epoch)
        if self.fenced is not None:
            error = FencedError(
                f"{self.fenced} This message was on its way when the connection was lost: it "
                "may or may not be stored."
            )
            for topic in dict.fromkeys([*topics, *self._all_topics()]):
                self._drop(topic, error)

    def _fence(self, reason: str) -> FencedError:
        """Fails everything published from now on, and records that were not sent. Records in flight
        get their own answers."""
        if self.fenced is None:
            name = self._options.producer
            self.fenced = FencedError(
                f"Another client registered the producer's name {name!r}: this one can't publish "
                "any more. Connect again to take the name back."
                if name
                else reason
            )
            logger.error("%s", self.fenced)
        topics, self.topics = self.topics, {}
        for topic in topics.values():
            for outbox in topic.partitions:
                self._gone(outbox.give_up_unsent(self.fenced))
        self._tell()
        return self.fenced

    async def resume(self, open_topic: TopicOpener) -> None:
        """Opens the topics again and sends everything that was not acknowledged, in order."""
        self._by_number.clear()
        for topic in list(self.topics.values()):
            try:
                opened = await open_topic(topic.name)
            except FanlogError as error:
                if error.code in ("connection_lost", "timeout", "closed"):
                    raise
                self._drop(topic, error)
                continue
            self._by_number[opened.number] = topic
            self._resume_topic(topic, opened)

    def _resume_topic(self, topic: TopicOutbox, opened: TopicOpened) -> None:
        if topic.move_to(opened):
            return
        for outbox in topic.partitions:
            for data in outbox.resend(topic.number):
                self._wire.write(data)

    def resumed(self) -> None:
        for topic in self.topics.values():
            self._send_all(topic)

    def check_overdue(self) -> None:
        """Fails records after their timeout: their outcome is unknown."""
        timeout = self._options.delivery_timeout_seconds
        before = time.monotonic() - timeout
        for topic in self._all_topics():
            # The search for the new topic of the name may have timed out.
            self._look_for_another(topic)
            for outbox in topic.partitions:
                for records in outbox.overdue(before):
                    waiters, records.waiters = records.waiters, []
                    error = RequestTimeoutError(
                        f"No acknowledgement from {topic.name!r} within {timeout} s. The outcome "
                        "is unknown; the client goes on trying."
                    )
                    for _, waiter in waiters:
                        waiter.failed(error)

    def give_up(self, error: FanlogError) -> None:
        for topic in self._all_topics():
            self._drop(topic, error)

    def _all_topics(self) -> list[TopicOutbox]:
        """Also topics that are no longer published to, but wait for answers."""
        return list(dict.fromkeys([*self.topics.values(), *self._by_number.values()]))

    def _drop(self, topic: TopicOutbox, error: FanlogError) -> None:
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self._dropped[topic.name] = topic
        for outbox in topic.partitions:
            self._gone(outbox.give_up(error))
        topic.before.clear()
        self._tell()


def own_headers(headers: Headers) -> dict[str, bytes]:
    for name in headers:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(f"A header's name is a str, not {type(name).__name__}.")
    return {name: as_bytes(value, "header") for name, value in headers.items()}
