"""Two state machines talk to each other with no socket in between: the client's core and the
broker's session, over bytes that are cut anywhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog import errors
from fanlog.broker.messages.topics import BrokerSubscription, Cursor
from fanlog.broker.ports import Piece
from fanlog.client import core
from fanlog.client.core import ClientCore, Event
from fanlog.config import Config, ListenerOptions
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.format.batch import encode_batch, stamp
from fanlog.format.frames import FrameKind, ack_frame, feed_frame, frame, message_frame
from fanlog.format.messages import decode
from fanlog.listeners.native import NativeSession
from fanlog.model import GapReason, Start
from fanlog.node import Node


class Wire:
    """The broker's way out, into a list of bytes."""

    def __init__(self) -> None:
        self.out = b""
        self.ended: FanlogError | str | None = None
        self.blocked = False
        self.feed: BrokerSubscription | None = None
        self.waiting: list[Cursor] = []
        self.session: NativeSession

    def write(self, data: Piece) -> None:
        self.out += bytes(data)

    def send(self, piece: Piece) -> int:
        self.write(piece)
        return len(piece)

    def hold(self, piece: Piece, sent: int) -> None:
        raise AssertionError("this wire takes everything")

    def push(self, subscription: BrokerSubscription, pieces: Iterable[memoryview]) -> None:
        if self.feed is not subscription:
            self.feed = subscription
            self.write(self.session.marker(subscription))
        for piece in pieces:
            self.write(piece)

    def respond(self, buffers: list[Piece]) -> None:
        for buffer in buffers:
            self.write(buffer)

    def lost(self, fault: Exception) -> None:
        raise AssertionError(fault)

    def go_on(self) -> None:
        self.session.feed(b"")

    def turn_out(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        self.ended = error

    def full(self) -> bool:
        return False

    def finish(self, why: str = "") -> None:
        self.ended = "goodbye"


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    running = Node(None, Config())
    running.start()
    try:
        yield running
    finally:
        await running.stop()


def session_of(running: Node) -> tuple[NativeSession, Wire]:
    wire = Wire()
    session = NativeSession(running.core, wire, ListenerOptions())
    wire.session = session
    return session, wire


def shown(events: Iterable[Event]) -> list[object]:
    """Events as plain values that can be compared."""
    out: list[object] = []
    for event in events:
        if isinstance(event, core.Delivered):
            out.append((event.subscription, event.batch.header, event.batch.values))
        elif isinstance(event, core.RequestFailed):
            out.append((event.request, type(event.error), str(event.error)))
        else:
            out.append(event)
    return out


CONVERSATION = (
    core.hello("tests"),
    message_frame(FrameKind.OPEN_TOPIC, messages.OpenTopic("t"), request=1),
    message_frame(
        FrameKind.SUBSCRIBE,
        messages.Subscribe(target="t", start=Start("earliest")),
        request=2,
        aux=7,
    ),
    message_frame(FrameKind.DESCRIBE_TOPIC, messages.NamedTopic("nowhere"), request=3),
    frame(FrameKind.PING, b"ping", request=4),
)


def batch_of(topic: int) -> bytes:
    return encode_batch([b"one", None, b""], keys=[b"k", None, b""], topic=topic)


async def talk(running: Node, pieces: Iterable[bytes]) -> tuple[list[object], bytes]:
    """Feeds a session, and gives back what its client understands, and the bytes of that."""
    session, wire = session_of(running)
    for piece in pieces:
        session.feed(piece)
    for _ in range(10):
        await asyncio.sleep(0)
    session.closed()
    return shown(ClientCore().feed(wire.out)), wire.out


async def test_a_conversation_cut_anywhere_on_its_way_in_is_the_same_conversation() -> None:
    async with node() as running:
        topic = running.core.open_topic("t", create=True)
        sent = b"".join((*CONVERSATION, batch_of(topic.number)))

        def without_offsets(events: list[object]) -> list[str]:
            """Every round stores a batch more, so kinds and values are compared, not offsets."""
            return sorted(
                type(event).__name__ if not isinstance(event, tuple) else str(event[-1])[:40]
                for event in events
                if not isinstance(event, core.Acked | core.Answered)
            )

        whole, _ = await talk(running, [sent])
        assert isinstance(whole[0], core.Welcomed)
        assert sum(isinstance(event, core.Answered) for event in whole) == 3
        assert sum(isinstance(event, core.Acked) for event in whole) == 1
        rounds = 1
        for at in range(1, len(sent), 3):
            cut, _ = await talk(running, [sent[:at], sent[at:]])
            rounds += 1
            assert len([e for e in cut if isinstance(e, core.Answered)]) == 3
            assert len([e for e in cut if isinstance(e, core.Acked)]) == 1
            assert without_offsets(cut)[:1] == without_offsets(whole)[:1]
        single, _ = await talk(running, [sent[i : i + 1] for i in range(len(sent))])
        assert len([e for e in single if isinstance(e, core.Acked)]) == 1
        assert topic.partitions[0].visible_end == 3 * (rounds + 1)


async def test_what_comes_back_is_understood_wherever_it_is_cut() -> None:
    async with node() as running:
        topic = running.core.open_topic("t", create=True)
        whole, out = await talk(running, [*CONVERSATION, batch_of(topic.number)])
        assert [e[2] for e in whole if isinstance(e, tuple) and e[0] == 7] == [[b"one", None, b""]]
        for at in range(len(out)):
            client = ClientCore()
            assert shown([*client.feed(out[:at]), *client.feed(out[at:])]) == whole
        client = ClientCore()
        one_by_one = [event for i in range(len(out)) for event in client.feed(out[i : i + 1])]
        assert shown(one_by_one) == whole


async def test_the_answers_of_a_whole_session_are_what_was_asked_for() -> None:
    async with node() as running:
        session, wire = session_of(running)
        client = ClientCore()

        def ask(data: bytes) -> list[Event]:
            session.feed(data)
            out, wire.out = wire.out, b""
            return list(client.feed(out))

        (welcomed,) = ask(core.hello("me"))
        assert isinstance(welcomed, core.Welcomed)
        assert session.client == "me"
        create = messages.CreateTopic("t", {"durability": "memory", "partitions": 2})
        (created,) = ask(message_frame(FrameKind.CREATE_TOPIC, create, request=1))
        assert isinstance(created, core.Answered)
        (again,) = ask(message_frame(FrameKind.CREATE_TOPIC, create, request=2))
        assert isinstance(again, core.RequestFailed)
        assert isinstance(again.error, errors.TopicExistsError)
        (opened,) = ask(message_frame(FrameKind.OPEN_TOPIC, messages.OpenTopic("t"), request=3))
        assert isinstance(opened, core.Answered)
        number = decode(messages.TopicOpened, opened.payload).number
        assert ask(encode_batch([b"x"], topic=number, partition=1)) == []
        running.core.turns.end()
        (acked,) = ask(b"")
        assert isinstance(acked, core.Acked)
        assert [(a.topic, a.partition, a.base_offset) for a in acked.acks] == [(number, 1, 0)]
        ((fetched,)) = ask(message_frame(FrameKind.FETCH, messages.Fetch(number, 1, 0), request=4))
        assert isinstance(fetched, core.Answered)
        assert core.read_fetched(fetched.payload, "t").batches[0].values == [b"x"]
        (refused,) = ask(encode_batch([b"x"], topic=number, partition=2))
        assert isinstance(refused, core.BatchRefused)
        assert refused.refused.code == "topic_not_found"
        assert ask(frame(FrameKind.GOODBYE)) == []
        assert wire.ended == "goodbye"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00" + bytes(16), errors.BadMagicError),
        (frame(FrameKind.PING), errors.BadMagicError),
        (core.hello("x") + frame(0x77), errors.UnknownCommandError),
        (core.hello("x") + frame(FrameKind.WELCOME), errors.UnknownCommandError),
        (core.hello("x") + b"\x03\x00\x00\x00\x05" + bytes(11), errors.ProtocolError),
        (core.hello("x") + b"\xff\xff\xff\xff\x42" + bytes(11), errors.ProtocolError),
        (core.hello("x") + frame(FrameKind.SUBSCRIBE, b"\xc1"), errors.ProtocolError),
        (
            message_frame(FrameKind.HELLO, messages.Hello((9,)), aux=0x474F4C46),
            errors.UnsupportedVersionError,
        ),
    ],
)
async def test_bad_bytes_end_a_session_with_an_error_that_names_the_fault(
    data: bytes, error: type[FanlogError]
) -> None:
    async with node() as running:
        session, wire = session_of(running)
        with pytest.raises(error) as told:
            session.feed(data)
        (event,) = list(ClientCore().feed(wire.session.farewell(told.value, None)))
        assert isinstance(event, core.RequestFailed)
        assert (event.request, type(event.error)) == (0, type(told.value))
        other, out = session_of(running)
        other.feed(core.hello("still fine"))
        assert out.out


async def test_a_batch_with_any_flipped_bit_is_not_taken() -> None:
    async with node() as running:
        topic = running.core.open_topic("t", create=True)
        good = batch_of(topic.number)
        # The broker's own fields (16 to 32, 48 to 52) are rewritten; a producer's are its own.
        for at in [4, 5, *range(52, len(good))]:
            bad = bytearray(good)
            bad[at] ^= 0x10
            session, _ = session_of(running)
            session.feed(core.hello("x"))
            with pytest.raises(errors.FormatError):  # noqa: PT012 - either may raise
                session.feed(bytes(bad))
                # A length that grew waits for more, which comes.
                session.feed(bytes(1 << 16))
        running.core.turns.end()
        assert topic.partitions[0].visible_end == 0


def a_stream() -> bytes:
    batch = stamp(
        encode_batch([b"a", b"b"]), base_offset=4, append_time_us=1, leader_epoch=1, topic=3
    )
    gap = messages.GapNotice(3, 0, 6, 9, GapReason.SKIPPED)
    return b"".join(
        (
            feed_frame(1),
            batch,
            batch,
            feed_frame(2),
            batch,
            message_frame(FrameKind.GAP, gap, aux=2),
            message_frame(FrameKind.LEFT, messages.Left(3, "t"), aux=1),
            message_frame(FrameKind.DRAINING, messages.Goodbye("stopping")),
            ack_frame([bytes(32), bytes(32)]),
        )
    )


@given(st.lists(st.integers(0, len(a_stream())), max_size=6))
def test_batches_belong_to_the_feed_before_them_however_they_are_cut(cuts: list[int]) -> None:
    stream = a_stream()
    whole = shown(ClientCore().feed(stream))
    assert [e[0] for e in whole[:3] if isinstance(e, tuple)] == [1, 1, 2]
    assert len(whole) == 7
    places = [0, *sorted(cuts), len(stream)]
    client = ClientCore()
    got = [
        event
        for begin, end in itertools.pairwise(places)
        for event in client.feed(stream[begin:end])
    ]
    assert shown(got) == whole


@pytest.mark.parametrize("at", range(4, 120, 5))
def test_damage_in_a_delivered_batch_is_found_by_the_client(at: int) -> None:
    batch = stamp(
        encode_batch([b"x" * 60]), base_offset=4, append_time_us=1, leader_epoch=1, topic=3
    )
    bad = bytearray(batch)
    bad[at] ^= 1
    with pytest.raises(errors.FormatError):
        list(ClientCore().feed(bytes(bad) + bytes(64)))


def test_a_frame_for_the_broker_is_not_for_a_client() -> None:
    with pytest.raises(errors.FormatError, match="not for a client"):
        list(ClientCore().feed(frame(FrameKind.SUBSCRIBE)))
    with pytest.raises(errors.ProtocolError, match="whole number of entries"):
        list(ClientCore().feed(frame(FrameKind.ACK, bytes(31))))
