"""A WebSocket client on a raw socket: it sends what a proper client never would."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests import secured

TEXT, BINARY, CLOSE, PING, PONG, CONT = 0x1, 0x2, 0x8, 0x9, 0xA, 0x0


class RawSocket:
    """Frames as they are on the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def frame(self, opcode: int, data: bytes, *, fin: bool = True, mask: bool = True) -> None:
        self.writer.write(encode_frame(opcode, data, fin=fin, mask=mask))

    def say(self, **operation: Any) -> None:
        self.frame(TEXT, json.dumps(operation).encode())

    async def next(self) -> tuple[int, bytes]:
        """The next frame; an opcode of -1 is the end."""
        try:
            first, size = await self.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
            return first & 0x0F, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return -1, b""

    async def told(self, kind: str = "") -> Any:
        """The next JSON frame, of a type if one is given."""
        while True:
            opcode, data = await self.next()
            assert opcode in (TEXT, PING), (opcode, data)
            if opcode == PING:
                # On a slow machine a test outlives the patience of a server.
                self.frame(PONG, data)
            else:
                frame = json.loads(data)
                if not kind or frame.get("type") == kind:
                    return frame

    async def ask(self, **operation: Any) -> Any:
        """Sends an operation, and returns its answer; what comes before it is dropped."""
        self.say(id="asked", **operation)
        while True:
            frame = await self.told()
            if frame.get("id") == "asked":
                return frame

    async def close_code(self) -> int:
        """The code that the server closes with; -1 if it just hangs up."""
        while True:
            opcode, data = await self.next()
            if opcode == CLOSE:
                return struct.unpack(">H", data[:2])[0]
            if opcode == -1:
                return -1


def encode_frame(opcode: int, data: bytes, *, fin: bool = True, mask: bool = True) -> bytes:
    first = (0x80 if fin else 0) | opcode
    masked = 0x80 if mask else 0
    if len(data) < 126:
        head = struct.pack(">BB", first, masked | len(data))
    elif len(data) < 1 << 16:
        head = struct.pack(">BBH", first, masked | 126, len(data))
    else:
        head = struct.pack(">BBQ", first, masked | 127, len(data))
    if not mask:
        return head + data
    key = os.urandom(4)
    repeated = key * (len(data) // 4 + 1)
    mixed = int.from_bytes(data, "big") ^ int.from_bytes(repeated[: len(data)], "big")
    return head + key + mixed.to_bytes(len(data), "big")


def handshake(path: str = "/v1/ws", **headers: str) -> bytes:
    sent = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        **secured.headers(),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value)
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


@asynccontextmanager
async def raw(port: int, path: str = "/v1/ws", **headers: str) -> AsyncIterator[RawSocket]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, limit=1 << 24, ssl=secured.client_tls()
    )
    writer.write(handshake(path, **headers))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 101 " in head, head
    try:
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()
