"""Publishing without a socket: the client's outbox and core against the broker's session, over
connections that are cut at any byte in both directions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.client.core.client_core import ClientCore
from fanlog.client.core.client_outbox import ClientOutbox
from fanlog.client.core.events import Acked, BatchRefused, Event, TopicGrew
from fanlog.client.core.fetched import read_fetched
from fanlog.client.core.outbox import PartitionOutbox, ProducerIdentity
from fanlog.client.core.outbox_ports import MarkAllowance, OutboxClock
from fanlog.client.core.states import ConnectionState
from fanlog.client.core.topic_directory import TopicDirectory, opening
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.config import ClientOptions
from fanlog.errors import (
    ClosedError,
    ConnectionLostError,
    FanlogError,
    FencedError,
    TopicNotFoundError,
)
from fanlog.format import messages
from fanlog.format.frames import Ack, FrameKind
from fanlog.node import Node
from tests.client.core.broker_session import node, session_of


class Answer:
    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.error: FanlogError | None = None

    def answered(self, payload: bytes) -> None:
        self.payload = payload

    def failed(self, error: FanlogError) -> None:
        self.error = error


class Told:
    """Keeps what became of one message."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.errors: list[FanlogError] = []

    def stored(self, offset: int, ack: Ack) -> None:
        self.offsets.append(offset)

    def failed(self, error: FanlogError) -> None:
        self.errors.append(error)


class SteppedOutbox(ClientOutbox):
    """An outbox whose lingering batches go out when the test says so."""

    def __init__(self, world: World, options: ClientOptions) -> None:
        clock = OutboxClock(lambda: float(next(world.ticks)), lambda: next(world.ticks) * 1000)
        super().__init__(world, options, clock, ProducerIdentity(77))
        self.later: list[tuple[TopicOutbox, PartitionOutbox]] = []
        self.missing: list[TopicOutbox] = []
        self.changes = 0

    def send_later(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        self.later.append((topic, outbox))

    def find_again(self, topic: TopicOutbox) -> None:
        self.missing.append(topic)

    def changed(self) -> None:
        self.changes += 1

    def linger_no_more(self) -> None:
        later, self.later = self.later, []
        for topic, outbox in later:
            self.due(topic, outbox)


class World:
    """A client and a broker in one thread. Bytes between them move when the test says so."""

    def __init__(self, running: Node, options: ClientOptions | None = None) -> None:
        self.node = running
        self.ticks = itertools.count(1)
        self.core = ClientCore(options or ClientOptions())
        self.outbox = SteppedOutbox(self, options or ClientOptions(batch_records=2))
        self.directory = TopicDirectory()
        self.to_broker = b""
        self.topic: TopicOutbox | None = None
        self.connect()

    @property
    def ready(self) -> bool:
        return self.core.state is ConnectionState.READY

    def write(self, data: bytes) -> None:
        self.to_broker += data

    def connect(self) -> None:
        self.session, self.wire = session_of(self.node)
        self.to_broker = b""
        self.core.dial()
        self.write(self.core.greet(None, 0.0))
        self.exchange()
        self.directory.clear()
        assert self.core.welcome is not None
        self.outbox.greeted(self.core.welcome)
        for topic in self.outbox.lost():
            self.outbox.reopened(topic, self.open(topic.name))
        self.core.resumed()
        self.outbox.resumed()

    def open(self, name: str) -> messages.TopicOpened:
        return self.directory.take(self.ask(FrameKind.OPEN_TOPIC, opening(name)))

    def ask(self, kind: FrameKind, message: messages.OpenTopic | messages.Fetch) -> bytes:
        answer = Answer()
        _, data = self.core.ask(kind, message, answer)
        self.write(data)
        self.exchange()
        if answer.error is not None:
            raise answer.error
        assert answer.payload is not None
        return answer.payload

    def exchange(self) -> None:
        """Moves all bytes there and back."""
        while self.to_broker or self.wire.out:
            self.move(len(self.to_broker), None)

    def move(self, there: int, back: int | None) -> None:
        """Moves so many bytes to the broker, and so many of its answers back."""
        data, self.to_broker = self.to_broker[:there], self.to_broker[there:]
        self.session.feed(data)
        self.node.core.turns.end()
        out = self.wire.out if back is None else self.wire.out[:back]
        self.wire.out = self.wire.out[len(out) :]
        for event in self.core.feed(out, 0.0):
            self.handle(event)

    def handle(self, event: Event) -> None:
        match event:
            case Acked(acks):
                self.outbox.acked(acks)
            case BatchRefused(refused):
                self.outbox.refused(refused)
            case TopicGrew(grew):
                self.directory.grew(grew.number, grew.partitions)
                self.outbox.grew(grew.number, grew.partitions)
            case _:
                pass

    def lose(self) -> None:
        self.core.lose(None)
        self.session.closed()

    def publish(self, value: bytes, key: bytes | None = None) -> Told:
        if self.topic is None or self.outbox.topics.get("t") is not self.topic:
            self.topic = self.outbox.topics["t"] = self.outbox.opened(self.open("t"))
        told = Told()
        self.outbox.put(self.topic, value, key, waiter=told)
        return told

    def stored(self, partition: int = 0) -> list[bytes | None]:
        number = self.open("t").number
        payload = self.ask(FrameKind.FETCH, messages.Fetch(number, partition, 0))
        return [value for batch in read_fetched(payload, "t").batches for value in batch.values]


def simulate(steps: Callable[[World], None], options: ClientOptions | None = None) -> None:
    async def run() -> None:
        async with node() as running:
            steps(World(running, options))

    asyncio.run(run())


def test_messages_are_stored_in_order_and_each_is_told_its_offset() -> None:
    def steps(world: World) -> None:
        told = [world.publish(b"%d" % i) for i in range(5)]
        world.outbox.linger_no_more()
        world.exchange()
        assert world.stored() == [b"%d" % i for i in range(5)]
        assert [one.offsets for one in told] == [[i] for i in range(5)]
        assert world.outbox.buffered_bytes == 0

    simulate(steps)


Cut = tuple[int, int, int]
cuts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400), st.integers(0, 300)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(cuts)
def test_a_connection_that_is_cut_at_any_byte_stores_every_message_once(given: list[Cut]) -> None:
    def steps(world: World) -> None:
        count, told = 0, list[Told]()
        for more, there, back in given:
            for _ in range(more):
                told.append(world.publish(b"%d" % count))
                count += 1
            world.outbox.linger_no_more()
            world.move(there, back)
            world.lose()
            world.connect()
        world.outbox.linger_no_more()
        world.exchange()
        if count:
            assert world.stored() == [b"%d" % i for i in range(count)]
        assert [one.offsets for one in told] == [[i] for i in range(count)]
        assert not any(one.errors for one in told)
        assert world.outbox.buffered_bytes == 0

    simulate(steps, ClientOptions(batch_records=2, batches_in_flight=2))


def test_what_a_deleted_topic_has_not_taken_goes_to_the_one_in_its_place_or_fails() -> None:
    def steps(world: World) -> None:
        world.publish(b"old")
        world.outbox.linger_no_more()
        world.exchange()
        world.node.core.delete_topic("t")
        told = world.publish(b"new")
        world.outbox.linger_no_more()
        world.exchange()
        (gone,) = world.outbox.missing
        world.outbox.moved(gone, world.open("t"))
        world.exchange()
        assert told.offsets == [0]
        assert world.stored() == [b"new"]
        world.node.core.delete_topic("t")
        told = world.publish(b"lost")
        world.outbox.linger_no_more()
        world.exchange()
        world.outbox.not_found(world.outbox.missing[-1], TopicNotFoundError("gone"))
        assert [type(error) for error in told.errors] == [TopicNotFoundError]
        assert world.outbox.buffered_bytes == 0

    simulate(steps)


def test_a_connection_that_is_lost_while_a_topic_is_looked_for_decides_nothing() -> None:
    def steps(world: World) -> None:
        world.publish(b"old")
        world.outbox.linger_no_more()
        world.exchange()
        world.node.core.delete_topic("t")
        told = world.publish(b"new")
        world.outbox.linger_no_more()
        world.exchange()
        (gone,) = world.outbox.missing
        assert world.outbox.is_moving(gone)
        world.outbox.not_found(gone, ConnectionLostError("lost"))
        assert world.outbox.is_moving(gone)
        world.lose()
        world.connect()
        world.exchange()
        assert not world.outbox.is_moving(gone)
        assert (told.offsets, told.errors) == ([0], [])

    simulate(steps)


def test_a_topic_that_is_not_there_on_a_new_connection_fails_its_messages() -> None:
    def steps(world: World) -> None:
        told = world.publish(b"a")
        world.lose()
        (topic,) = world.outbox.lost()
        with pytest.raises(ConnectionLostError):
            world.outbox.not_reopened(topic, ConnectionLostError("lost once more"))
        assert told.errors == []
        world.outbox.not_reopened(topic, TopicNotFoundError("gone"))
        assert [type(error) for error in told.errors] == [TopicNotFoundError]
        assert world.outbox.buffered_bytes == 0

    simulate(steps)


def test_a_topic_that_is_opened_again_has_grown_or_is_another_one() -> None:
    def steps(world: World) -> None:
        world.publish(b"a")
        topic = world.topic
        assert topic is not None
        known = world.open("t")
        grown = msgspec.structs.replace(
            known, settings=msgspec.structs.replace(known.settings, partitions=3)
        )
        world.outbox.opened_again(topic, grown)
        assert len(topic.partitions) == 3
        assert not world.outbox.is_moving(topic)
        world.outbox.opened_again(topic, msgspec.structs.replace(known, number=known.number + 1))
        assert world.outbox.is_moving(topic)
        # What is in flight is answered first.
        assert world.outbox.missing == []
        world.exchange()
        assert set(world.outbox.missing) == {topic}

    simulate(steps)


def test_what_was_put_before_is_waited_for_and_later_messages_are_not() -> None:
    def steps(world: World) -> None:
        assert not world.outbox.settling(["t"]).waits
        world.publish(b"a")
        settling = world.outbox.settling(["t", "never published to"])
        assert settling.waits
        world.publish(b"later")
        world.exchange()
        assert not settling.waits
        assert world.stored() == [b"a"]
        assert world.outbox.buffered_bytes > 0

    simulate(steps)


def test_a_named_producer_registers_until_another_client_has_its_name() -> None:
    def steps(world: World) -> None:
        outbox = world.outbox
        assert outbox.registering() == messages.RegisterProducer("p", 77, 0)
        outbox.registered(messages.ProducerRegistered(5, 2))
        assert outbox.registering() == messages.RegisterProducer("p", 5, 2)
        outbox.registered(FencedError("another"))
        assert outbox.registering() is None

    def unnamed(world: World) -> None:
        assert world.outbox.registering() is None

    simulate(steps, ClientOptions(producer="p"))
    simulate(unnamed)


def test_nothing_is_sent_without_a_connection_and_all_fails_at_the_end() -> None:
    def steps(world: World) -> None:
        first = world.publish(b"sent")
        world.outbox.linger_no_more()
        world.lose()
        second = world.publish(b"not sent")
        world.to_broker = b""
        world.outbox.flush_soon()
        assert world.to_broker == b""
        world.outbox.give_up(ClosedError("closed"))
        assert [type(one.errors[0]) for one in (first, second)] == [ClosedError] * 2
        assert world.outbox.buffered_bytes == 0

    simulate(steps)


def test_an_answer_that_takes_too_long_is_unknown_and_may_still_come() -> None:
    def steps(world: World) -> None:
        told = world.publish(b"slow")
        world.outbox.linger_no_more()
        world.outbox.check_overdue()
        assert told.errors == []
        for _ in range(40):
            next(world.ticks)
        world.outbox.check_overdue()
        assert [error.code for error in told.errors] == ["timeout"]
        world.exchange()
        assert world.stored() == [b"slow"]

    simulate(steps, ClientOptions(delivery_timeout_seconds=30))


def test_only_so_many_sampled_records_are_told_of_in_a_second() -> None:
    marks = MarkAllowance()
    marks.per_second_max = 2
    assert [marks.take(now) for now in (5.0, 5.1, 5.2, 6.0)] == [True, True, False, True]
