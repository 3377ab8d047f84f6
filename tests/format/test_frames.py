"""Frames: cut from any pieces as they were joined, and refused as soon as they can't be right."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import (
    BadMagicError,
    ProtocolError,
    UnknownCommandError,
    UnsupportedVersionError,
)
from fanlog.format import messages
from fanlog.format.batch import encode_batch
from fanlog.format.frames import (
    ACK_ENTRY,
    FETCHED_HEAD,
    FRAME_HEADER_BYTES,
    MAGIC,
    Ack,
    FrameCutter,
    FrameKind,
    ack_frame,
    check_hello,
    credit_frame,
    feed_frame,
    fetched_head,
    frame,
    known_kind,
    message_frame,
    read_acks,
    read_credit,
    read_frame_header,
)
from fanlog.format.header import BATCH_BYTES_MIN

LIMIT = 1 << 16
control = st.builds(
    frame,
    st.sampled_from([kind for kind in FrameKind if kind is not FrameKind.BATCH]),
    st.binary(max_size=100),
    request=st.integers(0, 2**32 - 1),
    aux=st.integers(0, 2**32 - 1),
)
batch = st.builds(encode_batch, st.lists(st.binary(max_size=30), min_size=1, max_size=5))


def cut_all(cutter: FrameCutter, data: bytes) -> list[bytes]:
    return [buffer[at:end] for _, buffer, at, end in cutter.cut(data)]


@given(st.lists(st.one_of(control, batch), max_size=8), st.data())
def test_frames_come_out_whole_wherever_their_bytes_were_split(
    frames: list[bytes], data: st.DataObject
) -> None:
    joined = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(joined)), max_size=6)))
    cutter = FrameCutter(LIMIT)
    found: list[bytes] = []
    for begin, end in zip([0, *cuts], [*cuts, len(joined)], strict=True):
        found += cut_all(cutter, joined[begin:end])
    assert found == frames
    assert cutter.kept_bytes == 0


@given(st.lists(control, min_size=1, max_size=4))
def test_frames_come_out_whole_byte_by_byte(frames: list[bytes]) -> None:
    cutter = FrameCutter(LIMIT)
    joined = b"".join(frames)
    found = [f for i in range(len(joined)) for f in cut_all(cutter, joined[i : i + 1])]
    assert found == frames


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (FrameKind.PING, 0),
        (FrameKind.PING, FRAME_HEADER_BYTES - 1),
        (FrameKind.PING, LIMIT + 1),
        (FrameKind.PING, 2**32 - 1),
        (FrameKind.BATCH, FRAME_HEADER_BYTES),
        (FrameKind.BATCH, BATCH_BYTES_MIN - 1),
        (FrameKind.BATCH, LIMIT + 1),
    ],
)
def test_an_impossible_length_is_refused_with_the_fifth_byte(kind: int, length: int) -> None:
    begin = length.to_bytes(4, "little") + bytes([kind])
    cutter = FrameCutter(LIMIT)
    assert cut_all(cutter, begin[:4]) == []
    with pytest.raises(ProtocolError, match=str(length)):
        cut_all(cutter, begin[4:])


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (FrameKind.PING, FRAME_HEADER_BYTES),
        (FrameKind.PING, LIMIT),
        (FrameKind.BATCH, BATCH_BYTES_MIN),
        (FrameKind.BATCH, LIMIT),
    ],
)
def test_the_shortest_and_the_longest_frame_are_taken(kind: int, length: int) -> None:
    data = (length.to_bytes(4, "little") + bytes([kind])).ljust(length, b"\0")
    assert cut_all(FrameCutter(LIMIT), data) == [data]


def test_a_frame_that_drips_in_does_not_cost_many_times_its_size() -> None:
    cutter = FrameCutter(LIMIT)
    data = frame(FrameKind.PING, b"x" * (LIMIT - FRAME_HEADER_BYTES))
    for i in range(len(data) - 1):
        assert cut_all(cutter, data[i : i + 1]) == []
        if i % 1000 == 999:
            held = sum(map(sys.getsizeof, cutter._kept)) + sys.getsizeof(cutter._kept)
            assert held < 2 * LIMIT
    assert cut_all(cutter, data[-1:]) == [data]


def test_a_header_says_what_was_put_into_it() -> None:
    data = frame(FrameKind.FETCH, b"payload", request=7, aux=9)
    header = read_frame_header(data)
    assert header == (FRAME_HEADER_BYTES + 7, FrameKind.FETCH, 1, 0, 7, 9)
    assert data[FRAME_HEADER_BYTES:] == b"payload"


def test_another_version_is_refused() -> None:
    data = bytearray(frame(FrameKind.PING))
    data[5] = 2
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        read_frame_header(bytes(data))


def test_the_magic_reads_flog_on_the_wire() -> None:
    hello = message_frame(FrameKind.HELLO, messages.Hello((1,)), aux=MAGIC)
    assert hello[12:16] == b"FLOG"
    check_hello(hello)
    for wrong in (frame(FrameKind.HELLO), frame(FrameKind.PING, aux=MAGIC), b"GET / HTTP/1.1\r\n"):
        with pytest.raises(BadMagicError):
            check_hello(wrong)


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(FrameKind)))
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(UnknownCommandError, match=f"{kind:#04x}"):
        known_kind(kind)


def test_acknowledgements_come_back_as_they_went_in() -> None:
    acks = [Ack(1, 2, 0, 1, 3, 4, 5), Ack(2**32 - 1, 65535, 2, 0, 2**64 - 1, 2**64 - 1, -1)]
    for some in (acks, acks[1:]):
        data = ack_frame([ACK_ENTRY.pack(*ack) for ack in some])
        header = read_frame_header(data)
        assert (header.kind, header.length) == (FrameKind.ACK, len(data))
        assert list(read_acks(memoryview(data)[FRAME_HEADER_BYTES:])) == some
    data = ack_frame([ACK_ENTRY.pack(*ack) for ack in acks])
    with pytest.raises(ProtocolError):
        read_acks(memoryview(data)[FRAME_HEADER_BYTES:-1])


def test_credit_feed_and_fetched_have_their_layouts() -> None:
    credit = credit_frame(5, 1 << 40)
    assert read_frame_header(credit).aux == 5
    assert read_credit(memoryview(credit)[FRAME_HEADER_BYTES:]) == 1 << 40
    with pytest.raises(ProtocolError):
        read_credit(memoryview(credit)[FRAME_HEADER_BYTES:-1])
    assert read_frame_header(feed_frame(6))[1:] == (FrameKind.FEED, 1, 0, 0, 6)
    head = fetched_head(7, 100, 50, 10)
    assert read_frame_header(head).length == len(head) + 100
    assert FETCHED_HEAD.unpack_from(head, FRAME_HEADER_BYTES) == (50, 10, 0)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1x"])
def test_a_payload_nested_without_end_is_a_fault_of_the_peer(opening: bytes) -> None:
    with pytest.raises(ProtocolError):
        messages.decode(messages.NamedTopic, b"\x81\xa1x" + opening * 50_000)
