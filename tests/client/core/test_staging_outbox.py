"""What a transaction stages, without a connection: every record once and in order, and nothing
after an error."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.outbox import PartitionOutbox, ProducerIdentity
from fanlog.client.core.outbox_ports import OutboxClock
from fanlog.client.core.staging import StagingFrame
from fanlog.client.core.staging_outbox import StagingOutbox
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.config import ClientOptions
from fanlog.errors import ConnectionLostError, FormatError, RequestTimeoutError
from fanlog.format.batch import Batch
from fanlog.format.messages import TopicOpened
from fanlog.model import MIB, TopicSettings

LOST = ConnectionLostError("lost")
TICKET = "ab" * 16
STAGER = ProducerIdentity(7)


class SilentWire:
    """Staging writes nothing by itself."""

    ready = True

    def write(self, data: bytes) -> None:
        raise AssertionError("a batch went to a log")


class SteppedStaging(StagingOutbox):
    """One whose lingering batches and frames go out when the test says so."""

    def __init__(self, options: ClientOptions | None = None) -> None:
        ticks = itertools.count(1)
        clock = OutboxClock(lambda: float(next(ticks)), lambda: next(ticks) * 1000)
        super().__init__(SilentWire(), options or ClientOptions(), clock, STAGER)
        self.later: list[tuple[TopicOutbox, PartitionOutbox]] = []
        self.wanted = 0
        self.changes = 0
        self.begin(TICKET, 0)

    def send_later(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        self.later.append((topic, outbox))

    def changed(self) -> None:
        self.changes += 1

    def stage_soon(self) -> None:
        self.wanted += 1

    def with_topic(self, number: int = 1, *, partitions: int = 1) -> TopicOutbox:
        topic = self.topics["t"] = self.opened(opened(number, partitions))
        return topic


def opened(number: int, partitions: int) -> TopicOpened:
    return TopicOpened("t", number, 1, TopicSettings(partitions=partitions))


def batches_of(frame: StagingFrame) -> list[Batch]:
    ticket, *batches = frame.parts
    assert ticket == bytes.fromhex(TICKET)
    return [Batch(data) for data in batches]


def test_records_become_numbered_batches_of_the_transaction() -> None:
    staging = SteppedStaging()
    topic = staging.with_topic(3, partitions=2)
    for value in (b"a", b"b"):
        staging.put(topic, value, partition=0)
    staging.put(topic, b"c", partition=1)
    assert not staging.is_waiting
    assert len(staging.later) == 2
    staging.flush_soon()
    assert staging.wanted == 2
    (frame,) = staging.frames()
    first, second = batches_of(frame)
    assert [
        (b.header.topic, b.header.partition, b.header.producer_id) for b in (first, second)
    ] == [
        (3, 0, STAGER.id),
        (3, 1, STAGER.id),
    ]
    assert [batch.header.first_sequence for batch in (first, second)] == [0, 1]
    assert first.values == [b"a", b"b"]
    staging.staged(frame)
    assert (staging.buffered_bytes, staging.is_waiting, staging.frames()) == (0, False, ())


def test_so_many_frames_of_about_a_megabyte_are_on_their_way() -> None:
    staging = SteppedStaging(ClientOptions(batch_bytes=MIB // 2))
    topic = staging.with_topic()
    for _ in range(12):
        staging.put(topic, b"x" * (MIB // 2))
    frames = staging.frames()
    assert [len(frame.parts) for frame in frames] == [2] * 4
    staging.staged(frames[0])
    assert len(staging.frames()) == 1
    assert staging.frames() == ()


def test_a_lost_frame_is_sent_again_if_the_connection_comes_back() -> None:
    staging = SteppedStaging()
    staging.put(staging.with_topic(), b"a")
    staging.flush_soon()
    before = staging.frames()
    staging.not_staged(LOST, comes_back=True)
    assert staging.frames() == before
    unread = ConnectionLostError("lost")
    unread.__cause__ = FormatError("bytes")
    for error, comes_back in ((LOST, False), (unread, True), (RequestTimeoutError("late"), True)):
        with pytest.raises(type(error)):
            staging.not_staged(error, comes_back=comes_back)


def test_the_first_error_ends_it_and_every_later_call_raises_it() -> None:
    staging = SteppedStaging()
    topic = staging.with_topic()
    staging.put(topic, b"staged soon")
    staging.flush_soon()
    staging.put(topic, b"open")
    staging.raise_error()
    staging.drop(LOST)
    staging.drop(RequestTimeoutError("later"))
    assert (staging.is_waiting, staging.frames(), staging.buffered_bytes) == (False, (), 0)
    assert staging.changes
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="lost"):
            staging.raise_error()


def test_a_topic_that_has_grown_or_was_made_again_is_staged_for_as_it_is_now() -> None:
    staging = SteppedStaging()
    topic = staging.with_topic(3)
    staging.opened_again(topic, opened(3, 2))
    assert (topic.number, len(topic.partitions)) == (3, 2)
    staging.put(topic, b"a", partition=1)
    staging.opened_again(topic, opened(4, 3))
    assert (topic.number, len(topic.partitions), topic.gone) == (4, 3, False)
    staging.flush_soon()
    (frame,) = staging.frames()
    assert [batch.header.topic for batch in batches_of(frame)] == [4]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=40),
    st.lists(st.sampled_from(("linger", "send", "lose")), max_size=60),
)
def test_the_broker_gets_each_record_once_and_each_keys_records_in_order(
    records: list[tuple[str, int]], steps: list[str]
) -> None:
    """A model of the broker takes the frames of a connection in order, and drops a batch whose
    number it has."""
    staging = SteppedStaging(ClientOptions(batch_records=3))
    topic = staging.with_topic(partitions=2)
    stored: dict[int, list[bytes]] = {0: [], 1: []}
    numbers: set[int] = set()

    def receive(frame: StagingFrame) -> None:
        for batch in batches_of(frame):
            if batch.header.first_sequence not in numbers:
                numbers.add(batch.header.first_sequence)
                stored[batch.header.partition] += [value or b"" for value in batch.values]

    def linger() -> None:
        later, staging.later = staging.later, []
        for one, outbox in later:
            staging.due(one, outbox)

    def send(*, answered: bool) -> None:
        for frame in staging.frames():
            receive(frame)
            if answered:
                staging.staged(frame)
        if not answered:
            staging.not_staged(LOST, comes_back=True)

    put: dict[int, list[bytes]] = {0: [], 1: []}
    todo = iter(steps)
    for i, (key, turns) in enumerate(records):
        value = f"{key}{i}".encode()
        staging.put(topic, value, key)
        put[topic.partitions.index(topic.pick(key.encode()))].append(value)
        for step in itertools.islice(todo, turns):
            linger() if step == "linger" else send(answered=step == "send")
    staging.flush_soon()
    while staging.is_waiting:
        send(answered=True)
    assert stored == put
    assert staging.buffered_bytes == 0
