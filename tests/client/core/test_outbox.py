"""The outbox without a socket: what is sent, what is sent again, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.broker.messages.producers import Producer
from fanlog.client.core.outbox import OutgoingRecords, PartitionOutbox, ProducerIdentity
from fanlog.errors import (
    ClosedError,
    FanlogError,
    OutOfSequenceError,
    OverloadedError,
    UnknownProducerError,
)
from fanlog.format.batch import Batch
from fanlog.format.codecs import Codec
from fanlog.format.frames import Ack
from fanlog.format.messages import Refused

TOPIC, PRODUCER = 5, ProducerIdentity(77, 3)


@dataclass(eq=False)
class Outcome:
    """Who waits for one record."""

    offset: int | None = None
    error: FanlogError | None = None

    def stored(self, offset: int, ack: Ack) -> None:
        assert self.offset is None
        assert self.error is None
        self.offset = offset

    def failed(self, error: FanlogError) -> None:
        assert self.offset is None
        assert self.error is None
        self.error = error


def is_empty(outbox: PartitionOutbox) -> bool:
    waiting = (outbox.open, outbox.sealed, outbox.in_flight, outbox.returned, outbox.again)
    return not any(waiting)


def records(*values: bytes, since: float = 0.0) -> OutgoingRecords:
    out = OutgoingRecords(since)
    for i, value in enumerate(values):
        out.values.append(value)
        out.waiters.append((i, Outcome()))
    return out


def outcomes(some: OutgoingRecords) -> list[Outcome]:
    return [waiter for _, waiter in some.waiters if isinstance(waiter, Outcome)]


def send(outbox: PartitionOutbox) -> Batch | None:
    data = outbox.next_to_send(TOPIC, PRODUCER, Codec.NONE)
    return None if data is None else Batch(data)


def ack(batch: Batch, offset: int, *, duplicate: int = 0) -> Ack:
    return Ack(TOPIC, 0, 1, duplicate, batch.header.first_sequence, offset, 0)


def refusal(batch: Batch, expected: int, error: type[FanlogError] = OverloadedError) -> Refused:
    return Refused(TOPIC, 0, batch.header.first_sequence, expected, error.code, "no")


def outbox_with(*values: bytes) -> PartitionOutbox:
    outbox = PartitionOutbox(0)
    outbox.sealed.extend(records(value) for value in values)
    return outbox


def test_batches_are_numbered_one_after_the_other() -> None:
    outbox = PartitionOutbox(3)
    outbox.sealed.extend([records(b"a", b"b"), records(b"c"), records(b"d", b"e", b"f")])
    sent = [send(outbox), send(outbox), send(outbox)]
    assert send(outbox) is None
    assert [b.header.first_sequence for b in sent if b] == [0, 2, 3]
    assert {(b.header.topic, b.header.partition) for b in sent if b} == {(TOPIC, 3)}
    assert {(b.header.producer_id, b.header.producer_epoch) for b in sent if b} == {PRODUCER}


def test_an_acknowledgement_gives_each_record_its_offset() -> None:
    outbox = PartitionOutbox(0)
    some = records(b"a", b"b", b"c")
    waiting = outcomes(some)
    outbox.sealed.append(some)
    batch = send(outbox)
    assert batch is not None
    assert outbox.acked(ack(batch, 40)) is some
    assert [outcome.offset for outcome in waiting] == [40, 41, 42]
    assert is_empty(outbox)
    assert outbox.acked(ack(batch, 40)) is None


def test_acknowledgements_may_come_in_any_order() -> None:
    outbox = outbox_with(b"a", b"b", b"c")
    sent = [send(outbox) for _ in range(3)]
    for i in (1, 2, 0):
        batch = sent[i]
        assert batch is not None
        assert outbox.acked(ack(batch, i)) is not None
    assert is_empty(outbox)


def test_after_a_refusal_the_rest_goes_out_again_in_order_under_new_numbers() -> None:
    outbox = outbox_with(b"a", b"b", b"c", b"d")
    first, second, third = send(outbox), send(outbox), send(outbox)
    assert first
    assert second
    assert third
    refused = outbox.refused(refusal(first, expected=0))
    assert refused is not None
    assert isinstance(refused.error, OverloadedError)
    assert send(outbox) is None  # two are still on their way
    assert outbox.refused(refusal(second, expected=0, error=OutOfSequenceError)) is None
    assert send(outbox) is None
    assert outbox.refused(refusal(third, expected=0, error=OutOfSequenceError)) is None
    again = [send(outbox), send(outbox), send(outbox)]
    assert [(b.values, b.header.first_sequence) for b in again if b] == [
        ([b"b"], 0),
        ([b"c"], 1),
        ([b"d"], 2),
    ]


def test_what_is_refused_twice_stays_before_what_has_not_gone_out_again_yet() -> None:
    outbox = outbox_with(b"a", b"b", b"c", b"d")
    for batch in [send(outbox) for _ in range(4)]:
        assert batch
        error = OverloadedError if batch.values == [b"a"] else OutOfSequenceError
        outbox.refused(refusal(batch, expected=0, error=error))
    second, third = send(outbox), send(outbox)
    assert second
    assert third
    outbox.refused(refusal(second, expected=0))
    assert outbox.refused(refusal(third, expected=0, error=OutOfSequenceError)) is None
    again = [send(outbox), send(outbox)]
    assert [(b.values, b.header.first_sequence) for b in again if b] == [([b"c"], 0), ([b"d"], 1)]


def test_a_gap_that_nobody_can_fill_is_an_error_and_not_tried_for_ever() -> None:
    outbox = outbox_with(b"a")
    batch = send(outbox)
    assert batch is not None
    refused = outbox.refused(refusal(batch, expected=9, error=OutOfSequenceError))
    assert refused is not None
    assert isinstance(refused.error, OutOfSequenceError)
    assert is_empty(outbox)


def test_after_a_lost_connection_all_in_flight_goes_out_as_it_was() -> None:
    outbox = outbox_with(b"a", b"b", b"c")
    first, second = send(outbox), send(outbox)
    assert first
    assert second
    outbox.acked(ack(first, 0))
    (again,) = outbox.resend(topic=9)
    batch = Batch(again)
    assert (batch.values, batch.header.first_sequence, batch.header.topic) == ([b"b"], 1, 9)
    assert batch.header.body_crc == second.header.body_crc
    later = send(outbox)
    assert later is not None
    assert later.header.first_sequence == 2


def test_a_batch_of_an_unknown_producer_that_was_sent_once_goes_out_again_from_zero() -> None:
    """It can't be stored anywhere, so that nobody has to hear of it."""
    outbox = outbox_with(b"a", b"b", b"c")
    outbox.next_sequence = 40
    first, second = send(outbox), send(outbox)
    assert first
    assert second
    assert outbox.refused(refusal(first, expected=0, error=UnknownProducerError)) is None
    assert outbox.refused(refusal(second, expected=0, error=UnknownProducerError)) is None
    again = [send(outbox), send(outbox), send(outbox)]
    assert [(b.values, b.header.first_sequence) for b in again if b] == [
        ([b"a"], 0),
        ([b"b"], 1),
        ([b"c"], 2),
    ]


def test_a_batch_of_an_unknown_producer_that_was_sent_before_has_an_unknown_outcome() -> None:
    outbox = outbox_with(b"a", b"b", b"c")
    outbox.next_sequence = 40
    first = send(outbox)
    assert first
    outbox.resend(TOPIC)
    second = send(outbox)
    assert second
    refused = outbox.refused(refusal(first, expected=0, error=UnknownProducerError))
    assert refused is not None
    assert isinstance(refused.error, UnknownProducerError)
    assert "may or may not be stored" in str(refused.error)
    # What was sent on this connection alone follows, and begins the numbers anew.
    assert outbox.refused(refusal(second, expected=0, error=UnknownProducerError)) is None
    again = [send(outbox), send(outbox)]
    assert [(b.values, b.header.first_sequence) for b in again if b] == [([b"b"], 0), ([b"c"], 1)]


def test_a_batch_that_got_a_new_number_was_sent_once_under_it() -> None:
    outbox = outbox_with(b"a")
    outbox.next_sequence = 40
    first = send(outbox)
    assert first
    outbox.resend(TOPIC)
    assert outbox.refused(refusal(first, expected=30, error=OutOfSequenceError)) is None
    second = send(outbox)
    assert second
    assert second.header.first_sequence == 30
    assert outbox.refused(refusal(second, expected=0, error=UnknownProducerError)) is None
    third = send(outbox)
    assert third
    assert third.header.first_sequence == 0


def test_a_new_log_gets_everything_from_zero_in_its_order_as_if_never_sent() -> None:
    outbox = outbox_with(b"a", b"b", b"c", b"d", b"e")
    outbox.next_sequence = 40
    sent = [send(outbox) for _ in range(4)]
    assert sent[0]
    assert sent[1]
    assert sent[2]
    outbox.resend(TOPIC)
    outbox.acked(ack(sent[0], 0))
    assert outbox.refused(refusal(sent[2], expected=41, error=OutOfSequenceError)) is None
    outbox.begin_anew()
    again = [send(outbox) for _ in range(4)]
    assert [(b.values, b.header.first_sequence) for b in again if b] == [
        ([b"b"], 0),
        ([b"c"], 1),
        ([b"d"], 2),
        ([b"e"], 3),
    ]
    assert again[0]
    assert again[1]
    assert outbox.refused(refusal(again[1], expected=0, error=UnknownProducerError)) is None


def test_giving_up_fails_everything_that_was_not_acknowledged() -> None:
    outbox = PartitionOutbox(0)
    everything = [records(b"a"), records(b"b"), records(b"c"), records(b"d")]
    waiting = [outcome for some in everything for outcome in outcomes(some)]
    outbox.sealed.extend(everything[:3])
    outbox.open = everything[3]
    first, second = send(outbox), send(outbox)
    assert first
    assert second
    outbox.refused(refusal(first, expected=0, error=OutOfSequenceError))
    outbox.give_up(ClosedError("closed"))
    assert all(isinstance(outcome.error, FanlogError) for outcome in waiting)
    assert is_empty(outbox)


def test_records_that_waited_too_long_are_found_wherever_they_are() -> None:
    outbox = PartitionOutbox(0)
    in_flight, again, sealed, still_open, young = (
        records(b"x", since=1.0),
        records(b"x", since=1.0),
        records(b"x", since=1.0),
        records(b"x", since=1.0),
        records(b"x", since=9.0),
    )
    outbox.sealed.extend([again, in_flight])
    batch = send(outbox)
    assert batch is not None
    assert send(outbox)
    assert outbox.refused(refusal(batch, expected=-1, error=OutOfSequenceError)) is None
    outbox.sealed.extend([sealed, young])
    outbox.open = still_open
    assert set(map(id, outbox.overdue(5.0))) == {
        id(in_flight),
        id(again),
        id(sealed),
        id(still_open),
    }


@dataclass
class ModelBroker:
    """Stores what continues the producer's numbers, and refuses by chance."""

    producer: Producer | None = None
    log: list[bytes | None] = field(default_factory=list)

    def take(self, batch: Batch, *, refuse: bool) -> Ack | Refused:
        sequence, count = batch.header.first_sequence, len(batch)
        if self.producer is None:
            if sequence:
                return refusal(batch, expected=0, error=UnknownProducerError)
            self.producer = Producer(0, 0, 0)
        if sequence == self.producer.next_sequence:
            if refuse:
                return refusal(batch, expected=sequence)
            base = len(self.log)
            self.producer.extend(count, base, 100)
            self.log += batch.values
            return ack(batch, base)
        try:
            return ack(batch, self.producer.offset_of(sequence, count), duplicate=1)
        except OutOfSequenceError:
            return refusal(batch, expected=self.producer.next_sequence, error=OutOfSequenceError)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=3, max_size=12),
    chances=st.lists(
        st.sampled_from(
            ["send", "send", "take", "take", "refuse", "answer", "answer", "cut", "forget"]
        ),
        min_size=20,
        max_size=80,
    ),
)
def test_every_record_is_stored_once_in_order_or_told_why_not(
    sizes: list[int], chances: list[str]
) -> None:
    """Two queues of a connection that may be cut, a broker that may refuse, and the outbox."""
    outbox, broker = PartitionOutbox(0), ModelBroker()
    waiting: list[tuple[bytes, Outcome]] = []
    for i, size in enumerate(sizes):
        values = [b"%d.%d" % (i, j) for j in range(size)]
        some = records(*values)
        waiting += zip(values, outcomes(some), strict=True)
        outbox.sealed.append(some)
    to_broker: list[Batch] = []
    answers: list[Ack | Refused] = []
    uncertain: set[bytes | None] = set()

    def step(what: str) -> None:
        if what == "send" and (batch := send(outbox)) is not None:
            to_broker.append(batch)
        elif what in ("take", "refuse") and to_broker:
            answers.append(broker.take(to_broker.pop(0), refuse=what == "refuse"))
        elif what == "answer" and answers:
            answer = answers.pop(0)
            if isinstance(answer, Ack):
                outbox.acked(answer)
            else:
                outbox.refused(answer)
        elif what == "cut":
            answers.clear()
            to_broker[:] = map(Batch, outbox.resend(TOPIC))
        elif what == "forget" and all(sent.sequence for sent in outbox.in_flight):
            # A first batch is always taken: one that is under way must not be forgotten.
            broker.producer = None

    for what in chances:
        step(what)
    for _ in range(20 * len(sizes)):
        for what in ("send", "take", "answer"):
            step(what)
    assert is_empty(outbox)
    for value, outcome in waiting:
        if outcome.offset is not None:
            assert broker.log[outcome.offset] == value
        elif isinstance(outcome.error, UnknownProducerError):
            uncertain.add(value)
        else:
            assert isinstance(outcome.error, OverloadedError)
            assert value not in broker.log
    # Nothing twice, and all in order: what the broker has is what was acknowledged, and perhaps
    # some of what nobody could tell.
    assert [v for v, outcome in waiting if outcome.offset is not None or v in broker.log] == (
        broker.log
    )
    acknowledged = {value for value, outcome in waiting if outcome.offset is not None}
    assert set(broker.log) <= acknowledged | uncertain


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_sent_again_keeps_its_columns_whatever_its_codec(codec: Codec) -> None:
    outbox = outbox_with(b"value " * 100)
    data = outbox.next_to_send(TOPIC, PRODUCER, codec)
    assert data is not None
    (again,) = outbox.resend(TOPIC + 1)
    assert Batch(again).values == [b"value " * 100]
    assert Batch(again).header.codec == codec
