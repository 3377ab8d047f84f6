"""The web, as counting subscribers see it: WebSocket and SSE, from Fanlog and from servers that
send to each client by itself.

Law: messages are counted by a mark that each has once, and the last one is known by its end.
Fanlog's publisher speaks the native protocol; that of the others is one more WebSocket. A
client's frames have a mask of zeros, which is a mask like any other.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from struct import Struct
from typing import Literal, Protocol

import msgspec

from fanlog.bench.systems import HOST, BenchError
from fanlog.bench.wires.base import TOPIC, read_exactly
from fanlog.bench.wires.fanlog import open_topic
from fanlog.format.batch import encode_batch

WebKind = Literal["websocket", "sse"]

_MEDIUM, _LONG = Struct(">H"), Struct(">Q")
_SHORT_MAX, _UINT16_MAX = 125, 65535
_FIN_TEXT, _MASKED = 0x81, 0x80
_HEAD_BYTES_MAX = 16 << 10


class WebWire(Protocol):
    """A publisher and counting subscribers of a web server."""

    messages: int
    mark: bytes
    end: bytes
    received_bytes: int

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None: ...
    def unit(self) -> bytes: ...


def client_frame(payload: bytes) -> bytes:
    """A whole text frame of a client."""
    size = len(payload)
    if size <= _SHORT_MAX:
        head = bytes((_FIN_TEXT, _MASKED | size))
    elif size <= _UINT16_MAX:
        head = bytes((_FIN_TEXT, _MASKED | 126)) + _MEDIUM.pack(size)
    else:
        head = bytes((_FIN_TEXT, _MASKED | 127)) + _LONG.pack(size)
    return head + bytes(4) + payload


def read_frame(sock: socket.socket) -> bytes:
    """The payload of a server's next frame."""
    _, size = read_exactly(sock, 2)
    if size == 126:
        (size,) = _MEDIUM.unpack(read_exactly(sock, 2))
    elif size == 127:
        (size,) = _LONG.unpack(read_exactly(sock, 8))
    return read_exactly(sock, size)


_UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


def ask(sock: socket.socket, path: str, *headers: str) -> None:
    """Sends a GET."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {HOST}", *headers, "", ""]
    sock.sendall("\r\n".join(lines).encode())


def expect_status(sock: socket.socket, status: int) -> None:
    """Reads the head of the answer, and nothing after it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        there = sock.recv(_HEAD_BYTES_MAX, socket.MSG_PEEK)
        end = there.find(b"\r\n\r\n")
        head += read_exactly(sock, end + 4 if end >= 0 else min(1, len(there)) or 1)
        if len(head) > _HEAD_BYTES_MAX:
            break
    if b" %d " % status not in head.split(b"\r\n")[0]:
        raise BenchError(f"a web server answered {head!r}")


def upgrade(sock: socket.socket, path: str) -> None:
    """Makes a WebSocket of a connection."""
    ask(sock, path, *_UPGRADE)
    expect_status(sock, 101)


def listen(sock: socket.socket, path: str) -> None:
    """Makes an event stream of a connection."""
    ask(sock, path, "Accept: text/event-stream")
    expect_status(sock, 200)


class FanlogWeb:
    """Fanlog's web listener. Batches are published over the native protocol."""

    mark = b'"offset":'

    def __init__(self, payload: bytes, batch: int, listener: WebKind) -> None:
        self.messages = batch
        self._listener: WebKind = listener
        self._values = [payload] * batch
        self._unit = b""
        self.received_bytes = (len(payload) + 70) * batch
        self.end = b"]}" if listener == "websocket" else b"\n\n"

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        number = open_topic(publisher, "memory", 1)
        self._unit = encode_batch(self._values, topic=number)
        subscribe(subscribers, self._listener)

    def unit(self) -> bytes:
        return self._unit


def subscribe(
    socks: Sequence[socket.socket], listener: WebKind, target: str = TOPIC.decode()
) -> None:
    """Subscribes to a topic of Fanlog, on many connections at the same time."""
    if listener == "sse":
        for sock in socks:
            ask(sock, f"/v1/topics/{target}/stream", "Accept: text/event-stream")
        for sock in socks:
            expect_status(sock, 200)
        return
    for sock in socks:
        ask(sock, "/v1/ws", *_UPGRADE)
    asked = client_frame(msgspec.json.encode({"op": "subscribe", "id": 1, "target": target}))
    for sock in socks:
        expect_status(sock, 101)
        sock.sendall(asked)
    for sock in socks:
        answer: dict[str, object] = {}
        while answer.get("id") != 1:
            answer = msgspec.json.decode(read_frame(sock))
        if "ok" not in answer:
            raise BenchError(f"Fanlog refused a subscription: {answer}")


class PerClientWeb:
    """A server that sends to each client by itself; see `web_servers`."""

    messages = 1
    mark = b"text"

    def __init__(self, payload: bytes, system: str, listener: WebKind) -> None:
        self._system = system
        self._listener: WebKind = listener
        self._unit = client_frame(b'{"text":"%b"}' % payload)
        self.received_bytes = len(payload) + 20
        ends = {"socketio": b'"]'}
        self.end = b"\n\n\r\n" if listener == "sse" else ends.get(system, b'"}')

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        upgrade(publisher, "/publish")
        for sock in subscribers:
            if self._listener == "sse":
                listen(sock, "/events")
            elif self._system == "socketio":
                upgrade(sock, "/socket.io/?EIO=4&transport=websocket")
                read_frame(sock)
                sock.sendall(client_frame(b"40"))
                read_frame(sock)
            else:
                upgrade(sock, "/subscribe")

    def unit(self) -> bytes:
        return self._unit
