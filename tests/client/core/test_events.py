"""Two state machines talk to each other with no socket in between: the client's reader of events
and the broker's session, over bytes that are cut anywhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog import errors
from fanlog.client.core import events
from fanlog.client.core.events import BrokerEventReader, Event
from fanlog.client.core.fetched import read_fetched
from fanlog.client.core.handshake import hello
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.format.batch import encode_batch, stamp
from fanlog.format.frames import FrameKind, ack_frame, feed_frame, frame, message_frame
from fanlog.format.messages import decode
from fanlog.model import GapReason, Start
from fanlog.node import Node
from tests.client.core.broker_session import node, session_of


def shown(taken: Iterable[Event]) -> list[object]:
    """Events as plain values that can be compared."""
    out: list[object] = []
    for event in taken:
        if isinstance(event, events.Delivered):
            out.append((event.subscription, event.batch.header, event.batch.values))
        elif isinstance(event, events.RequestFailed):
            out.append((event.request, type(event.error), str(event.error)))
        else:
            out.append(event)
    return out


CONVERSATION = (
    hello("tests"),
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
    return shown(BrokerEventReader().feed(wire.out)), wire.out


async def test_a_conversation_cut_anywhere_on_its_way_in_is_the_same_conversation() -> None:
    async with node() as running:
        topic = running.core.open_topic("t", create=True)
        sent = b"".join((*CONVERSATION, batch_of(topic.number)))

        def without_offsets(taken: list[object]) -> list[str]:
            """Every round stores a batch more, so kinds and values are compared, not offsets."""
            return sorted(
                type(event).__name__ if not isinstance(event, tuple) else str(event[-1])[:40]
                for event in taken
                if not isinstance(event, events.Acked | events.Answered)
            )

        whole, _ = await talk(running, [sent])
        assert isinstance(whole[0], events.Welcomed)
        assert sum(isinstance(event, events.Answered) for event in whole) == 3
        assert sum(isinstance(event, events.Acked) for event in whole) == 1
        rounds = 1
        for at in range(1, len(sent), 3):
            cut, _ = await talk(running, [sent[:at], sent[at:]])
            rounds += 1
            assert len([e for e in cut if isinstance(e, events.Answered)]) == 3
            assert len([e for e in cut if isinstance(e, events.Acked)]) == 1
            assert without_offsets(cut)[:1] == without_offsets(whole)[:1]
        single, _ = await talk(running, [sent[i : i + 1] for i in range(len(sent))])
        assert len([e for e in single if isinstance(e, events.Acked)]) == 1
        assert topic.partitions[0].visible_end == 3 * (rounds + 1)


async def test_what_comes_back_is_understood_wherever_it_is_cut() -> None:
    async with node() as running:
        topic = running.core.open_topic("t", create=True)
        whole, out = await talk(running, [*CONVERSATION, batch_of(topic.number)])
        assert [e[2] for e in whole if isinstance(e, tuple) and e[0] == 7] == [[b"one", None, b""]]
        for at in range(len(out)):
            client = BrokerEventReader()
            assert shown([*client.feed(out[:at]), *client.feed(out[at:])]) == whole
        client = BrokerEventReader()
        one_by_one = [event for i in range(len(out)) for event in client.feed(out[i : i + 1])]
        assert shown(one_by_one) == whole


async def test_the_answers_of_a_whole_session_are_what_was_asked_for() -> None:
    async with node() as running:
        session, wire = session_of(running)
        client = BrokerEventReader()

        def ask(data: bytes) -> list[Event]:
            session.feed(data)
            out, wire.out = wire.out, b""
            return list(client.feed(out))

        (welcomed,) = ask(hello("me"))
        assert isinstance(welcomed, events.Welcomed)
        assert session.client == "me"
        create = messages.CreateTopic("t", {"durability": "memory", "partitions": 2})
        (created,) = ask(message_frame(FrameKind.CREATE_TOPIC, create, request=1))
        assert isinstance(created, events.Answered)
        (again,) = ask(message_frame(FrameKind.CREATE_TOPIC, create, request=2))
        assert isinstance(again, events.RequestFailed)
        assert isinstance(again.error, errors.TopicExistsError)
        (opened,) = ask(message_frame(FrameKind.OPEN_TOPIC, messages.OpenTopic("t"), request=3))
        assert isinstance(opened, events.Answered)
        number = decode(messages.TopicOpened, opened.payload).number
        assert ask(encode_batch([b"x"], topic=number, partition=1)) == []
        running.core.turns.end()
        (acked,) = ask(b"")
        assert isinstance(acked, events.Acked)
        assert [(a.topic, a.partition, a.base_offset) for a in acked.acks] == [(number, 1, 0)]
        ((fetched,)) = ask(message_frame(FrameKind.FETCH, messages.Fetch(number, 1, 0), request=4))
        assert isinstance(fetched, events.Answered)
        assert read_fetched(fetched.payload, "t").batches[0].values == [b"x"]
        (refused,) = ask(encode_batch([b"x"], topic=number, partition=2))
        assert isinstance(refused, events.BatchRefused)
        assert refused.refused.code == "topic_not_found"
        assert ask(frame(FrameKind.GOODBYE)) == []
        assert wire.ended == "goodbye"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00" + bytes(16), errors.BadMagicError),
        (frame(FrameKind.PING), errors.BadMagicError),
        (hello("x") + frame(0x77), errors.UnknownCommandError),
        (hello("x") + frame(FrameKind.WELCOME), errors.UnknownCommandError),
        (hello("x") + b"\x03\x00\x00\x00\x05" + bytes(11), errors.ProtocolError),
        (hello("x") + b"\xff\xff\xff\xff\x42" + bytes(11), errors.ProtocolError),
        (hello("x") + frame(FrameKind.SUBSCRIBE, b"\xc1"), errors.ProtocolError),
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
        (event,) = list(BrokerEventReader().feed(wire.session.farewell(told.value, None)))
        assert isinstance(event, events.RequestFailed)
        assert (event.request, type(event.error)) == (0, type(told.value))
        other, out = session_of(running)
        other.feed(hello("still fine"))
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
            session.feed(hello("x"))
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
    whole = shown(BrokerEventReader().feed(stream))
    assert [e[0] for e in whole[:3] if isinstance(e, tuple)] == [1, 1, 2]
    assert len(whole) == 7
    places = [0, *sorted(cuts), len(stream)]
    client = BrokerEventReader()
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
        list(BrokerEventReader().feed(bytes(bad) + bytes(64)))


def test_a_frame_for_the_broker_is_not_for_a_client() -> None:
    with pytest.raises(errors.FormatError, match="can't receive"):
        list(BrokerEventReader().feed(frame(FrameKind.SUBSCRIBE)))
    with pytest.raises(errors.ProtocolError, match="whole number of entries"):
        list(BrokerEventReader().feed(frame(FrameKind.ACK, bytes(31))))
