"""WebSocket on raw sockets: fragments, control frames, close codes, and clients that lie."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from tests.listeners.web.conftest import Serving
from tests.listeners.web.wire import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    encode_frame,
    handshake,
    raw,
)

PING_OP = json.dumps({"op": "ping", "id": "asked"}).encode()


async def test_a_message_may_come_in_fragments_with_control_frames_between(
    serving: Serving,
) -> None:
    async with serving() as site, raw(site.listener.port) as client:
        await client.told("welcome")
        client.frame(TEXT, PING_OP[:5], fin=False)
        client.frame(PING, b"mark")
        client.frame(CONT, b"", fin=False)
        client.frame(CONT, PING_OP[5:9], fin=False)
        client.frame(PONG, b"unasked")
        client.frame(CONT, PING_OP[9:])
        assert await client.next() == (PONG, b"mark")
        assert (await client.told())["id"] == "asked"


@pytest.mark.parametrize(
    ("operation", "known"),
    [
        ({"op": "sub"}, "op: invalid value 'sub'; known: subscribe, unsubscribe, publish, "),
        ({"op": "subscribe", "topic": "a"}, "unknown field topic; known: target, start, "),
        (
            {"op": "subscribe", "target": "a", "policy": "drop"},
            "invalid value 'drop'; known: catch-up, ",
        ),
        (
            {"op": "subscribe", "target": "a", "filter": {"ky": "b"}},
            "unknown field ky; known: key, headers",
        ),
    ],
    ids=["op", "field", "value", "inner-field"],
)
async def test_a_wrong_operation_is_answered_with_what_is_known(
    serving: Serving, operation: dict[str, object], known: str
) -> None:
    async with serving() as site, raw(site.listener.port) as client:
        await client.told("welcome")
        client.frame(TEXT, json.dumps(operation).encode())
        assert known in (await client.told())["error"]["message"]


async def test_a_hasty_client_need_not_wait_for_the_handshake(serving: Serving) -> None:
    async with serving() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.listener.port)
        writer.write(handshake() + encode_frame(TEXT, PING_OP))
        await reader.readuntil(b'{"id":"asked","ok":{}}')
        writer.close()


async def test_a_message_may_come_byte_by_byte(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port) as client:
        await client.told("welcome")
        for byte in encode_frame(TEXT, PING_OP):
            client.writer.write(bytes((byte,)))
            await client.writer.drain()
        assert (await client.told())["id"] == "asked"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(encode_frame(TEXT, b"{}", mask=False), 1002, id="unmasked"),
        pytest.param(encode_frame(0x3, b""), 1002, id="unknown-opcode"),
        pytest.param(encode_frame(CONT, b"x"), 1002, id="continues-nothing"),
        pytest.param(
            encode_frame(TEXT, b"a", fin=False) + encode_frame(TEXT, b"b"), 1002, id="interleaved"
        ),
        pytest.param(encode_frame(PING, b"x" * 126), 1002, id="long-ping"),
        pytest.param(encode_frame(PING, b"", fin=False), 1002, id="fragmented-ping"),
        pytest.param(b"\xf1\x80\0\0\0\0", 1002, id="reserved-bits"),
        pytest.param(encode_frame(CLOSE, b"\x00"), 1002, id="half-a-close-code"),
        pytest.param(encode_frame(CLOSE, struct.pack(">H", 1005)), 1002, id="reserved-close-code"),
        pytest.param(encode_frame(CLOSE, struct.pack(">H", 99)), 1002, id="no-close-code"),
        pytest.param(encode_frame(CLOSE, b"\x03\xe8\xff"), 1007, id="close-reason-not-utf8"),
        pytest.param(encode_frame(TEXT, b'{"op":"\xff"}'), 1007, id="not-utf8"),
        pytest.param(
            encode_frame(TEXT, b"\xe2", fin=False) + encode_frame(CONT, b"\x28\xa1"),
            1007,
            id="not-utf8-in-fragments",
        ),
        pytest.param(encode_frame(BINARY, b"x"), 1003, id="binary"),
        pytest.param(encode_frame(TEXT, b" " * 2048), 1009, id="too-large"),
        pytest.param(
            encode_frame(TEXT, b" " * 700, fin=False) + encode_frame(CONT, b" " * 700),
            1009,
            id="too-large-in-fragments",
        ),
        pytest.param(b"\x81\xff\x7f" + b"\xff" * 11, 1009, id="claims-to-be-huge"),
        pytest.param(encode_frame(CLOSE, struct.pack(">H", 1000)), 1000, id="close"),
        pytest.param(encode_frame(CLOSE, struct.pack(">H", 4321) + b"mine"), 4321, id="own-code"),
    ],
)
async def test_close_codes_say_what_was_wrong(serving: Serving, sent: bytes, code: int) -> None:
    async with serving(message_bytes_max=1024) as site, raw(site.listener.port) as client:
        client.writer.write(sent)
        assert await client.close_code() == code
        # And then the server hangs up, whatever the client does.
        assert await client.next() == (-1, b"")


async def test_a_close_without_a_code_is_answered_without_one(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port) as client:
        await client.told("welcome")
        client.frame(CLOSE, b"")
        assert await client.next() == (CLOSE, b"")


async def test_what_was_published_before_the_close_is_stored(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port) as client:
        for i in range(100):
            client.say(op="publish", topic="t", text=str(i))
        client.frame(CLOSE, struct.pack(">H", 1000))
        async with site.broker.subscribe("t", start="earliest") as subscription:
            got = [(await subscription.next()).value for _ in range(100)]
        assert got == [str(i).encode() for i in range(100)]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Upgrade": ""}, b"426", id="no-upgrade"),
        pytest.param({"Connection": "keep-alive"}, b"426", id="no-connection-upgrade"),
        pytest.param({"Sec_WebSocket_Version": "8"}, b"426", id="old-version"),
        pytest.param({"Sec_WebSocket_Key": "short"}, b"400", id="bad-key"),
        pytest.param({"Sec_WebSocket_Key": ""}, b"400", id="no-key"),
        pytest.param({"Origin": "http://127.0.0.1.evil.example"}, b"403", id="other-origin"),
        pytest.param({"Origin": "null"}, b"403", id="origin-of-a-file"),
        pytest.param({"Origin": "http://127.0.0.1:1"}, b"403", id="origin-with-another-port"),
    ],
)
async def test_a_handshake_that_is_none(
    serving: Serving, headers: dict[str, str], status: bytes
) -> None:
    async with serving() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.listener.port)
        writer.write(handshake(**headers))
        line = await reader.readline()
        assert status in line
        writer.close()


async def test_silent_clients_are_pinged_and_then_cut(serving: Serving) -> None:
    async with serving(ping_seconds=0.5) as site, raw(site.listener.port) as client:
        while (await client.next())[0] != PING:
            pass
        assert await client.close_code() == 4002


async def test_who_answers_pings_stays(serving: Serving) -> None:
    # A process that stands still for a while must not look like a client that does not answer.
    async with serving(ping_seconds=5) as site, raw(site.listener.port) as client:
        pings = 0
        while pings < 2:
            opcode, data = await client.next()
            assert opcode != CLOSE
            if opcode == PING:
                pings += 1
                client.frame(PONG, data)
        assert (await client.ask(op="ping"))["ok"] == {}


async def test_a_message_that_drips_in_is_not_waited_for(serving: Serving) -> None:
    async with serving(body_timeout_seconds=0.5) as site, raw(site.listener.port) as client:
        sent = encode_frame(TEXT, b" " * 1000)

        async def drip() -> None:
            for i in range(len(sent) - 1):
                client.writer.write(sent[i : i + 1])
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await client.close_code() == 4002
        dripping.cancel()


async def test_a_flood_of_operations_is_read_at_the_pace_that_is_allowed(
    serving: Serving,
) -> None:
    limits = {"messages_per_second_max": 50, "requests_max": 4}
    async with serving(**limits) as site, raw(site.listener.port) as client:
        for i in range(75):
            client.say(op="publish", topic="t", text=str(i), id=i)
        answered: list[int] = []
        while len(answered) < 75:
            frame = await client.told()
            if "id" in frame:
                assert "ok" in frame
                answered.append(frame["id"])
        assert answered == list(range(75))


async def test_pings_of_a_client_that_reads_nothing_are_not_kept_without_end(
    serving: Serving,
) -> None:
    async with serving(control_bytes_max=16 * 1024) as site, raw(site.listener.port) as client:
        flood = encode_frame(PING, b"x" * 125) * 1000
        stuck = False
        for _ in range(200):
            client.writer.write(flood)
            try:
                await asyncio.wait_for(client.writer.drain(), 0.5)
            except TimeoutError:
                stuck = True
                break
        assert stuck
        async with raw(site.listener.port) as other:
            assert (await other.ask(op="ping"))["ok"] == {}
