"""Connections that do not begin as they must: they are told so, and nobody else notices."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
import redis

from fanlog.format import messages
from fanlog.format.frames import MAGIC, FrameKind, frame, message_frame
from tests.listeners.peers import one_message, patched, raw_frame, serving

TLS_CLIENT_HELLO = bytes.fromhex(
    "16030100a5010000a10303" + "ab" * 32 + "20" + "cd" * 32 + "0004130113020100"
)
HELLO = message_frame(FrameKind.HELLO, messages.Hello((1,), "x"), aux=MAGIC)

# What its own client shows to its user.
ANSWERED = {
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", b"HTTP/1.1 400 "),
    "a Redis PING": (b"*1\r\n$4\r\nPING\r\n", b"-ERR The connection began with Redis"),
    "an inline Redis PING": (b"PING\r\n", b"-ERR The connection began with Redis"),
    "a NATS CONNECT": (b'CONNECT {"verbose":false}\r\n', b"-ERR 'The connection began with NATS"),
}

OTHER_PROTOCOLS = {
    "a TLS ClientHello": TLS_CLIENT_HELLO,
    "a Kafka ApiVersions": bytes.fromhex("00000014001200030000000100047465737400" + "00" * 8),
    "zeros": b"\0" * 64,
    "ones": b"\xff" * 64,
    "a batch": one_message(1),
    "a PING frame": frame(FrameKind.PING),
    "a WELCOME": frame(FrameKind.WELCOME, b"\x80", aux=MAGIC),
    "a HELLO with another magic": patched(HELLO, 12, b"GOLF"),
    "five bytes and a wrong kind": b"\x20\0\0\0\x07",
}


@pytest.mark.parametrize("begin", OTHER_PROTOCOLS.values(), ids=OTHER_PROTOCOLS)
async def test_another_protocol_is_told_that_this_is_not_its_port(begin: bytes) -> None:
    async with serving() as served:
        peer = await served.dial()
        await peer.send(begin)
        assert (await peer.fault()).code == "bad_magic"


@pytest.mark.parametrize(("begin", "answer"), ANSWERED.values(), ids=ANSWERED)
async def test_a_known_protocol_gets_an_answer_that_it_can_read(
    begin: bytes, answer: bytes
) -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(begin)
        got = await reader.read()
        writer.close()
        assert got.startswith(answer)
        assert b"this is a port for Fanlog's own clients" in got


def ping_as_redis(port: int) -> None:
    pool = redis.ConnectionPool(port=port)
    try:
        redis.Redis(connection_pool=pool).ping()
    finally:
        pool.disconnect()


async def test_a_redis_client_at_the_native_port_is_told_the_port_for_redis_clients() -> None:
    async with serving() as served:
        with pytest.raises(redis.ResponseError, match="Redis clients connect to port 7421"):
            await asyncio.to_thread(ping_as_redis, served.port)


@pytest.mark.parametrize("seed", range(8))
async def test_random_bytes_end_the_connection_with_an_error(seed: int) -> None:
    noise = random.Random(seed).randbytes(4096)
    async with serving() as served:
        peer = await served.dial()
        await peer.send(noise)
        assert (await peer.fault()).code in ("bad_magic", "bad_frame")


async def test_a_connection_that_closes_without_a_byte_leaves_nothing_behind() -> None:
    async with serving() as served:
        peer = await served.dial()
        await served.until(lambda: served.connections == 1)
        peer.close()
        await served.until(lambda: served.connections == 0)


@pytest.mark.parametrize("size", [1, 4, 5, 15, 16, len(HELLO) - 1])
async def test_a_connection_that_closes_within_its_hello_leaves_nothing_behind(size: int) -> None:
    async with serving() as served:
        peer = await served.dial()
        await peer.send(HELLO[:size])
        peer.finish_sending()
        assert await peer.rest() == []
        await served.until(lambda: served.connections == 0)


@pytest.mark.parametrize("length", [0, 1, 15, 2**24 + 1, 2**31, 2**32 - 1])
async def test_a_hello_of_absurd_length_is_refused_at_once(length: int) -> None:
    async with serving() as served:
        peer = await served.dial()
        await peer.send(patched(HELLO, 0, length.to_bytes(4, "little")))
        assert (await peer.fault()).code == "bad_frame"


async def test_a_frame_of_another_protocol_version_is_refused() -> None:
    async with serving() as served:
        peer = await served.dial()
        await peer.send(patched(HELLO, 5, b"\x02"))
        assert (await peer.fault()).code == "unsupported_version"


@pytest.mark.parametrize("versions", [(), (0,), (2, 3)])
async def test_a_client_of_other_versions_only_is_refused(versions: tuple[int, ...]) -> None:
    async with serving() as served:
        peer = await served.dial()
        greeting = messages.Hello(versions, "from the future")
        await peer.send(message_frame(FrameKind.HELLO, greeting, aux=MAGIC))
        failure = await peer.fault()
        assert failure.code == "unsupported_version"
        assert "speaks 1" in failure.message


async def test_a_client_of_several_versions_gets_the_one_that_both_speak() -> None:
    async with serving() as served:
        peer = await served.dial()
        greeting = {"versions": [3, 2, 1], "client": "newer", "a field of tomorrow": [1, {}]}
        payload = msgspec.msgpack.encode(greeting)
        await peer.send(frame(FrameKind.HELLO, payload, request=9, aux=MAGIC))
        welcome = await peer.expect(FrameKind.WELCOME)
        assert welcome.request == 9
        assert welcome.read(messages.Welcome).version == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x80", b"\x93\x01\x02", msgspec.msgpack.encode({"versions": "1"})],
    ids=["nothing", "no MessagePack", "no versions", "cut", "a string"],
)
async def test_a_hello_that_says_nothing_readable_is_refused(payload: bytes) -> None:
    async with serving() as served:
        peer = await served.dial()
        await peer.send(frame(FrameKind.HELLO, payload, aux=MAGIC))
        assert (await peer.fault()).code == "bad_frame"


async def test_a_second_hello_is_refused() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(HELLO)
        assert (await peer.fault()).code == "unknown_command"


@pytest.mark.parametrize("kind", [0x00, 0x1F, 0x44, 0x45, 0x7F, 0x90, 0xFF])
async def test_an_unknown_frame_kind_is_refused(kind: int) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(raw_frame(16, kind))
        failure = await peer.fault()
        assert failure.code == "unknown_command"
        assert f"{kind:#04x}" in failure.message


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind >= 0x80])
async def test_a_frame_that_is_meant_for_clients_is_refused(kind: FrameKind) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(frame(kind, b"\x80"))
        assert (await peer.fault()).code == "unknown_command"
