"""Random bytes, and valid frames with random flaws: the server closes or answers, and has no fault
of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from typing import Any

import pytest

from tests.listeners.web.conftest import Serving
from tests.listeners.web.wire import encode_frame, handshake, raw

SEED = 6455
_OPERATIONS = (
    "subscribe",
    "unsubscribe",
    "publish",
    "request",
    "history",
    "presence",
    "token",
    "x",
)
_FIELDS = ("target", "topic", "start", "positions", "filter", "messages", "json", "before", "limit")


def _value(chance: random.Random, depth: int = 0) -> Any:
    simple = (
        None,
        True,
        -1,
        2**70,
        1e300,
        "",
        "a",
        ">",
        "$user",
        "a.>",
        "\x00",
        "\ud800",
        "é" * 300,
    )
    if depth > 2 or chance.random() < 0.7:
        return chance.choice(simple)
    if chance.random() < 0.5:
        return [_value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    names = ("offset", "time", "last", "key", "headers", "a/0", "text")
    return {chance.choice(names): _value(chance, depth + 1) for _ in range(chance.randint(0, 3))}


def _flawed(chance: random.Random) -> bytes:
    """An operation with random fields, sometimes in a frame with flipped bits."""
    operation: dict[str, Any] = {"op": chance.choice(_OPERATIONS), "target": "a", "topic": "a"}
    if operation["op"] in ("publish", "request", "presence", "history"):
        del operation["target"]
    elif operation["op"] != "nothing":
        del operation["topic"]
    for name in chance.sample(_FIELDS, chance.choice((0, 1, 1, 2))):
        operation[name] = _value(chance)
    opcode = chance.choice((1, 1, 1, 1, 2, 0, 9, 10, 8, 3))
    content = json.dumps(operation).encode() if opcode in (0, 1, 2) else b"\x03\xe8x"
    sent = bytearray(encode_frame(opcode, content, fin=chance.random() < 0.9))
    if chance.random() < 0.2:
        sent[chance.randrange(len(sent))] ^= 1 << chance.randrange(8)
    return bytes(sent)


async def _bother(port: int, chance: random.Random) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(handshake())
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(chance.randint(1, 20)):
            random_bytes = chance.random() < 0.05
            writer.write(chance.randbytes(50) if random_bytes else _flawed(chance))
        await writer.drain()
        if chance.random() < 0.5:
            writer.write_eof()
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


async def test_no_input_is_a_fault_of_ours(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(SEED)
    async with serving(accepts_per_second_max=0, wait_seconds_max=0.1) as site:
        for _ in range(30):
            crowd = [random.Random(chance.random()) for _ in range(10)]
            await asyncio.gather(*(_bother(site.listener.port, one) for one in crowd))
        async with raw(site.listener.port) as client:
            assert (await client.ask(op="ping"))["ok"] == {}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
