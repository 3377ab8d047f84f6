"""NATS: PUB and MSG, and JetStream with reply inboxes.

Law: what is sent and expected here is the NATS client protocol with verbose off. The server's PING
is answered before counting starts, because a PING among the messages would be counted as one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import TOPIC, expect, read_exactly, read_line


class NatsFanout:
    """PUB and MSG with verbose off."""

    messages = 1

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.received_bytes = len(b"MSG %s 1 %d\r\n%s\r\n" % (TOPIC, len(payload), payload))

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        nats_greet([publisher, *subscribers])
        for sock in subscribers:
            sock.sendall(b"SUB %s 1\r\nPING\r\n" % TOPIC)
        for sock in subscribers:
            expect(b"PONG", read_line(sock))

    def unit(self) -> bytes:
        return b"PUB %s %d\r\n%s\r\n" % (TOPIC, len(self._payload), self._payload)

    def join(self, publishers: Sequence[socket.socket]) -> None:
        nats_greet(publishers)

    def request(self) -> bytes:
        # NATS acknowledges no PUB. What a client's `flush` sends tells that it was read.
        return self.unit() + b"PING\r\n"

    def maybe_answer(self, subscribers: int) -> bytes:
        return b"PONG\r\n"

    def answer_bytes(self, subscribers: int) -> int:
        return len(self.maybe_answer(subscribers))


def nats_greet(socks: Sequence[socket.socket]) -> None:
    """CONNECT, then wait for the PING that the server sends about two seconds later.

    It is the only one within `ping_interval`; answered here, it is never among the counted bytes.
    """
    options = json.dumps({"verbose": False, "pedantic": False, "headers": True, "echo": True})
    for sock in socks:
        if not read_line(sock).startswith(b"INFO "):
            raise BenchError("the NATS server did not open with INFO")
        sock.sendall(b"CONNECT %s\r\nPING\r\n" % options.encode())
    for sock in socks:
        expect(b"PONG", read_line(sock))
    for sock in socks:
        line = read_line(sock)
        while line.startswith(b"INFO "):
            line = read_line(sock)
        expect(b"PING", line)
        sock.sendall(b"PONG\r\n")


class NatsStream:
    """PUB with a reply inbox into a JetStream stream; an acknowledgement is a MSG of two lines."""

    messages = 1
    INBOX = b"_INBOX.bench"

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._lines = 0

    def prepare(self, publisher: socket.socket) -> None:
        nats_greet([publisher])
        publisher.sendall(b"SUB %s.* 1\r\n" % self.INBOX)
        stream = {"name": "BENCH", "subjects": [TOPIC.decode()], "storage": "file"}
        self._request(publisher, b"$JS.API.STREAM.CREATE.BENCH", json.dumps(stream).encode())

    def cycle(self) -> list[bytes]:
        head = b"PUB %s %s.a %d\r\n" % (TOPIC, self.INBOX, len(self._payload))
        return [head + self._payload + b"\r\n"]

    def acknowledged(self, received: bytes) -> int:
        if b'"error"' in received or b"-ERR" in received or b"NATS/1.0 503" in received:
            raise BenchError(f"NATS refused a message: {received[:200]!r}")
        before = self._lines // 2
        self._lines += received.count(b"\n")
        return self._lines // 2 - before

    def stored(self, publisher: socket.socket) -> int:
        info = self._request(publisher, b"$JS.API.STREAM.INFO.BENCH", b"")
        return int(info["state"]["messages"])

    def _request(self, sock: socket.socket, subject: bytes, body: bytes) -> dict[str, Any]:
        sock.sendall(b"PUB %s %s.r %d\r\n%s\r\n" % (subject, self.INBOX, len(body), body))
        words = read_line(sock).split(b" ")
        if words[0] != b"MSG":
            raise BenchError(f"NATS answered {b' '.join(words)!r} to {subject!r}")
        answer = json.loads(read_exactly(sock, int(words[-1]) + 2))
        if "error" in answer:
            raise BenchError(f"NATS refused {subject!r}: {answer['error']}")
        return answer
