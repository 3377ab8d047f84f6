"""Everything that a client publishes, without I/O: records into batches by size, batches out,
answers in, and what to send again. Bounded by `buffer_bytes_max`: what is held until the broker has
it.

A shell waits and opens topics. It tells the outbox of answers, losses and new connections, and is
called back for what only it can do: `send_later`, `find_again` and `changed`.

It is long because an answer, a loss and a new connection each meet a batch in any of its states.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from fanlog.client.core.outbox import (
    RECORD_OVERHEAD_BYTES,
    OutgoingRecords,
    PartitionOutbox,
    ProducerIdentity,
    PublishSpan,
    Waiter,
    record_extra_bytes,
)
from fanlog.client.core.outbox_ports import MarkAllowance, OutboxClock, PublishTracer, Wire
from fanlog.client.core.topic_directory import codec_for
from fanlog.client.core.topic_outbox import Settling, TopicOutbox, log_of
from fanlog.client.values import (
    Encoding,
    Headers,
    Value,
    as_bytes,
    is_plain,
    own_headers,
    with_content_type,
)
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

logger = logging.getLogger("fanlog.client")

# The size of a batch with one large message, without the message.
_FRAME_SPARE_BYTES = 4 * 1024


class ClientOutbox(ABC):
    """`identity` is who publishes. `fenced` is why it may not any more."""

    def __init__(
        self, wire: Wire, options: ClientOptions, clock: OutboxClock, identity: ProducerIdentity
    ) -> None:
        if options.producer and not options.idempotent:
            raise InvalidArgumentError(
                "A producer with a name is always idempotent: leave out either `producer` or "
                "`idempotent=False`."
            )
        try:
            self._codec = codec_named(options.compression)
        except FormatError as fault:
            raise InvalidArgumentError(str(fault)) from fault
        self._wire = wire
        self._options = options
        self._now, self._time_ns = clock
        self.encoding: Encoding = options.encoding
        self.topics: dict[str, TopicOutbox] = {}
        self._by_number: dict[int, TopicOutbox] = {}
        self._dropped: dict[str, TopicOutbox] = {}
        self._message_bytes_max = 1 << 31
        self._batch_bytes = options.batch_bytes
        self._batch_records = options.batch_records
        self.buffer_bytes_max = options.buffer_bytes_max
        self.buffered_bytes = 0
        self._unwatched: FanlogError | None = None
        self._unwatched_count = 0
        self.identity = identity
        self.fenced: FencedError | None = None
        # None, unless the program has set up OpenTelemetry.
        self.tracer: PublishTracer | None = None
        self._marks = MarkAllowance()

    # What the shell does

    @abstractmethod
    def send_later(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        """Calls `due` when the batch has lingered."""

    @abstractmethod
    def find_again(self, topic: TopicOutbox) -> None:
        """Looks for a topic that replaces a deleted one. Calls `moved` or `not_found`."""

    @abstractmethod
    def changed(self) -> None:
        """Something was answered, or given up: those who wait look again."""

    # The broker, and its topics

    def greeted(self, welcome: Welcome) -> None:
        """The broker's limits."""
        self._marks.per_second_max = welcome.traced_per_second_max
        self.limit(welcome.frame_bytes_max)

    def limit(self, frame_bytes_max: int) -> None:
        """The broker's largest frame; a batch and a message must fit into it."""
        self._message_bytes_max = frame_bytes_max - _FRAME_SPARE_BYTES
        self._batch_bytes = min(self._options.batch_bytes, self._message_bytes_max // 2)

    def opened(self, opened: TopicOpened) -> TopicOutbox:
        """The outbox of a topic that was just opened."""
        topic = TopicOutbox(opened, codec_for(opened, self._codec))
        topic.message_bytes_max = min(topic.message_bytes_max, self._message_bytes_max)
        topic.plain_bytes_max = min(topic.message_bytes_max, self._batch_bytes - 1)
        former = self._dropped.pop(opened.name, None)
        if former is not None and former.log == topic.log:
            topic.resume_after(former)
        self._by_number[topic.number] = topic
        return topic

    def grew(self, number: int, partitions: int) -> None:
        """A topic has more partitions than it had."""
        topic = self._by_number.get(number)
        if topic is not None:
            topic.grow(partitions)
            self._send_all(topic)

    # Records in

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
            or self.tracer is not None
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
        if self.tracer is not None:
            span, own = self.tracer.publishing(topic.name, own, value)
            wide, size = True, self._traced_size(topic, value, key, own)
        if size >= self._batch_bytes:
            # In its own batch: together with others it might not fit into a frame.
            outbox.seal()
        records = outbox.open
        if records is None or records.priority != priority:
            records = outbox.begin(priority, self._now())
        values = records.values
        values.append(value)
        if waiter is not None:
            # Before anything is sent: in one process the answer may come at once.
            records.waiters.append((len(values) - 1, waiter))
        if wide or records.wide:
            records.add_columns(key, own, event_time_us, self._time_ns() // 1000)
            if span is not None or (own is not None and TRACEPARENT in own):
                self._trace(records, own, span)
        records.bytes += size
        self.buffered_bytes += size
        if records.bytes >= self._batch_bytes or len(values) >= self._batch_records:
            outbox.seal()
            self._send(topic, outbox)
        elif not outbox.scheduled:
            outbox.scheduled = True
            self.send_later(topic, outbox)

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
        if context is not None and context.sampled and self._marks.take(self._now()):
            records.mark(context)
        if span is not None:
            records.add_span(span)

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

    # Batches out

    def due(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        """A batch has lingered long enough."""
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

    def settling(self, names: Iterable[str]) -> Settling:
        """Sends everything put for these topics so far, whose answers can be waited for."""
        since = self._now()
        topics = [self.topics[name] for name in names if name in self.topics]
        for topic in topics:
            for outbox in topic.partitions:
                outbox.seal()
                self._send(topic, outbox)
        return Settling(topics, since)

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
        self.changed()

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
        self.changed()

    def _look_for_another(self, topic: TopicOutbox) -> None:
        """When the broker has answered everything for a deleted topic, another topic may have its
        name."""
        if topic.gone and not any(outbox.in_flight for outbox in topic.partitions):
            self.find_again(topic)

    def moved(self, topic: TopicOutbox, opened: TopicOpened) -> None:
        """Sends what a deleted topic has not stored to the topic that replaces it."""
        if self.is_moving(topic):
            self._by_number.pop(topic.number, None)
            self._by_number[opened.number] = topic
            topic.move_to(opened, self._time_ns() // 1000)
            self._send_all(topic)
            self.changed()

    def opened_again(self, topic: TopicOutbox, opened: TopicOpened) -> None:
        """The topic may have grown. Or another one has its name now: then it `is_moving` there."""
        if log_of(opened) == topic.log:
            self.grew(opened.number, opened.settings.partitions)
        else:
            topic.gone = True
            self.replaced(topic, opened)

    def replaced(self, topic: TopicOutbox, opened: TopicOpened) -> None:
        """Batches in flight are answered first."""
        self._look_for_another(topic)

    def is_moving(self, topic: TopicOutbox) -> bool:
        """Whether a deleted topic waits for the one that replaces it."""
        return topic.gone and self.topics.get(topic.name) is topic

    def not_found(self, topic: TopicOutbox, error: FanlogError) -> None:
        """No topic replaces a deleted one: all messages that it has not stored have failed. If the
        connection was lost, it is too early to say: a new one opens all topics again."""
        if topic.gone and not isinstance(error, LinkError):
            self._drop(topic, error)
            self._dropped.pop(topic.name, None)

    def _gone(self, lost: list[OutgoingRecords]) -> None:
        for records in lost:
            self.buffered_bytes -= records.bytes
            if records.unwatched and records.error is not None:
                self._unwatched = records.error
                self._unwatched_count += records.unwatched
                logger.error("%d messages were not stored: %s", records.unwatched, records.error)

    # The connection came back, or never will

    def registering(self) -> RegisterProducer | None:
        """The request for a producer's name, if it has one: for a new epoch the first time, and for
        the same one after that."""
        name = self._options.producer
        if not name or self.fenced is not None:
            return None
        return RegisterProducer(name, *self.identity)

    def registered(self, given: ProducerRegistered | FencedError) -> None:
        """The broker says who a named producer is, or that another client has its name."""
        if isinstance(given, FencedError):
            self._fence(given.message)
        else:
            self.identity = ProducerIdentity(given.id, given.epoch)

    def give_up_fenced(self, topics: list[TopicOutbox]) -> None:
        """Nothing is sent again for a producer whose name another client has. `topics` is
        `all_topics` from before it was registered: a fence takes topics out of one list, and a
        resume that failed out of the other."""
        if self.fenced is not None:
            error = FencedError(
                f"{self.fenced} This message was on its way when the connection was lost: it "
                "may or may not be stored."
            )
            for topic in dict.fromkeys([*topics, *self.all_topics()]):
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
        self.changed()
        return self.fenced

    def lost(self) -> list[TopicOutbox]:
        """The connection is another one, on which these topics have to be opened again."""
        self._by_number.clear()
        return list(self.topics.values())

    def reopened(self, topic: TopicOutbox, opened: TopicOpened) -> None:
        """A topic was opened on a new connection: what was not acknowledged goes out, in order."""
        self._by_number[opened.number] = topic
        moved = topic.move_to(opened, self._time_ns() // 1000)
        self.changed()
        if moved:
            return
        for outbox in topic.partitions:
            for data in outbox.resend(topic.number):
                self._wire.write(data)

    def not_reopened(self, topic: TopicOutbox, error: FanlogError) -> None:
        """A topic is not there on a new connection: it is not created again, and its messages have
        failed. Raises the error if the connection was lost again."""
        if isinstance(error, LinkError):
            raise error
        self._drop(topic, error)

    def resumed(self) -> None:
        for topic in self.topics.values():
            self._send_all(topic)

    def check_overdue(self) -> None:
        """Fails records after their timeout: their outcome is unknown."""
        timeout = self._options.delivery_timeout_seconds
        before = self._now() - timeout
        for topic in self.all_topics():
            # The search for the new topic of the name may have timed out.
            self._look_for_another(topic)
            for outbox in topic.partitions:
                for records in outbox.overdue(before):
                    waiters, records.waiters = records.waiters, []
                    error = RequestTimeoutError(
                        f"No acknowledgement from {topic.name!r} within {timeout} s. The "
                        "outcome is unknown; the client keeps trying."
                    )
                    for _, waiter in waiters:
                        waiter.failed(error)

    def give_up(self, error: FanlogError) -> None:
        for topic in self.all_topics():
            self._drop(topic, error)

    def all_topics(self) -> list[TopicOutbox]:
        """Also topics that are no longer published to, but wait for answers."""
        return list(dict.fromkeys([*self.topics.values(), *self._by_number.values()]))

    def _drop(self, topic: TopicOutbox, error: FanlogError) -> None:
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self._dropped[topic.name] = topic
        for outbox in topic.partitions:
            self._gone(outbox.give_up(error))
        topic.before.clear()
        self.changed()
