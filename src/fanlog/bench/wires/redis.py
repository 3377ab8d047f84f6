"""Redis: PUBLISH and SUBSCRIBE, and streams with XADD.

Law: what is sent and expected here is RESP2 as any client would speak it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import TOPIC, expect, read_exactly, read_line


def resp_command(*words: bytes) -> bytes:
    """A Redis command as an array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


class RedisFanout:
    """PUBLISH, pipelined; subscribers receive `message` arrays."""

    messages = 1

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.received_bytes = len(resp_command(b"message", TOPIC, payload))

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        confirmed = b"*3\r\n" + resp_command(b"subscribe", TOPIC)[4:] + b":1\r\n"
        for sock in subscribers:
            sock.sendall(resp_command(b"SUBSCRIBE", TOPIC))
        for sock in subscribers:
            expect(confirmed, read_exactly(sock, len(confirmed)))

    def unit(self) -> bytes:
        return resp_command(b"PUBLISH", TOPIC, self._payload)

    def join(self, publishers: Sequence[socket.socket]) -> None:
        """Redis expects no greeting."""

    def request(self) -> bytes:
        return self.unit()

    def maybe_answer(self, subscribers: int) -> bytes:
        return b":%d\r\n" % subscribers

    def answer_bytes(self, subscribers: int) -> int:
        return len(self.maybe_answer(subscribers))


class RedisStream:
    """XADD to a stream; every reply is a bulk string of two lines."""

    messages = 1

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._lines = 0

    def prepare(self, publisher: socket.socket) -> None:
        """XADD makes the stream."""

    def cycle(self) -> list[bytes]:
        return [resp_command(b"XADD", TOPIC, b"*", b"v", self._payload)]

    def acknowledged(self, received: bytes) -> int:
        if b"-ERR" in received or b"-MISCONF" in received or b"-OOM" in received:
            raise BenchError(f"Redis refused a message: {received[:200]!r}")
        before = self._lines // 2
        self._lines += received.count(b"\n")
        return self._lines // 2 - before

    def stored(self, publisher: socket.socket) -> int:
        publisher.sendall(resp_command(b"XLEN", TOPIC))
        return int(read_line(publisher)[1:])
