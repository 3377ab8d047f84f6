"""Frames and batches that break the protocol end the connection with an error that names the
fault; what was taken before them stays taken."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fanlog.errors import MessagesLostError, UnreadableError
from fanlog.format.columns import SIZES
from fanlog.format.frames import FrameKind, frame, message_frame
from fanlog.format.header import RECORDS_MAX
from fanlog.format.messages import NamedTopic
from tests.format.crafted import crafted
from tests.listeners.peers import (
    PATIENCE_SECONDS,
    Frame,
    one_message,
    patched,
    raw_frame,
    serving,
)

LENGTHS = [0, 1, 15, 2**24 + 1, 2**31, 2**32 - 1]
WITH_PAYLOAD = [
    FrameKind.OPEN_TOPIC,
    FrameKind.CREATE_TOPIC,
    FrameKind.LIST_TOPICS,
    FrameKind.DESCRIBE_TOPIC,
    FrameKind.DELETE_TOPIC,
    FrameKind.SUBSCRIBE,
    FrameKind.FETCH,
    FrameKind.COMMIT,
    FrameKind.COMMITTED,
    FrameKind.FIND_OFFSETS,
]


@pytest.mark.parametrize("kind", [FrameKind.PING, FrameKind.BATCH, FrameKind.FETCH])
@pytest.mark.parametrize("length", LENGTHS)
async def test_an_absurd_length_is_refused_before_its_bytes_come(length: int, kind: int) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(raw_frame(length, kind)[:5])
        failure = await peer.fault()
        assert failure.code == "bad_frame"
        assert str(length) in failure.message


@pytest.mark.parametrize("length", [16, 64, 71])
async def test_a_batch_that_is_shorter_than_any_batch_is_refused(length: int) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(raw_frame(length, FrameKind.BATCH, rest=b"\0" * 100))
        assert (await peer.fault()).code == "bad_frame"


async def test_a_frame_as_long_as_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    async with serving(frame_bytes_max=64 * 1024) as served:
        peer = await served.greeted()
        await peer.send(frame(FrameKind.PING, b"x" * (64 * 1024 - 16), request=5))
        assert await peer.frame() == Frame(FrameKind.PONG, 5, 0, b"x" * 64)
        await peer.send(frame(FrameKind.PING, b"x" * (64 * 1024 - 15)))
        failure = await peer.fault()
        assert failure.code == "bad_frame"
        assert "frame_bytes_max" in failure.message


async def test_a_later_frame_of_another_version_is_refused() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(raw_frame(16, FrameKind.PING, version=2))
        assert (await peer.fault()).code == "unsupported_version"


@pytest.mark.parametrize("kind", WITH_PAYLOAD)
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa4name",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xa3abc",
        b"\x81\xa2\xff\xfe\x01\xc1",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(
            {
                "name": 7,
                "settings": [],
                "pattern": 7,
                "target": 7,
                "number": "x",
                "durable": 7,
                "topic": 7,
            }
        ),
    ],
    ids=lambda payload: payload[:12].hex() or "nothing",
)
async def test_a_payload_that_does_not_fit_its_kind_is_refused(
    kind: FrameKind, payload: bytes
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(frame(kind, payload, request=1))
        assert (await peer.fault()).code == "bad_frame"


@pytest.mark.parametrize("kind", WITH_PAYLOAD)
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1x"], ids=["lists", "maps"])
async def test_a_payload_nested_without_end_is_refused(kind: FrameKind, opening: bytes) -> None:
    nested = b"\x81\xa1x" + opening * 20_000 + b"\xc0"
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(frame(kind, nested, request=1))
        assert (await peer.fault()).code == "bad_frame"


@pytest.mark.parametrize("size", [0, 7, 9])
async def test_a_credit_that_is_not_one_number_is_refused(size: int) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.open_topic("t")
        answer = await peer.ask(FrameKind.SUBSCRIBE, Wanted(target="t"), aux=3)
        assert answer.kind is FrameKind.OK
        await peer.send(frame(FrameKind.CREDIT, b"\0" * size, aux=3))
        assert (await peer.fault()).code == "bad_frame"


class Wanted(msgspec.Struct):
    target: str


# Batches

BAD_HEADERS = {
    "no whole number of 8 bytes": (0, (77).to_bytes(4, "little")),
    "version 0": (5, b"\0"),
    "version 2": (5, b"\2"),
    "codec 4": (58, b"\4"),
    "codec 255": (58, b"\xff"),
    "an unknown flag": (59, b"\x20"),
    "all flags": (59, b"\xff"),
    "no records": (60, (0).to_bytes(4, "little")),
    "too many records": (60, (RECORDS_MAX + 1).to_bytes(4, "little")),
    "2**32 - 1 records": (60, b"\xff" * 4),
}


@pytest.mark.parametrize(("at", "new"), BAD_HEADERS.values(), ids=BAD_HEADERS)
async def test_a_batch_header_out_of_bounds_is_refused(at: int, new: bytes) -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.send(patched(one_message(number), at, new) + b"\0" * 8)
        assert (await peer.fault()).code == "bad_format"


async def test_a_flipped_bit_in_a_body_is_refused_and_nothing_of_it_is_stored() -> None:
    async with serving() as served:
        for at in (52, 56, 60, 64, 75):
            peer = await served.greeted()
            number = await peer.open_topic("t", partitions=2)
            good = one_message(number)
            bad = patched(good, at, bytes([good[at] ^ 1]))
            await peer.send(bad)
            assert (await peer.fault()).code in ("bad_checksum", "bad_format")
        peer = await served.greeted()
        assert (await peer.fetch(number)).visible_end == 0


async def test_batches_before_a_bad_one_are_stored(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        good = one_message(number)
        await peer.send(good + good + patched(good, 52, b"\0\0\0\0") + good)
        assert (await peer.fault()).code == "bad_checksum"
        peer = await served.greeted()
        assert (await peer.fetch(number)).visible_end == 2


async def test_what_the_broker_stamps_is_not_taken_from_the_client() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        forged = patched(one_message(number), 12, b"\xff" * 20)
        forged = patched(forged, 48, b"\xff" * 4)
        ack = await peer.publish(forged)
        batch = (await peer.fetch(number)).batches[0]
        assert (batch.base_offset, batch.header.leader_epoch) == (0, served.node.core.epoch)
        assert batch.append_time_us == ack.append_time_us < 1 << 62


@pytest.mark.parametrize("codec", [1, 2, 3])
async def test_columns_that_cannot_be_unpacked_are_stored_as_they_are(codec: int) -> None:
    """The broker looks at no record: the reader's client finds out."""
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(crafted(SIZES.pack(64, 64) + b"\xee" * 64, codec=codec, topic=number))
        async with served.client() as client, client.subscribe("t", start="earliest") as reader:
            with pytest.raises(MessagesLostError, match="does not decode") as caught:
                await reader.next(PATIENCE_SECONDS)
            assert isinstance(caught.value.__cause__, UnreadableError)


async def test_sizes_that_can_not_be_refuse_only_their_batch() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.send(crafted(b"\xee" * 64, codec=2, topic=number))
        refused = await peer.expect(FrameKind.REFUSED)
        assert b"unreadable" in refused.payload
        assert (await peer.publish(one_message(number))).base_offset == 0


async def test_an_unknown_topic_number_is_refused_and_the_connection_goes_on() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        for batch in (one_message(number + 1), one_message(number, partition=1)):
            await peer.send(batch)
            refused = await peer.expect(FrameKind.REFUSED)
            assert b"topic_not_found" in refused.payload
        assert (await peer.publish(one_message(number))).base_offset == 0


async def test_a_deleted_topics_number_is_refused() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(one_message(number))
        deleting = message_frame(FrameKind.DELETE_TOPIC, NamedTopic("t"), request=900)
        await peer.send(one_message(number) + deleting + one_message(number))
        got = [await peer.frame() for _ in range(3)]
        kinds = sorted(frame.kind.name for frame in got if frame is not None)
        assert kinds == ["ACK", "OK", "REFUSED"]
