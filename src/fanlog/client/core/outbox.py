"""The outgoing records of a client: records collected into batches, batches in flight, and batches
to send again. Pure bookkeeping per partition; the client moves the bytes.

A batch gets its sequence when it is first sent. After a lost connection everything in flight is
sent again as it was, in order, and the broker knows what it has. After a refusal nothing new is
sent until all in flight is answered; then batches that were refused only because of their order go
out again under the number that the broker expects. If the batch was also sent on an earlier
connection, and the broker does not know its producer any more, nobody can tell whether it is
stored. Its publishers get an error that says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import NamedTuple, Protocol

from fanlog.errors import FanlogError, OutOfSequenceError, UnknownProducerError, from_wire
from fanlog.format.batch import encode_batch, retarget
from fanlog.format.codecs import Codec
from fanlog.format.frames import Ack
from fanlog.format.messages import Refused
from fanlog.format.trace_context import (
    TRACED_RECORDS_MAX,
    SampledRecord,
    TraceContext,
    traced_frame,
)

RECORD_OVERHEAD_BYTES = 16


def record_extra_bytes(key: bytes | None, headers: Mapping[str, bytes] | None) -> int:
    """What a record's key, headers and event time take."""
    size = 8 if key is None else 8 + len(key)
    if headers:
        size += sum(3 * len(name) + len(content) + 8 for name, content in headers.items())
    return size


class Waiter(Protocol):
    """Waits for the outcome of one record."""

    def stored(self, offset: int, ack: Ack) -> None: ...
    def failed(self, error: FanlogError) -> None: ...


class PublishSpan(Protocol):
    """The span of one record that is published."""

    def end(self, partition: int | None, offset: int | None, error: FanlogError | None) -> None: ...


class ProducerIdentity(NamedTuple):
    """The producer in the header of a batch."""

    id: int
    epoch: int = 0


class OutgoingRecords:
    """Records that will be one batch. An unused column does not exist."""

    __slots__ = (
        "bytes",
        "error",
        "event_times",
        "headers",
        "keys",
        "marks",
        "priority",
        "since",
        "spans",
        "unwatched",
        "values",
        "waiters",
        "wide",
    )

    def __init__(self, since: float, priority: int = 0) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Mapping[str, bytes] | None] | None = None
        self.event_times: list[int] | None = None
        self.waiters: list[tuple[int, Waiter]] = []
        self.bytes = 0
        self.since = since
        self.error: FanlogError | None = None
        self.unwatched = 0
        self.priority = priority
        # Whether each record must pass `add_columns`, as those with priorities must.
        self.wide = priority > 0
        # The sampled records, and the spans of those that this program publishes itself.
        self.marks: list[SampledRecord] | None = None
        self.spans: list[tuple[int, PublishSpan]] | None = None

    def mark(self, context: TraceContext) -> None:
        """The last record is sampled: the client names it to the broker. The number of such records
        in a batch is bounded."""
        marks = self.marks = self.marks or []
        if len(marks) < TRACED_RECORDS_MAX:
            marks.append(SampledRecord(len(self.values) - 1, context.trace_id, context.span_id))

    def add_span(self, span: PublishSpan) -> None:
        """It ends when the broker has answered for the last record."""
        spans = self.spans = self.spans or []
        spans.append((len(self.values) - 1, span))

    def end_spans(self, ack: Ack | None, error: FanlogError | None = None) -> None:
        spans, self.spans = self.spans, None
        for index, span in spans or ():
            if ack is None:
                span.end(None, None, error)
            else:
                span.end(ack.partition, ack.base_offset + index, error)

    def add_columns(
        self,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        event_time_us: int | None,
        now_us: int,
    ) -> None:
        """Adds what belongs beside the value, which is in already. From then on the batch is
        `wide`: each of its records must come by here."""
        self.wide = True
        count = len(self.values)
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = []
                self.keys.extend(repeat(None, count - 1))
            self.keys.append(key)
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = []
                self.headers.extend(repeat(None, count - 1))
            self.headers.append(headers)
        if event_time_us is not None or self.event_times is not None:
            if self.event_times is None:
                self.event_times = [now_us] * (count - 1)
            self.event_times.append(now_us if event_time_us is None else event_time_us)

    def each(self) -> Iterator[tuple[bytes | None, OutgoingRecords]]:
        """The records one by one, with their keys."""
        waiting: dict[int, list[Waiter]] = {}
        for index, waiter in self.waiters:
            waiting.setdefault(index, []).append(waiter)
        marks = {mark.record: mark for mark in self.marks or ()}
        spans = dict(self.spans or ())
        left = self.bytes
        for i, value in enumerate(self.values):
            one = OutgoingRecords(self.since, self.priority)
            one.values.append(value)
            key = None if self.keys is None else self.keys[i]
            headers = None if self.headers is None else self.headers[i]
            event_time = None if self.event_times is None else self.event_times[i]
            one.bytes = RECORD_OVERHEAD_BYTES + (len(value) if value else 0)
            if key is not None or headers or event_time is not None:
                one.add_columns(key, headers, event_time, 0)
                one.bytes += record_extra_bytes(key, headers)
            if i == len(self.values) - 1:
                # Exact only in sum, which is what counts.
                one.bytes = left
            left -= one.bytes
            one.waiters = [(0, waiter) for waiter in waiting.get(i, ())]
            if i in marks:
                one.marks = [marks[i]._replace(record=0)]
            if i in spans:
                one.spans = [(0, spans[i])]
            yield key, one

    def take(self, one: OutgoingRecords, now_us: int) -> None:
        """Adds a record that `each` has given."""
        self.values += one.values
        if one.wide or self.wide:
            self.add_columns(
                None if one.keys is None else one.keys[0],
                None if one.headers is None else one.headers[0],
                None if one.event_times is None else one.event_times[0],
                now_us,
            )
        self.bytes += one.bytes
        self.waiters += [(len(self.values) - 1, waiter) for _, waiter in one.waiters]
        for mark in one.marks or ():
            self.mark(TraceContext(mark.trace_id, mark.span_id))
        for _, span in one.spans or ():
            self.add_span(span)

    def encode(
        self, topic: int, partition: int, producer: ProducerIdentity, sequence: int, codec: Codec
    ) -> bytes:
        return encode_batch(
            self.values,
            keys=self.keys,
            headers=self.headers,
            event_times_us=self.event_times,
            codec=codec,
            topic=topic,
            partition=partition,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            first_sequence=sequence,
            priority=self.priority,
        )


class Sent:
    """A batch on its way. `attempts` counts the times it went out under this sequence."""

    __slots__ = ("attempts", "data", "records", "sequence")

    def __init__(self, data: bytes, records: OutgoingRecords, sequence: int) -> None:
        self.data = data
        self.records = records
        self.sequence = sequence
        self.attempts = 1

    def wire(self) -> bytes:
        """The bytes to send: the batch, and before it what is sampled in it."""
        marks = self.records.marks
        return self.data if marks is None else traced_frame(marks) + self.data


class PartitionOutbox:
    """Everything that one client has to say to one partition."""

    __slots__ = (
        "again",
        "expected",
        "in_flight",
        "index",
        "next_sequence",
        "open",
        "returned",
        "scheduled",
        "sealed",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.open: OutgoingRecords | None = None
        self.sealed: deque[OutgoingRecords] = deque()
        self.in_flight: deque[Sent] = deque()
        # Refused because of their order: those since the last settling, then all that still wait.
        self.returned: list[Sent] = []
        self.again: deque[Sent] = deque()
        self.next_sequence = 0
        self.expected: int | None = None
        self.scheduled = False

    def begin(self, priority: int, now: float) -> OutgoingRecords:
        """A batch for records of this priority."""
        self.seal()
        self.open = OutgoingRecords(now, priority)
        return self.open

    def seal(self) -> None:
        if self.open is not None:
            self.sealed.append(self.open)
            self.open = None

    def next_to_send(self, topic: int, producer: ProducerIdentity, codec: Codec) -> bytes | None:
        """The next batch for the wire, or None while a refusal settles or nothing waits."""
        if self.expected is not None:
            if self.in_flight:
                return None
            self._line_up()
            self.next_sequence = self.expected
            self.expected = None
        if self.again:
            sent = self.again.popleft()
            sent.sequence = self.next_sequence
            sent.attempts = 1
            sent.data = retarget(sent.data, topic=topic, first_sequence=sent.sequence)
        elif self.sealed:
            records = self.sealed.popleft()
            data = records.encode(topic, self.index, producer, self.next_sequence, codec)
            sent = Sent(data, records, self.next_sequence)
        else:
            return None
        self.next_sequence += len(sent.records.values)
        self.in_flight.append(sent)
        return sent.wire()

    def acked(self, ack: Ack) -> OutgoingRecords | None:
        """The records that the broker has stored; None for an answer to a repeat."""
        sent = self._answered(ack.first_sequence)
        if sent is None:
            return None
        for index, waiter in sent.records.waiters:
            waiter.stored(ack.base_offset + index, ack)
        if sent.records.spans is not None:
            sent.records.end_spans(ack)
        return sent.records

    def refused(self, refused: Refused) -> OutgoingRecords | None:
        """The records that were not stored and will not be; None if they go out again."""
        sent = self._answered(refused.first_sequence)
        if sent is None:
            return None
        if self.expected is None or refused.expected_sequence < self.expected:
            self.expected = refused.expected_sequence
        unknown = refused.code == UnknownProducerError.code
        misplaced = refused.code == OutOfSequenceError.code or (unknown and sent.attempts == 1)
        if misplaced and refused.expected_sequence < sent.sequence:
            self.returned.append(sent)
            return None
        error = from_wire(
            refused.code, refused.message, retry_after_seconds=refused.retry_after_seconds
        )
        if unknown:
            error = UnknownProducerError(
                "The message was sent before the connection was lost, and the broker has "
                "forgotten this producer since: it may or may not be stored. Look for it before "
                "you publish it again."
            )
        fail(sent.records, error)
        return sent.records

    def take_back(self, refused: Refused) -> None:
        """A batch whose topic is gone waits for the next one of that name."""
        sent = self._answered(refused.first_sequence)
        if sent is not None:
            self.returned.append(sent)

    def begin_anew(self) -> None:
        """The log is another one, in which nothing of this producer is: all goes out as if it
        had never been sent."""
        self.returned += self.in_flight
        self.in_flight.clear()
        self._line_up()
        self.expected = None
        self.next_sequence = 0

    def _line_up(self) -> None:
        """Puts what came back before what has waited all the time: it was sent before it."""
        self.returned.sort(key=lambda sent: sent.sequence)
        self.again.extendleft(reversed(self.returned))
        self.returned.clear()

    def resend(self, topic: int) -> list[bytes]:
        """Everything in flight once more, for a new connection."""
        for sent in self.in_flight:
            sent.attempts += 1
            sent.data = retarget(sent.data, topic=topic, first_sequence=sent.sequence)
        return [sent.wire() for sent in self.in_flight]

    def give_up(self, error: FanlogError) -> list[OutgoingRecords]:
        """Fails everything, and returns what that was."""
        in_flight = [sent.records for sent in self.in_flight]
        self.in_flight.clear()
        for some in in_flight:
            fail(some, error)
        return in_flight + self.give_up_unsent(error)

    def give_up_unsent(self, error: FanlogError) -> list[OutgoingRecords]:
        """The same for all but what is in flight, which is still to be answered."""
        self._line_up()
        records = [sent.records for sent in self.again]
        records += self.sealed
        if self.open is not None:
            records.append(self.open)
        self.again.clear()
        self.sealed.clear()
        self.open = None
        for some in records:
            fail(some, error)
        return records

    def overdue(self, before: float) -> list[OutgoingRecords]:
        """Records that have waited since before that time, and whose publishers were not notified
        yet."""
        known = [*self.unanswered(), *([] if self.open is None else [self.open])]
        return [records for records in known if records.since < before and records.waiters]

    def unanswered(self) -> list[OutgoingRecords]:
        """All that is sealed, sent or not, until its outcome is known."""
        sent = [*self.in_flight, *self.returned, *self.again]
        return [*(one.records for one in sent), *self.sealed]

    def _answered(self, sequence: int) -> Sent | None:
        if self.in_flight and self.in_flight[0].sequence == sequence:
            return self.in_flight.popleft()
        for sent in self.in_flight:
            if sent.sequence == sequence:
                self.in_flight.remove(sent)
                return sent
        return None


def fail(records: OutgoingRecords, error: FanlogError) -> None:
    """Tells whoever waits; `unwatched` counts the records that nobody waits for."""
    records.error = error
    if records.spans is not None:
        records.end_spans(None, error)
    records.unwatched = len(records.values) - len(records.waiters)
    for _, waiter in records.waiters:
        waiter.failed(error)
    records.waiters = []
