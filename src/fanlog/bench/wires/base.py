"""What the load generator must know of a system's protocol: bytes to send, bytes to expect.

Law: a wire prepares sockets while they still block and builds its bytes before the clock starts;
during a measurement it is asked for nothing but the count of acknowledgements in what was read.
A unit is what travels as one piece: a message, or for Fanlog a batch of them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

from fanlog.bench.systems import HOST, BenchError

SETUP_TIMEOUT_S = 20.0
TOPIC = b"bench"


class FanoutWire(Protocol):
    """A protocol, for a publisher and its counting subscribers."""

    @property
    def messages(self) -> int:
        """Messages in one unit."""
        ...

    @property
    def received_bytes(self) -> int:
        """Bytes that one subscriber receives per unit."""
        ...

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        """Make fresh connections ready to publish, and to receive from the next message on."""
        ...

    def unit(self) -> bytes:
        """The bytes that publish one unit."""
        ...


class AnsweredWire(FanoutWire, Protocol):
    """A protocol, for many publishers that wait for the answer to each publish."""

    def join(self, publishers: Sequence[socket.socket]) -> None:
        """Make more fresh connections ready to publish, once one was prepared."""
        ...

    def request(self) -> bytes:
        """The bytes that publish one unit and ask for an answer to it."""
        ...

    def maybe_answer(self, subscribers: int) -> bytes | None:
        """The answer to a publish that this many subscribers receive; None if it differs each
        time."""
        ...

    def answer_bytes(self, subscribers: int) -> int:
        """The length of that answer."""
        ...


class AckedWire(Protocol):
    """A protocol, for a publisher that waits for acknowledgements."""

    @property
    def messages(self) -> int:
        """Messages in one unit."""
        ...

    def prepare(self, publisher: socket.socket) -> None:
        """Make a fresh connection ready to publish, and the stream that keeps the messages."""
        ...

    def cycle(self) -> list[bytes]:
        """Units of equal length, to be sent in turn over and over."""
        ...

    def acknowledged(self, received: bytes) -> int:
        """The number of units that these bytes from the system acknowledge."""
        ...

    def stored(self, publisher: socket.socket) -> int:
        """The number of messages stored, as the system reports it. The socket blocks again."""
        ...


def connect(port: int) -> socket.socket:
    """A blocking connection to a system under test, without Nagle's delay."""
    sock = socket.create_connection((HOST, port), timeout=SETUP_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_exactly(sock: socket.socket, length: int) -> bytes:
    """Exactly this many bytes, or BenchError when the peer closes first."""
    parts = bytearray()
    while len(parts) < length:
        part = sock.recv(length - len(parts))
        if not part:
            raise BenchError(f"the connection was closed after {bytes(parts)!r}")
        parts += part
    return bytes(parts)


def read_line(sock: socket.socket) -> bytes:
    """One line without its CR LF; byte by byte, because what follows belongs to the measurement."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        line += read_exactly(sock, 1)
    return bytes(line[:-2])


def expect(wanted: bytes, got: bytes) -> None:
    """Raises BenchError unless both are equal."""
    if got != wanted:
        raise BenchError(f"the system answered {got!r} where {wanted!r} was expected")
