"""The client's core against the broker's session, with no socket: states, requests, and bytes that
are cut anywhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.client_core import ClientCore
from fanlog.client.core.events import Acked, Delivered, Event, RequestFailed, Welcomed
from fanlog.client.core.requests import REQUEST_NUMBER_MAX, RequestTable, may_ask_again
from fanlog.client.core.states import ConnectionState, IllegalTransitionError
from fanlog.config import ClientOptions
from fanlog.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    FanlogError,
    FormatError,
    ProtocolError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from fanlog.format import messages
from fanlog.format.batch import encode_batch, stamp
from fanlog.format.frames import FrameKind, feed_frame, frame, message_frame
from fanlog.format.messages import decode
from fanlog.model import Start
from tests.client.core.broker_session import node, session_of


class Answer:
    """Keeps what became of a request, and how often it was told."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.errors: list[FanlogError] = []

    def answered(self, payload: bytes) -> None:
        self.payloads.append(payload)

    def failed(self, error: FanlogError) -> None:
        self.errors.append(error)


WELCOME = message_frame(FrameKind.WELCOME, messages.Welcome(1, "tests", 7, 1 << 24, 1 << 24, 60.0))


def core_of(*, greeted: bool = True) -> ClientCore:
    core = ClientCore(ClientOptions(name="tests"))
    core.dial()
    core.greet(None, 0.0)
    if greeted:
        (event,) = core.feed(WELCOME, 0.0)
        assert isinstance(event, Welcomed)
        core.resumed()
    return core


def error_frame(error: FanlogError, request: int = 0) -> bytes:
    return message_frame(
        FrameKind.ERROR, messages.ErrorAnswer(error.code, str(error)), request=request
    )


# Against the broker's session


async def test_a_client_and_a_broker_talk_without_a_socket() -> None:
    async with node() as running:
        session, wire = session_of(running)
        core = ClientCore(ClientOptions(name="me"))

        def talk(data: bytes) -> list[Event]:
            session.feed(data)
            running.core.turns.end()
            out, wire.out = wire.out, b""
            return list(core.feed(out, 0.0))

        core.dial()
        (welcomed,) = talk(core.greet(None, 0.0))
        assert isinstance(welcomed, Welcomed)
        assert core.welcome == welcomed.welcome
        assert core.state is ConnectionState.RESUMING
        core.resumed()
        opened, missing = Answer(), Answer()
        _, data = core.ask(FrameKind.OPEN_TOPIC, messages.OpenTopic("t"), opened)
        assert talk(data) == []
        number = decode(messages.TopicOpened, opened.payloads[0]).number
        _, data = core.ask(FrameKind.DESCRIBE_TOPIC, messages.NamedTopic("no"), missing)
        assert talk(data) == []
        assert isinstance(missing.errors[0], TopicNotFoundError)
        (acked,) = talk(encode_batch([b"x"], topic=number))
        assert isinstance(acked, Acked)
        wanted = messages.Subscribe(target="t", start=Start("earliest"))
        _, data = core.ask(FrameKind.SUBSCRIBE, wanted, Answer(), aux=3)
        heard = talk(data)
        for _ in range(10):
            await asyncio.sleep(0)
            heard += talk(b"")
        delivered = [event for event in heard if isinstance(event, Delivered)]
        assert [(event.subscription, event.batch.values) for event in delivered] == [(3, [b"x"])]
        assert len(core.requests) == 0
        session.drain()
        assert [type(event).__name__ for event in talk(b"")] == ["Draining"]
        assert core.state is ConnectionState.DRAINING


async def test_a_conversation_that_is_cut_anywhere_on_its_way_back_is_the_same() -> None:
    async with node() as running:
        session, wire = session_of(running)
        core = ClientCore(ClientOptions())
        core.dial()
        session.feed(core.greet(None, 0.0))
        for request in range(1, 4):
            wanted = messages.OpenTopic(f"t{request}")
            session.feed(message_frame(FrameKind.OPEN_TOPIC, wanted, request=request))
        await asyncio.sleep(0)
        out = wire.out
    for at in range(len(out) + 1):
        client = core_of(greeted=False)
        answers = [Answer() for _ in range(3)]
        taken = list(client.feed(out[:at], 0.0))
        # The broker has answered before it was asked: the numbers are the same.
        for answer in answers:
            client.requests.add(answer)
        taken += client.feed(out[at:], 0.0)
        whole = [e for e in taken if isinstance(e, Welcomed)]
        assert len(taken) == len(whole) == 1
        assert all(len(one.payloads) <= 1 and not one.errors for one in answers)
        assert client.state is ConnectionState.RESUMING


def a_stream() -> bytes:
    batch = stamp(
        encode_batch([b"a", b"b"]), base_offset=4, append_time_us=1, leader_epoch=1, topic=3
    )
    return b"".join(
        (
            WELCOME,
            frame(FrameKind.OK, b"one", request=1),
            feed_frame(1),
            batch,
            error_frame(TopicNotFoundError("no"), request=2),
            feed_frame(2),
            batch,
            frame(FrameKind.PONG),
            frame(FrameKind.OK, b"three", request=3),
        )
    )


def hear(pieces: Iterable[bytes]) -> tuple[list[object], list[Answer]]:
    core = core_of(greeted=False)
    answers = [Answer() for _ in range(3)]
    for answer in answers:
        core.requests.add(answer)
    taken: list[object] = []
    for piece in pieces:
        taken += [
            (event.subscription, event.batch.values) if isinstance(event, Delivered) else event
            for event in core.feed(piece, 0.0)
        ]
    return taken, answers


@given(st.lists(st.integers(0, len(a_stream())), max_size=8))
def test_events_and_answers_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = a_stream()
    places = [0, *sorted(cuts), len(stream)]
    taken, answers = hear(stream[begin:end] for begin, end in itertools.pairwise(places))
    assert taken == hear([stream])[0]
    assert taken[1:] == [(1, [b"a", b"b"]), (2, [b"a", b"b"])]
    assert [one.payloads for one in answers] == [[b"one"], [], [b"three"]]
    assert [str(one) for one in answers[1].errors] == ["no"]


def test_a_shell_that_takes_whole_frames_hears_the_same() -> None:
    core = core_of(greeted=False)
    answer = Answer()
    core.requests.add(answer)
    frames = [WELCOME, frame(FrameKind.OK, b"one", request=1), frame(FrameKind.PONG)]
    taken: list[Event | None] = []
    for data in frames:
        assert core.payload_bytes(data[:16]) == len(data) - 16
        taken.append(core.feed_frame(data[:16], data[16:], 0.0))
    assert isinstance(taken[0], Welcomed)
    assert taken[1:] == [None, None]
    assert answer.payloads == [b"one"]
    with pytest.raises(ProtocolError, match="claims 3 bytes"):
        core.payload_bytes(b"\x03\x00\x00\x00\x82\x01" + bytes(10))
    with pytest.raises(ProtocolError, match="no subscription"):
        core.payload_bytes(encode_batch([b"x"])[:16])


# The states


def test_a_step_out_of_turn_is_the_programs_fault() -> None:
    core = ClientCore(ClientOptions())
    with pytest.raises(IllegalTransitionError):
        core.greet(None, 0.0)
    core.dial()
    with pytest.raises(IllegalTransitionError):
        core.dial()
    with pytest.raises(ConnectionLostError):
        core.resumed()


def test_a_broker_that_speaks_out_of_turn_is_refused() -> None:
    with pytest.raises(ProtocolError, match="greeted twice"):
        list(core_of().feed(WELCOME, 0.0))
    with pytest.raises(ProtocolError, match="before its greeting"):
        list(core_of(greeted=False).feed(frame(FrameKind.OK, request=1), 0.0))


def test_nothing_is_asked_without_a_connection() -> None:
    core = ClientCore(ClientOptions())
    wanted = messages.Goodbye()
    for step in (core.dial, lambda: core.greet(None, 0.0), lambda: core.lose(None)):
        with pytest.raises(ConnectionLostError):
            core.ask(FrameKind.STATUS, wanted, Answer())
        step()
    core.close(ClosedError("enough"))
    with pytest.raises(ClosedError, match="enough"):
        core.ask(FrameKind.STATUS, wanted, Answer())
    with pytest.raises(ClosedError, match="enough"):
        core.dial()


def test_a_loss_fails_every_request_once_and_says_why() -> None:
    core = core_of()
    answers = [Answer() for _ in range(3)]
    numbers = [core.ask(FrameKind.STATUS, b"", answer)[0] for answer in answers]
    assert list(core.feed(frame(FrameKind.OK, b"x", request=numbers[0]), 0.0)) == []
    (event,) = core.feed(error_frame(ProtocolError("bad bytes")), 0.0)
    assert isinstance(event, RequestFailed)
    error = core.lose(OSError("reset"))
    assert isinstance(error, ConnectionLostError)
    assert "bad bytes" in str(error)
    assert core.lose(None).args == error.args
    core.dial()
    core.greet(None, 0.0)
    late = WELCOME + frame(FrameKind.OK, b"late", request=numbers[1])
    assert len(list(core.feed(late, 0.0))) == 1
    assert [(len(one.payloads), len(one.errors)) for one in answers] == [(1, 0), (0, 1), (0, 1)]


def test_what_comes_after_the_end_is_dropped() -> None:
    core = core_of()
    heard = core.feed(feed_frame(1) + message_frame(FrameKind.GREW, messages.Grew(1, 2)) * 2, 0.0)
    assert next(heard)
    core.lose(None)
    assert list(heard) == []
    assert list(core.feed(frame(FrameKind.PONG), 0.0)) == []


@pytest.mark.parametrize(
    ("said", "why", "kind", "sentence"),
    [
        (b"", None, ConnectError, "closed the connection without a greeting"),
        (b"", OSError("reset"), ConnectError, "closed the connection without a greeting"),
        (b"", ConnectError("no TLS"), ConnectError, "no TLS"),
        (b"", ProtocolError("odd"), ConnectError, "There is no connection to it: odd"),
        (error_frame(UnauthenticatedError("who?")), None, UnauthenticatedError, "who?"),
    ],
)
def test_a_connection_that_ends_before_the_greeting_says_why(
    said: bytes, why: Exception | None, kind: type[FanlogError], sentence: str
) -> None:
    core = core_of(greeted=False)
    list(core.feed(said, 0.0))
    error = core.lose(why, "it")
    assert type(error) is kind
    assert sentence in str(error)


# Requests


def test_numbers_come_round_and_none_is_nobodys() -> None:
    table = RequestTable()
    assert table.add(Answer()) == 1
    table._number = REQUEST_NUMBER_MAX - 1
    assert [table.add(Answer()) for _ in range(2)] == [REQUEST_NUMBER_MAX, 1]


def test_only_a_loss_is_worth_asking_again_and_not_of_bytes_that_nobody_can_read() -> None:
    unread = ConnectionLostError("lost")
    unread.__cause__ = FormatError("bytes")
    assert may_ask_again(ConnectionLostError("lost"))
    assert not may_ask_again(unread)
    assert not may_ask_again(TopicNotFoundError("no"))
